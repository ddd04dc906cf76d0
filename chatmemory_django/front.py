"""
Which messages are next to leave a memory, remembered in the row of its conversation.

Of what it evicts, an ``add`` has to know in which order it leaves, what it costs, and whether it calls tools or answers
them. Kept a few dozen at a time beside the counters, that takes a statement of its own but once in so many evictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db.backends.utils import CursorWrapper

from chatmemory_django import statements
from chatmemory_django.messages import MessageType
from chatmemory_django.rows import to_message
from chatmemory_django.statements import FrontRow, State
from chatmemory_django.windows import Entry, Eviction, Window, to_entry

LENGTH = 32
"""How many messages are remembered. More would save few statements, but be written with every add."""

PLAIN, CALLS_TOOLS, TOOL_RESULT = range(3)
"""What a message is to eviction: the lower two bits of its code; the others are its cost."""


class Front:
    """
    The memory from its front on, without what is pinned: first what is remembered of it, then its rows.

    Nothing is read before it is asked for, and then as much as will have to leave when messages that take *cost* of
    the limit are added. *total* is what the memory takes of it before.
    """

    def __init__(self, state: State, window: Window, cost: int, cursor: CursorWrapper) -> None:
        self.total = window.overhead + (state.memory_tokens if window.estimator else state.memory_messages)
        self._state = state
        self._window = window
        self._cursor = cursor
        self._excess = self.total + cost - window.limit
        self._codes = state.front.split(",") if state.front else []
        """The codes of messages with consecutive sequences, ..."""
        self._first = state.window_start
        """... of which this is the first."""

    def __iter__(self) -> Iterator[Entry]:
        start = self._first + len(self._codes)
        for sequence, code in enumerate(self._codes.copy(), self._first):
            yield self._remembered(sequence, int(code))
        count = self._expected()
        while start < self._state.next_sequence:
            rows = statements.front(self._state, start, count, self._cursor)
            entries = list(map(self._read, rows))
            # All that was known has been taken, so a gap before these does not matter.
            if rows and rows[0].sequence != self._first + len(self._codes):
                self._codes, self._first = [], rows[0].sequence
            self._remember(entries)
            yield from entries
            if len(rows) < count:
                return
            start, count = rows[-1].sequence + 1, 2 * count

    def after(self, eviction: Eviction) -> str:
        """What to remember once *eviction*, which was made of this, is done."""
        self._remember(eviction.added)
        start = self._state.window_start if eviction.start is None else eviction.start
        return ",".join(self._codes[start - self._first :][:LENGTH]) if start >= self._first else ""

    def _expected(self) -> int:
        """How many rows to read: a power of two, twice as many as have to leave if all cost the same."""
        leave = self._excess * self._state.memory_messages // max(self.total - self._window.overhead, 1)
        return LENGTH << (max(leave, 0) * 2 // LENGTH).bit_length()

    def _remember(self, entries: Iterable[Entry]) -> None:
        """Remember those of *entries* that follow what is known."""
        for entry in entries:
            # A system message may be replaced before its turn to leave: neither it is remembered nor what follows.
            if entry.key == self._first + len(self._codes) and entry.type != MessageType.SYSTEM:
                self._codes.append(_code(entry))

    def _remembered(self, sequence: int, code: int) -> Entry:
        kind, cost = code & 3, code >> 2 if self._window.estimator else 1
        type_ = MessageType.TOOL_EXECUTION_RESULT if kind == TOOL_RESULT else MessageType.AI
        return Entry(sequence, type_, kind == CALLS_TOOLS, cost)

    def _read(self, row: FrontRow) -> Entry:
        cost = row.token_count if self._window.estimator else 1
        if row.payload is None:
            return Entry(row.sequence, row.type, cost=cost)
        return to_entry(row.sequence, to_message(row.type, "", row.payload), cost)


def _code(entry: Entry) -> str:
    kind = PLAIN
    if entry.calls_tools:
        kind = CALLS_TOOLS
    elif entry.type == MessageType.TOOL_EXECUTION_RESULT:
        kind = TOOL_RESULT
    return str((entry.cost or 0) << 2 | kind)
