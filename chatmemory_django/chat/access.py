"""Access control of the chat: authentication, rate limits, and which conversation a chat id names."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from django.core.cache import cache
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.access import user_of_token
from chatmemory_django.core.limits import is_uuid, memory_key
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

_GENERATED = re.compile("[0-9A-Za-z]{16}")
"""The format of the chat ids that the AI SDK generates."""

_RATE = re.compile(r"([0-9]+)/(?:(s|sec|second)|(m|min|minute)|(h|hour)|(d|day))")
_SECONDS = (1, 60, 3600, 86_400)


class NotAllowedError(Exception):
    """A refused request: the HTTP *status* of the response, and a text for the client."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class ChatAccessPolicy:
    """
    Allow every authenticated user to chat, by session or by token of DRF's ``authtoken``.

    A token is sent as ``Authorization: Bearer …``. Extend this class to apply other rules, and set
    ``CHATMEMORY["CHAT"]["ACCESS_POLICY"]`` to its path.
    """

    def user(self, request: HttpRequest) -> AbstractBaseUser:
        """
        Return the user who sent *request*; raise ``NotAllowedError`` if no one is authenticated.

        This method is called in a thread. Requests that are authenticated by session must have a valid CSRF token.
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
        Return the memory id of the conversation that *chat_id* names for *user*.

        If the user owns a conversation with this memory id, it is that one. Otherwise, UUIDs and ids that the AI SDK
        generates become the memory id of a new conversation, and any other id is prefixed with the user's key, so that
        no one can take an id of the site or of another user. Raises ``ValueError`` if the id is invalid.
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
    """Return an instance of the access policy that is configured in the settings."""
    policy: ChatAccessPolicy = import_string(conf.chat()["ACCESS_POLICY"])()
    return policy


def check_rate(user: AbstractBaseUser) -> None:
    """Count a request of *user*, and raise ``NotAllowedError`` if it exceeds the setting ``THROTTLE_RATE``."""
    rate: str | None = conf.chat()["THROTTLE_RATE"]
    if rate is None:
        return
    most, seconds = parsed_rate(rate)
    period, passed = divmod(time.time(), seconds)
    key = f"chatmemory_chat_{user.pk}_{period:.0f}"
    cache.add(key, 0, seconds)
    try:
        count = cache.incr(key)
    except ValueError:  # the key expired between the two calls
        count = 1
    if count > most:
        wait = int(seconds - passed) + 1
        raise NotAllowedError(429, f"Too many messages; wait {wait} seconds.", **{"Retry-After": str(wait)})


def parsed_rate(rate: str) -> tuple[int, int]:
    """Parse *rate*, for example "60/min", and return (requests, seconds); raise ``ValueError`` if it is invalid."""
    found = _RATE.fullmatch(rate)
    if found is None:
        raise ValueError(
            f"A rate is a number of requests per second, minute, hour or day, for example '60/min', not {rate!r}."
        )
    [seconds] = [each for each, unit in zip(_SECONDS, found.groups()[1:], strict=True) if unit]
    return int(found[1]), seconds


def _never(request: HttpRequest) -> Any:
    raise AssertionError("The CSRF check must not call the view.")


class _CsrfCheck(CsrfViewMiddleware):
    def refusal(self, request: HttpRequest) -> str | None:
        """Return the reason for refusing *request*, or None if its CSRF token is valid."""
        self.process_request(request)
        reason: Any = self.process_view(request, _never, (), {})
        return reason  # type: ignore[no-any-return]

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason  # as DRF does: process_view() returns what this method returns
