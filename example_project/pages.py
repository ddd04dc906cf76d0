"""The page at ``/``: to sign in, and to chat. All else is done by the REST API and the chat endpoint."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie

from example_project.llm import IS_REAL, model
from example_project.texts import TEXTS

View = Callable[..., HttpResponseBase]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing is fetched from elsewhere, and nothing that stands in a page is a script or a style."""

DEMO = "demo"
"""The name of the user that ``manage.py demo`` makes, and the password."""


def strict(view: View) -> View:
    """Have what *view* answers under ``POLICY``, in the language of the browser."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with translation.override(translation.get_language_from_request(request)):
            response = view(request, *args, **kwargs)
            if isinstance(response, TemplateResponse):
                response.render()
        response.headers["Content-Security-Policy"] = POLICY
        patch_vary_headers(response, ["Accept-Language"])
        return response

    return respond


@strict
@never_cache
@login_required
@ensure_csrf_cookie  # the scripts send it back with whatever changes something
def chat(request: HttpRequest) -> HttpResponse:
    """Show the chat. The conversation is that of ``?chat=``, which is the scripts' affair."""
    context = {"texts": TEXTS, "model": getattr(model, "model_name", getattr(model, "name", "")), "is_real": IS_REAL}
    return render(request, "chat/page.html", context)


class SignIn(LoginView):
    """Signs people in; where ``DEBUG`` says that this is no public site, the demo user is offered."""

    template_name = "chat/sign_in.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(offered=DEMO if settings.DEBUG else "", **kwargs)


sign_in = strict(SignIn.as_view())
