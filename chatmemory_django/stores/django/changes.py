"""
The changes of writes: how a conversation's state changes, and which rows are written.

Nothing is written here; the caller ensures that a change is only written to the state for which it was decided.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.core.windows import Entry
from chatmemory_django.stores.django.relocations import Relocation
from chatmemory_django.stores.django.rows import NewRow, State

ACTIVITY = ("total_messages", "window_start", "pinned_sequence", "parent_sequence")
"""The columns of a conversation of which at least one changes with any user activity."""


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
        changes = self.superseded or self.counts or self.relocation or self.taken_up
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
