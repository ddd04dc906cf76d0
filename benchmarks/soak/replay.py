"""Conversations as the database recorded them, and the questions about them during the replay.

Each state is compared with the ``Reference`` that a verb has made of the previous one: its columns, the order of its
memory, and of each row whether it is in the history, whether it is on the path and what it follows must be the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.soak.reference import Reference
from chatmemory_django.core.windows import Eviction
from chatmemory_django.stores.in_process import _Row

if TYPE_CHECKING:
    from chatmemory_django.core.windows import Window
    from chatmemory_django.messages import ChatMessage


class State(NamedTuple):
    """A conversation after a write."""

    conversation: int
    memory_id: str
    version: int
    next_sequence: int
    window_start: int
    pinned_sequence: int | None
    memory_messages: int
    memory_tokens: int
    counted_by: str
    summary_sequence: int | None
    parent_sequence: int | None
    forgotten_through: int
    total_messages: int


class Columns(NamedTuple):
    """The columns of a row that can change."""

    in_history: bool
    superseded: bool
    on_path: bool
    parent_sequence: int | None


class Row(NamedTuple):
    """A message that was stored."""

    message: ChatMessage
    label: str
    part: str
    """The part of a verb that wrote it."""
    columns: Columns
    """The columns at the time of the INSERT."""


class Question(NamedTuple):
    """A condition for one of the states from a version to the *last* one, both included."""

    what: str
    """The kind of finding if no state meets it."""
    about: object
    last: int
    holds: Callable[[Reference], bool]


@dataclass
class Story:
    """A conversation from its creation to its end, or to now."""

    states: list[State]
    rows: dict[int, Row]
    changes: dict[int, list[tuple[int, Columns | None]]]
    """By version, the rows that it changed, and to what; None for those that were deleted."""
    memories: dict[int, list[int]] = field(default_factory=dict)
    """By version, the sequences in the memory."""
    columns: dict[int, Columns] = field(default_factory=dict)
    """The rows after the last replayed version."""
    reference: Reference = field(default_factory=lambda: Reference(""))
    """The expected state of that version."""
    rewritten: set[int] = field(default_factory=set)
    """The sequences of the rows that a set wrote; it can repeat earlier messages."""
    questions: dict[int, list[Question]] = field(default_factory=lambda: defaultdict(list))
    """By the first version that they apply to."""
    _open: list[Question] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.states[0].memory_id

    def messages(self, version: int) -> list[ChatMessage]:
        return [self.rows[sequence].message for sequence in self.memories[version]]

    def read(self, version: int, window: Window) -> list[ChatMessage]:
        """Return the memory as *window* shows it."""
        summary = None if version == 0 else self.states[version - 1].summary_sequence
        place = None if summary is None else self.memories[version].index(summary)
        eviction = Eviction.of(self.messages(version), window, summary=place)
        eviction.trim()
        return eviction.messages()

    def path(self) -> list[ChatMessage]:
        """Return the messages that are on the path now."""
        return [self.rows[sequence].message for sequence, columns in sorted(self.columns.items()) if columns.on_path]

    def go_on(self, before: int, state: State) -> set[int]:
        """Continue to *state*, from the one in which *before* was the next sequence; return the changed rows."""
        new = range(before, state.next_sequence)
        touched = set(new)
        self.columns |= {sequence: self.rows[sequence].columns for sequence in new if sequence in self.rows}
        for sequence, columns in self.changes.get(state.version, ()):
            touched.add(sequence)
            if columns is None:
                self.columns.pop(sequence, None)
            else:
                self.columns[sequence] = columns
        self.memories[state.version] = self._memory(state)
        return touched

    def is_as(self, state: State, expected: Reference, touched: set[int] | None) -> bool:
        """Return whether *state* is *expected*, comparing the *touched* rows, or all."""
        columns = (
            state.next_sequence,
            state.pinned_sequence,
            state.summary_sequence,
            state.parent_sequence,
            state.forgotten_through,
            state.total_messages,
        )
        if columns != (
            expected.next_key,
            expected.pinned,
            expected.summary,
            expected.parent,
            expected.forgotten_through,
            expected.total,
        ):
            return False
        if self.memories[state.version] != expected.memory():
            return False
        return all(self._is_row(sequence, expected) for sequence in touched or self.columns.keys() | expected.rows)

    def adopt(self, state: State) -> None:
        """Take *state* as correct, so that the following ones are judged separately."""
        rows = {}
        for sequence, (in_history, _, on_path, parent) in sorted(self.columns.items()):
            row = self.rows[sequence]
            is_summary = not in_history and parent is not None
            rows[sequence] = _Row(row.message, parent, in_history, on_path, parent if is_summary else None)
        front = {state.pinned_sequence, state.summary_sequence}
        self.reference = Reference(
            self.name,
            rows,
            state.next_sequence,
            state.parent_sequence,
            state.pinned_sequence,
            state.summary_sequence,
            [sequence for sequence in self.memories[state.version] if sequence not in front],
            state.forgotten_through,
            state.total_messages,
            self.reference.client_ids,
        )

    def ask(self, version: int) -> list[Question]:
        """Ask the current *version* its questions, and return those that no later one can answer."""
        open_now = [*self._open, *self.questions.pop(version, ())]
        unanswered = [each for each in open_now if not each.holds(self.reference)]
        self._open = [each for each in unanswered if each.last > version]
        return [each for each in unanswered if each.last <= version]

    def _is_row(self, sequence: int, expected: Reference) -> bool:
        columns, row = self.columns.get(sequence), expected.rows.get(sequence)
        if columns is None or row is None:
            return columns is None and row is None
        return (columns.in_history, columns.on_path, columns.parent_sequence) == (
            row.in_history,
            row.on_path,
            row.parent,
        )

    def _memory(self, state: State) -> list[int]:
        """Return the sequences in the memory as the database recorded it."""
        front = [each for each in (state.pinned_sequence, state.summary_sequence) if each is not None]
        window = [
            sequence
            for sequence in range(state.window_start, state.next_sequence)
            if sequence not in front and sequence in self.columns and not self.columns[sequence].superseded
        ]
        return [*front, *window]


def by_version(changes: list[tuple[int, int, Columns | None]]) -> dict[int, list[tuple[int, Columns | None]]]:
    """Return *changes* of rows, which have their version first, by version."""
    found: dict[int, list[tuple[int, Columns | None]]] = defaultdict(list)
    for version, sequence, columns in changes:
        found[version].append((sequence, columns))
    return found
