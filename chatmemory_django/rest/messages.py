"""Views of messages: read them page by page, add, annotate and remove them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid5

from django.db.models import Exists, OuterRef, QuerySet
from django.http import Http404, HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from chatmemory_django import conf
from chatmemory_django.access import FEEDBACK
from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.messages import ChatMessage, MessageType, NewMessage
from chatmemory_django.models import Conversation, Message, MessageQuerySet
from chatmemory_django.models.columns import to_columns
from chatmemory_django.models.message_codec import file_in
from chatmemory_django.operations import admin_log, annotate
from chatmemory_django.operations.one_by_one import as_kept
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.filters import MessageFilter
from chatmemory_django.rest.pagination import MessagePagination
from chatmemory_django.rest.problems import Problem, invalid
from chatmemory_django.rest.queries import MessagesQuery, RemovalQuery, ShownQuery
from chatmemory_django.rest.serializers import (
    MessageSerializer,
    MetadataChangeSerializer,
    NewMessagesSerializer,
    PinnedSerializer,
    RemovedSerializer,
    StoredMessagesSerializer,
    is_same,
    json_size,
    shown_rows,
)
from chatmemory_django.rest.views import ChatMemoryView, found_at, row_of
from chatmemory_django.stores.base import PinError

KEYS = UUID("6f1d6c1e-5f0b-5d5c-9b43-6d6f3a1f9a57")
"""The UUID namespace of client message ids that are derived from idempotency keys."""

_NUMBER = re.compile("[0-9]{1,10}")
_HAS_BRANCHES = Exists(
    Message.objects.history(all_branches=True).filter(conversation=OuterRef("pk"), parent_sequence__isnull=False)
)
"""Whether a message names its parent: if none does, no message has alternatives, however old it is."""


class MessageViewSet(ViewSetMixin, ListModelMixin, ChatMemoryView):
    """The messages of a conversation."""

    tag = "messages"
    queryset = Message.objects.none()
    serializer_class: Any = MessageSerializer
    request_serializers = {  # noqa: RUF012
        "create": NewMessagesSerializer,
        "partial_update": MetadataChangeSerializer,
    }
    pagination_class = MessagePagination
    filterset_class = MessageFilter
    ordering = ("-sequence",)
    ordering_fields = ("sequence",)
    list_actions = frozenset({"list", "alternatives"})
    query_serializers = {  # noqa: RUF012
        **dict.fromkeys(("retrieve", "create", "partial_update", "alternatives"), ShownQuery),
        "list": MessagesQuery,
        "destroy": RemovalQuery,
    }
    lookup_field = "sequence"
    lookup_value_regex = "[^/]+"

    def get_queryset(self) -> QuerySet[Message]:
        conversation = self.find(has_branches=_HAS_BRANCHES)
        if self.action == "alternatives":
            row = self.find_message(conversation)
            return conversation.alternatives(row.sequence).filter(type__in=self.readable_types)
        return conversation.history(all_branches=self.query.get("all_branches", False))

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "search": self.request.query_params.get("search")}

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the messages, the newest first. They are those on the current path or on all branches."""
        self.filter_queryset(Message.objects.none())  # invalid filters are a 400, even if the response would be a 304
        return super().list(request, *args, **kwargs)

    def paginate_queryset(self, queryset: Any) -> Any:
        """See ``GenericAPIView.paginate_queryset``, and ``shown_rows``."""
        return shown_rows(queryset, self.get_serializer_class(), super().paginate_queryset)

    def retrieve(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Retrieve a message."""
        return Response(self.get_serializer(self.find_message(self.find(has_branches=_HAS_BRANCHES))).data)

    @extend_schema(responses={201: StoredMessagesSerializer})
    def create(self, request: Request, memory_id: str) -> Response:
        """
        Add messages at the end, all or none. Messages that no longer fit the memory are kept in the history.

        With `after`, the conversation continues from that message, and later messages become another branch: this is
        how to edit a message. The response has the messages as they are stored.
        """
        body = self.body
        adds = [item["message"] for item in body["messages"]]
        refuse_types(adds, self.policy.writable_types(request))
        key = _idempotency_key(request)
        with self.changing("write", check=False, grows=True) as conversation, found_at("$.after"):
            new = _new_messages(conversation, body["messages"], key)
            is_repeated = _is_repeated(conversation, new, key)
            if not is_repeated:
                self.check_match()
                self.check_quota(conversation, adds, sum(json_size(each.metadata) for each in new))
            sequences = get_chat_memory(conversation.memory_id).add(*new, after=body.get("after"))
            if not is_repeated:
                self.log(conversation, admin_log.added(sequences))
            conversation.refresh_from_db()
            rows = {row.sequence: row for row in _shown(conversation).filter(sequence__in=sequences)}
        # Without a history, messages that are evicted immediately are deleted; a retry may repeat removed ones.
        stored = [rows[sequence] for sequence in sequences if sequence in rows]
        return Response({"messages": self.get_serializer(stored, many=True).data}, HTTPStatus.CREATED)

    def partial_update(self, request: Request, memory_id: str, sequence: str) -> Response:
        """
        Update the metadata of a message, such as a user's feedback.

        Other keys are kept, and null removes a key.
        """
        changes = self.body.get("metadata", {})
        with self.changing("write", check=False, grows=bool(changes)) as conversation:
            row = self.find_message(conversation)
            self.check_match()
            if row.type not in self.readable_types:
                raise exceptions.PermissionDenied
            writable = self.policy.writable_metadata(request, MessageType(row.type))
            if writable is not None and (refused := sorted(changes.keys() - set(writable))):
                detail = {key: [f"Only {', '.join(sorted(writable))} may be changed here."] for key in refused}
                raise serializers.ValidationError({"metadata": detail}, "forbidden")
            old = row.metadata or {}
            self.check_quota(conversation, size=max(json_size({**old, **changes}) - json_size(old), 0))
            most = conf.rest().MAX_METADATA_BYTES
            try:
                is_there = annotate(row_of(conversation), conversation.memory_id, row.sequence, changes, max_bytes=most)
            except ValueError as exc:
                raise invalid("$.metadata", str(exc)) from None
            if is_there is None:  # it is only in the memory
                raise Http404
            if changes:
                self.log(conversation, admin_log.ANNOTATED % {"number": row.sequence})
            conversation.refresh_from_db()
            row = self.find_message(conversation)
        return Response(self.get_serializer(row).data)

    @extend_schema(responses={200: RemovedSerializer})
    def destroy(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Remove a message from the memory and the history. Its sequence is never used again."""
        with self.changing("remove", check=False) as conversation:
            row = self.find_message(conversation)
            self.check_match()
            return Response(self.remove(conversation, row.sequence, with_results=self.query.get("with_results", False)))

    @extend_schema(responses={200: PinnedSerializer})
    @action(detail=True, methods=["post"])
    def pin(self, request: Request, memory_id: str, sequence: str) -> Response:
        """
        Pin a message: it stays in the memory, whatever is evicted.

        A call of tools is pinned with its results.
        """
        with self.changing("change", check=False) as conversation, found_at("$"):
            row = self.find_message(conversation)
            self.check_match()
            try:
                pinned = get_chat_memory(conversation.memory_id).pin(row.sequence)
            except PinError as exc:
                raise Problem(HTTPStatus.CONFLICT, "not_pinned", str(exc), "$") from None
            conversation.refresh_from_db()
            self.log(conversation, admin_log.pinned(pinned))
        return Response({"messages": pinned})

    @extend_schema(responses={200: PinnedSerializer})
    @pin.mapping.delete
    def unpin(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Unpin a message, and what belongs to it."""
        with self.changing("change", check=False) as conversation, found_at("$"):
            row = self.find_message(conversation)
            self.check_match()
            unpinned = get_chat_memory(conversation.memory_id).unpin(row.sequence)
            conversation.refresh_from_db()
            self.log(conversation, admin_log.unpinned(unpinned))
        return Response({"messages": unpinned})

    @extend_schema(responses=MessageSerializer(many=True), filters=False)
    @action(detail=True)
    def alternatives(self, request: Request, memory_id: str, sequence: str) -> Response:
        """List the alternatives to a message on other branches, the newest first."""
        return super().list(request)

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    @action(detail=True, url_path=r"media/(?P<index>[^/]+)")
    def media(self, request: Request, memory_id: str, sequence: str, index: str) -> HttpResponse:
        """Download a file in a message. Its media type is detected from its first bytes."""
        conversation = self.find()
        row = self.find_message(conversation)
        is_readable = row.type in self.readable_types and _NUMBER.fullmatch(index)
        file = file_in(row.chat_message, int(index), address_of(conversation)) if is_readable else None
        if file is None:
            raise Http404
        return HttpResponse(file.content, headers=file.headers(f"message-{row.sequence}-{int(index) + 1}"))

    def find_message(self, conversation: Conversation) -> Message:
        """Return the message that the URL refers to; 404 if there is none."""
        sequence = self.kwargs["sequence"]
        # Checked here and not in the URL pattern, whose 404 would be the site's HTML page.
        if _NUMBER.fullmatch(sequence) and int(sequence) <= MAX_INTEGER:
            row = _shown(conversation).filter(sequence=int(sequence)).first()
            if row is not None:
                return row
        raise Http404


def refuse_types(
    messages: Sequence[ChatMessage], writable: Collection[MessageType], path: str = "$.messages[{}].message"
) -> None:
    """Respond 403 to messages of types other than *writable*; *path* is a template for the path of a message."""
    for index, message in enumerate(messages):
        if message.type not in writable:
            names = ", ".join(sorted(writable)) or "none"
            detail = f"You may add messages of these types: {names}; this one is {message.type}."
            raise Problem(HTTPStatus.FORBIDDEN, "forbidden_type", detail, path.format(index))


def _shown(conversation: Conversation) -> MessageQuerySet:
    """Return the messages of *conversation*, without removed ones."""
    return conversation.history(all_branches=True) | conversation.messages.in_memory()


def _idempotency_key(request: Request) -> str | None:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= 255:
        raise invalid("Idempotency-Key", f"It must have 1 to 255 characters, not {len(key)}.")
    return key


def _new_messages(conversation: Conversation, items: Sequence[dict[str, Any]], key: str | None) -> list[NewMessage]:
    """Return the messages in the body; client message ids that are missing are derived from *key*."""
    given = [item["client_message_id"] for item in items if item.get("client_message_id") is not None]
    if len(set(given)) < len(given):
        raise invalid("$.messages", "Two messages have the same client_message_id.")
    new = []
    for index, item in enumerate(items):
        name = item.get("client_message_id")
        if name is None and key is not None:
            name = _id_of(conversation, key, index)
        new.append(NewMessage(item["message"], item.get("metadata"), name))
    return new


def _id_of(conversation: Conversation, key: str, index: int) -> str:
    return str(uuid5(KEYS, f"{conversation.pk} {index} {key}"))


def _is_repeated(conversation: Conversation, new: Sequence[NewMessage], key: str | None) -> bool:
    """Return whether the same messages were added before; 422 if an id or a key was used for others."""
    named = {each.client_message_id: index for index, each in enumerate(new) if each.client_message_id is not None}
    if key is not None:
        named[_id_of(conversation, key, len(new))] = len(new)  # exists if the key was used with more messages
    if not named:
        return False
    # Locked so that MariaDB reads the latest state, and not that at the start of the request's transaction.
    there = conversation.messages.filter(client_message_id__in=named).order_by().select_for_update()
    known = {named[row.client_message_id]: row for row in there if row.client_message_id}
    for index, row in sorted(known.items()):
        if index == len(new):
            raise _reused(index)
        if not row.in_history:  # it was removed, so its content is unknown
            continue
        same = to_columns(as_kept(new[index].message)) == (row.type, row.text, row.payload)
        if not same or not is_same(_unrated(row.metadata), _unrated(new[index].metadata)):
            raise _reused(index)
    # A system message that already existed was not stored again, so its id was not stored either.
    missing = [
        index for index, each in enumerate(new) if index not in known and each.message.type != MessageType.SYSTEM
    ]
    if known and missing and key is not None:
        raise _reused(missing[0])
    return bool(known) and not missing


def _unrated(metadata: Any) -> dict[str, Any]:
    """Return *metadata* without feedback, which may have been added since."""
    return {key: value for key, value in (metadata or {}).items() if key != FEEDBACK}


def _reused(index: int) -> Problem:
    detail = "The Idempotency-Key or the client_message_id was used before for other messages; use a new one."
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "key_reused", detail, f"$.messages[{index}]")
