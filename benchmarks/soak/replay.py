"""Conversations as the database recorded them, and the questions about them during the replay.

Each state is compared with the ``Reference`` that a verb has made of the previous one: the memory in its order, the
summary, the pins, the message that it continues from and the one up to which everything is forgotten, the number of
messages; and of each row whether it has a text, whether it is in the history, whether it is on the path and what it
follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.soak.records import has_all_rows
from benchmarks.soak.reference import Reference
from chatmemory_django.messages import SystemMessage
from tests.oracle import Oracle

if TYPE_CHECKING:
    from chatmemory_django.messages import ChatMessage
    from tests.oracle import Window


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
    pinned_count: int


class Columns(NamedTuple):
    """The columns of a row that can change."""

    in_history: bool
    superseded: bool
    on_path: bool
    parent_sequence: int | None
    cleared_before: int | None
    is_pinned: bool
    is_empty: bool = False


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
    pins: dict[int, frozenset[int]] = field(default_factory=dict)
    """By version, the sequences of the pinned messages, on all branches."""
    columns: dict[int, Columns] = field(default_factory=dict)
    """The rows after the last replayed version."""
    reference: Reference = field(default_factory=Reference)
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
        oracle = Oracle()
        if version:
            self._remember(oracle, self.states[version - 1], version)
            pinned = sorted(oracle.pins.intersection(self.memories[version]))
            oracle.parents = dict(zip(pinned, [0, *pinned], strict=False))  # as much of the path as is needed
            oracle.head = [0, *pinned][-1]
        return oracle.seen(window).memory_messages()

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
        pinned = {each for each in touched if each in self.columns and self.columns[each].is_pinned}
        self.pins[state.version] = frozenset(self.pins[state.version - 1] - touched | pinned)
        self.memories[state.version] = self._memory(state)
        return touched

    def differences(self, state: State, expected: Reference, touched: set[int] | None) -> list[str]:
        """Return how *state* differs from *expected*, comparing the *touched* rows, or all; nothing if it does not."""
        path = expected.path()
        boundary = expected.boundary(expected.head)
        found: dict[str, tuple[object, object]] = {
            "next": (state.next_sequence, expected.next),
            "summary": (state.summary_sequence, expected.summary),
            "total": (state.total_messages, expected.total),
            "memory": (self.memories[state.version], expected.memory()),
            "pins": (self.pins[state.version], expected.pins),
        }
        # Where rows are deleted, what is up to one of them may be named by another, and so may what follows it.
        if has_all := has_all_rows(self.name):
            found["head"] = self._head(state), expected.head
            found["forgotten"] = state.forgotten_through, boundary
        else:
            found["forgotten"] = (
                [each for each in path if each <= state.forgotten_through],
                [each for each in path if each <= boundary],
            )
        on_path = set(path)
        rows = sorted(touched or self.columns.keys() | expected.messages)
        wrong = [each for each in rows if not self._is_row(each, expected, each in on_path, has_parents=has_all)]
        return [
            *(f"{name} {now}, not {must_be}" for name, (now, must_be) in found.items() if now != must_be),
            *(f"row {each} {self.columns.get(each)}" for each in wrong),
        ]

    def adopt(self, state: State) -> None:
        """Take *state* as correct, so that the following ones are judged separately."""
        reference = Reference()
        for sequence, columns in sorted(self.columns.items()):
            if columns.is_empty:
                continue
            reference.messages[sequence] = self.rows[sequence].message
            if columns.in_history:
                reference.parents[sequence] = self._parent(sequence)
            elif columns.parent_sequence is not None:
                reference.summaries[sequence] = columns.parent_sequence
            if columns.cleared_before is not None:
                reference.cuts[sequence] = columns.cleared_before
        reference.next = state.next_sequence
        reference.head = self._head(state)
        for each in {reference.head, *reference.parents.values()} - {0}:
            reference.parents.setdefault(each, 0)  # it was deleted
        reference.bases = {each: reference.boundary(last) for each, last in reference.summaries.items()}
        reference.unknown = state.total_messages - len(reference.parents)
        reference.client_ids = self.reference.client_ids
        self._remember(reference, state, state.version)
        self.reference = reference

    def ask(self, version: int) -> list[Question]:
        """Ask the current *version* its questions, and return those that no later one can answer."""
        open_now = [*self._open, *self.questions.pop(version, ())]
        unanswered = [each for each in open_now if not each.holds(self.reference)]
        self._open = [each for each in unanswered if each.last > version]
        return [each for each in unanswered if each.last <= version]

    def _is_row(self, sequence: int, expected: Reference, on_path: bool, *, has_parents: bool) -> bool:
        columns = self.columns.get(sequence)
        if sequence not in expected.messages:  # nothing is left of its text
            return columns is None or columns.is_empty
        if columns is None or columns.is_empty:
            return False
        in_history = sequence in expected.parents
        if (columns.in_history, columns.on_path) != (in_history, on_path):
            return False
        return not (in_history and has_parents) or self._parent(sequence) == expected.parents[sequence]

    def _parent(self, sequence: int) -> int:
        """Return the message that *sequence* follows: the one before it, unless it names another."""
        parent = self.columns[sequence].parent_sequence
        return self._newest_before(sequence) if parent is None else parent

    def _head(self, state: State) -> int:
        """Return the message that the conversation continues from."""
        named = state.parent_sequence
        return self._newest_before(state.next_sequence) if named is None else named

    def _newest_before(self, sequence: int) -> int:
        """Return the last message of the history before *sequence*."""
        before = range(sequence - 1, 0, -1)
        return next((each for each in before if each in self.columns and self.columns[each].in_history), 0)

    def _remember(self, oracle: Oracle, state: State, version: int) -> None:
        """Give *oracle* the memory of *state*, which has that *version*."""
        memory, oracle.pins = self.memories[version], set(self.pins[version])
        front = {state.pinned_sequence, state.summary_sequence}
        front.update(each for each in oracle.pins if each < state.window_start)
        oracle.messages |= {sequence: self.rows[sequence].message for sequence in memory}
        oracle.pinned, oracle.summary = state.pinned_sequence, state.summary_sequence
        oracle.window = [sequence for sequence in memory if sequence not in front]

    def _memory(self, state: State) -> list[int]:
        """Return the sequences in the memory as the database recorded it."""
        front = [each for each in (state.pinned_sequence, state.summary_sequence) if each is not None]
        window = [
            sequence
            for sequence in range(state.window_start, state.next_sequence)
            if sequence not in front and sequence in self.columns and not self.columns[sequence].superseded
        ]
        pins = [
            sequence
            for sequence in sorted(self.pins[state.version])
            if sequence < state.window_start and not self.columns[sequence].superseded
        ]
        is_led = state.pinned_sequence is None and window and isinstance(self.rows[window[0]].message, SystemMessage)
        if is_led and not pins:
            return [window[0], *front, *window[1:]]
        return [*front, *pins, *window]


def by_version(changes: list[tuple[int, int, Columns | None]]) -> dict[int, list[tuple[int, Columns | None]]]:
    """Return *changes* of rows, which have their version first, by version."""
    found: dict[int, list[tuple[int, Columns | None]]] = defaultdict(list)
    for version, sequence, columns in changes:
        found[version].append((sequence, columns))
    return found
