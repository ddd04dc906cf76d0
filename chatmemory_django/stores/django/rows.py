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
from chatmemory_django.models.windows import Bounds, memory_parts

FRONT = 8
"""How many sequences of the window are read with a conversation: an add rarely evicts more."""


STATE, PINNED, SUMMARY, WINDOW, PIN, OUTSIDE = range(-1, 5)
"""
The parts of a memory, see ``models.memory_parts``, and what may come before them: the conversation's state. Pinned
messages are in the window, or outside; the two follow each other, so they are ordered as one part with the window.
"""


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
    pinned_count: int


class Row(NamedTuple):
    """The row of a message in a memory."""

    type: str
    text: str
    payload: str | None
    tokens: int | None
    """None if no estimator, or another one, counted them."""
    sequence: int
    part: int
    """Which part of the memory it is in, from ``PINNED`` to ``OUTSIDE``."""
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
    bounds: Bounds,
    *,
    counter: Combinable,
    verbatim: bool = False,
    stored: bool = False,
) -> list[Any]:
    """
    Return querysets of a memory, with values for ``Row``, followed by *verbatim* if requested: of what comes before the
    window, of the window and, if there are any, of the pins that have left it.

    *messages* are of one conversation. Texts are decoded, unless they are requested as they are *stored*.
    """
    columns: Sequence[Any] = (*Row._fields, "verbatim") if verbatim else Row._fields
    if stored:
        columns = texts_as_stored(columns)
    rows = with_tokens(messages, counter)
    *_, pins, window = memory_parts(bounds)
    front = (bounds.pinned_sequence, bounds.summary_sequence)
    # The first two are one SELECT: each takes longer to plan than to run.
    before = Case(When(sequence=bounds.pinned_sequence, then=Value(PINNED)), default=Value(SUMMARY))
    parts: list[tuple[Any, Q]] = [(before, Q(sequence__in=front)), (_part_in_window(bounds), window)]
    if bounds.pinned_count:
        parts.append((Value(OUTSIDE), pins))
    return [rows.annotate(part=part).filter(where).values_list(*columns) for part, where in parts]


def with_tokens(messages: MessageQuerySet, counter: Combinable) -> MessageQuerySet:
    """Return *messages* annotated with the ``tokens`` that *counter* has counted, or None."""
    tokens = Case(When(counted_by=counter, then=F("token_count")))
    # In a union, MariaDB would convert it to a decimal.
    return messages.annotate(tokens=Cast(tokens, PositiveIntegerField()))


def in_window(messages: MessageQuerySet, counter: str, bounds: Bounds) -> MessageQuerySet:
    """Return *messages* of the window annotated for ``Row``, with the tokens that *counter* has counted."""
    return with_tokens(messages, Value(counter)).annotate(part=_part_in_window(bounds))


def _part_in_window(bounds: Bounds) -> Combinable:
    return Case(When(is_pinned=True, then=Value(PIN)), default=Value(WINDOW)) if bounds.pinned_count else Value(WINDOW)


def in_order(rows: Iterable[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Return *rows*, like ``Row``, in the order of the memory, the pinned one only once."""
    ordered = sorted(sorted(rows, key=_sequence), key=_part)
    if ordered and _part(ordered[-1]) > WINDOW:
        ordered.sort(key=lambda row: (min(_part(row), WINDOW), _sequence(row)))
    pinned = next((_sequence(row) for row in ordered[:2] if _part(row) == PINNED), None)
    return [row for row in ordered if _sequence(row) != pinned or _part(row) == PINNED] if pinned else ordered


def front_of(memory: Sequence[tuple[Any, ...]], state: State, counter: str) -> list[FrontRow]:
    """Return the front of the window of *memory*, rows like ``Row`` with the tokens that *counter* has counted."""
    end = state.window_start + FRONT
    return [
        FrontRow(sequence, kind, payload if kind == MessageType.AI else None, tokens, "" if tokens is None else counter)
        for kind, _, payload, tokens, sequence, part, *_ in memory[: FRONT + 2]  # before the window, two at most
        if part == WINDOW and sequence < end  # with pins, no decision uses the front alone
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


def pins_of(rows: Sequence[tuple[Any, ...]]) -> dict[int, bool]:
    """Return the indexes of the pins among the *rows* of a memory, each with whether it has left the window."""
    return {index: part == OUTSIDE for index, part in enumerate(map(_part, rows)) if part > WINDOW}


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
