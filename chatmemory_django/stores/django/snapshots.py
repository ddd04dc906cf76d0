"""What a writer has read of a conversation when it decides what to write."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, PositiveIntegerField, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast

from chatmemory_django.branches import Tree
from chatmemory_django.models import Conversation, Message, MessageQuerySet, memory_parts
from chatmemory_django.rows import FrontRow, Row, State
from chatmemory_django.stores.base import MessageNotFoundError

FRONT = 8
"""How many sequences from the start of the window on are read along with a conversation: an add rarely evicts more."""


PINNED, SUMMARY, WINDOW = range(3)
"""The parts of a memory, see ``models.memory_parts``."""

_sequence = itemgetter(Row._fields.index("sequence"))
_part = itemgetter(Row._fields.index("part"))


class Snapshot:
    """
    A conversation as its writer read it: its *state* and, if they were read with it, *front*, its window's first rows.

    What else a decision needs of it is read when asked for. It *may_count* messages unless others wait meanwhile.
    """

    def __init__(
        self,
        key: str,
        state: State,
        using: str,
        front: Sequence[FrontRow] | None = None,
        *,
        is_own: bool = True,
    ) -> None:
        self.key = key
        """The memory id."""
        self.state = state
        self.is_own = is_own
        """Whether the conversation belongs to the owner that the store was given, if it was given one."""
        self.using = using
        self.is_locked = False
        self.unanswered: set[int] = set()
        """Which of the messages that were looked for belong to a turn that has not ended."""
        self.front = front or ()
        self.front_length = 0 if front is None else FRONT
        """How many sequences *front* covers."""
        self.may_count = True

    def memory(self, counter: str, **only: Any) -> list[Row]:
        """Read the rows in the memory, in its order, with the tokens that *counter* has counted."""
        return list(map(Row._make, self.memory_rows(counter, **only)))

    def memory_rows(self, counter: str, *, verbatim: bool = False, **only: Any) -> Sequence[tuple[Any, ...]]:
        """Read the same as tuples, with what was given *verbatim* behind each if asked."""
        state, messages = self.state, self.messages().filter(**only)
        parts = memory_rows(
            messages,
            state.window_start,
            state.pinned_sequence,
            state.summary_sequence,
            counter=Value(counter),
            verbatim=verbatim,
        )
        if self._must_lock:  # a union cannot read the rows as they are now, as MySQL has to be asked to
            rows = sorted((row for part in parts for row in part), key=_sequence)
        else:
            rows = list(parts[0].union(*parts[1:], all=True).order_by("sequence"))
        return in_order(rows)

    @cached_property
    def tree(self) -> Tree:
        """The branches of the conversation."""
        named = self.messages().history(all_branches=True).filter(parent_sequence__isnull=False)
        pairs = named.values_list("sequence", "parent_sequence")
        return Tree(((sequence, parent or 0) for sequence, parent in pairs), self.state.next_sequence)

    @cached_property
    def head(self) -> int:
        """The newest message of the path; 0 without one."""
        return self.last_said()[0] if self.state.parent_sequence is None else self.state.parent_sequence

    def last_said(self, **only: Any) -> tuple[int, bool]:
        """Read the newest message of the history, on any branch, and whether it is on the path; 0 without one."""
        rows = self.messages().history(all_branches=True).filter(**only).order_by("sequence")
        sequence, on_path, is_complete = rows.values_list("sequence", "on_path", "is_complete").last() or (
            0,
            True,
            True,
        )
        if not is_complete:
            self.unanswered.add(sequence)
        return sequence, on_path

    def is_on_path(self, sequence: int) -> bool:
        """Read whether message *sequence* of the history is on the path; 0 is. ``MessageNotFoundError`` without it."""
        found = self.last_said(sequence=sequence) if sequence > 0 else (0, True)
        if found[0] != sequence:
            raise MessageNotFoundError(self.key, sequence)
        return found[1]

    def behind_front(self, start: int, count: int, counter: str) -> list[Row]:
        """Read the rows of the window from *start* on that have one of *count* sequences."""
        *_, window = memory_rows(self.messages(), start, None, None, counter=Value(counter))
        return list(map(Row._make, window.filter(sequence__lt=start + count).order_by("sequence")))

    def next_in_window(self, start: int) -> int | None:
        """Read where the first row of the window is from *start* on: branches may have left a gap."""
        rows = self.messages().filter(sequence__gte=start, superseded=False)
        return rows.order_by("sequence").values_list("sequence", flat=True).first()

    def sequences_of(self, client_message_ids: Sequence[str]) -> dict[str | None, int]:
        """Read which messages have *client_message_ids*: their sequences, by their id."""
        known = self.messages().filter(client_message_id__in=client_message_ids)
        return dict(known.values_list("client_message_id", "sequence"))

    def messages(self) -> MessageQuerySet:
        """Return the rows of the conversation, to be read as they are now."""
        messages = Message.objects.using(self.using).filter(conversation_id=self.state.id).order_by()
        return messages.select_for_update() if self._must_lock else messages

    @property
    def _must_lock(self) -> bool:
        """Whether a plain SELECT would read what the caller's transaction has read before."""
        return self.is_locked and connections[self.using].vendor == "mysql"


