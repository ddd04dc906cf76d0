"""The rows that the store reads of conversations and messages: queries of those in a memory, and their messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.models import Case, F, PositiveIntegerField, Q, Value, When
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast

from chatmemory_django.core.clearing import cleared
from chatmemory_django.core.windows import Window
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import MessageQuerySet
from chatmemory_django.models.columns import to_columns, to_message
from chatmemory_django.models.messages import texts_as_stored
from chatmemory_django.models.windows import memory_parts

FRONT = 8
"""How many sequences of the window are read with a conversation: an add rarely evicts more."""


STATE, PINNED, SUMMARY, WINDOW = range(-1, 3)
"""The parts of a memory, see ``models.memory_parts``, and what may come before them: the conversation's state."""


class State(NamedTuple):
    """The row of a conversation as its writer read it."""

    id: int
    version: int
    owner: Any
    """As the database returns it, see ``OwnerField.to_key``."""
    updated_at: Any
    """In ISO 8601, or as the database returns it, see ``Snapshot.present``; None if it was written just now."""
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
    is_cleared: bool
    """Whether the memory has a marker in its place, see ``core.clearing``."""


class FrontRow(NamedTuple):
    """The columns that eviction needs. *payload* is present for AI messages, which may call tools."""

    sequence: int
    type: str
    payload: str | None
    token_count: int | None
    counted_by: str


_sequence = itemgetter(Row._fields.index("sequence"))
_part = itemgetter(Row._fields.index("part"))
_tokens = itemgetter(Row._fields.index("tokens"))
_is_cleared = itemgetter(Row._fields.index("is_cleared"))


def memory_rows(
    messages: MessageQuerySet,
    window_start: Combinable | int,
    pinned_sequence: Combinable | int | None,
    summary_sequence: Combinable | int | None,
    *,
    counter: Combinable,
    verbatim: bool = False,
    stored: bool = False,
) -> list[Any]:
    """
    Return querysets of a memory, with values for ``Row``, followed by *verbatim* if requested: of what comes before the
    window, and of the window.

    *messages* are of one conversation. Texts are decoded, unless they are requested as they are *stored*.
    """
    columns: Sequence[Any] = (*Row._fields, "verbatim") if verbatim else Row._fields
    if stored:
        columns = texts_as_stored(columns)
    rows = with_tokens(messages, counter)
    *_, window = memory_parts(window_start, pinned_sequence, summary_sequence)
    # The first two are one SELECT: each takes longer to plan than to run.
    before = Case(When(sequence=pinned_sequence, then=Value(PINNED)), default=Value(SUMMARY))
    parts = ((before, Q(sequence__in=(pinned_sequence, summary_sequence))), (Value(WINDOW), window))
    return [rows.annotate(part=part).filter(where).values_list(*columns) for part, where in parts]


def with_tokens(messages: MessageQuerySet, counter: Combinable) -> MessageQuerySet:
    """Return *messages* annotated with the ``tokens`` that *counter* has counted, or None."""
    tokens = Case(When(counted_by=counter, then=F("token_count")))
    # In a union, MariaDB would convert it to a decimal.
    return messages.annotate(tokens=Cast(tokens, PositiveIntegerField()))


def in_window(messages: MessageQuerySet, counter: str) -> MessageQuerySet:
    """Return *messages* of the window annotated for ``Row``, with the tokens that *counter* has counted."""
    return with_tokens(messages, Value(counter)).annotate(part=Value(WINDOW))


def in_order(rows: Iterable[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Return *rows*, like ``Row``, in the order of the memory, the pinned one only once."""
    ordered = sorted(sorted(rows, key=_sequence), key=_part)
    pinned = next((_sequence(row) for row in ordered[:2] if _part(row) == PINNED), None)
    return [row for row in ordered if _sequence(row) != pinned or _part(row) == PINNED] if pinned else ordered


def front_of(memory: Sequence[tuple[Any, ...]], state: State, counter: str) -> list[FrontRow]:
    """Return the front of the window of *memory*, rows like ``Row`` with the tokens that *counter* has counted."""
    end = state.window_start + FRONT
    return [
        FrontRow(sequence, kind, payload if kind == MessageType.AI else None, tokens, "" if tokens is None else counter)
        for kind, _, payload, tokens, sequence, part, *_ in memory[: FRONT + 2]  # before the window, two at most
        if part == WINDOW and sequence < end
    ]


def messages_of(rows: Sequence[tuple[Any, ...]]) -> list[ChatMessage]:
    """Return the messages of *rows*, which are like ``Row``."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(Row._fields)
    messages = list(map(to_message, *columns[:3]))
    if any(_is_cleared(columns)):
        return [cleared(message) if _is_cleared(row) else message for row, message in zip(rows, messages, strict=True)]
    return messages


def as_remembered(row: Row) -> Row:
    """Return *row* with the columns of the message that the memory has."""
    return row._replace(**to_columns(messages_of([row])[0])._asdict()) if row.is_cleared else row


def summary_index(rows: Sequence[tuple[Any, ...]]) -> int | None:
    """Return the index of the summary among the *rows* of a memory, which are like ``Row``; None without one."""
    return next((index for index, row in enumerate(rows[:2]) if _part(row) == SUMMARY), None)


def costs_of(rows: Sequence[tuple[Any, ...]], messages: Sequence[ChatMessage], window: Window) -> list[int] | None:
    """Return the cost of each of *messages*, which *rows* hold; None if costs are not additive."""
    if not window.is_additive:
        return None
    if window.estimator is None:
        return [1] * len(rows)
    costs = list(map(_tokens, rows))
    if None in costs:
        return [window.cost(message) if cost is None else cost for message, cost in zip(messages, costs, strict=True)]
    return costs
