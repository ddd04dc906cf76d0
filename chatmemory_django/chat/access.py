"""Who may chat, how often, and in which conversations."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.cache import cache
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.ids import is_uuid, memory_key
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

_GENERATED = re.compile("[0-9A-Za-z]{16}")
"""The chat ids that the AI SDK makes up."""

_RATE = re.compile(r"([0-9]+)/(?:(s|sec|second)|(m|min|minute)|(h|hour)|(d|day))")
_SECONDS = (1, 60, 3600, 86_400)


class NotAllowedError(Exception):
    """A request is refused with the HTTP *status*; the text is for whoever sent it."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class ChatAccessPolicy:
    """
    Whoever is signed in may chat, by ``Authorization: Bearer`` with a token of DRF's ``authtoken``, or by session.

    Extend this for other rules, and name it in ``CHATMEMORY["CHAT"]["ACCESS_POLICY"]``.
    """

    def user(self, request: HttpRequest) -> AbstractBaseUser:
        """
        Return who sends *request*; it is called in a thread. ``NotAllowedError`` for nobody.

        Requests that go by the session must have a CSRF token.
        """
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() in {"bearer", "token"}:
            user = user_of_token(key.strip())
            if user is None:
                raise NotAllowedError(401, "The token is invalid.", **{"WWW-Authenticate": "Bearer"})
            return user
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            raise NotAllowedError(401, "Sign in to chat.", **{"WWW-Authenticate": "Bearer"})
        reason = _CsrfCheck(_never).refusal(request)
        if reason is not None:
            raise NotAllowedError(403, f"CSRF: {reason}")
        return user  # type: ignore[no-any-return]

    def memory_id(self, user: AbstractBaseUser, chat_id: str) -> str:
        """
        Return which conversation *chat_id* names for *user*.

        That is the user's own of this memory id; else, so that nobody takes an id of the site's or of another user's,
        a UUID and what the AI SDK makes up name a new one as they are, and anything else behind the key of the user.
        ``ValueError`` if the id is invalid.
        """
        key = memory_key(chat_id)
        if (
            is_uuid(key)
            or _GENERATED.fullmatch(key)
            or Conversation.objects.filter(memory_id=key, owner=user.pk).exists()
        ):
            return key
        return memory_key(f"{user.pk}:{key}")


def access_policy() -> ChatAccessPolicy:
    """Return the policy that the settings name."""
    policy: ChatAccessPolicy = import_string(conf.chat()["ACCESS_POLICY"])()
    return policy


def user_of_token(key: str) -> AbstractBaseUser | None:
    """Return the active user of a token of ``rest_framework.authtoken``; None if there is none."""
    if not apps.is_installed("rest_framework.authtoken"):
        return None
    tokens = apps.get_model("authtoken", "Token").objects.select_related("user")
    token = tokens.filter(key=key).first() if key.isascii() and key.isprintable() else None
    return token.user if token is not None and token.user.is_active else None


def check_rate(user: AbstractBaseUser) -> None:
    """Count a request of *user*; ``NotAllowedError`` if there were too many in the second, minute, hour or day."""
    rate: str | None = conf.chat()["THROTTLE_RATE"]
    if rate is None:
        return
    most, seconds = parsed_rate(rate)
    period, passed = divmod(time.time(), seconds)
    key = f"chatmemory_chat_{user.pk}_{period:.0f}"
    cache.add(key, 0, seconds)
    try:
        count = cache.incr(key)
    except ValueError:  # it has just expired
        count = 1
    if count > most:
        wait = int(seconds - passed) + 1
        raise NotAllowedError(429, f"Too many messages; wait {wait} seconds.", **{"Retry-After": str(wait)})


def parsed_rate(rate: str) -> tuple[int, int]:
    """Return how many in how many seconds *rate* is, "60/min" for example; ``ValueError`` if it is none."""
    found = _RATE.fullmatch(rate)
    if found is None:
        raise ValueError(f"A rate is a number in a second, minute, hour or day, '60/min' for example, not {rate!r}.")
    [seconds] = [each for each, unit in zip(_SECONDS, found.groups()[1:], strict=True) if unit]
    return int(found[1]), seconds


def _never(request: HttpRequest) -> Any:
    raise AssertionError("The check of CSRF tokens calls no view.")


class _CsrfCheck(CsrfViewMiddleware):
    def refusal(self, request: HttpRequest) -> str | None:
        """Return why the request is refused; None if it is not."""
        self.process_request(request)
        reason: Any = self.process_view(request, _never, (), {})
        return reason  # type: ignore[no-any-return]

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason  # DRF does the same: there is no other way to be told
