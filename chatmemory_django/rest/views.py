"""What all views have in common. Everything that DRF would take from the site's settings is set here instead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from django.db import router, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.utils.http import parse_etags
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.generics import GenericAPIView
from rest_framework.metadata import SimpleMetadata
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from chatmemory_django.ids import memory_key
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, ConversationQuerySet
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.access import AccessPolicy, IsAllowed, Verb, access_policy
from chatmemory_django.rest.filters import StrictFilterBackend, StrictOrderingFilter
from chatmemory_django.rest.parsers import ChunkedRequest, JSONParser, JSONRenderer, OneKind
from chatmemory_django.rest.problems import InvalidQuery, NotModified, Problem, handle_exception
from chatmemory_django.rest.schema import Schema
from chatmemory_django.rest.throttles import ScopedThrottle, SignInThrottle
from chatmemory_django.stores.base import MessageNotFoundError


class Metadata(SimpleMetadata):
    """What OPTIONS says: what there is, whoever asks. The fields are in the OpenAPI schema."""

    def determine_actions(self, request: Request, view: APIView) -> dict[str, Any]:
        """See ``SimpleMetadata``."""
        return {}


class ChatMemoryView(GenericAPIView[Any]):
    """A view of the API: JSON in, JSON out, for those whom the access policy lets in."""

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
    """Who may do what; None for what the settings name."""
    throttle_scope: str | None = None
    """What requests count as to the throttle; None for ``read`` or ``write``, as their method says."""
    request_serializers: Mapping[str, type[Serializer[Any]]] = {}
    """The bodies by action. What is answered is of the ``serializer_class``."""
    query_serializers: Mapping[str, type[Serializer[Any]]] = {}
    """The query parameters by action or method, beside those of filters and pages."""
    filterset_class: Any = None
    ordering_fields: Collection[str] = ()
    list_actions: Set[str] = frozenset({"list"})
    """The actions that answer with pages."""

    action: str = ""
    conversation: Conversation | None = None
    """The conversation that the request is about, once it is found: its state is the ETag of the response."""

    @cached_property
    def policy(self) -> AccessPolicy:
        """Who may do what."""
        return access_policy() if self.policy_class is None else self.policy_class()

    @cached_property
    def query(self) -> Mapping[str, Any]:
        """The query parameters of ``query_serializers``; 400 if they are invalid."""
        serializer_class = self.get_query_serializer_class()
        if serializer_class is None or not self.request.query_params:
            return {}
        serializer = serializer_class(data=self.request.query_params.dict())
        if not serializer.is_valid():
            raise InvalidQuery(dict(serializer.errors))
        values: Mapping[str, Any] = serializer.validated_data
        return values

    @property
    def body(self) -> dict[str, Any]:
        """What the body of the request says, as ``request_serializers`` read it; 400 if it is invalid."""
        serializer_class = self.request_serializers[self.action]
        is_partial = self.request.method == "PATCH"
        serializer = serializer_class(data=self.request.data, partial=is_partial, context={"view": self})
        serializer.is_valid(raise_exception=True)
        values: dict[str, Any] = serializer.validated_data
        return values

    @property
    def readable_types(self) -> Collection[MessageType]:
        """The types of message whose content the user may read in the conversation."""
        if self.conversation is None:
            return ()
        return self.policy.readable_types(self.request, own=self.policy.is_own(self.request, self.conversation))

    @property
    def listed_types(self) -> Collection[MessageType]:
        """The same in all conversations of a list."""
        is_of_others = self.request.query_params.get("owner") and self.policy.sees_everybody(self.request, "view")
        return self.policy.readable_types(self.request, own=not is_of_others)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        """See ``APIView.initialize_request``."""
        made = super().initialize_request(request, *args, **kwargs)
        made.__class__ = ChunkedRequest  # DRF has no hook for it
        return made

    def get_authenticators(self) -> list[BaseAuthentication]:
        """See ``APIView.get_authenticators``."""
        own = self.policy.authentication_classes
        return super().get_authenticators() if own is None else [authentication() for authentication in own]

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """See ``APIView.get_exception_handler``."""
        return handle_exception

    def perform_authentication(self, request: Request) -> None:
        """See ``APIView.perform_authentication``. Who guesses tokens is throttled before the next one is tried."""
        throttle = SignInThrottle()
        if not throttle.allow_request(request, self):
            raise exceptions.Throttled(throttle.wait())
        try:
            super().perform_authentication(request)
        except exceptions.AuthenticationFailed:
            throttle.note_failure()
            raise

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """See ``APIView.initial``; 400 for query parameters that are invalid or unknown."""
        super().initial(request, *args, **kwargs)
        method = str(request.method).lower()
        if method not in self.http_method_names or not hasattr(self, method) or method == "options":
            return  # which is 405, whatever the parameters
        _ = self.query
        known = self._query_names()
        unknown = exceptions.ErrorDetail("There is no such parameter.", "unknown")
        found: dict[str, Any] = {name: [unknown] for name in request.query_params if name not in known}
        found |= {
            name: ["It holds a NUL character; leave it out."]
            for name, value in request.query_params.items()
            if "\0" in value
        }
        if found:
            raise InvalidQuery(found)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """See ``APIView.finalize_response``."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"  # chats are personal
        if self.conversation is not None and response.status_code in {200, 201, 304}:
            response["ETag"] = etag(self.conversation)
        return response

    def get_serializer_context(self) -> dict[str, Any]:
        """See ``GenericAPIView.get_serializer_context``, and ``MessageSerializer``."""
        context: dict[str, Any] = dict(super().get_serializer_context())
        if self.conversation is not None:
            types = self.readable_types
            places = partial(self.conversation.places, types=types)
            context |= {**self.query, "types": types, "media_url": self.media_url, "places": places}
        return context

    def media_url(self, sequence: int, index: int) -> str:
        """The address of a file in a message of the conversation."""
        parts = 1 + ("sequence" in self.kwargs) + (self.action in self.list_actions - {"list"})
        root = self.request.path.rstrip("/").rsplit("/", parts)[0]
        return self.request.build_absolute_uri(quote(f"{root}/messages/{sequence}/media/{index}/"))

    def find(self, verb: Verb = "view") -> Conversation:
        """
        The conversation of the path, if the user may do *verb* to it: else 404, or 403 if the user may view it.

        304 if what the client has still stands.
        """
        self.conversation = self._found(verb, lambda rows: rows)
        known = self.request.headers.get("If-None-Match")
        if known and self.request.method in SAFE_METHODS and _matches(known, self.conversation):
            raise NotModified
        return self.conversation

    @contextmanager
    def changing(self, verb: Verb = "change", *, check: bool = True) -> Iterator[Conversation]:
        """The same in a transaction in which nobody else writes to it; 412 if ``If-Match`` names another state."""
        using = router.db_for_write(Conversation)
        with transaction.atomic(using=using):
            self.conversation = self._found(verb, lambda rows: rows.using(using).select_for_update())
            if check:
                self.check_match()
            yield self.conversation

    def check_match(self) -> None:
        """412 if ``If-Match`` names another state than that of the conversation."""
        wanted = self.request.headers.get("If-Match")
        if wanted is not None and self.conversation is not None and not _matches(wanted, self.conversation):
            detail = "The conversation has changed; read it again."
            raise Problem(HTTPStatus.PRECONDITION_FAILED, "precondition_failed", detail, "If-Match")

    def remove(self, conversation: Conversation, sequence: int | None, **options: bool) -> dict[str, list[int]]:
        """Take a message, if any, out of the locked *conversation*; 403 if the user may not remove all that goes."""
        if not (removable := set(self.policy.removable_types(self.request))):
            raise exceptions.PermissionDenied
        if sequence is None:
            return {"removed": []}
        removed = get_chat_memory(conversation.memory_id).remove(sequence, **options)
        types = conversation.messages.filter(sequence__in=removed).order_by().values_list("type", flat=True)
        if not removable.issuperset(types):
            raise exceptions.PermissionDenied  # which undoes it
        conversation.refresh_from_db()
        return {"removed": removed}

    def _found(self, verb: Verb, locked: Callable[[QuerySet[Conversation]], QuerySet[Conversation]]) -> Conversation:
        try:
            key = memory_key(self.kwargs["memory_id"])
        except ValueError:
            raise Http404 from None
        found = locked(self.get_conversations(verb).filter(memory_id=key)).first()
        if found is not None:
            return found
        if verb != "view" and self.get_conversations("view").filter(memory_id=key).exists():
            raise exceptions.PermissionDenied
        raise Http404

    def get_conversations(self, verb: Verb) -> Any:
        """The conversations to which the user may do *verb*, each once: what a subclass narrows further."""
        rows = self.policy.conversations(self.request, verb)
        joined = sum(count > 0 for count in rows.query.alias_refcount.values())  # 0 of those that were not needed
        if rows.query.distinct or joined > 1:
            # A join may have a conversation several times, and what is DISTINCT can be neither locked nor deleted.
            return Conversation.objects.filter(pk__in=rows.order_by().values("pk"))
        return rows

    def get_query_serializer_class(self) -> type[Serializer[Any]] | None:
        """The serializer of the query parameters of this request."""
        method = str(self.request.method).lower().replace("head", "get")
        return self.query_serializers.get(self.action or method)

    def _query_names(self) -> set[str | None]:
        serializer_class = self.get_query_serializer_class()
        names: set[str | None] = set() if serializer_class is None else set(serializer_class().fields)
        if self.action in {"list", "bulk_destroy"}:
            names |= set(getattr(self.filterset_class, "base_filters", ()))
            names |= {StrictOrderingFilter.ordering_param} if self.ordering_fields else set()
        if self.action in self.list_actions:
            # Whatever pagination a subclass has chosen.
            parameters = ("cursor", "page", "page_size", "limit", "offset")
            names |= {getattr(self.paginator, f"{each}_query_param", None) for each in parameters}
        return names


@contextmanager
def found_at(path: str) -> Iterator[None]:
    """404 if the conversation has no message of the sequence that is at *path* of the request."""
    try:
        yield
    except MessageNotFoundError as exc:
        detail = f"The history has no message {exc.sequence}."
        raise Problem(HTTPStatus.NOT_FOUND, "not_found", detail, path) from None


def row_of(conversation: Conversation) -> ConversationQuerySet:
    """*conversation* alone, where it was read, for verbs that take several."""
    return Conversation.objects.using(conversation._state.db).filter(pk=conversation.pk)


def etag(conversation: Conversation) -> str:
    """A name for the state that *conversation* and its messages are in: every write gives it another version."""
    return f'"{conversation.pk}-{conversation.version}"'


def _matches(wanted: str, conversation: Conversation) -> bool:
    # Weak ones match, too: a proxy or GZipMiddleware makes them so of a response that says the same.
    names = {name.removeprefix("W/") for name in parse_etags(wanted)}
    return "*" in names or etag(conversation) in names
