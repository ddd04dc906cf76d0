"""Messages: to read what was said, page by page, and to say more."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Any
from uuid import UUID, uuid5

from django.db.models import Q, QuerySet
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
from chatmemory_django.media import file_at, served_as
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import annotate
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.access import FEEDBACK
from chatmemory_django.rest.filters import MessageFilter
from chatmemory_django.rest.pagination import MessagePagination
from chatmemory_django.rest.problems import Problem, invalid
from chatmemory_django.rest.serializers import (
    IN_MEMORY,
    MessageSerializer,
    MessagesQuery,
    MetadataChangeSerializer,
    NewMessagesSerializer,
    RemovalQuery,
    RemovedSerializer,
    ShownQuery,
    StoredMessagesSerializer,
    is_same,
)
from chatmemory_django.rest.views import ChatMemoryView, found_at, row_of
from chatmemory_django.rows import to_columns
from chatmemory_django.stores.django.changes import MAX_INTEGER

KEYS = UUID("6f1d6c1e-5f0b-5d5c-9b43-6d6f3a1f9a57")
"""The namespace of the client message ids that are made of idempotency keys."""

_NUMBER = re.compile("[0-9]{1,10}")


class MessageViewSet(ViewSetMixin, ListModelMixin, ChatMemoryView):
    """The messages of a conversation."""

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
        """See ``GenericAPIView.get_queryset``."""
        conversation = self.find()
        if self.action == "alternatives":
            row = self.find_message(conversation)
            return conversation.alternatives(row.sequence).filter(type__in=self.readable_types).with_status()
        history = conversation.history(all_branches=self.query.get("all_branches", False))
        return history.with_status().defer("verbatim")

    def get_serializer_context(self) -> dict[str, Any]:
        """See ``GenericAPIView.get_serializer_context``."""
        return {**super().get_serializer_context(), "search": self.request.query_params.get("search")}

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List what was said on the path, or on all branches, the newest messages first."""
        self.filter_queryset(Message.objects.none())  # a wrong filter is refused, whether anything has changed or not
        return super().list(request, *args, **kwargs)

    def retrieve(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Describe a message."""
        return Response(self.get_serializer(self.find_message(self.find())).data)

    @extend_schema(responses={201: StoredMessagesSerializer})
    def create(self, request: Request, memory_id: str) -> Response:
        """
        Add messages at the end, all or none. What no longer fits the memory leaves it, and stays in the history.

        With `after`, the conversation goes on from that message, and what came later stays as another branch: that is
        how to edit what was said. The response has the messages as they are stored.
        """
        body = self.body
        items = body["messages"]
        messages = [item["message"] for item in items]
        refuse_types(messages, self.policy.writable_types(request))
        key = _idempotency_key(request)
        with self.changing(check=False) as conversation, found_at("$.after"):
            ids = _client_message_ids(conversation, items, key)
            if not _is_repeated(conversation, items, ids, key):
                self.check_match()
            sequences = get_chat_memory(conversation.memory_id).add(
                *messages,
                metadata=[item.get("metadata") for item in items],
                client_message_ids=ids,
                after=body.get("after"),
            )
            conversation.refresh_from_db()
            rows = {row.sequence: row for row in conversation.messages.with_status().filter(sequence__in=sequences)}
        # What leaves the memory at once is gone where history is not kept.
        stored = [rows[sequence] for sequence in sequences if sequence in rows]
        return Response({"messages": self.get_serializer(stored, many=True).data}, HTTPStatus.CREATED)

    def partial_update(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Change the metadata of a message, a person's feedback for example: key by key, null removes one."""
        changes = self.body.get("metadata", {})
        with self.changing(check=False) as conversation:
            row = self.find_message(conversation)
            self.check_match()
            if row.type not in self.readable_types:
                raise exceptions.PermissionDenied
            writable = self.policy.writable_metadata(request, MessageType(row.type))
            if writable is not None and (refused := sorted(changes.keys() - set(writable))):
                detail = {key: [f"Only {', '.join(sorted(writable))} may be changed here."] for key in refused}
                raise serializers.ValidationError({"metadata": detail}, "forbidden")
            most = conf.rest()["MAX_METADATA_BYTES"]
            try:
                is_there = annotate(row_of(conversation), conversation.memory_id, row.sequence, changes, max_bytes=most)
            except ValueError as exc:
                raise invalid("$.metadata", str(exc)) from None
            if is_there is None:  # but in the memory only
                raise Http404
            conversation.refresh_from_db()
            row = self.find_message(conversation)
        return Response(self.get_serializer(row).data)

    @extend_schema(responses={200: RemovedSerializer})
    def destroy(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Take a message out of the memory and the history. Its sequence is never given again."""
        with self.changing(check=False) as conversation:
            row = self.find_message(conversation)
            self.check_match()
            return Response(self.remove(conversation, row.sequence, with_results=self.query.get("with_results", False)))

    @extend_schema(responses=MessageSerializer(many=True), filters=False)
    @action(detail=True)
    def alternatives(self, request: Request, memory_id: str, sequence: str) -> Response:
        """List what else was said in the place of a message, on other branches, the newest messages first."""
        return super().list(request)

    @extend_schema(responses={(200, "application/octet-stream"): OpenApiTypes.BINARY})
    @action(detail=True, url_path=r"media/(?P<index>[^/]+)")
    def media(self, request: Request, memory_id: str, sequence: str, index: str) -> HttpResponse:
        """Send a file that is in a message, as what its first bytes say it is."""
        row = self.find_message(self.find())
        is_readable = row.type in self.readable_types and _NUMBER.fullmatch(index)
        file = file_at(row.chat_message, int(index)) if is_readable else None
        if file is None:
            raise Http404
        name = f"message-{row.sequence}-{int(index) + 1}.{file.extension}"
        headers = served_as(name, is_inline=file.is_preview)
        return HttpResponse(file.content, content_type=file.media_type, headers=headers)

    def find_message(self, conversation: Conversation) -> Message:
        """The message of the path; 404 if there is none."""
        sequence = self.kwargs["sequence"]
        # Here and not in the path, whose 404 would be a page of the site's.
        if _NUMBER.fullmatch(sequence) and int(sequence) <= MAX_INTEGER:
            rows = conversation.messages.with_status()
            # What was taken out of the history is shown to nobody.
            shown = Q(in_history=True) | Q(status__in=IN_MEMORY)
            row = rows.filter(shown, sequence=int(sequence)).first()
            if row is not None:
                return row
        raise Http404


def refuse_types(
    messages: Sequence[ChatMessage], writable: Collection[MessageType], path: str = "$.messages[{}].message"
) -> None:
    """403 for messages of other types than *writable*; *path* is where those are, but for the number of each."""
    for index, message in enumerate(messages):
        if message.type not in writable:
            names = ", ".join(sorted(writable)) or "none"
            detail = f"You may add messages of these types: {names}; this one is {message.type}."
            raise Problem(HTTPStatus.FORBIDDEN, "forbidden_type", detail, path.format(index))


def _idempotency_key(request: Request) -> str | None:
    key: str | None = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= 255:
        raise invalid("Idempotency-Key", f"It must have 1 to 255 characters, not {len(key)}.")
    return key


def _client_message_ids(
    conversation: Conversation, items: Sequence[dict[str, Any]], key: str | None
) -> list[str | None]:
    """The client message ids in the body, with ids made of *key* where there are none."""
    ids = [item.get("client_message_id") for item in items]
    given = [each for each in ids if each is not None]
    if len(set(given)) < len(given):
        raise invalid("$.messages", "Two messages have the same client_message_id.")
    return [
        _id_of(conversation, key, index) if each is None and key is not None else each for index, each in enumerate(ids)
    ]


def _id_of(conversation: Conversation, key: str, index: int) -> str:
    return str(uuid5(KEYS, f"{conversation.pk} {index} {key}"))


def _is_repeated(
    conversation: Conversation, items: Sequence[dict[str, Any]], ids: Sequence[str | None], key: str | None
) -> bool:
    """Whether the same was added before; 422 if an id or a key was used for something else."""
    named = {each: index for index, each in enumerate(ids) if each is not None}
    if key is not None:
        named[_id_of(conversation, key, len(items))] = len(items)  # there if there were more messages
    if not named:
        return False
    # Locked, so that MariaDB reads what is there now, and not when the transaction of the request began.
    there = conversation.messages.filter(client_message_id__in=named).order_by().select_for_update()
    known = {named[row.client_message_id]: row for row in there if row.client_message_id}
    for index, row in sorted(known.items()):
        if index == len(items):
            raise _reused(index)
        same = to_columns(items[index]["message"]) == (row.type, row.text, row.payload)
        if not same or not is_same(_unrated(row.metadata), _unrated(items[index].get("metadata"))):
            raise _reused(index)
    # A system message that was there already was not stored again, and left no id.
    missing = [
        index for index, item in enumerate(items) if index not in known and item["message"].type != MessageType.SYSTEM
    ]
    if known and missing and key is not None:
        raise _reused(missing[0])
    return bool(known) and not missing


def _unrated(metadata: Any) -> dict[str, Any]:
    """*metadata* without the feedback that may have come since."""
    return {key: value for key, value in (metadata or {}).items() if key != FEEDBACK}


def _reused(index: int) -> Problem:
    detail = "The Idempotency-Key or the client_message_id was used before, for other messages; use a new one."
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "key_reused", detail, f"$.messages[{index}]")
