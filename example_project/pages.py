"""The pages at ``/``: signing in and chatting. The rest is done by the REST API and the chat endpoint."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.contrib.auth.signals import user_login_failed
from django.contrib.auth.views import LoginView
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from drf_spectacular.views import SpectacularSwaggerSplitView

from chatmemory_django.access import count_wrong_credentials
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.costs.usage import usage
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.chat.ui_messages.files import KINDS, TEXT_TYPES
from chatmemory_django.core.limits import MAX_TITLE_LENGTH
from example_project.llm import IS_REAL, model
from example_project.policy import DOCUMENTATION_POLICY
from example_project.texts import TEXTS, WORDS
from example_project.tokens import TokenView

View = Callable[..., HttpResponseBase]

DEMO = "demo"
"""The user name and the password that ``manage.py demo`` creates."""

ACCEPTED = ",".join([*(kind if "/" in kind else f"{kind}/*" for kind in KINDS.values()), *TEXT_TYPES])
"""The media types of files that the chat takes."""


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


@translated
@never_cache
@login_required
@ensure_csrf_cookie  # the scripts send the token with unsafe requests
def chat(request: HttpRequest) -> HttpResponse:
    """Render the chat. The scripts open the conversation in ``?chat=``."""
    context = {
        "texts": TEXTS,
        "words": WORDS,
        "accepted": ACCEPTED,
        "longest": chat_settings().MAX_TEXT_LENGTH,
        "longest_title": MAX_TITLE_LENGTH,
        "model": getattr(model, "model_name", getattr(model, "name", "")),
        "is_real": IS_REAL,
        "used": used_by(request.user),
    }
    return render(request, "chat/page.html", context)


def used_by(user: Any) -> int:
    """Return how many tokens the model used for *user* in the last 30 days."""
    now = datetime.now(UTC)
    rows = usage(ModelCall.objects.owned_by(user), "purpose", since=now - timedelta(days=30), until=now, limit=10)
    return sum(row.input + row.output for row in rows)


class SignIn(LoginView):
    """Sign users in; with ``DEBUG``, the page offers the demo user."""

    template_name = "chat/sign_in.html"
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
