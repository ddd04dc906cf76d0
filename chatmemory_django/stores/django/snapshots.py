"""What a writer has read of a conversation when it decides what to write."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, PositiveIntegerField, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast

from chatmemory_django.models import Conversation, Message, MessageQuerySet, memory_parts
from chatmemory_django.rows import FrontRow, Row, State

FRONT = 8
"""How many sequences from the start of the window on are read along with a conversation: an add rarely evicts more."""


_sequence = itemgetter(Row._fields.index("sequence"))


class Snapshot:
    """
    A conversation as its writer read it: its *state* and, if they were read with it, *front*, its window's first rows.

    What else a decision needs of it is read when asked for. It *may_count* messages unless others wait meanwhile.
    """

    def __init__(
        self,
        state: State,
        using: str,
        front: Sequence[FrontRow] | None = None,
        *,
        is_own: bool = True,
    ) -> None:
        self.state = state
        self.is_own = is_own
        """Whether the conversation belongs to the owner that the store was given, if it was given one."""
        self.using = using
        self.is_locked = False
        self.front = front or ()
        self.front_length = 0 if front is None else FRONT
        """How many sequences *front* covers."""
        self.may_count = True

    def memory(self, counter: str, **only: Any) -> list[Row]:
        """Read the rows in the memory, in its order, with the tokens that *counter* has counted."""
        pinned_sequence = self.state.pinned_sequence
        messages = self._messages().filter(**only)
        pinned, window = memory_rows(messages, self.state.window_start, pinned_sequence, Value(counter))
        if self._must_lock:  # a union cannot read the rows as they are now, as MySQL has to be asked to
            rows = sorted([*pinned, *window], key=_sequence)
        else:
            rows = list(pinned.union(window, all=True).order_by("sequence"))
        return list(map(Row._make, in_order(rows)))

    def behind_front(self, start: int, count: int, counter: str) -> list[Row]:
        """Read the rows of the window from *start* on that have one of *count* sequences."""
        _, window = memory_rows(self._messages(), start, self.state.pinned_sequence, Value(counter))
        return list(map(Row._make, window.filter(sequence__lt=start + count).order_by("sequence")))

    def sequences_of(self, client_message_ids: Sequence[str]) -> dict[str | None, int]:
        """Read which messages have *client_message_ids*: their sequences, by their id."""
        known = self._messages().filter(client_message_id__in=client_message_ids)
        return dict(known.values_list("client_message_id", "sequence"))

    def _messages(self) -> MessageQuerySet:
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
    counter: Combinable,
) -> list[Any]:
    """Return the querysets of the two parts of a memory, as values for ``Row``. *messages* are of one conversation."""
    tokens = Case(When(counted_by=counter, then=F("token_count")))
    # In a union, MariaDB would make it a decimal.
    rows = messages.annotate(tokens=Cast(tokens, PositiveIntegerField()))
    return [rows.filter(part).values_list(*Row._fields) for part in memory_parts(window_start, pinned_sequence)]


def in_order(rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """
    Return *rows*, like ``Row`` and by sequence, with the pinned one in front.

    If it is not the first of them, it is there twice, one behind the other: it is in the window, too.
    """
    sequences = list(map(_sequence, rows))
    if len(set(sequences)) == len(rows):
        return rows
    pinned = next(one for one, other in pairwise(sequences) if one == other)
    place = sequences.index(pinned)
    return [rows[place], *rows[:place], *rows[place + 2 :]]


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
