"""Access control: which users may do what by REST, the chat, OpenAI's API and MCP, and how often."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from django.apps import apps
from django.contrib.auth.signals import user_logged_in, user_login_failed
from django.core.cache import cache
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.core.limits import is_uuid, memory_key
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import Conversation, ConversationQuerySet, message_codec, stored_size
from chatmemory_django.models.columns import to_columns
from chatmemory_django.models.conversations import unexpired
from chatmemory_django.security import SecurityEvent, address_of, report

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from rest_framework.authentication import BaseAuthentication  # a site may chat without DRF

Verb: TypeAlias = Literal[
    "view", "change", "clear", "add", "set", "delete", "export", "write", "remove", "approve", "answer"
]
"""
What a user wants to do with a conversation: view it; change its head, title, pin or archive; clear its memory; add a
fork of it; set its memory; delete (erase) it; export it; write a message, or metadata of one; remove a message; approve
or deny its tool calls; answer in it instead of the assistant.
"""

PERMISSIONS: Mapping[Verb, str] = {
    "view": "view_conversation",
    "change": "change_conversation",
    "clear": "clear_conversation",
    "add": "add_conversation",
    "set": "set_conversation",
    "delete": "delete_conversation",
    "export": "export_conversation",
    "write": "add_message",
    "remove": "delete_message",
    "approve": "approve_conversation",
    "answer": "answer_conversation",
}
"""The permission with which staff do each to the conversations of others, by REST and in the admin."""

Owner: TypeAlias = "AbstractBaseUser | AnonymousUser"
"""Whose conversations they are; an ``AnonymousUser`` for those of nobody. It may be loaded when it is looked at."""

ALL = frozenset(MessageType)
SPOKEN = frozenset({MessageType.USER, MessageType.AI, MessageType.TOOL_EXECUTION_RESULT})
"""Messages of users, models and tools. All others are between the site and the model."""

FEEDBACK = "feedback"
"""The key in the metadata of a message that holds the user's rating of it."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class NotAllowedError(Exception):
    """A refused request of the chat: the HTTP *status* of the response, and a text for the client."""

    event: SecurityEvent | None = None
    """As what it is reported; None: as its status is."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers

    @classmethod
    def too_often(cls, seconds: int, what: str = "Too many requests") -> Self:
        """Return the refusal of a client that may try again after so many *seconds*."""
        return cls(429, f"{what}; wait {seconds} seconds.", **{"Retry-After": str(seconds)})

    def response(self) -> HttpResponse:
        """Return the refusal as a short text."""
        return HttpResponse(str(self), "text/plain; charset=utf-8", self.status, headers=self.headers)


class WrongCredentialsError(NotAllowedError):
    """The refusal of a request with credentials that are wrong: such requests are counted."""


class AccessPolicy:
    """
    The default policy: owners read their conversations and add user messages; permissions allow more.

    It applies to the REST API, the chat over HTTP, OpenAI's Conversations API and MCP. Subclass it for other rules, for
    example those of a site with tenants, and set the subclass in ``CHATMEMORY["ACCESS_POLICY"]``, or as the
    ``policy_class`` of a view of the REST API.
    """

    authentication_classes: Sequence[type[BaseAuthentication]] | None = None
    """
    DRF's classes by which users sign in to the REST API, and to the chat in addition to sessions and tokens of the
    policy; None for the site's own, ``DEFAULT_AUTHENTICATION_CLASSES``.
    """

    def user(self, request: HttpRequest) -> AbstractBaseUser:
        """
        Return the user who sent *request* to the chat; raise ``NotAllowedError`` if no one is authenticated.

        By default, this is the ``user_of_token``, sent as ``Authorization: Bearer …`` or ``Token …``, or the user of a
        session, which must come with a valid CSRF token. Where DRF is installed, it may also be the user whom one of
        the ``authentication_classes`` finds; ``request.auth`` is then what that has found besides. This method is
        called in a thread.
        """
        key, csrf = token_in(request), None
        if key is not None:
            user = self.user_of_token(key)
        elif (user := _signed_in(request)) is not None:
            csrf = _CsrfCheck(_never).refusal(request)
        if user is not None and csrf is None:
            return user
        challenge = "Bearer"
        if apps.is_installed("rest_framework"):
            from rest_framework.exceptions import APIException, AuthenticationFailed  # a site may chat without DRF

            from chatmemory_django.authentication import SignIn

            sign_in = SignIn(request, self.authentication_classes)
            challenge = sign_in.challenge() or challenge
            try:
                found = sign_in.user_and_auth()
            except AuthenticationFailed as exc:
                raise WrongCredentialsError(401, str(exc.default_detail), **{"WWW-Authenticate": challenge}) from None
            except APIException as exc:  # of a class that checks the CSRF token, for example
                raise NotAllowedError(exc.status_code, str(exc.detail)) from None
            if found is not None:
                if key is None and request.method not in _SAFE and request.content_type != "application/json":
                    # Browsers send passwords by themselves, also for pages of other sites; but not with this type.
                    raise NotAllowedError(415, "Send it as Content-Type: application/json.")
                user, request.auth = found  # type: ignore[attr-defined]  # as in DRF's requests
                return user
        if csrf is not None:
            raise NotAllowedError(403, f"CSRF: {csrf}")
        if key is not None:
            raise WrongCredentialsError(401, "The token is invalid.", **{"WWW-Authenticate": challenge})
        raise NotAllowedError(401, "Sign in to chat.", **{"WWW-Authenticate": challenge})

    def user_of_token(self, key: str) -> AbstractBaseUser | None:
        """
        Return the active user of the token *key*, or None if it is wrong: for the chat, OpenAI's API, MCP and REST.

        By default, tokens are those of ``rest_framework.authtoken``. The REST API asks this method where the site's
        authentication classes include DRF's ``TokenAuthentication``; a subclass of that decides for itself.
        """
        if not apps.is_installed("rest_framework.authtoken"):
            return None
        if not (key.isascii() and key.isprintable()):
            return None
        tokens = apps.get_model("authtoken", "Token").objects.select_related("user").filter(key=key)
        return next((token.user for token in tokens if token.user.is_active), None)

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the user may read or write conversations at all; if not, the response is 401 or 403."""
        return bool(request.user and request.user.is_authenticated)

    def may_ask(self, request: HttpRequest, assistant: str) -> bool:
        """
        Return whether the user may ask the assistant of this name, empty for ``ASSISTANT``; by default, each may.

        OpenAI's API lists those that the user may ask as its models.
        """
        return True

    def may_instruct(self, request: HttpRequest) -> bool:
        """
        Return whether the system messages and instructions that the user's client sends reach the model, as context.

        OpenAI's clients send them. By default, this needs the permission to add messages of every type; those of others
        are left out. The system message of the assistant stays the site's either way.
        """
        return MessageType.SYSTEM in self.writable_types(request)

    def memory_id(self, request: HttpRequest, chat_id: str) -> str:
        """
        Return the memory id of the conversation that the chat's *chat_id* names for the user.

        If the user owns a conversation with this memory id, it is that one. Otherwise, a UUID becomes the memory id of
        a new conversation, and any other id is prefixed with the user's key, so that no one can take an id of the site
        or of another user. Raises ``ValueError`` if the id is invalid.
        """
        key, owner = memory_key(chat_id), request.user.pk
        if is_uuid(key) or Conversation.objects.filter(memory_id=key, owner=owner).exists():
            return key
        return memory_key(f"{owner}:{key}")

    def sees_everybody(self, request: HttpRequest, verb: Verb) -> bool:
        """Return whether the user may do *verb* to all conversations: staff with its and the view permission."""
        return all(self._is_staff_with(request, PERMISSIONS[each]) for each in ("view", verb))

    def conversations(self, request: HttpRequest, verb: Verb) -> QuerySet[Conversation]:
        """
        Return the conversations to which the user may do *verb*: by default, the user's own, or all for staff with the
        permission. Those that the user may not view are 404. To "answer", ``sees_everybody`` is asked besides.
        """
        if self.sees_everybody(request, verb):
            return Conversation.objects.all()
        if verb == "answer":  # nobody writes as a person of the site in a conversation of their own
            return Conversation.objects.none()
        return Conversation.objects.owned_by(request.user)

    def is_own(self, request: HttpRequest, conversation: Conversation) -> bool:
        """Return whether *conversation*, which the user may view, counts as the user's own."""
        return conversation.owner_id == request.user.pk or not self.sees_everybody(request, "view")

    def author_name(self, user: AbstractBaseUser) -> str:
        """
        Return the name under which *user* answers in conversations of others, as their owners and the model read it.

        By default, this is the full name or, without one, the name with which the user signs in.
        """
        return str(getattr(user, "get_full_name", str)() or user.get_username())

    def owner_of_new(self, request: HttpRequest) -> AbstractBaseUser | None:
        """Return the owner of a new conversation."""
        return request.user  # type: ignore[return-value]  # is_allowed() has checked

    def readable_types(self, request: HttpRequest, *, own: bool) -> Collection[MessageType]:
        """
        Return the types of messages that the user may read, with metadata, in *own* or others' conversations.

        Without any, the user does not read titles and previews either.
        """
        if self._is_staff_with(request, "view_message_text"):
            return ALL
        return SPOKEN if own else frozenset()

    def writable_types(self, request: HttpRequest) -> Collection[MessageType]:
        """Return the types of messages that the user may add to the ``conversations(request, "write")``."""
        return ALL if request.user.has_perm("chatmemory.add_message") else {MessageType.USER}

    def removable_types(self, request: HttpRequest) -> Collection[MessageType]:
        """
        Return the types of messages that the user may remove from the ``conversations(request, "remove")``.

        By default, none without a permission. A user who removes a question makes its answer look like the answer to
        another one. To correct a question, users edit it, which keeps the original on another branch.
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

    def may_link_files(self, request: HttpRequest) -> bool:
        """
        Return whether the user may send the addresses of files on other servers, instead of the files.

        By default, everybody may, unless the setting ``REMOTE_FILES`` is off: then servers of the site alone.
        """
        return conf.general().REMOTE_FILES or self.is_server(request)

    def max_file_bytes(self, request: HttpRequest, owner: Owner) -> int | None:
        """
        Return how many bytes the files in the conversations of *owner* may have in the storage; None for no limit.

        By default, that is the setting ``MEDIA_QUOTA``.
        """
        return None if message_codec.installed is None else message_codec.installed.quota()

    def max_stored(self, request: HttpRequest, owner: Owner) -> int | None:
        """
        Return how much the conversations of *owner* may have, as ``stored_size`` counts it; None for no limit.

        The owner is not always the user: staff, for example, write to the conversations of others. By default, that is
        the setting ``STORAGE_QUOTA``.
        """
        return conf.general().STORAGE_QUOTA

    def check_quota(self, request: HttpRequest, owner: Owner, *messages: ChatMessage, size: int = 0) -> None:
        """
        Raise ``ValueError`` if the conversations of *owner* would have too much with *messages* and *size* more, or
        their files too many bytes: see ``max_stored`` and ``max_file_bytes``. Those of nobody may have anything.

        In a transaction, others who ask this for the owner wait until it ends, so that no two may exceed it together.
        """
        if owner.pk is None:
            return
        limit = self.max_stored(request, owner) if messages or size else None
        if limit is not None:
            size += sum(len(text) + len(payload or "") for _type, text, payload in map(to_columns, messages))
            if size and (stored := stored_size(owner.pk)) + size > limit:
                raise _too_much(request, owner, "your conversations", stored, limit, "; erase some of them.")
        codec = message_codec.installed
        limit = None if codec is None or not messages else self.max_file_bytes(request, owner)
        if codec is None or limit is None:
            return
        found = [each.reference for message in messages for each in codec.take_out(message, None, "")[2]]
        size = sum({each.sha256: each.size for each in found}.values())
        if size and (stored := codec.stored_bytes(owner.pk)) + size > limit:
            raise _too_much(request, owner, "the files in your conversations", stored, limit)

    def calls(self, request: HttpRequest) -> Any:
        """
        Return the calls of models whose usage the user may see: by default, those for the user, or all for staff with
        the permission ``view_modelcall``.
        """
        calls: Any = apps.get_app_config("chatmemory_chat").get_model("ModelCall")._default_manager.all()
        is_staff = self._is_staff_with(request, "view_modelcall", "chatmemory_chat")
        return calls if is_staff else calls.owned_by(request.user)

    def budget(
        self, user: AbstractBaseUser | None, *, labels: Mapping[str, str] | None = None, memory_id: str | None = None
    ) -> Mapping[str, Any] | Sequence[Mapping[str, Any]] | None:
        """
        Return what may be used, like ``{"TOKENS": 100_000, "PER": "day"}``, or several such limits; None for no limit.

        By default, that is the setting ``BUDGET``, or what the function there returns for the *user* whom a call is
        for, its *labels* and *memory_id*, as far as it has parameters of these names. One that has neither is not asked
        about calls without a user. It applies to all answers of assistants, over HTTP or not.
        """
        of_setting: Any = import_string("chatmemory_django.chat.costs.conf.budget_of_setting")
        return of_setting(user, labels=labels, memory_id=memory_id)  # type: ignore[no-any-return]

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

    def _is_staff_with(self, request: HttpRequest, permission: str, app: str = "chatmemory") -> bool:
        user = request.user
        return bool(getattr(user, "is_staff", False)) and user.has_perm(f"{app}.{permission}")


def permitted(policy: AccessPolicy, request: HttpRequest, verb: Verb) -> ConversationQuerySet:
    """
    Return the conversations to which the user may do *verb* by *policy*, once each, and none whose time has passed.

    To answer in, there are none for users who are not staff that may: a policy that returns the same conversations for
    each verb means what their owners do.
    """
    if verb == "answer" and not policy.sees_everybody(request, verb):
        return Conversation.objects.none()
    rows: Any = policy.conversations(request, verb).filter(unexpired(timezone.now()))
    joined = sum(count > 0 for count in rows.query.alias_refcount.values())  # 0 for joins that turned out unnecessary
    if rows.query.distinct or joined > 1:
        # A join may duplicate conversations, and DISTINCT rows can be neither locked nor deleted.
        return Conversation.objects.filter(pk__in=rows.order_by().values("pk"))
    return rows  # type: ignore[no-any-return]


def access_policy() -> AccessPolicy:
    """Return an instance of the policy in the settings."""
    policy: AccessPolicy = import_string(conf.general().ACCESS_POLICY)()
    return policy


def token_in(request: HttpRequest) -> str | None:
    """Return the token that *request* has as ``Authorization: Bearer …`` or ``Token …``; None without one."""
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return key.strip() if kind.lower() in {"bearer", "token"} else None


def _too_much(request: HttpRequest, owner: Owner, what: str, stored: int, limit: int, advice: str = ".") -> ValueError:
    if owner.pk == request.user.pk:
        return ValueError(f"{what} have {stored} bytes, and may have {limit} at most{advice}")
    whose = what.replace("your conversations", "the conversations of this owner")
    return ValueError(f"{whose} may have {limit} bytes at most.")  # how many they have is the owner's to know


def _signed_in(request: HttpRequest) -> AbstractBaseUser | None:
    """Return the user whom middleware has found, by the session for example; None if that is no one."""
    user = getattr(request, "user", None)
    return user if user is not None and user.is_authenticated else None


def is_trusted_origin(request: HttpRequest) -> bool:
    """Return whether the ``Origin`` of *request*, if it has one, is the site itself or in ``CSRF_TRUSTED_ORIGINS``."""
    return "HTTP_ORIGIN" not in request.META or _CsrfCheck(_never).is_trusted(request)


def client_address(request: HttpRequest) -> str:
    """
    Return the address by which a client is counted: the IPv4 address, or the IPv6 network of 64 bits.

    Providers give such a network to each client, who may use all addresses in it. See ``security.address_of``: a client
    could evade the rates if all of ``X-Forwarded-For`` were trusted.
    """
    return _network(address_of(request))


def count_wrong_credentials(request: HttpRequest, account: str = "") -> int:
    """
    Count that *request* came with wrong credentials; return the seconds to wait, or 0 within the rate ``sign_in``.

    Wrong tokens are counted by address, for all APIs together, and wrong passwords by address and *account*, of which a
    few share a count. Call this once after each failure, and answer with 429 instead of 401 while there is something to
    wait for. Valid credentials are not to be refused: otherwise, one client could lock out all others at its address.
    """
    name = f"sign_in_{client_address(request)}"
    report(SecurityEvent.CREDENTIALS, request)
    if account:  # one of 16 counts, so that made-up names neither fill the cache nor evade the rate
        name += f"_{sha256(account.encode('utf-8', 'surrogatepass')).hexdigest()[:1]}"
    return seconds_to_wait(name, conf.rest().THROTTLE_RATES.get("sign_in"))


class WrongPasswordsMiddleware(MiddlewareMixin):
    """
    Middleware that answers a wrong password with 429 beyond the rate ``sign_in``, in every view of the site.

    It counts as ``count_wrong_credentials`` does, and the right password passes at any time.
    """

    def __init__(self, get_response: Any) -> None:
        super().__init__(get_response)
        user_login_failed.connect(_count_wrong_password)
        user_logged_in.connect(_let_pass)

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """See Django's middleware."""
        refusal: NotAllowedError | None = getattr(request, "wrong_password", None)
        return refusal.response() if refusal else response


