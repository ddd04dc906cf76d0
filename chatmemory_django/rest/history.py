"""Messages: to read what was said, page by page, and to say more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation, MemoryStatus, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.base import ChatMemoryView, page_size, with_parameters
from chatmemory_django.rest.formats import messages_in, metadata_in, to_form
from chatmemory_django.rest.problems import Refusal, bad_request
from chatmemory_django.rest.schema import describe
from chatmemory_django.rest.shapes import (
    MAX_SEQUENCE,
    Added,
    Format,
    FormatQuery,
    MessagePage,
    MessagesQuery,
    NewMessages,
    ToldMessage,
    stored,
)
from chatmemory_django.rest.wire import body, query
from chatmemory_django.rows import to_columns

REACH = 2_000
"""How many messages a page looks at for those of a type, say: if they are few, it would else read the whole history."""

KEYS = UUID("6f1d6c1e-5f0b-5d5c-9b43-6d6f3a1f9a57")
"""The namespace of the client message ids that are made of idempotency keys."""

_SEQUENCE = re.compile("[0-9]{1,10}")


class Messages(ChatMemoryView):
    """The messages of a conversation."""

    @describe("list_messages", query=MessagesQuery, answer=MessagePage)
    def get(self, request: Request, memory_id: str) -> Response:
        """List what was said, in order: the latest page, or the one after or before a sequence."""
        asked = query(request, MessagesQuery)
        size = page_size(asked.limit)
        conversation = self.conversation(memory_id)
        page = _page(conversation, asked, size)
        before = None if asked.after is None else asked.before  # a range keeps its end
        following = None if page.next is None else with_parameters(request, after=page.next, before=before)
        previous = None if page.previous is None else with_parameters(request, before=page.previous, after=None)
        return Response(MessagePage(_told(page.rows, asked.format), following, previous))

    @describe("add_messages", query=FormatQuery, body=NewMessages, answer=Added, status=HTTPStatus.CREATED, retry=True)
    def post(self, request: Request, memory_id: str) -> Response:
        """Add messages at the end, all or none. What no longer fits the memory leaves it, and stays in the history."""
        query(request, FormatQuery)
        asked = body(request, NewMessages)
        messages = messages_in(asked.messages)
        metadata = metadata_in(asked.metadata)
        given, key = _names(request, asked)
        with self.changing(memory_id) as conversation:
            sequences = get_chat_memory(conversation.memory_id).add(
                *messages,
                metadata=metadata,
                client_message_ids=given if key is None else _client_message_ids(conversation, given, key),
            )
            _check_repeated(conversation, messages, sequences)
        return Response(Added(sequences), HTTPStatus.CREATED)


class OneMessage(ChatMemoryView):
    """A message."""

    @describe("read_message", query=FormatQuery, answer=ToldMessage)
    def get(self, request: Request, memory_id: str, sequence: str) -> Response:
        """Tell of a message."""
        asked = query(request, FormatQuery)
        conversation = self.conversation(memory_id)
        row = None
        # Here and not in the path, whose 404 would be a page of the site.
        if _SEQUENCE.fullmatch(sequence) and int(sequence) <= MAX_SEQUENCE:
            row = conversation.messages.with_status().filter(sequence=int(sequence)).first()
        if row is None:
            raise Http404
        return Response(_told([row], asked.format)[0])


class _Page(NamedTuple):
    """Rows in order, and the sequences after which and before which there may be more."""

    rows: list[Message]
    next: int | None
    previous: int | None


def _page(conversation: Conversation, asked: MessagesQuery, size: int) -> _Page:
    rows = conversation.history().with_status()
    if asked.type is not None:
        rows = rows.filter(type=asked.type)
    if asked.in_memory is not None:
        rows = rows.in_memory() if asked.in_memory else rows.evicted()
    low = asked.after or 0
    high = conversation.next_sequence if asked.before is None else min(asked.before, conversation.next_sequence)
    reach = high if asked.type is None and asked.in_memory is None else REACH
    if asked.after is not None:
        end = min(high, low + 1 + reach)
        found = list(rows.filter(sequence__gt=low, sequence__lt=end).order_by("sequence")[: size + 1])
        more = found[size - 1].sequence if len(found) > size else end - 1 if end < high else None
        return _Page(found[:size], more, low + 1 if low else None)
    start = max(0, high - 1 - reach)
    found = list(rows.filter(sequence__gt=start, sequence__lt=high).order_by("-sequence")[: size + 1])
    more = found[size - 1].sequence if len(found) > size else start + 1 if start else None
    return _Page(found[:size][::-1], high - 1 if high < conversation.next_sequence else None, more)


def _told(rows: Sequence[Any], form: Format) -> list[dict[str, Any]]:
    """*rows*, with their status, as the API tells them."""
    if form == "openai":
        return to_form([row.chat_message for row in rows])
    return [
        stored(
            row,
            row.chat_message,
            in_memory=MemoryStatus(row.status).is_in_memory,
            token_count=row.token_count,
        )
        for row in rows
    ]


def _names(request: Request, asked: NewMessages) -> tuple[Sequence[str | None], str | None]:
    """The client message ids in the body, one for each message, and the ``Idempotency-Key``."""
    count = len(asked.messages)
    given = asked.client_message_ids or [None] * count
    if len(given) != count:
        raise bad_request(
            "$.client_message_ids", f"It has {len(given)} items, but must have one for each of {count} messages."
        )
    named = [each for each in given if each is not None]
    if len(set(named)) < len(named):
        raise bad_request("$.client_message_ids", "Two messages have the same id in it.")
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= 255:
        raise bad_request("Idempotency-Key", f"It must have 1 to 255 characters, not {len(key)}.")
    return given, key


def _client_message_ids(conversation: Conversation, given: Sequence[str | None], key: str) -> list[str]:
    """*given*, with ids made of *key* where there are none."""
    return [each or str(uuid5(KEYS, f"{conversation.pk} {index} {key}")) for index, each in enumerate(given)]


def _check_repeated(conversation: Conversation, messages: Sequence[ChatMessage], sequences: Sequence[int]) -> None:
    """Refuse a name that was given to another message before."""
    repeated = {
        sequence: message
        for sequence, message in zip(sequences, messages, strict=True)
        if sequence < conversation.next_sequence
    }
    if not repeated:
        return
    for row in conversation.messages.filter(sequence__in=repeated):
        if to_columns(repeated[row.sequence]) != (row.type, row.text, row.payload):
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"The client message id or the Idempotency-Key was used before, for another message: {row.sequence}.",
                "Idempotency-Key",
            )
