"""Relocations: a stored conversation that continues from another message, and what changes with that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from django.db.models import Q

from chatmemory_django.core.branches import Present, Summary, fork_point, moved
from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.core.windows import Entry, Window
from chatmemory_django.messages import MessageType
from chatmemory_django.models import MessageQuerySet
from chatmemory_django.models.messages import MAX_PARTS
from chatmemory_django.models.windows import Bounds
from chatmemory_django.stores.django.changes import Relocation, memory_columns
from chatmemory_django.stores.django.rows import OUTSIDE, SUMMARY, Row, in_window
from chatmemory_django.stores.django.snapshots import Counted, Known, Snapshot, count_rows, entry_of

FIRST_PAGE = 32
"""How many sequences of a path are read at first; each page is four times as large as the previous one ..."""

MAX_PAGE = 4_096
"""... up to this many."""

MAX_SUMMARIES = 256
"""How many summaries of other branches are skipped, at most, to find one of this branch."""


def relocate(snapshot: Snapshot, known: Known, window: Window, counted: Counted) -> Relocation:
    """
    Decide how the conversation changes if it continues from the message *known*, which is not its head.

    Raises:
        UncountedError: Messages of its memory must be counted.

    """
    state, to = snapshot.state, known.sequence
    shared, entered = to, []
    if not known.on_path:
        path = snapshot.tree.path_to(to)
        shared = fork_point(snapshot.tree.path_to(snapshot.head), path)
        entered = [(max(start, shared + 1), end) for start, end in path if end > shared]
    rows = snapshot.memory(window.counter)
    remembered = [row for row in rows if row.part != SUMMARY]
    path_rows = _StoredPath(snapshot, shared, entered, window, counted)
    if window.counter:
        count_rows([row for row in rows if row.tokens is None], snapshot, window, counted)
    pins = path_rows.pins()
    present = Present(
        [entry_of(row, window, counted) for row in remembered if row.part != OUTSIDE],
        state.has_lost_system or state.forgotten_through > 0,
    )
    forgotten = _forgotten(snapshot, known)
    eviction = moved(
        present,
        path_rows,
        window.without_clearing(),
        to=to,
        shared=shared,
        forgotten=forgotten,
        next_key=state.next_sequence,
        pins=pins,
    )
    eviction.window = window  # what is added may clear results, the move does not
    kept = [*eviction.aside, *eviction.entries()]
    front = {entry.key for entry in eviction.front}
    start = next((entry.key for entry in kept if entry.key not in front), state.next_sequence)
    keys = {entry.key for entry in kept}
    found = {row.sequence: row for row in (*rows, *path_rows.rows) if row.sequence in keys}
    return Relocation(
        shared,
        entered,
        eviction,
        left=[row.sequence for row in rows if row.sequence not in keys],
        shown=[each for each in path_rows.superseded if each in keys],
        hidden=[each for each in path_rows.visible if each >= start and each not in keys],
        uncounted=[row for row in found.values() if window.counter and row.tokens is None],
        state=state._replace(
            window_start=start,
            parent_sequence=to,
            forgotten_through=forgotten,
            kept_out_through=state.kept_out_through if state.kept_out_through < start else 0,
            **memory_columns(eviction, len(kept)),
        ),
    )


def _forgotten(snapshot: Snapshot, known: Known) -> int:
    """Return the last message on the path to *known* after which the memory was cleared; 0 without one."""
    if known.cleared_before is not None:
        return known.sequence
    current = snapshot.state.forgotten_through
    is_after = known.on_path and known.sequence >= current
    return current if is_after else snapshot.tree.forgotten(known.sequence)


def stored_rows(
    snapshot: Snapshot, sequences: Collection[int], window: Window | None = None, counted: Counted | None = None
) -> list[Row]:
    """Return the rows of *sequences* of the history, in order, with the tokens counted by *window* or in *counted*."""
    history = snapshot.messages().history(all_branches=True).filter(sequence__in=sequences).order_by("sequence")
    rows = in_window(history, "" if window is None else window.counter, Bounds.of(snapshot.state))
    found = list(map(Row._make, rows.values_list(*Row._fields)))
    if window is not None and window.counter and counted is not None:
        count_rows([row for row in found if row.tokens is None], snapshot, window, counted)
    return found


class _StoredPath:
    """See ``branches.Path``: the current path up to *shared*, then the parts *entered*."""

    def __init__(
        self,
        snapshot: Snapshot,
        shared: int,
        entered: Sequence[tuple[int, int]],
        window: Window,
        counted: Counted,
    ) -> None:
        self._snapshot = snapshot
        self._shared = shared
        self._entered = entered
        self._window = window
        self._counted = counted
        self.rows: list[Row] = []
        """The rows of the path read so far."""
        self.superseded: list[int] = []
        """The sequences of the rows read so far that are superseded ..."""
        self.visible: list[int] = []
        """... and of those that are not, or will not be."""

    def systems(self, to: int, behind: int) -> Iterator[Entry]:
        parts, size = self._parts(to, behind), 2
        while batch := list(islice(parts, MAX_PARTS)):
            on_path = self._on_path(batch) & Q(type=MessageType.SYSTEM.value)
            last: int | None = batch[0][1]
            while last is not None:
                within = Q(sequence__range=(batch[-1][0], last))  # a range that SQLite would not derive from the parts
                rows = self._read(within & on_path, size)
                yield from (entry_of(row, self._window, self._counted) for row in rows)
                last, size = rows[-1].sequence - 1 if len(rows) == size else None, FIRST_PAGE

    def backwards(self, to: int, behind: int) -> Iterator[Entry]:
        size = FIRST_PAGE
        while parts := _page(self._parts(to, behind), size):
            start = parts[-1][0]
            # Rows that are not superseded must be known even if they are not on the path: they would be in the window.
            visible = Q(sequence__range=(start, to), superseded=False)
            accepted = self._on_path(parts) & ~Q(metadata__has_key=REJECTED)
            rows = self._read(Q(sequence__range=(start, to)) & (accepted | visible))
            for row in rows:
                if row.type != MessageType.SYSTEM:
                    yield entry_of(row, self._window, self._counted)
            to, size = start - 1, min(4 * size, MAX_PAGE)
            if not rows and to <= self._shared:
                to = self._last_before(to)

    def summary(self, to: int, behind: int) -> Summary | None:
        state, messages = self._snapshot.state, self._snapshot.messages()
        if state.total_messages == state.next_sequence - 1:
            return None  # every stored row is part of the history
        summaries = messages.filter(
            type=MessageType.SYSTEM.value,
            in_history=False,
            parent_sequence__gt=behind,
            parent_sequence__lte=to,
            metadata__through__isnull=False,
        ).order_by("-parent_sequence", "-sequence")
        found = list(summaries.values_list("sequence", "parent_sequence")[:MAX_SUMMARIES])
        # A separate query: with the rows locked, a subquery in MySQL would see them as they were.
        covered = messages.filter(on_path=True, sequence__in={through for _, through in found})
        shared = set(covered.filter(sequence__lte=self._shared).values_list("sequence", flat=True))
        for sequence, through in found:
            if through is not None and (through in shared or self._is_entered(through)):
                [summary] = self._found(messages.filter(sequence=sequence))
                self.rows.append(summary.row)
                return Summary(entry_of(summary.row, self._window, self._counted), through)
        return None

    def pins(self) -> list[Entry]:
        """Return the pinned messages of the path, in order."""
        if not self._snapshot.state.pinned_count:
            return []
        pinned = self._snapshot.messages().filter(is_pinned=True, in_history=True).order_by("sequence")
        rows = [
            each.row
            for each in self._found(pinned)
            if self._is_entered(each.row.sequence) or (each.on_path and each.row.sequence <= self._shared)
        ]
        self.rows += rows
        return [entry_of(row, self._window, self._counted) for row in rows]

    def _parts(self, to: int, behind: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of the path from *to* back to the first message after *behind*."""
        for start, end in reversed([(1, self._shared), *self._entered]):
            first, last = max(start, behind + 1), min(end, to)
            if first <= last:
                yield first, last

    def _is_entered(self, sequence: int) -> bool:
        return any(start <= sequence <= end for start, end in self._entered)

    def _on_path(self, parts: Sequence[tuple[int, int]]) -> Q:
        """Return the condition for rows that are on the path in *parts* of it."""
        condition = Q()
        for part in parts:
            is_shared = part[1] <= self._shared
            condition |= Q(sequence__range=part) & (Q(on_path=True) if is_shared else Q(in_history=True))
        return condition

    def _last_before(self, to: int) -> int:
        """Return the last row up to *to* that is on the current path or not superseded: branches may leave a gap."""
        rows = self._snapshot.messages().filter(Q(on_path=True) | Q(superseded=False), sequence__lte=to)
        return rows.order_by("sequence").values_list("sequence", flat=True).last() or 0

    def _read(self, condition: Q, at_most: int | None = None) -> list[Row]:
        """Read the rows that meet *condition*, newest first; return those on the path."""
        rows = []
        for found in self._found(self._snapshot.messages().filter(condition).order_by("-sequence")[:at_most]):
            sequence = found.row.sequence
            if sequence > self._shared:
                if self._is_entered(sequence) and found.in_history:
                    self.visible.append(sequence)
                    rows.append(found.row)
                continue
            (self.superseded if found.superseded else self.visible).append(sequence)
            if found.on_path:
                rows.append(found.row)
        self.rows += rows
        return rows

    def _found(self, messages: MessageQuerySet) -> list[_Found]:
        """Read *messages*, and count those that have not been counted."""
        rows = in_window(messages, self._window.counter, Bounds.of(self._snapshot.state))
        found = [
            _Found(Row._make(values), superseded, on_path, in_history)
            for *values, superseded, on_path, in_history in rows.values_list(
                *Row._fields, "superseded", "on_path", "in_history"
            )
        ]
        if self._window.counter:
            uncounted = [each.row for each in found if each.row.tokens is None]
            count_rows(uncounted, self._snapshot, self._window, self._counted)
        return found


class _Found(NamedTuple):
    """A row with further columns."""

    row: Row
    superseded: bool
    on_path: bool
    in_history: bool


def _page(parts: Iterator[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the first of *parts*, with *size* sequences in total, close enough to be read as one range."""
    page: list[tuple[int, int]] = []
    for start, end in parts:
        if page and (len(page) == MAX_PARTS or page[0][1] - end > 4 * size):
            break
        first = max(start, end - size + 1)
        page.append((first, end))
        size -= end - first + 1
        if size <= 0:
            break
    return page
