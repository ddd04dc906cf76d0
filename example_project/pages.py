"""The pages at ``/``: signing in and chatting. The rest is done by the REST API and the chat endpoint."""

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
"""Pages load nothing from other sites, and inline scripts and styles are forbidden."""

DEMO = "demo"
"""The user name and the password that ``manage.py demo`` creates."""


def strict(view: View) -> View:
    """Return *view* with the header of ``POLICY``, and in the language of the browser."""

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
@ensure_csrf_cookie  # the scripts send the token with unsafe requests
def chat(request: HttpRequest) -> HttpResponse:
    """Render the chat. The scripts open the conversation in ``?chat=``."""
    context = {"texts": TEXTS, "model": getattr(model, "model_name", getattr(model, "name", "")), "is_real": IS_REAL}
    return render(request, "chat/page.html", context)


class SignIn(LoginView):
    """Sign users in; with ``DEBUG``, the page offers the demo user."""

    template_name = "chat/sign_in.html"
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return super().get_context_data(offered=DEMO if settings.DEBUG else "", **kwargs)


sign_in = strict(SignIn.as_view())
