"""
What a write changes: how the state of a conversation changes, and which rows are written.

Nothing is written here; the caller ensures that a change is only written to the state for which it was decided.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from chatmemory_django import conf
from chatmemory_django.core.limits import MAX_INTEGER, checked_client_message_id
from chatmemory_django.core.windows import Entry, Eviction
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Stored
from chatmemory_django.messages import Metadata, NewMessage
from chatmemory_django.models.columns import Columns, checked_verbatim, only_text, to_columns, to_metadata
from chatmemory_django.models.message_codec import Extracted, take_out
from chatmemory_django.stores.django.rows import Row, State

ACTIVITY = ("total_messages", "window_start", "pinned_sequence", "parent_sequence")
"""The columns of a conversation of which at least one changes with any user activity."""

ESCAPED = "'\"\\\n\r\x1a"
"""The characters that MySQL's drivers escape in text, with one additional byte each."""

SHORT = 1_024
"""Shorter texts are not measured; their largest possible size is assumed."""


class NewRow(msgspec.Struct, gc=False):
    """A row to write, except for the columns that all rows of the same write share."""

    type: str
    text: str
    payload: str | None
    metadata: Metadata = None
    client_message_id: str | None = None
    verbatim: str | None = None
    rating_reason: str | None = None
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
    is_cleared: bool = False
    is_pinned: bool = False
    files: Sequence[Extracted] = ()
    """Those that were taken out; no column."""

    def __repr__(self) -> str:
        return f"<NewRow {self.type} {self.sequence}>"


class Removed(NamedTuple):
    """A message that is removed from the history."""

    sequence: int
    parent: int
    """Messages that named the removed one as their parent now name this one, which stays, ..."""
    child: int | None = None
    """... and so does this message, which named none."""


class Cut(NamedTuple):
    """A message after which the memory is cleared."""

    sequence: int
    parent: int
    """The message that it follows, which it now names."""
    before: int
    """See ``Message.cleared_before``; if the message has one already, the lower one stays."""


class Relocation(NamedTuple):
    """A conversation that continues from another message."""

    shared: int
    """The last message that the new path shares with the current one."""
    entered: Sequence[tuple[int, int]]
    """The parts of the new path after that."""
    eviction: Eviction
    left: Sequence[int]
    """The sequences of the messages that leave the memory."""
    shown: Sequence[int]
    """The sequences of rows that are no longer superseded."""
    hidden: Sequence[int]
    """The sequences of rows that become superseded because the window now begins before them."""
    uncounted: Sequence[Row]
    """The rows whose token counts must be stored."""
    state: State
    """The new row of the conversation."""


