"""
The changes of writes: how a conversation's state changes, and which rows are written.

Nothing is written here; the caller ensures that a change is only written to the state for which it was decided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from chatmemory_django import conf
from chatmemory_django.messages import ChatMessage, Metadata
from chatmemory_django.rows import NewRow, State, checked_verbatim, sent_bytes, to_columns, to_metadata
from chatmemory_django.stores.django.paths import Relocation

MAX_INTEGER = 2_147_483_647
"""The largest number that Django's ``PositiveIntegerField`` holds on every database."""

ACTIVITY = ("total_messages", "window_start", "pinned_sequence", "parent_sequence")
"""The columns of a conversation of which at least one changes with any user activity."""


class Removed(NamedTuple):
    """A message that is removed from the history."""

    sequence: int
    parent: int
    """Messages that named the removed one as their parent now name this one, ..."""
    child: int | None = None
    """... and so does this message, which named none."""


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

    @property
    def superseded(self) -> list[int]:
        """The sequences of messages that are not in the memory although their rows are inside the window."""
        start, end = self.after.window_start, self.before.next_sequence
        left: Sequence[int] = self.left
        hidden: Sequence[int] = ()
        if self.relocation is not None:
            # What leaves the memory after the shared part also leaves the path, and is superseded by that.
            off_path = {each for each in self.relocation.left if each > self.relocation.shared}
            left, hidden = [each for each in left if each not in off_path], self.relocation.hidden
        return [each for each in (*left, *hidden) if start <= each < end]

    @property
    def only_adds(self) -> bool:
        """Whether rows are added and none are changed."""
        changes = self.superseded or self.counts or self.completes or self.relocation or self.removals
        return bool(self.rows) and not changes

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


def new_row(message: ChatMessage, metadata: Metadata = None, verbatim: str | None = None) -> NewRow:
    """Return the row of *message*; ``TypeError`` or ``ValueError`` if it cannot be stored."""
    columns, metadata = to_columns(message), to_metadata(metadata)
    size = sent_bytes(columns.text) + sent_bytes(columns.payload or "")
    if verbatim is not None:
        size += sent_bytes(checked_verbatim(verbatim))
    if metadata is not None:
        size += sent_bytes(json.dumps(metadata))  # as the field stores it
    if size > (limit := max_row_bytes()):
        raise ValueError(
            f"{type(message).__name__} takes {size} bytes in a statement, metadata and escapes included, but "
            f"CHATMEMORY['MAX_MESSAGE_BYTES'] allows {limit}."
        )
    return NewRow(*columns, metadata=metadata, verbatim=verbatim, sent_bytes=size)


def max_row_bytes() -> int:
    """Return the maximum size of the rows of one INSERT: by default they fit MariaDB's packet of 16 MiB."""
    return max(1_048_576, 4 * conf.max_message_bytes() - 65_536)
