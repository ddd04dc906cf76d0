"""Access control: which users may do what by REST, the chat, OpenAI's API and MCP, and how often."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from django.apps import apps
from django.core.cache import cache
from django.db.models import QuerySet
from django.http import HttpRequest
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.core.limits import is_uuid, memory_key
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from rest_framework.authentication import BaseAuthentication  # a site may chat without DRF

Verb: TypeAlias = Literal["view", "change", "delete"]
"""What a user wants to do with a conversation, named like Django's model permissions."""

ALL = frozenset(MessageType)
SPOKEN = frozenset({MessageType.USER, MessageType.AI, MessageType.TOOL_EXECUTION_RESULT})
"""Messages of users, models and tools. All others are between the site and the model."""

FEEDBACK = "feedback"
"""The key in the metadata of a message that holds the user's rating of it."""

_GENERATED = re.compile("[0-9A-Za-z]{16}")
"""The format of the chat ids that the AI SDK generates."""

_RATE = re.compile("([1-9][0-9]*)/(s|sec|second|m|min|minute|h|hour|d|day)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class NotAllowedError(Exception):
    """A refused request of the chat: the HTTP *status* of the response, and a text for the client."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class AccessPolicy:
    """
    The default policy: owners read their conversations and add user messages; permissions allow more.

    It applies to the REST API, the chat over HTTP, OpenAI's Conversations API and MCP. Subclass it for other rules, for
    example those of a site with tenants, and set the subclass in ``CHATMEMORY["ACCESS_POLICY"]``, or as the
    ``policy_class`` of a view of the REST API.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] | None = None
    """The REST API's authentication classes; None for the site's own, DRF's ``DEFAULT_AUTHENTICATION_CLASSES``."""

    def user(self, request: HttpRequest) -> AbstractBaseUser:
        """
        Return the user who sent *request* to the chat; raise ``NotAllowedError`` if no one is authenticated.

        By default, this is the user of a token of DRF's ``authtoken``, sent as ``Authorization: Bearer …``, or of a
        session, which must come with a valid CSRF token. This method is called in a thread.
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

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the user may read or write conversations at all; if not, the response is 401 or 403."""
        return bool(request.user and request.user.is_authenticated)

    def memory_id(self, request: HttpRequest, chat_id: str) -> str:
        """
        Return the memory id of the conversation that the chat's *chat_id* names for the user.

        If the user owns a conversation with this memory id, it is that one. Otherwise, UUIDs and ids that the AI SDK
        generates become the memory id of a new conversation, and any other id is prefixed with the user's key, so that
        no one can take an id of the site or of another user. Raises ``ValueError`` if the id is invalid.
        """
        key, owner = memory_key(chat_id), request.user.pk
        if (
            is_uuid(key)
            or _GENERATED.fullmatch(key)
            or Conversation.objects.filter(memory_id=key, owner=owner).exists()
        ):
            return key
        return memory_key(f"{owner}:{key}")

    def sees_everybody(self, request: HttpRequest, verb: Verb) -> bool:
        """Return whether the user may do *verb* to all conversations: staff with this and the view permission."""
        return all(self._is_staff_with(request, f"{each}_conversation") for each in {"view", verb})

    def conversations(self, request: HttpRequest, verb: Verb) -> QuerySet[Conversation]:
        """Return the conversations to which the user may do *verb*. Those that the user may not view are 404."""
        if self.sees_everybody(request, verb):
            return Conversation.objects.all()
        return Conversation.objects.owned_by(request.user)

    def is_own(self, request: HttpRequest, conversation: Conversation) -> bool:
        """Return whether *conversation*, which the user may view, counts as the user's own."""
        return conversation.owner_id == request.user.pk or not self.sees_everybody(request, "view")

    def owner_of_new(self, request: HttpRequest) -> AbstractBaseUser | None:
        """Return the owner of a new conversation."""
        return request.user  # type: ignore[return-value]  # is_allowed() has checked

    def readable_types(self, request: HttpRequest, *, own: bool) -> Collection[MessageType]:
        """Return the types of messages that the user may read, with metadata, in *own* or others' conversations."""
        if self._is_staff_with(request, "view_message_text"):
            return ALL
        return SPOKEN if own else frozenset()

    def writable_types(self, request: HttpRequest) -> Collection[MessageType]:
        """Return the types of messages that the user may add."""
        return ALL if request.user.has_perm("chatmemory.add_message") else {MessageType.USER}

    def removable_types(self, request: HttpRequest) -> Collection[MessageType]:
        """
        Return the types of messages that the user may remove from a history: none without a permission.

        A user who removes a question makes its answer look like the answer to another one. To correct a question,
        users edit it, which keeps the original on another branch.
        """
        return ALL if request.user.has_perm("chatmemory.delete_message") else frozenset()

    def writable_metadata(self, request: HttpRequest, type: MessageType) -> Collection[str] | None:
        """Return the keys that the user may change in the metadata of messages of *type*; None for all."""
        return None if type in self.writable_types(request) else {FEEDBACK}

    def is_server(self, request: HttpRequest) -> bool:
        """
        Return whether the user is a server of the site, which has full access to its own conversations.

        OpenAI's Conversations API lets such users read all types of messages, and does not throttle them. By default,
        these are users who may add messages of every type: they wrote the prompts that others must not read.
        """
        return ALL.issubset(self.writable_types(request))

    def may_set_memory(self, request: HttpRequest) -> bool:
        """Return whether the user may replace memories."""
        return request.user.has_perm("chatmemory.set_conversation")

    def may_import(self, request: HttpRequest) -> bool:
        """Return whether the user may import conversations."""
        return request.user.has_perm("chatmemory.import_conversation")

    def may_export(self, request: HttpRequest, *, own: bool) -> bool:
        """Return whether the user may export the messages of the readable types."""
        return own or self._is_staff_with(request, "export_conversation")

    def may_name(self, request: HttpRequest) -> bool:
        """Return whether the user may choose memory ids that are not UUIDs, which could clash with the site's own."""
        return bool(getattr(request.user, "is_staff", False))

    def _is_staff_with(self, request: HttpRequest, permission: str) -> bool:
        user = request.user
        return bool(getattr(user, "is_staff", False)) and user.has_perm(f"chatmemory.{permission}")


