"""Views of conversations and their memories: list, create, update and erase them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from itertools import accumulate, chain
from typing import Any
from urllib.parse import quote

from django.core.handlers.asgi import ASGIRequest
from django.db import IntegrityError, router, transaction
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from chatmemory_django import conf
from chatmemory_django.core.reasons import Reader, Remembered
from chatmemory_django.db.row_codec import UNREADABLE, unreadable_as
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, new_expiry
from chatmemory_django.operations import UnexportableError, admin_log, asynchronous, export, fork
from chatmemory_django.operations.reading import Way, note_read
from chatmemory_django.provider import MemoryConfiguration, get_chat_memory
from chatmemory_django.rest.filters import EVERYBODY, ConversationFilter
from chatmemory_django.rest.messages import refuse_types
from chatmemory_django.rest.pagination import ConversationPagination
from chatmemory_django.rest.parsers import LinesParser
from chatmemory_django.rest.problems import InvalidQuery, Problem, protected
from chatmemory_django.rest.queries import MatchQuery, MemoryQuery, ShownQuery
from chatmemory_django.rest.serializers import (
    ConversationChangeSerializer,
    ConversationSerializer,
    ErasedSerializer,
    FilesLeftSerializer,
    ForkSerializer,
    FromSerializer,
    HeadSerializer,
    MemorySerializer,
    MessageSerializer,
    NewConversationSerializer,
    NewMemorySerializer,
    RemovedSerializer,
    is_same,
    json_size,
    shown_rows,
    size_of,
)
from chatmemory_django.rest.views import ChatMemoryView, found_at, row_of
from chatmemory_django.stores.base import MemoryIdTakenError


class ConversationViewSet(ViewSetMixin, ListModelMixin, ChatMemoryView):
    """The user's conversations."""

    queryset = Conversation.objects.none()
    serializer_class: Any = ConversationSerializer
    message_serializer_class: Any = MessageSerializer
    """The serializer of the messages in a memory."""
    pagination_class = ConversationPagination
    filterset_class = ConversationFilter
    ordering = ("-updated_at", "-memory_id")
    ordering_fields = ("updated_at", "created_at", "is_pinned")
    request_serializers = {  # noqa: RUF012
        "create": NewConversationSerializer,
        "partial_update": ConversationChangeSerializer,
        "set_memory": NewMemorySerializer,
        "fork": ForkSerializer,
        "rewind": FromSerializer,
        "switch": FromSerializer,
    }
    query_serializers = {"list": MatchQuery, "memory": MemoryQuery, "set_memory": ShownQuery}  # noqa: RUF012
    lookup_field = "memory_id"
    lookup_value_regex = "[^/]+"

    def get_queryset(self) -> Any:
        if self.action == "bulk_destroy":
            return self.get_conversations("delete")
        return self.get_conversations("view").with_preview(self.listed_types)

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List the user's own conversations, the most recently active first."""
        with unreadable_as(str(UNREADABLE)):
            return super().list(request, *args, **kwargs)

    def paginate_queryset(self, queryset: Any) -> Any:
        """See ``GenericAPIView.paginate_queryset``."""
        page = super().paginate_queryset(queryset)
        way: Way = "searched" if self.request.query_params.get("search") else "listed"
        note_read(self.request.user, page or (), way, partial(self.policy.is_own, self.request))
        return page

    def create(self, request: Request) -> Response:
        """Create a conversation. If it already exists with the same content, that is not an error."""
        wanted = self.body
        owner = self.policy.owner_of_new(request)
        columns = {name: value for name, value in wanted.items() if name != "is_temporary"}
        expires_at = new_expiry() if wanted.get("is_temporary") else None
        conversation = Conversation(**columns, owner_id=None if owner is None else owner.pk, expires_at=expires_at)
        using = router.db_for_write(Conversation)
        size = _size(columns)
        same = Conversation.objects.using(using).filter(memory_id=conversation.memory_id)
        is_there = size > 0 and self.has_limit(self.owner_of(conversation)) and same.exists()
        try:
            with transaction.atomic(using=using):
                self.check_quota(conversation, size=0 if is_there else size)
                conversation.save(using=using, force_insert=True)
        except IntegrityError:
            conversation = self._existing(wanted)
        return self._created(conversation, request.path.rstrip("/"))

    def retrieve(self, request: Request, memory_id: str) -> Response:
        """Retrieve a conversation."""
        with unreadable_as(str(UNREADABLE)):
            return self._described(self.find())

    def partial_update(self, request: Request, memory_id: str) -> Response:
        """Update a conversation. Metadata is replaced as a whole; omitted fields are kept."""
        wanted = self.body
        grows = not wanted.keys().isdisjoint({"title", "metadata"})
        with unreadable_as(str(UNREADABLE)), self.changing("change", grows=grows) as conversation:
            there = {name: getattr(conversation, name) for name in wanted}
            self.check_quota(conversation, size=max(_size(wanted) - _size(there), 0))
            # A title that the user may not read is written in any case: otherwise the ETag would reveal a right guess.
            hidden = set() if self.readable_types else {"title"}
            changed = [
                name
                for name, value in wanted.items()
                if name in hidden or not is_same(getattr(conversation, name), value)
            ]
            for name in changed:
                setattr(conversation, name, wanted[name])
            conversation.save(update_fields=changed)
            if changed:
                self.log(conversation, admin_log.changed(changed))
            return self._described(conversation)

    @extend_schema(responses={204: None, 202: FilesLeftSerializer})
    def destroy(self, request: Request, memory_id: str) -> Response:
        """
        Erase a conversation with its memory, its history and everything else.

        The response is 202 if the storage has still to delete files of it.
        """
        with unreadable_as(None), self.changing("delete") as conversation:  # to erase it takes no key
            receipt, held = self.erase(row_of(conversation))
            if held:
                raise protected()
        if left := receipt.files_to_delete():
            return Response({"files_to_delete": left}, HTTPStatus.ACCEPTED)
        return Response(status=HTTPStatus.NO_CONTENT)

    @extend_schema("conversations_bulk_destroy", responses={200: ErasedSerializer}, filters=True)
    def bulk_destroy(self, request: Request) -> Response:
        """Erase the conversations that match the filters, one by one. At least one filter is required."""
        # Neither empty values nor "all owners" restrict anything.
        given = {name: request.query_params.get(name) for name in self.filterset_class.base_filters}
        if given.get("owner") == EVERYBODY:
            del given["owner"]
        if not any(given.values()):
            raise InvalidQuery(["At least one filter is required; without one, this would erase everything."])
        receipt, held = self.erase(self.filter_queryset(self.get_queryset()))
        shown = {"erased": len(receipt.messages), "protected": held}
        return Response({**shown, "files_to_delete": receipt.files_to_delete()})

    @extend_schema(responses=MemorySerializer)
    @action(detail=True)
    def memory(self, request: Request, memory_id: str) -> Response:
        """Retrieve what the model would be sent now. The window is the memory's own or another."""
        conversation = self.find()
        memory = self._seen_through(conversation)
        remembered = self._read(conversation, memory)
        shown = self._shown(remembered, memory)
        if self.query.get("explain", False):
            shown["explanation"] = [
                {
                    "sequence": each.sequence,
                    "type": each.message.type,
                    "is_sent": each.is_sent,
                    "reason": each.reason,
                    "token_count": each.tokens,
                }
                for each in remembered.explain(conversation.recent(conf.rest().PAGE_SIZE))
            ]
        return Response(shown)

    @extend_schema(responses=MemorySerializer)
    @memory.mapping.put
    def set_memory(self, request: Request, memory_id: str) -> Response:
        """
        Replace the memory with messages, as far as they fit.

        They may be a summary, for example. The history is not changed.
        """
        if not self.policy.may_set_memory(request):
            raise exceptions.PermissionDenied
        messages = [item["message"] for item in self.body["messages"]]
        refuse_types(messages, self.policy.writable_types(request))
        with self.changing("set", grows=True) as conversation:
            self.check_quota(conversation, messages)
            memory = get_chat_memory(conversation.memory_id)
            memory.set(messages)
            conversation.refresh_from_db()
            self.log(conversation, admin_log.REPLACED % {"messages": conversation.memory_messages})
            return Response(self._shown(self._read(conversation, memory), memory))

    @extend_schema(responses={204: None})
    @memory.mapping.delete
    def clear_memory(self, request: Request, memory_id: str) -> Response:
        """Clear the memory. The history is kept."""
        with self.changing("clear") as conversation:
            get_chat_memory(conversation.memory_id).clear()
            self.log(conversation, admin_log.CLEARED % {"messages": conversation.memory_messages})  # as before
        return Response(status=HTTPStatus.NO_CONTENT)

    @extend_schema(responses={201: ConversationSerializer})
    @action(detail=True, methods=["post"], throttle_scope="fork")
    def fork(self, request: Request, memory_id: str) -> Response:
        """Copy a conversation up to a message. The copy has the memory of that point, and the same owner."""
        wanted = self.body
        with self.changing("add", grows=True) as conversation, found_at("$.through"):
            self.check_quota(conversation, size=self._size_of_fork(conversation))
            window = get_chat_memory(conversation.memory_id).window()
            try:
                forked = fork(conversation, wanted.get("memory_id"), through=wanted.get("through"), window=window)
            except MemoryIdTakenError:
                raise _taken() from None
            last = wanted.get("through", forked.next_sequence - 1)
            self.log(conversation, admin_log.forked(last, forked.memory_id))
        return self._created(forked, request.path.rstrip("/").rpartition("/")[0].rpartition("/")[0])

    @extend_schema(responses=HeadSerializer)
    @action(detail=True, methods=["post"], url_path="memory/rewind")
    def rewind(self, request: Request, memory_id: str) -> Response:
        """Continue from a message on any branch. Later messages are kept in the history, as another branch."""
        to = self.body["to"]
        with self.changing("change") as conversation, found_at("$.to"):
            get_chat_memory(conversation.memory_id).rewind(to)
            conversation.refresh_from_db()
            self.log(conversation, admin_log.REWOUND % {"number": to})
        return Response({"to": to})

    @extend_schema(responses=HeadSerializer)
    @action(detail=True, methods=["post"], url_path="memory/switch")
    def switch(self, request: Request, memory_id: str) -> Response:
        """Switch to the branch of a message. The conversation continues from the newest message that follows it."""
        wanted = self.body["to"]
        with self.changing("change") as conversation, found_at("$.to"):
            to = get_chat_memory(conversation.memory_id).switch(wanted)
            conversation.refresh_from_db()
            self.log(conversation, admin_log.SWITCHED % {"number": wanted, "newest": to})
        return Response({"to": to})

    @extend_schema(responses=RemovedSerializer)
    @action(detail=True, methods=["post"], url_path="memory/pop")
    def pop(self, request: Request, memory_id: str) -> Response:
        """Remove the newest message in the memory from the memory and the history."""
        with self.changing("remove") as conversation:
            window = conversation.memory().exclude(sequence=conversation.summary_sequence or 0).order_by("sequence")
            return Response(self.remove(conversation, window.values_list("sequence", flat=True).last()))

    @extend_schema(responses={(200, LinesParser.media_type): OpenApiTypes.BINARY})
    @action(detail=True, throttle_scope="export")
    def export(self, request: Request, memory_id: str) -> StreamingHttpResponse:
        """Export what the user may read of a conversation as JSON Lines. They can be imported again."""
        conversation = self.find()
        own = self.policy.is_own(request, conversation)
        types = self.readable_types
        if not types or not self.policy.may_export(request, own=own):
            raise exceptions.PermissionDenied
        chunks = export(row_of(conversation), types=None if set(types) >= set(MessageType) else types)
        try:
            first = next(chunks, "")  # of the whole conversation: what cannot be exported has a status, and no file
        except UnexportableError as exc:
            raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "unexportable", str(exc)) from None
        chunks = chain([first], chunks)
        if request.method == "GET":
            self.log(conversation, admin_log.EXPORTED % {"messages": conversation.total_messages})
        return StreamingHttpResponse(
            asynchronous(chunks) if isinstance(request._request, ASGIRequest) else chunks,
            content_type=LinesParser.media_type,
            headers={"Content-Disposition": 'attachment; filename="conversation.jsonl"'},
        )

    def _size_of_fork(self, conversation: Conversation) -> int:
        """Return how much a fork of *conversation* may take; 0 where it does not matter."""
        if not self.has_limit(self.owner_of(conversation)):
            return 0
        copied = {"title": conversation.title, "metadata": conversation.metadata}
        return conversation.messages.total_size() + _size(copied)

    def _existing(self, wanted: Mapping[str, Any]) -> Conversation:
        there: Conversation | None = self.get_conversations("view").filter(memory_id=wanted["memory_id"]).first()
        # Of others' conversations, the answer would reveal whether a guess of the title is right.
        if there is None or not self.policy.is_own(self.request, there):
            raise _taken()
        if not all(is_same(getattr(there, name), value) for name, value in wanted.items()):
            raise _taken()
        return there

    def _created(self, conversation: Conversation, root: str) -> Response:
        where = quote(f"{root}/") + quote(conversation.memory_id, safe="")
        headers = {"Location": self.request.build_absolute_uri(f"{where}/")}
        return self._described(conversation, HTTPStatus.CREATED, headers)

    def _described(
        self, conversation: Conversation, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
    ) -> Response:
        self.conversation = conversation
        self.conversation = row_of(conversation).with_preview(self.readable_types).get()
        return Response(self.get_serializer(self.conversation).data, status, headers=headers)

    def _seen_through(self, conversation: Conversation) -> Reader:
        limits = {name: self.query.get(name) for name in ("max_messages", "max_tokens")}
        if None not in limits.values():
            raise InvalidQuery({"max_tokens": "max_messages and max_tokens cannot be combined; use one of them."})
        try:
            configured = MemoryConfiguration.of(conversation.memory_id).with_limit(**limits, is_only_read=True)
        except ValueError as exc:
            raise InvalidQuery({"max_tokens": str(exc)}) from None
        return configured.reader()

    def _read(self, conversation: Conversation, memory: Reader) -> Remembered[Any]:
        return conversation.read(memory, lambda messages: shown_rows(messages, self.message_serializer_class) or [])

    def _shown(self, remembered: Remembered[Any], memory: Reader) -> dict[str, Any]:
        sent, rows, most = remembered.sent(), [], conf.rest().MAX_PAGE_CHARACTERS
        inline = self.query.get("media") == "inline"
        sizes = accumulate(size_of(each.row, each.message, inline=inline) for each in reversed(sent))
        # The newest ones, as on a page of the history.
        fitting = sum(size <= most for size in sizes) or 1
        for each in sent[-fitting:]:
            row: Any = each.row
            row.sent, row.token_count = each.message, each.tokens
            rows.append(row)
        # All of these are in it, even those that come back to it with the next write.
        context = {**self.get_serializer_context(), "remembers": lambda row: True}
        serializer = self.message_serializer_class(rows, many=True, context=context)
        window = memory.window()
        unit = "messages" if window.estimator is None else "tokens"
        return {
            "messages": serializer.data,
            "left_out": [each.row.sequence for each in sent[:-fitting]],
            "limit": window.limit,
            "evict_to": window.evict_to,
            "unit": unit,
        }


def _size(columns: Mapping[str, Any]) -> int:
    """Return how much of what a user may store these *columns* of a conversation take."""
    return len(columns.get("title", "")) + json_size(columns.get("metadata"))


def _taken() -> Problem:
    return Problem(HTTPStatus.CONFLICT, "exists", "This memory id is taken; choose another.", "$.memory_id")
