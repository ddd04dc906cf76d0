"""Conversations to lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import msgspec
from django.db.models import QuerySet

from chatmemory_django.codec import message_to_json
from chatmemory_django.formats.jsonl.lines import SPOOL_BYTES, Head, Said
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.rows import aware, to_message
from chatmemory_django.stores.django.whole import at_one_moment, keys, messages_of, pages

_encode = msgspec.json.Encoder().encode
_ROW_COLUMNS = (
    "sequence",
    "created_at",
    "type",
    "text",
    "payload",
    "token_count",
    "counted_by",
    "superseded",
    "in_history",
    "is_complete",
    "client_message_id",
    "metadata",
)


def export_lines(
    conversations: QuerySet[Conversation], *, types: Collection[MessageType] | None = None
) -> Iterator[str]:
    """
    Yield *conversations*, each with all of its messages, or those of *types*, as lines that end with a newline.

    Each is told as it was at one moment, when its turn came; what was erased before that is left out. No transaction is
    open and no lock is held between two lines, however slowly they are read. ``ValueError`` if something is stored that
    the format cannot say: a row that holds no message, for example.
    """
    for key in keys(conversations):
        with SpooledTemporaryFile(SPOOL_BYTES) as spool:
            head = at_one_moment(conversations, key, partial(_spool, spool, types))
            if head is not None:
                yield head.decode()
                spool.seek(0)
                yield from (line.decode() for line in spool)


def _spool(spool: IO[bytes], types: Collection[MessageType] | None, conversation: Conversation) -> bytes:
    """Write the lines of the messages of *conversation* to *spool*, and return the one that comes before them."""
    spool.seek(0)
    spool.truncate()
    name = f"conversation {conversation.memory_id!r}"
    rows = messages_of(conversation)
    if types is not None:
        rows = rows.filter(type__in=types)
    count = 0
    for page in pages(rows, *_ROW_COLUMNS):
        for row in page:
            spool.write(_line(f"message {row[0]} of {name}", _said, *row))
        count += len(page)
    is_pinned_there = types is None or MessageType.SYSTEM in types
    pinned_sequence = conversation.pinned_sequence if is_pinned_there else None
    return _line(name, _head, conversation, pinned_sequence, count)


def _line(name: str, tell: Callable[..., Head | Said], *told: Any) -> bytes:
    """Return the line of what *name* is the name of."""
    try:
        return _encode(tell(*told)) + b"\n"
    except (KeyError, ValueError, OverflowError) as exc:
        raise ValueError(f"Cannot export {name}: {type(exc).__name__}. See check_chatmemory.") from None


def _head(conversation: Conversation, pinned_sequence: int | None, messages: int) -> Head:
    return Head(
        memory_id=conversation.memory_id,
        next_sequence=conversation.next_sequence,
        window_start=conversation.window_start,
        pinned_sequence=pinned_sequence,
        total_messages=conversation.total_messages,
        title=conversation.title,
        metadata=conversation.metadata,
        created_at=_utc(conversation.created_at),
        updated_at=_utc(conversation.updated_at),
        messages=messages,
        is_pinned=conversation.is_pinned,
        is_archived=conversation.is_archived,
    )


def _said(sequence: int, created_at: datetime, type: str, text: str, payload: str | None, *rest: Any) -> Said:
    message = to_message(type, text, payload)
    written = message_to_json(message) if payload is None else _one_line(payload)
    return Said(sequence, _utc(created_at), msgspec.Raw(written.encode()), *rest)


def _one_line(payload: str) -> str:
    """Return *payload*, which somebody else than the store may have written on several lines, on one."""
    return payload.replace("\n", " ").replace("\r", " ")


def _utc(moment: datetime) -> datetime:
    return aware(moment).astimezone(UTC)