class Change(NamedTuple):
    """The change that a write makes to a conversation."""

    before: State
    after: State
    rows: Sequence[NewRow] = ()
    """The rows to write."""
    left: Sequence[int] = ()
    """The sequences of the messages that leave the memory."""
    counts: Mapping[int, int] = {}
    """Token counts for existing rows, by sequence; made by ``after.counted_by``."""
    completes: Sequence[int] = ()
    """The sequences of the messages whose turn ends."""
    is_retry: bool = True
    """Whether an existing message may have one of the client message ids."""
    relocation: Relocation | None = None
    """Where the conversation continues, if not from its current head."""
    taken_up: Sequence[int] = ()
    """The sequences of the messages that were stored aside and are now on the path."""
    removals: Sequence[Removed] = ()
    """The messages that are removed from the history."""
    emptied: Sequence[int] = ()
    """The sequences of the rows whose content is deleted: removed messages, and summaries of them."""
    titles: Collection[str] = ()
    """What titles are made of the removed messages: the conversation's title is deleted if it is one of them."""
    originals: Sequence[int] = ()
    """The sequences of the rows whose original is deleted, because it has the text of a removed message, too."""
    cuts: Sequence[Cut] = ()
    hidden: Sequence[int] = ()
    """The sequences of rows inside the window that are superseded although they were not in the memory."""
    metadata: Mapping[int, Mapping[str, Any]] = {}
    """New metadata of existing rows, by sequence."""
    cleared: Sequence[int] = ()
    """The sequences of results, stored before, that are cleared; *counts* has those of their markers."""
    pinned: Sequence[int] = ()
    """The sequences of messages that are pinned, and so are in the memory from now on, ..."""
    unpinned: Sequence[int] = ()
    """... and of those that no longer are."""
    held: Sequence[Entry] | None = None
    """What a turn that goes on has added so far, see ``Snapshot.held``."""

    @property
    def superseded(self) -> list[int]:
        """The sequences of messages that are not in the memory although their rows are inside the window."""
        start, end = self.after.window_start, self.before.next_sequence
        left: Sequence[int] = self.left
        if self.relocation is not None:
            # What leaves the memory after the shared part also leaves the path, and is superseded by that.
            off_path = {each for each in self.relocation.left if each > self.relocation.shared}
            left = [each for each in left if each not in off_path]
        return [each for each in (*left, *self.hidden) if start <= each < end]

    @property
    def only_adds(self) -> bool:
        """Whether rows are added, and of others only turns end."""
        changes = self.superseded or self.counts or self.cleared or self.relocation or self.taken_up or self.unpinned
        return bool(self.rows) and not (changes or self.removals or self.emptied or self.cuts or self.metadata)

    @property
    def is_activity(self) -> bool:
        """Whether this counts as activity; recounting and summarizing do not."""
        if self.after.summary_sequence == self.before.next_sequence:
            return False
        return any(getattr(self.after, name) != getattr(self.before, name) for name in ACTIVITY) or bool(self.completes)

    @property
    def client_message_ids(self) -> list[str]:
        """The client message ids that must not exist in the conversation yet."""
        if not self.is_retry:
            return []
        return [row.client_message_id for row in self.rows if row.client_message_id is not None]

    def checked(self) -> Change:
        """Return this change, or raise ``ValueError`` if a number in it is too large for its column."""
        numbers = (self.after.next_sequence, self.after.memory_tokens, *(row.token_count or 0 for row in self.rows))
        if max(numbers) > MAX_INTEGER:
            raise ValueError(
                f"Numbers in a conversation must not exceed {MAX_INTEGER}; this write needs {max(numbers)}."
            )
        return self


def memory_columns(eviction: Eviction, count: int) -> dict[str, Any]:
    """Return the columns of a conversation that describe its memory of *count* messages, the result of *eviction*."""
    window, tokens = eviction.window, 0
    if eviction.total is not None:
        tokens = eviction.total - window.overhead + sum(entry.cost or 0 for entry in eviction.aside)
    return {
        **(limit_columns(eviction) if eviction.is_limited else {}),
        "pinned_sequence": None if eviction.pinned is None else eviction.pinned.key,
        "summary_sequence": None if eviction.summary is None else eviction.summary.key,
        "memory_messages": count,
        "memory_tokens": tokens if window.counter else 0,
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
    columns = only_text(new.message)
    has_none = is_stored or (columns is not None and new.verbatim is None)
    message, verbatim, files = (
        (new.message, new.verbatim, ()) if has_none else take_out(new.message, new.verbatim, where)
    )
    columns, metadata = columns or _escaped(to_columns(message)), to_metadata(new.metadata)
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


def _escaped(columns: Columns) -> Columns:
    """Return *columns* as they are stored: with an app that encodes texts, as they are until then."""
    return columns if row_codec.installed else columns._replace(text=Stored(row_codec.escaped(columns.text)))


MIN_ROW_BYTES = 1_048_576
"""What ``max_row_bytes`` is at least."""


def max_row_bytes() -> int:
    """Return the maximum size of the rows of one INSERT: by default they fit MariaDB's packet of 16 MiB."""
    return max(MIN_ROW_BYTES, 4 * conf.general().MAX_MESSAGE_BYTES - 65_536)


def sent_bytes(text: str) -> int:
    """Return an upper bound for the bytes that *text* takes in an SQL statement, escaped or encoded."""
    size = 8 * len(text) if len(text) < SHORT else len(text.encode()) + sum(map(text.count, ESCAPED))
    return size if row_codec.installed is None else row_codec.installed.max_size(size)
