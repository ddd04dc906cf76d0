"""
Memories that are filled again since the limit has grown, see ``core.refills``.

A read shows such a memory, and writes nothing. A write is decided on it, and stores it together with its own change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db.models import Subquery

from chatmemory_django.core.refills import brought_back, is_pinned_before, page_size
from chatmemory_django.core.windows import Entry, Window
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.models.messages import before_memory
from chatmemory_django.models.windows import Bounds
from chatmemory_django.stores.django.changes import Change
from chatmemory_django.stores.django.rows import OUTSIDE, PIN, PINNED, WINDOW, FrontRow, Row, State, in_order, in_window
from chatmemory_django.stores.django.snapshots import Counted, Snapshot, count_rows, counts_of, entry_of

_T = TypeVar("_T")


class Refill(NamedTuple):
    """A conversation whose memory is filled again."""

    stored: State
    """Its row as it is stored."""
    snapshot: Snapshot
    """The conversation with that memory."""
    returned: Sequence[Row]
    """The rows that came back to the memory, in order."""
    counts: dict[int, int]
    """Token counts that have to be stored with it."""
    is_of_one_moment: bool
    """Whether no one had written to the conversation since it was read."""

    def memory(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        """Return the memory whose *rows*, like ``Row``, were read before."""
        read: list[tuple[Any, ...]] = [*rows, *self.returned]
        if self.stored.pinned_sequence != self.snapshot.state.pinned_sequence:
            read = [row._replace(part=WINDOW) if row.part == PINNED else row for row in map(Row._make, read)]
        if self.stored.pinned_count:
            start = self.snapshot.state.window_start
            is_inside = [row.part == OUTSIDE and row.sequence >= start for row in map(Row._make, read)]
            rows_of = zip(map(Row._make, read), is_inside, strict=True)
            read = [row._replace(part=PIN) if inside else row for row, inside in rows_of]
        return in_order(read)

    def decided(self, decide: Callable[[Snapshot], tuple[_T, Change | None]]) -> tuple[_T, Change | None]:
        """Return what *decide* decides on it, with a change of the conversation as it is stored."""
        result, change = decide(self.snapshot)
        if change is None:
            return result, None
        returned = {row.sequence for row in self.returned}
        counts = {key: count for key, count in self.counts.items() if key >= change.after.window_start}
        changed = change._replace(
            before=self.stored,
            left=[each for each in change.left if each not in returned],  # these had left before
            counts={**counts, **change.counts},
            hidden=[*change.hidden, *self.snapshot.hidden],
        )
        return result, changed


def refill(snapshot: Snapshot, window: Window, counted: Counted) -> Refill:
    """
    Return the conversation with its memory filled again: *window* has outgrown the limit that evicted last.

    Takes one query, and one more if the tokens of the memory were not counted by this window.

    Raises:
        UncountedError: Messages must be counted.

    """
    state = snapshot.state
    found: list[_Found] = []
    memory = _memory(snapshot, window, counted)
    back = {entry.key for entry in brought_back(_backwards(snapshot, window, counted, found), memory, window)}
    returned = [each.row for each in reversed(found) if each.row.sequence in back]
    filled = _filled(snapshot, window, [entry_of(row, window, counted).cost or 0 for row in returned], returned)
    start, pinned = filled.state.window_start, state.pinned_sequence
    within = [each.row for each in reversed(found) if each.row.sequence >= start]
    # What else would now be inside the window had left the memory while it was before it.
    filled.hidden = [row.sequence for row in within if row.part != PIN and row.sequence not in {*back, pinned}]
    filled.front = [
        *(_front_row(row, window, counted) for row in within if row.sequence not in filled.hidden),
        *snapshot.front,
    ]
    uncounted = [row for row in returned if row.tokens is None] if filled.state.counted_by else []
    return Refill(
        state,
        filled,
        returned,
        counts_of(uncounted, counted),
        snapshot.is_locked or all(each.version == state.version for each in found),
    )


class _Found(NamedTuple):
    row: Row
    on_path: bool
    version: int
    """That of the conversation."""


def _memory(snapshot: Snapshot, window: Window, counted: Counted) -> list[Entry]:
    """Return the entries of the memory or, if its size is known, one entry that stands for them."""
    state = snapshot.state
    if snapshot.has_counts(window):
        return [Entry(0, "", cost=state.memory_tokens if window.estimator else state.memory_messages)]
    rows = snapshot.memory(window.counter)
    if window.counter:
        count_rows([row for row in rows if row.tokens is None], snapshot, window, counted)
    return [entry_of(row, window, counted) for row in rows]


def _backwards(snapshot: Snapshot, window: Window, counted: Counted, found: list[_Found]) -> Iterator[Entry]:
    """Yield the messages that may come back, from the newest to the oldest, and note all rows among them in *found*."""
    state, before = snapshot.state, snapshot.state.window_start
    behind = state.forgotten_through, state.kept_out_through, snapshot.summarized_through()
    conversation = Conversation.objects.filter(pk=state.id)
    size = page_size(state.memory_messages, state.memory_tokens if snapshot.has_counts(window) else 0, window)
    while True:
        rows = in_window(before_memory(snapshot.messages(), before, *behind), window.counter, Bounds.of(state))
        rows = rows.annotate(version=Subquery(conversation.values("version")))
        page = [
            _Found(Row._make(values), on_path, version)
            for *values, on_path, version in rows.values_list(*Row._fields, "on_path", "version")[:size]
        ]
        found += page
        on_path = [each.row for each in page if each.on_path and each.row.type != MessageType.SYSTEM]
        on_path = [row for row in on_path if row.part != PIN]  # a pin has not left the memory
        if window.counter:
            count_rows([row for row in on_path if row.tokens is None], snapshot, window, counted)
        yield from (entry_of(row, window, counted) for row in on_path)
        if len(page) < size:
            return
        before = page[-1].row.sequence


def _filled(snapshot: Snapshot, window: Window, costs: Sequence[int], returned: Sequence[Row]) -> Snapshot:
    """Return *snapshot* with the messages *returned*, which have these *costs*, in its memory."""
    state = snapshot.state
    changed = state._replace(evicted_limit=window.evicted_limit)
    if returned:
        start, pinned = returned[0].sequence, state.pinned_sequence
        stays = pinned is not None and is_pinned_before(pinned, start, window)
        is_counted = window.counter != "" and snapshot.has_counts(window)
        changed = changed._replace(
            window_start=start,
            pinned_sequence=pinned if stays else None,
            memory_messages=state.memory_messages + len(returned),
            memory_tokens=state.memory_tokens + sum(costs) if is_counted else 0,
            counted_by=window.counter if is_counted else "",
        )
    return snapshot.beginning_at(changed)


def _front_row(row: Row, window: Window, counted: Counted) -> FrontRow:
    payload = row.payload if row.type == MessageType.AI else None
    return FrontRow(row.sequence, row.type, payload, entry_of(row, window, counted).cost, window.counter)
