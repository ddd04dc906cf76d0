"""What the site has around the chat page: signing in, tokens and the documentation of the API."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.signals import user_login_failed
from django.contrib.auth.views import LoginView
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils import translation
from django.utils.cache import patch_vary_headers
from drf_spectacular.views import SpectacularSwaggerSplitView

from chatmemory_django.access import count_wrong_credentials
from example_project.llm import IS_REAL, model
from example_project.policy import DOCUMENTATION_POLICY
from example_project.tokens import TokenView

View = Callable[..., HttpResponseBase]

DEMO = "demo"
"""The user name and the password that ``manage.py demo`` creates."""


def translated(view: View) -> View:
    """Return *view* in the language of the browser."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with translation.override(translation.get_language_from_request(request)):
            response = view(request, *args, **kwargs)
            if isinstance(response, TemplateResponse):
                response.render()
        patch_vary_headers(response, ["Accept-Language"])
        return response

    return respond


def limited(view: View) -> View:
    """Return *view* with the limit of the app's APIs on wrong passwords; the right one passes at any time."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if not (seconds := getattr(request, "seconds_to_wait", 0)):
            return response
        text = f"Too many failed attempts. Try again in {seconds} seconds."
        return HttpResponse(text, "text/plain", status=429, headers={"Retry-After": str(seconds)})

    return respond


@receiver(user_login_failed)
def count_failure(request: Any, credentials: dict[str, Any], **kwargs: Any) -> None:
    """Count a wrong password, wherever it was sent, and note on the request for how long its client has to wait."""
    if request is not None:
        request = getattr(request, "_request", request)  # Django's own, behind DRF's
        request.seconds_to_wait = count_wrong_credentials(request, credentials.get("username", ""))


def about(request: HttpRequest) -> dict[str, Any]:
    """Return the name of the model for the chat page: a context processor."""
    return {"model": getattr(model, "model_name", getattr(model, "name", "")), "is_real": IS_REAL}


class SignIn(LoginView):
    """Sign users in; with ``DEBUG``, the page offers the demo user."""

    template_name = "sign_in.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(offered=DEMO if settings.DEBUG else "", **kwargs)


sign_in = limited(translated(SignIn.as_view()))


token = limited(TokenView.as_view())


def documentation(request: HttpRequest) -> HttpResponseBase:
    """Render the REST API's documentation, whose scripts are not inline."""
    response: HttpResponseBase = SpectacularSwaggerSplitView.as_view(url_name="schema")(request)
    response.headers["Content-Security-Policy"] = DOCUMENTATION_POLICY
    return response
