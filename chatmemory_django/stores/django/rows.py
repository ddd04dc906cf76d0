"""The rows of the store: what it reads of conversations and messages, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from chatmemory_django import conf
from chatmemory_django.core.limits import checked_client_message_id
from chatmemory_django.core.windows import Eviction
from chatmemory_django.db import row_codec
from chatmemory_django.messages import Metadata, NewMessage
from chatmemory_django.models.columns import checked_verbatim, to_columns, to_metadata
from chatmemory_django.models.message_codec import Extracted, take_out

ESCAPED = "'\"\\\n\r\x1a"
"""The characters that MySQL's drivers escape in text, with one additional byte each."""

SHORT = 1_024
"""Shorter texts are not measured; their largest possible size is assumed."""


class State(NamedTuple):
    """The row of a conversation as its writer read it."""

    id: int
    version: int
    owner: Any
    """As the database returns it, see ``OwnerField.to_key``."""
    fence: int
    next_sequence: int
    total_messages: int
    window_start: int
    pinned_sequence: int | None
    summary_sequence: int | None
    parent_sequence: int | None
    forgotten_through: int
    has_lost_system: bool
    memory_messages: int
    memory_tokens: int
    counted_by: str
    evicted_limit: int | None
    evicted_by: str
    kept_out_through: int


class Row(NamedTuple):
    """The row of a message in a memory."""

    type: str
    text: str
    payload: str | None
    tokens: int | None
    """None if no estimator, or another one, counted them."""
    sequence: int
    part: int
    """Which of the ``models.memory_parts`` it is in: 0, 1 or 2."""
    conversation_id: int


class FrontRow(NamedTuple):
    """The columns that eviction needs. *payload* is present for AI messages, which may call tools."""

    sequence: int
    type: str
    payload: str | None
    token_count: int | None
    counted_by: str


class NewRow(msgspec.Struct, gc=False):
    """A row to write, except for the columns that all rows of the same write share."""

    type: str
    text: str
    payload: str | None
    metadata: Metadata = None
    client_message_id: str | None = None
    verbatim: str | None = None
    is_complete: bool = True
    sent_bytes: int = 0
    """Upper bound for its size in an SQL statement."""
    sequence: int = 0
    token_count: int | None = None
    counted_by: str = ""
    superseded: bool = False
    in_history: bool = True
    on_path: bool = True
    parent_sequence: int | None = None
    cleared_before: int | None = None
    files: Sequence[Extracted] = ()
    """Those that were taken out; no column."""

    def __repr__(self) -> str:
        return f"<NewRow {self.type} {self.sequence}>"


def memory_columns(eviction: Eviction, count: int) -> dict[str, Any]:
    """Return the columns of a conversation that describe its memory of *count* messages, the result of *eviction*."""
    window = eviction.window
    return {
        **(limit_columns(eviction) if eviction.is_limited else {}),
        "pinned_sequence": None if eviction.pinned is None else eviction.pinned.key,
        "summary_sequence": None if eviction.summary is None else eviction.summary.key,
        "memory_messages": count,
        "memory_tokens": eviction.total - window.overhead if window.counter and eviction.total is not None else 0,
        "counted_by": window.counter,
    }


def limit_columns(eviction: Eviction) -> dict[str, Any]:
    """Return the columns of a conversation whose memory begins where *eviction* has limited it."""
    return {"evicted_limit": eviction.window.evicted_limit, "evicted_by": eviction.window.measure}


def new_row(new: NewMessage, where: str = "", *, is_stored: bool = False) -> NewRow:
    """
    Return the row of *new*; ``TypeError`` or ``ValueError``, which names *where* it is, if it cannot be stored.

    If its message *is_stored* already, its files are where they are.
    """
    kept = (new.message, new.verbatim, ()) if is_stored else take_out(new.message, new.verbatim, where)
    message, verbatim, files = kept
    columns, metadata = to_columns(message), to_metadata(new.metadata)
    name = checked_client_message_id(new.client_message_id, f"{where}client_message_id")
    size = sent_bytes(columns.text) + sent_bytes(columns.payload or "")
    if verbatim is not None:
        size += sent_bytes(checked_verbatim(verbatim))
    if metadata is not None:
        size += sent_bytes(json.dumps(metadata))  # as the field stores it
    if size > MIN_ROW_BYTES and size > (limit := max_row_bytes()):
        raise ValueError(
            f"{type(message).__name__} takes {size} bytes in a statement, metadata and escapes included, but "
            f"CHATMEMORY['MAX_MESSAGE_BYTES'] allows {limit}."
        )
    row = NewRow(*columns, metadata=metadata, client_message_id=name, verbatim=verbatim, sent_bytes=size)
    row.files = files
    return row


MIN_ROW_BYTES = 1_048_576
"""What ``max_row_bytes`` is at least."""


def max_row_bytes() -> int:
    """Return the maximum size of the rows of one INSERT: by default they fit MariaDB's packet of 16 MiB."""
    return max(MIN_ROW_BYTES, 4 * conf.general().MAX_MESSAGE_BYTES - 65_536)


def sent_bytes(text: str) -> int:
    """Return an upper bound for the bytes that *text* takes in an SQL statement, escaped or encoded."""
    size = 8 * len(text) if len(text) < SHORT else len(text.encode()) + sum(map(text.count, ESCAPED))
    return size if row_codec.installed is None else row_codec.installed.max_size(size)
