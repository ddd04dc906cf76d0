"""The rows of a memory in the form that the rules of windows use: messages, entries, costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from chatmemory_django.core.windows import Entry, Eviction, Window, to_entry
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models.columns import to_message
from chatmemory_django.stores.django.rows import Row
from chatmemory_django.stores.django.snapshots import SUMMARY, Snapshot

Counted: TypeAlias = dict[tuple[int, int], int]
"""The costs of messages, by the key of their row. The content of a row never changes, so it is counted once."""

key_of = attrgetter("conversation_id", "sequence")
"""Return the key of a row."""

_tokens = itemgetter(Row._fields.index("tokens"))
_part = itemgetter(Row._fields.index("part"))


class UncountedError(Exception):
    """Messages must be counted, which is not done while other writers wait for the lock. *count* counts them."""

    def __init__(self, count: Callable[[], object]) -> None:
        super().__init__()
        self.count = count


def messages_of(rows: Sequence[tuple[Any, ...]]) -> list[ChatMessage]:
    """Return the messages of *rows*, which are like ``Row``."""
    types, texts, payloads, *_ = zip(*rows, strict=True) if rows else [()] * 3
    return list(map(to_message, types, texts, payloads))


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


def count_rows(rows: Sequence[Row], snapshot: Snapshot, window: Window, counted: Counted) -> None:
    """Count those of *rows* that are not in *counted* yet; ``UncountedError`` if that would make other writers wait."""
    missing = [row for row in rows if key_of(row) not in counted]
    if not missing:
        return
    do_count = partial(_count, missing, window, counted)
    if not snapshot.may_count:
        raise UncountedError(do_count)
    do_count()


def counts_of(rows: Iterable[Row], counted: Counted) -> dict[int, int]:
    """Return the counts of *rows*, of one conversation, from *counted*, by sequence."""
    return {row.sequence: counted[key_of(row)] for row in rows}


def has_counts(snapshot: Snapshot, window: Window) -> bool:
    """Return whether *window* can use the counters of the conversation, without reading its memory."""
    state = snapshot.state
    if not window.is_additive:
        return False
    return not state.memory_messages or window.counter in {"", state.counted_by}


def read_eviction(snapshot: Snapshot, window: Window, counted: Counted) -> tuple[Eviction, Sequence[Row]]:
    """
    Read a memory, to be changed by the rules of *window*, and return it with the rows whose token counts must be
    stored.
    """
    rows = snapshot.memory(window.counter)
    uncounted = [row for row in rows if row.tokens is None] if window.counter else []
    count_rows(uncounted, snapshot, window, counted)
    entries = [entry_of(row, window, counted) for row in rows]
    index = summary_index(rows)
    summary = None if index is None else entries.pop(index)
    pinned = entries[0] if rows and rows[0].sequence == snapshot.state.pinned_sequence else None
    rest = entries[pinned is not None :]
    next_key = snapshot.state.next_sequence
    return Eviction.of_entries(rest, window, next_key=next_key, pinned=pinned, summary=summary), uncounted


def entry_of(row: Row, window: Window, counted: Counted | None = None) -> Entry:
    """Return the entry of *row*, with the cost stored in the row or in *counted*."""
    cost: int | None = None
    if window.estimator is None:
        cost = 1
    elif window.is_additive:
        cost = row.tokens if row.tokens is not None or counted is None else counted.get(key_of(row))
    return to_entry(row.sequence, to_message(row.type, row.text, row.payload), cost)


def _count(rows: Sequence[Row], window: Window, counted: Counted) -> None:
    for row, message in zip(rows, messages_of(rows), strict=True):
        counted[key_of(row)] = window.cost(message)