def memory_rows(
    messages: MessageQuerySet,
    window_start: Combinable | int,
    pinned_sequence: Combinable | int | None,
    summary_sequence: Combinable | int | None,
    *,
    counter: Combinable,
    verbatim: bool = False,
) -> list[Any]:
    """
    Return the querysets of the parts of a memory, as values for ``Row``, then *verbatim* if asked.

    *messages* are of one conversation.
    """
    columns = (*Row._fields, "verbatim") if verbatim else Row._fields
    rows = with_tokens(messages, counter)
    parts = memory_parts(window_start, pinned_sequence, summary_sequence)
    return [rows.annotate(part=Value(place)).filter(part).values_list(*columns) for place, part in enumerate(parts)]


def without(state: State, memory: Sequence[Row], out: Collection[int]) -> State:
    """Return *state*, whose *memory* is that, as it is when the messages *out* have left the memory."""
    kept = [row for row in memory if row.sequence not in out]
    return state._replace(
        window_start=next((row.sequence for row in kept if row.part == WINDOW), state.next_sequence),
        pinned_sequence=None if state.pinned_sequence in out else state.pinned_sequence,
        summary_sequence=None if state.summary_sequence in out else state.summary_sequence,
        memory_messages=len(kept),
        memory_tokens=sum(row.tokens or 0 for row in kept) if state.counted_by else 0,
    )


def with_tokens(messages: MessageQuerySet, counter: Combinable) -> MessageQuerySet:
    """Return *messages* annotated with the ``tokens`` that *counter* has counted, if it has."""
    tokens = Case(When(counted_by=counter, then=F("token_count")))
    # In a union, MariaDB would make it a decimal.
    return messages.annotate(tokens=Cast(tokens, PositiveIntegerField()))


def in_window(messages: MessageQuerySet, counter: str) -> MessageQuerySet:
    """Return *messages* annotated as ``Row`` has those of a window, with the tokens that *counter* has counted."""
    return with_tokens(messages, Value(counter)).annotate(part=Value(WINDOW))


def in_order(rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Return *rows*, like ``Row`` and by sequence, in the order of a memory, in which the pinned one comes once."""
    if not rows or min(map(_part, rows)) == WINDOW:
        return rows
    ordered = sorted(rows, key=_part)
    pinned = _sequence(ordered[0]) if _part(ordered[0]) == PINNED else None
    return [row for row in ordered if _sequence(row) != pinned or _part(row) == PINNED]


def sees_otherwise(connection: BaseDatabaseWrapper) -> bool:
    """
    Whether a plain SELECT may see a state of a conversation that never was.

    Of MySQL's isolation levels, REPEATABLE READ shows a transaction what it wrote itself as it is now, and all else as
    it was when it first read; READ UNCOMMITTED shows what is never committed.
    """
    if connection.vendor != "mysql":
        return False
    level = connection.isolation_level  # type: ignore[attr-defined]
    return level == "read uncommitted" or (connection.in_atomic_block and level != "read committed")


def is_torn(key: str, found: int, connection: BaseDatabaseWrapper) -> bool:
    """Whether the *found* rows are not the memory *key* that the conversation's row describes."""
    conversations = Conversation.objects.using(connection.alias).filter(memory_id=key)
    row = conversations.values_list("pk", "memory_messages", "window_start", "next_sequence").first()
    if row is None:
        return False
    pk, count, start, end = row
    messages = Message.objects.using(connection.alias).filter(conversation_id=pk, sequence__gte=start)
    return found != count or messages.count() < end - start
