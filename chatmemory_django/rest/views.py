"""The base class of all views. It sets everything that DRF would otherwise take from the site's settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from django.contrib.auth.models import AnonymousUser
from django.db import DEFAULT_DB_ALIAS, router, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.utils.crypto import salted_hmac
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.utils.http import parse_etags
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.generics import GenericAPIView
from rest_framework.metadata import SimpleMetadata
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from chatmemory_django import conf
from chatmemory_django.access import AccessPolicy, Owner, Verb, access_policy, count_wrong_credentials, permitted
from chatmemory_django.authentication import with_bearer
from chatmemory_django.core.limits import memory_key
from chatmemory_django.db.row_codec import Address
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import Conversation, ConversationQuerySet
from chatmemory_django.models.alternatives import Place
from chatmemory_django.models.conversations import lock_first
from chatmemory_django.operations import Receipt, admin_log, erase
from chatmemory_django.operations.reading import Way, note_read
from chatmemory_django.private import private_view
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.admission import IsAllowed, ScopedThrottle
from chatmemory_django.rest.fields import sentence
from chatmemory_django.rest.filters import StrictFilterBackend, StrictOrderingFilter
from chatmemory_django.rest.parsers import ChunkedRequest, JSONParser, JSONRenderer, OneKind
from chatmemory_django.rest.problems import FieldName, InvalidQuery, NotModified, Problem, handle_exception, invalid
from chatmemory_django.rest.schema import Schema, example_of
from chatmemory_django.security import SecurityEvent, report
from chatmemory_django.stores.base import MessageNotFoundError


class Metadata(SimpleMetadata):
    """The response to OPTIONS, the same for all users. Fields are described in the OpenAPI schema."""

    def determine_actions(self, request: Request, view: APIView) -> dict[str, Any]:
        return {}


class ChatMemoryView(GenericAPIView[Any]):
    """A view of the API, with JSON requests and responses, for users whom the access policy allows."""

    parser_classes: Any = (JSONParser,)
    renderer_classes = (JSONRenderer,)
    permission_classes: Any = (IsAllowed,)
    throttle_classes: Any = (ScopedThrottle,)
    filter_backends: Any = (StrictFilterBackend, StrictOrderingFilter)
    content_negotiation_class = OneKind
    metadata_class = Metadata
    versioning_class = None
    pagination_class: Any = None
    schema = Schema()

    policy_class: type[AccessPolicy] | None = None
    """The access policy; None for the one in the settings."""
    throttle_scope: str | None = None
    """The scope of throttling; None for ``read`` or ``write``, depending on the method."""
    request_serializers: Mapping[str, type[Serializer[Any]]] = {}
    """The serializers of request bodies by action. Responses use the ``serializer_class``."""
    query_serializers: Mapping[str, type[Serializer[Any]]] = {}
    """The serializers of query parameters by action or method, in addition to filters and pagination."""
    filterset_class: Any = None
    ordering_fields: Collection[str] = ()
    list_actions: Set[str] = frozenset({"list"})
    """The actions with paginated responses."""

    tag: str = "conversations"
    """The group of the view's operations in the OpenAPI schema; those on memories have their own."""

    action: str = ""
    conversation: Conversation | None = None
    """The conversation of the request, once it is found; its state is the ETag of the response."""
    is_logged = False
    """Whether the request has an entry in the admin's log, besides that of a read."""

    @cached_property
    def policy(self) -> AccessPolicy:
        """The access policy of the view."""
        return access_policy() if self.policy_class is None else self.policy_class()

    @cached_property
    def query(self) -> Mapping[str, Any]:
        """The validated query parameters of ``query_serializers``; 400 if they are invalid."""
        serializer_class = self.get_query_serializer_class()
        if serializer_class is None or not self.request.query_params:
            return {}
        serializer = serializer_class(data=self.request.query_params.dict())
        if not serializer.is_valid():
            detail = serializer.errors.items()
            raise InvalidQuery({FieldName(name) if name in serializer.fields else name: each for name, each in detail})
        values: Mapping[str, Any] = serializer.validated_data
        return values

    @property
    def body(self) -> dict[str, Any]:
        """The request body, validated by ``request_serializers``; 400 with an example if it is invalid."""
        serializer_class = self.request_serializers[self.action]
        is_partial = self.request.method == "PATCH"
        try:
            serializer = serializer_class(data=self.request.data, partial=is_partial, context={"view": self})
            serializer.is_valid(raise_exception=True)
        except exceptions.APIException as exc:
            if exc.status_code == HTTPStatus.BAD_REQUEST:
                exc.example = example_of(serializer_class)  # type: ignore[attr-defined]  # what the handler adds
            raise
        values: dict[str, Any] = serializer.validated_data
        return values

    @property
    def readable_types(self) -> Collection[MessageType]:
        """The types of messages whose content the user may read in the conversation."""
        return () if self.conversation is None else self.types_in(self.conversation)

    def types_in(self, conversation: Conversation) -> Collection[MessageType]:
        """Return the types of messages whose content the user may read in *conversation*; without any, no title."""
        return self.policy.readable_types(self.request, own=self.policy.is_own(self.request, conversation))

    @property
    def listed_types(self) -> Collection[MessageType]:
        """The types of messages whose content the user may read in all conversations of a list."""
        is_of_others = self.request.query_params.get("owner") and self.policy.sees_everybody(self.request, "view")
        return self.policy.readable_types(self.request, own=not is_of_others)

    @method_decorator(private_view)
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Handle *request*; no variable of what that calls is in an error report."""
        if self.versioning_class is None:
            kwargs.pop(api_settings.VERSION_PARAM, None)  # a site may have it in all of its paths
        return super().dispatch(request, *args, **kwargs)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        made = super().initialize_request(request, *args, **kwargs)
        made.__class__ = ChunkedRequest  # DRF has no hook for it
        made.authenticators = with_bearer(made.authenticators or (), self.policy.user_of_token)
        return made

    def get_authenticators(self) -> list[BaseAuthentication]:
        own = self.policy.authentication_classes
        return super().get_authenticators() if own is None else [authentication() for authentication in own]

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        return handle_exception

    def perform_authentication(self, request: Request) -> None:
        """See ``APIView.perform_authentication``. Wrong credentials beyond the rate are a 429."""
        try:
            super().perform_authentication(request)
        except exceptions.AuthenticationFailed:
            if wait := count_wrong_credentials(request._request):
                raise exceptions.Throttled(wait) from None
            raise

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """See ``APIView.initial``. Invalid or unknown query parameters are a 400."""
        super().initial(request, *args, **kwargs)
        method = str(request.method).lower()
        if method not in self.http_method_names or not hasattr(self, method) or method == "options":
            return  # a 405 for any parameters, or OPTIONS
        if not request.query_params:
            return  # nothing to check
        _ = self.query
        known = self._query_names()
        unknown = exceptions.ErrorDetail("Unknown parameter.", "unknown")
        found: dict[str, Any] = {FieldName(name): [unknown] for name in request.query_params if name not in known}
        found |= {
            FieldName(name): ["It must not contain NUL characters."]
            for name, value in request.query_params.items()
            if "\0" in value
        }
        if found:
            raise InvalidQuery(found)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"  # chats are personal
        # Changes answer with what there is now, also if they change nothing.
        shows = request.method in {"GET", "PATCH", "PUT"} and response.status_code == HTTPStatus.OK
        if self.conversation is not None and shows:
            way: Way = "exported" if self.action == "export" else "changed" if self.is_logged else "read"
            note_read(request.user, [self.conversation], way, partial(self.policy.is_own, request))
        if self.conversation is not None and response.status_code in {200, 201, 304}:
            response["ETag"] = etag(self.conversation)
        return response

    def get_serializer_context(self) -> dict[str, Any]:
        """See ``GenericAPIView.get_serializer_context``, and ``MessageSerializer``."""
        context = {**super().get_serializer_context(), "site_format": conf.rest().FORMAT}
        if self.conversation is not None:
            types = self.readable_types
            has_branches = getattr(self.conversation, "has_branches", True)
            places = partial(self.conversation.places, types=types) if has_branches else _nowhere
            context |= {**self.query, "types": types, "media_url": self.media_url, "places": places}
            conversation, using = self.conversation, self.conversation._state.db or DEFAULT_DB_ALIAS
            context["at"] = Address(using, conversation.pk, conversation.memory_id)
            context["remembers"] = self.conversation.remembers
        return context

    def media_url(self, sequence: int, index: int) -> str:
        """Return the URL of a file in a message of the conversation."""
        parts = 1 + ("sequence" in self.kwargs) + (self.action in self.list_actions - {"list"})
        root = self.request.path.rstrip("/").rsplit("/", parts)[0]
        return self.request.build_absolute_uri(quote(f"{root}/messages/{sequence}/media/{index}/"))

    def find(self, verb: Verb = "view", **annotations: Any) -> Conversation:
        """
        Return the conversation that the URL refers to, with *annotations*; 304 if the client's copy is current.

        If the user may not do *verb* to it, the response is 403 if the user may view it, and 404 otherwise.
        """
        self.conversation = self._found(verb, self.get_conversations(verb).annotate(**annotations))
        known = self.request.headers.get("If-None-Match")
        if known and self.request.method in SAFE_METHODS and _matches(known, self.conversation):
            raise NotModified
        return self.conversation

    @contextmanager
    def changing(self, verb: Verb, *, check: bool = True, grows: bool = False) -> Iterator[Conversation]:
        """
        Lock the conversation that the URL refers to in a transaction, to do *verb* to it.

        If ``If-Match`` does not match, the response is 412. If it *grows*, call ``check_quota`` with the conversation.
        """
        using = router.db_for_write(Conversation)
        # Before the transaction, of which MariaDB reads one state, that of its first read.
        owner: Owner = SimpleLazyObject(lambda: self.owner_of(self._found(verb, self._owners(verb, using))))  # type: ignore[assignment]
        has_limit = grows and self.has_limit(owner)
        with transaction.atomic(using=using):
            if has_limit:
                lock_first(Conversation.objects.using(using).filter(owner=owner.pk))
            self.conversation = self._found(verb, self.get_conversations(verb).using(using).select_for_update())
            if check:
                self.check_match()
            yield self.conversation

    def check_quota(self, conversation: Conversation, messages: Iterable[ChatMessage] = (), size: int = 0) -> None:
        """
        Respond 400 if the owner of *conversation* may not have *messages* and *size* more.

        See ``AccessPolicy.check_quota``.
        """
        owner: Owner = SimpleLazyObject(partial(self.owner_of, conversation))  # type: ignore[assignment]
        try:
            if self.has_limit(owner):
                self.policy.check_quota(self.request, owner, *messages, size=size)
        except ValueError as exc:
            report(SecurityEvent.QUOTA, self.request)
            raise invalid("$", sentence(exc)) from None

    def has_limit(self, owner: Owner) -> bool:
        """Return whether the policy limits what *owner* stores; it need not look at the owner for that."""
        limits = (self.policy.max_stored, self.policy.max_file_bytes)
        return any(limit(self.request, owner) is not None for limit in limits) and owner.pk is not None

    def owner_of(self, conversation: Conversation) -> Owner:
        """Return the owner of *conversation*."""
        if conversation.owner_id == self.request.user.pk:
            return self.request.user
        return conversation.owner or AnonymousUser()

    def log(self, conversation: Conversation, words: str, flag: int = admin_log.CHANGE) -> None:
        """Log *words* in the admin's log if the user is staff and *conversation* is another user's."""
        user = self.request.user
        if getattr(user, "is_staff", False) and not self.policy.is_own(self.request, conversation):
            self.is_logged = True
            admin_log.log(conversation, user.pk, words, flag)

    def check_match(self) -> None:
        """Respond 412 if ``If-Match`` does not match the state of the conversation."""
        wanted = self.request.headers.get("If-Match")
        if wanted is not None and self.conversation is not None and not _matches(wanted, self.conversation):
            detail = "The conversation has changed; retrieve it again."
            raise Problem(HTTPStatus.PRECONDITION_FAILED, "precondition_failed", detail, "If-Match")

    def remove(self, conversation: Conversation, sequence: int | None, **options: bool) -> dict[str, list[int]]:
        """Remove a message, if any, from the locked *conversation*; 403 if a type of what is removed is not allowed."""
        if not (removable := set(self.policy.removable_types(self.request))):
            raise exceptions.PermissionDenied
        if sequence is None:
            return {"removed": []}
        removed = get_chat_memory(conversation.memory_id).remove(sequence, **options)
        types = conversation.messages.filter(sequence__in=removed).order_by().values_list("type", flat=True)
        if not removable.issuperset(types):
            raise exceptions.PermissionDenied  # rolls back the transaction
        self.log(conversation, admin_log.removed(removed))
        conversation.refresh_from_db()
        return {"removed": removed}

    def erase(self, conversations: Any) -> tuple[Receipt, list[str]]:
        """Erase *conversations*; return the receipt, and the memory ids of those that other objects protect."""
        protected: list[str] = []

        def log(erased: Conversation, _: int) -> None:
            self.log(erased, admin_log.ERASED % {"messages": erased.total_messages}, admin_log.DELETION)

        receipt = erase(
            conversations,
            each=log,
            refused=lambda conversation, error: protected.append(conversation.memory_id),
        )
        return receipt, protected

    def _found(self, verb: Verb, conversations: QuerySet[Conversation]) -> Conversation:
        try:
            key = memory_key(self.kwargs["memory_id"])
        except ValueError:
            raise Http404 from None
        # Not first(), which would order a single row.
        found = next(iter(conversations.filter(memory_id=key)), None)
        if found is not None:
            return found
        if verb != "view" and self.get_conversations("view").filter(memory_id=key).exists():
            raise exceptions.PermissionDenied
        raise Http404

    def _owners(self, verb: Verb, using: str) -> QuerySet[Conversation]:
        rows: QuerySet[Conversation] = self.get_conversations(verb).using(using)
        return rows.only("owner")

    def get_conversations(self, verb: Verb) -> Any:
        """Return the conversations to which the user may do *verb*, without duplicates. Subclasses may filter them."""
        return permitted(self.policy, self.request, verb)

    def get_query_serializer_class(self) -> type[Serializer[Any]] | None:
        """Return the serializer of the query parameters of this request."""
        method = str(self.request.method).lower().replace("head", "get")
        return self.query_serializers.get(self.action or method)

    def _query_names(self) -> set[str | None]:
        serializer_class = self.get_query_serializer_class()
        names: set[str | None] = set() if serializer_class is None else set(serializer_class().fields)
        if self.action in {"list", "bulk_destroy"}:
            names |= set(getattr(self.filterset_class, "base_filters", ()))
            names |= {StrictOrderingFilter.ordering_param} if self.ordering_fields else set()
        if self.action in self.list_actions:
            # Depends on the pagination class that a subclass has chosen.
            parameters = ("cursor", "page", "page_size", "limit", "offset")
            names |= {getattr(self.paginator, f"{each}_query_param", None) for each in parameters}
        return names


@contextmanager
def found_at(path: str) -> Iterator[None]:
    """Turn ``MessageNotFoundError`` into a 404 that refers to *path* of the request."""
    try:
        yield
    except MessageNotFoundError as exc:
        detail = f"The history has no message {exc.sequence}."
        raise Problem(HTTPStatus.NOT_FOUND, "not_found", detail, path) from None


def row_of(conversation: Conversation) -> ConversationQuerySet:
    """Return a queryset of only *conversation*, in the database it was read from."""
    return Conversation.objects.using(conversation._state.db).filter(pk=conversation.pk)


def _nowhere(rows: object) -> Mapping[int, Place]:
    return {}


def etag(conversation: Conversation) -> str:
    """
    Return the ETag of *conversation* and its messages: every write increments the version.

    It is hashed with the site's secret, since the key of a row counts the conversations of all users.
    """
    state = f"{conversation.pk} {conversation.version}"
    return f'"{salted_hmac(__name__, state, algorithm="sha256").hexdigest()[:32]}"'


def _matches(wanted: str, conversation: Conversation) -> bool:
    # Weak ETags match, too: proxies and GZipMiddleware weaken those of equivalent responses.
    names = {name.removeprefix("W/") for name in parse_etags(wanted)}
    return "*" in names or etag(conversation) in names