def _count_wrong_password(request: Any = None, credentials: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
    if request is not None:
        request = getattr(request, "_request", request)  # Django's own, behind DRF's
        if wait := count_wrong_credentials(request, str((credentials or {}).get("username", ""))):
            request.wrong_password = NotAllowedError.too_often(wait, "Too many failed attempts")


def _let_pass(request: Any = None, **kwargs: Any) -> None:
    """Take the refusal back for a view that has signed the user in after another attempt, by an address perhaps."""
    if request is not None:
        getattr(request, "_request", request).wrong_password = None


def parsed_rate(rate: str) -> tuple[int, int]:
    """Parse *rate*, for example "60/min", and return (requests, seconds); raise ``ValueError`` if it is invalid."""
    found = conf.RATE.fullmatch(rate)
    if found is None:
        raise ValueError(
            f"A rate is a number of requests per second, minute, hour or day, for example '60/min', not {rate!r}."
        )
    return int(found[1]), _SECONDS[found[2][0]]


def seconds_to_wait(name: str, rate: str | None) -> int:
    """
    Count a request as *name*, and return after how many seconds it would be within *rate*: 0 if it is.

    Requests are counted in Django's default cache, in periods that each begin with a request; a *rate* of None is no
    limit.
    """
    if rate is None:
        return 0
    most, seconds = parsed_rate(rate)
    begin: float = cache.get_or_set(f"chatmemory_rate_{name}", time.time, seconds)  # type: ignore[assignment]
    counter = f"chatmemory_rate_{name}_{begin}"
    cache.add(counter, 0, seconds)
    try:
        count = cache.incr(counter)
    except ValueError:  # the counter expired between the two calls
        count = 1
    return 0 if count <= most else max(1, math.ceil(begin + seconds - time.time()))


def _network(address: str) -> str:
    """Return the network of an IPv6 *address*, the IPv4 address that it stands for, or *address* as it is."""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))


def _never(request: HttpRequest) -> Any:
    raise AssertionError("The CSRF check must not call the view.")


class _CsrfCheck(CsrfViewMiddleware):
    def refusal(self, request: HttpRequest) -> str | None:
        """Return the reason for refusing *request*, or None if its CSRF token is valid."""
        self.process_request(request)
        reason: Any = self.process_view(request, _never, (), {})
        return reason  # type: ignore[no-any-return]

    def is_trusted(self, request: HttpRequest) -> bool:
        """Return whether the origin of *request* is one that Django accepts in the check of a CSRF token."""
        return bool(self._origin_verified(request))  # type: ignore[attr-defined]  # missing in the stubs

    def _reject(self, request: HttpRequest, reason: str) -> Any:
        return reason  # as DRF does: process_view() returns what this method returns
