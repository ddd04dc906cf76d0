"""
The statements of the hot path. Each names the one conversation it is about, and reads no row that it does not return.

The ORM writes them all, once (see ``prepared``). They run on one cursor for a transaction, and rows come and go as
tuples: another cursor or a model instance costs as much as the statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.db.backends.utils import CursorWrapper
from django.db.models import Case, DateTimeField, F, PositiveIntegerField, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Cast
from django.db.models.sql import Query
from django.utils import timezone
from msgspec.structs import astuple

from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.prepared import Parameter, Prepared, insert_query, update_query
from chatmemory_django.stores.base import Metadata

MAX_INSERT_BYTES = 4 * 1024 * 1024
"""How much text goes into one INSERT: escaped, it still fits the 16 MiB packet that MariaDB accepts by default."""

MAX_BATCH = 64
"""How many rows go into one statement. An INSERT is compiled once for each number of rows up to this one."""


class State(NamedTuple):
    """The row of a conversation, as its writer read it."""

    id: int
    owner_id: Any  # whatever the user model has for a key
    next_sequence: int
    said_messages: int
    window_start: int
    pinned_sequence: int | None
    memory_messages: int
    memory_tokens: int
    token_counter: str
    front: str


class Row(NamedTuple):
    """The row of a message in a memory."""

    type: str
    text: str
    payload: str | None
    tokens: int | None
    """None where it was another that counted."""
    sequence: int


_SEQUENCE = itemgetter(Row._fields.index("sequence"))


class NewRow(msgspec.Struct, gc=False):
    """A row to write. Its conversation and its time are those of all that are written with it."""

    type: str
    text: str
    payload: str | None
    client_id: UUID | None = None
    metadata: Metadata = None
    sequence: int = 0
    token_count: int | None = None
    token_counter: str = ""
    superseded: bool = False
    in_history: bool = True


class FrontRow(NamedTuple):
    """As much of a row as eviction has to know. *payload* is only that of an AI message, which may call tools."""

    sequence: int
    type: str
    payload: str | None
    token_count: int | None


UNCHANGED = ("id", "next_sequence", "window_start", "memory_messages", "memory_tokens", "token_counter", "front")
"""The columns that tell whether somebody has written to a memory: one of them changes each time."""

_unchanged = attrgetter(*UNCHANGED)
_OLD_NAMES = tuple(f"old_{column}" for column in UNCHANGED)

MOVED = State._fields[2:]
"""The columns of a conversation that a write to its messages changes, beside the time: all but whose it is."""


def lock(key: str, cursor: CursorWrapper) -> State | None:
    """Wait until nobody else writes to the conversation *key*, and read its row. None if there is none."""
    rows = _LOCK.rows(cursor, {"memory_id": key})
    return State._make(rows[0]) if rows else None


def unlocked(key: str, cursor: CursorWrapper) -> State | None:
    """The same row, without waiting for anybody."""
    rows = _STATE.rows(cursor, {"memory_id": key})
    return State._make(rows[0]) if rows else None


def create(key: str, owner_id: Any, cursor: CursorWrapper) -> None:
    """Make the conversation *key*, unless somebody was faster; either way, nobody else writes to it now."""
    # An update that changes nothing, and not ON CONFLICT DO NOTHING: after that, InnoDB has the row locked for all who
    # tried, each waiting for the others before it may write.
    can_say_target = cursor.db.features.supports_update_conflicts_with_target
    Conversation.objects.using(cursor.db.alias).bulk_create(
        [Conversation(memory_id=key, owner_id=owner_id)],
        update_conflicts=True,
        update_fields=["memory_id"],
        unique_fields=["memory_id"] if can_say_target else None,
    )


def memory(key: str, cursor: CursorWrapper, counter: str, *, only_systems: bool = False) -> list[Row]:
    """The rows in the memory *key*, in its order, with the tokens that *counter* has counted."""
    rows = (_SYSTEMS if only_systems else _MEMORY).rows(cursor, {"memory_id": key, "counter": counter})
    return list(map(Row._make, _in_order(rows)))


def memory_values(key: str, cursor: CursorWrapper, counter: str, *, owner_id: Any = None) -> Sequence[tuple[Any, ...]]:
    """
    The same as plain tuples, faster for who reads them but once.

    There are none if the conversation is not that of *owner_id*, where one is given.
    """
    statement = _MEMORY if owner_id is None else _OWN_MEMORY
    return _in_order(statement.rows(cursor, {"memory_id": key, "counter": counter, "owner": owner_id}))


def _in_order(rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """*rows* with the pinned one in front, which is there twice, one behind the other, if it is not the first."""
    sequences = list(map(_SEQUENCE, rows))
    if len(set(sequences)) == len(rows):
        return rows
    place = next(place for place, (one, other) in enumerate(pairwise(sequences)) if one == other)
    return [rows[place], *rows[:place], *rows[place + 2 :]]


def front(state: State, start: int, count: int, cursor: CursorWrapper) -> list[FrontRow]:
    """The first *count* rows, a power of two, of the memory from *start* on, without what is pinned."""
    pinned = -1 if state.pinned_sequence is None else state.pinned_sequence
    return [
        FrontRow._make(row)
        for row in _front(count).rows(cursor, {"conversation": state.id, "start": start, "pinned": pinned})
    ]


def write(state: State, rows: Sequence[NewRow], cursor: CursorWrapper) -> None:
    """
    Write *rows*, and make of the row of the conversation, which is locked, what *state* says.

    That takes as few statements as the size of the rows allows for.
    """
    values = _values(state, cursor)
    move: Prepared | None = _MOVE
    for batch in _batches(rows):
        at_once = move if cursor.db.vendor == "postgresql" else None
        _insert(len(batch), after=at_once).run(cursor, _with_rows(values, batch))
        move = None if at_once else move
    if move:
        move.run(cursor, values)


def write_if_unchanged(before: State, state: State, rows: Sequence[NewRow], cursor: CursorWrapper) -> bool:
    """
    Do the same without a lock, in one statement of PostgreSQL's. Returns whether it is done.

    It is not if the row is no longer as *before*, or if *rows* are more than go into one statement.
    """
    if len(list(_batches(rows))) > 1:
        return False
    values = _with_rows(_values(state, cursor), rows)
    values.update(zip(_OLD_NAMES, _unchanged(before), strict=True))
    return _insert(len(rows), after=_MOVE_IF_UNCHANGED).run(cursor, values) > 0


def _values(state: State, cursor: CursorWrapper) -> dict[str, Any]:
    # As the database takes it: each row needs it, and it is adapted but once.
    now = cursor.db.ops.adapt_datetimefield_value(timezone.now())
    return dict(zip(State._fields, state, strict=True), created_at=now, updated_at=now)


def _with_rows(values: dict[str, Any], rows: Sequence[NewRow]) -> dict[str, Any]:
    for place, row in enumerate(rows):
        values.update(zip(_new_row_names(place), astuple(row), strict=True))
    return values


def _batches(rows: Sequence[NewRow]) -> Iterator[Sequence[NewRow]]:
    if len(rows) == 1:
        yield rows
        return
    first = 0
    while first < len(rows):
        last, size = first, 0
        while last < len(rows) and last - first < MAX_BATCH and (last == first or size <= MAX_INSERT_BYTES):
            size += len(rows[last].text) + len(rows[last].payload or "")
            last += 1
        yield rows[first:last]
        first = last


def supersede(state: State, sequences: Iterable[int], cursor: CursorWrapper) -> None:
    """Mark the rows *sequences* as no longer in the memory."""
    Message.objects.using(cursor.db.alias).filter(conversation_id=state.id, sequence__in=sequences).update(
        superseded=True
    )


def with_client_ids(state: State, client_ids: Iterable[UUID], cursor: CursorWrapper) -> dict[UUID, int]:
    """The sequences of those rows that have one of *client_ids*, by their client id."""
    rows = Message.objects.using(cursor.db.alias).filter(conversation_id=state.id, client_id__in=client_ids)
    return {client_id: sequence for client_id, sequence in rows.values_list("client_id", "sequence") if client_id}


def complete(state: State, completed: Mapping[int, Metadata], cursor: CursorWrapper) -> None:
    """Take the mark of a turn that has not ended off those of the rows *completed* that have it."""
    rows = Message.objects.using(cursor.db.alias).filter(conversation_id=state.id).incomplete()
    if plain := [sequence for sequence, metadata in completed.items() if metadata is None]:
        rows.filter(sequence__in=plain).update(metadata=None)
    for sequence, metadata in completed.items():
        if metadata is not None:
            rows.filter(sequence=sequence).update(metadata=metadata)


def keep_counts(state: State, counts: Mapping[int, int], counter: str, cursor: CursorWrapper) -> None:
    """Keep *counts*, by sequence, and that *counter* counted them."""
    sequences = list(counts)
    for first in range(0, len(sequences), MAX_BATCH):
        batch = sequences[first : first + MAX_BATCH]
        cases = Case(*(When(sequence=sequence, then=Value(counts[sequence])) for sequence in batch))
        Message.objects.using(cursor.db.alias).filter(conversation_id=state.id, sequence__in=batch).update(
            token_count=cases, token_counter=counter
        )


def keep_total(state: State, tokens: int, counter: str, cursor: CursorWrapper) -> None:
    """Keep that the memory takes *tokens* tokens, and that *counter* counted them, whatever its front cost before."""
    Conversation.objects.using(cursor.db.alias).filter(id=state.id).update(
        memory_tokens=tokens, token_counter=counter, front=""
    )


def delete_left(state: State, superseded: Sequence[int], cursor: CursorWrapper) -> None:
    """Delete the rows that are no part of the memory that *state* is about, *superseded* among them."""
    rows = Message.objects.using(cursor.db.alias).filter(conversation_id=state.id)
    if state.pinned_sequence is not None:
        rows = rows.exclude(sequence=state.pinned_sequence)
    rows.filter(Q(sequence__lt=state.window_start) | Q(sequence__in=superseded)).delete()


def _parameter(model: type[Conversation | Message], column: str, name: str = "") -> Parameter:
    field = model._meta.get_field(column)
    return Parameter(name or column, field, is_adapted=isinstance(field, DateTimeField))  # type: ignore[arg-type]


def _memory(conversation: QuerySet[Conversation], **only: Any) -> Query:
    counter = _parameter(Message, "token_counter", "counter")
    tokens = Case(When(token_counter=counter, then=F("token_count")), default=None)
    rows = (
        Message.objects.filter(conversation_id=Subquery(conversation.values("id")[:1]), **only)
        .order_by()
        .annotate(tokens=Cast(tokens, PositiveIntegerField()))  # in a union, MariaDB makes a decimal of it otherwise
    )
    # Two ranges of the primary key. Said with OR in one WHERE, planners read the whole conversation; said with joins,
    # PostgreSQL takes longer to plan them than to read.
    pinned = rows.filter(sequence=Subquery(conversation.values("pinned_sequence")[:1]))
    window = rows.filter(sequence__gte=Subquery(conversation.values("window_start")[:1]), superseded=False)
    columns = Row._fields
    both = pinned.values_list(*columns).union(window.values_list(*columns), all=True)
    # By the sequence alone, as the index has them: SQLite then sorts nothing.
    return both.order_by("sequence").query


def _conversation(*columns: str) -> QuerySet[Conversation]:
    return Conversation.objects.filter(**{column: _parameter(Conversation, column) for column in columns})


@cache
def _front(count: int) -> Prepared:
    ai_payload = Case(When(type=MessageType.AI.value, then=F("payload")), default=None)  # others' may be large
    return Prepared(
        lambda: (
            Message.objects.filter(
                conversation_id=_parameter(Message, "conversation"),
                sequence__gte=_parameter(Message, "sequence", "start"),
                superseded=False,
            )
            .exclude(sequence=_parameter(Message, "sequence", "pinned"))
            .order_by("sequence")
            .values_list("sequence", "type", ai_payload, "token_count")[:count]
            .query
        )
    )


@cache
def _insert(count: int, after: Prepared | None = None) -> Prepared:
    def row(place: int) -> Message:
        named = zip(NewRow.__struct_fields__, _new_row_names(place), strict=True)
        return Message(
            conversation_id=_parameter(Message, "conversation", "id"),
            created_at=_parameter(Message, "created_at"),
            **{column: _parameter(Message, column, name) for column, name in named},
        )

    return Prepared(lambda: insert_query(Message, map(row, range(count))), after=after)


@cache
def _new_row_names(place: int) -> tuple[str, ...]:
    return tuple(f"{column}_{place}" for column in NewRow.__struct_fields__)


def _move(rows: QuerySet[Conversation]) -> Query:
    return update_query(rows, **{column: _parameter(Conversation, column) for column in (*MOVED, "updated_at")})


_STATE = Prepared(lambda: _conversation("memory_id").values_list(*State._fields).query)
_LOCK = Prepared(lambda: _conversation("memory_id").select_for_update().values_list(*State._fields).query)
_MEMORY = Prepared(lambda: _memory(_conversation("memory_id")))
_OWN_MEMORY = Prepared(lambda: _memory(_conversation("memory_id", "owner")))
_SYSTEMS = Prepared(lambda: _memory(_conversation("memory_id"), type=MessageType.SYSTEM.value))
_MOVE = Prepared(lambda: _move(_conversation("id")))
_MOVE_IF_UNCHANGED = Prepared(
    lambda: _move(
        Conversation.objects.filter(
            **{column: _parameter(Conversation, column, old) for column, old in zip(UNCHANGED, _OLD_NAMES, strict=True)}
        )
    )
)