def access_policy() -> AccessPolicy:
    """Return an instance of the policy in the settings."""
    policy: AccessPolicy = import_string(conf.access_policy_class())()
    return policy


def user_of_token(key: str) -> AbstractBaseUser | None:
    """Return the active user of a token of ``rest_framework.authtoken``, or None for an invalid token."""
    if not apps.is_installed("rest_framework.authtoken"):
        return None
    tokens = apps.get_model("authtoken", "Token").objects.select_related("user")
    token = tokens.filter(key=key).first() if key.isascii() and key.isprintable() else None
    return token.user if token is not None and token.user.is_active else None


def is_rate(rate: object) -> bool:
    """Return whether *rate* is valid, for example "60/min", or None for no limit."""
    return rate is None or (isinstance(rate, str) and _RATE.fullmatch(rate) is not None)


def parsed_rate(rate: str) -> tuple[int, int]:
    """Parse *rate*, for example "60/min", and return (requests, seconds); raise ``ValueError`` if it is invalid."""
    found = _RATE.fullmatch(rate)
    if found is None:
        raise ValueError(
            f"A rate is a number of requests per second, minute, hour or day, for example '60/min', not {rate!r}."
        )
    return int(found[1]), _SECONDS[found[2][0]]


def seconds_to_wait(name: str, rate: str | None, *, counts: bool = True) -> int:
    """
    Count a request as *name*, and return after how many seconds it would be within *rate*: 0 if it is.

    If *counts* is false, return what the next request would have to wait. Requests are counted in Django's default
    cache, in periods that each begin with a request; a *rate* of None is no limit.
    """
    if rate is None:
        return 0
    most, seconds = parsed_rate(rate)
    begin: float = cache.get_or_set(f"chatmemory_rate_{name}", time.time, seconds)  # type: ignore[assignment]
    counter = f"chatmemory_rate_{name}_{begin}"
    if counts:
        cache.add(counter, 0, seconds)
        try:
            count = cache.incr(counter)
        except ValueError:  # the counter expired between the two calls
            count = 1
    else:
        count = cache.get(counter, 0) + 1
    return 0 if count <= most else max(1, math.ceil(begin + seconds - time.time()))


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
