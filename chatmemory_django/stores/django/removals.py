"""Taking messages out of a memory and the history: the decision of ``pop`` and ``remove``."""

from __future__ import annotations

from collections.abc import Collection

from chatmemory_django.rows import Row
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django.changes import Change, Removed
from chatmemory_django.stores.django.entries import messages_of
from chatmemory_django.stores.django.paths import stored_rows
from chatmemory_django.stores.django.snapshots import SUMMARY, WINDOW, Snapshot
from chatmemory_django.tool_calls import MAX_DISTANCE, counterparts


class Removal:
    """
    A decision to take the message *sequence*, or the newest, out of the memory and the history.

    With *with_counterparts*, the calls or the results that belong to it are taken out, too. Returns the rows that are
    out now; none if the newest is asked for and the memory is empty.
    """

    holds_for_nothing = False

    def __init__(self, sequence: int | None, *, with_counterparts: bool = False) -> None:
        self._sequence = sequence
        self._with_counterparts = with_counterparts

    def __call__(self, snapshot: Snapshot) -> tuple[list[Row], Change | None]:
        """Decide what becomes of the memory."""
        state = snapshot.state
        memory = snapshot.memory(state.counted_by)
        sequence = self._sequence
        if sequence is None:
            if not (places := [row.sequence for row in memory if row.part != SUMMARY]):
                return [], None
            sequence = max(places)
        rows = _rows(snapshot, sequence, memory, with_counterparts=self._with_counterparts)
        out = {row.sequence for row in rows}
        kept = [row for row in memory if row.sequence not in out]
        removals, head = _removals(snapshot, out)
        after = state._replace(
            total_messages=state.total_messages - len(removals),
            window_start=next((row.sequence for row in kept if row.part == WINDOW), state.next_sequence),
            pinned_sequence=None if state.pinned_sequence in out else state.pinned_sequence,
            summary_sequence=None if state.summary_sequence in out else state.summary_sequence,
            parent_sequence=head,
            memory_messages=len(kept),
            memory_tokens=sum(row.tokens or 0 for row in kept) if state.counted_by else 0,
        )
        if state.summary_sequence in out:  # so that no rewind finds it again
            removals.append(Removed(state.summary_sequence, 0))
        left = [row.sequence for row in memory if row.sequence in out]
        return rows, Change(state, after, left=left, removals=removals)


def _rows(snapshot: Snapshot, sequence: int, memory: list[Row], *, with_counterparts: bool) -> list[Row]:
    """The row of message *sequence*, which is in the history or the *memory*, and of what belongs to it."""
    history = snapshot.messages().history(all_branches=True)
    found, is_on_path = snapshot.last_said(sequence=sequence) if sequence > 0 else (0, False)
    if not found:
        if in_memory := [row for row in memory if row.sequence == sequence]:
            return in_memory
        raise MessageNotFoundError(snapshot.key, sequence)
    if not with_counterparts:
        return stored_rows(snapshot, [sequence])
    near = history.filter(on_path=is_on_path).values_list("sequence", flat=True)
    before = near.filter(sequence__lt=sequence).order_by("-sequence")[:MAX_DISTANCE]
    after = near.filter(sequence__gt=sequence).order_by("sequence")[:MAX_DISTANCE]
    rows = stored_rows(snapshot, [*before, sequence, *after])
    index = next(place for place, row in enumerate(rows) if row.sequence == sequence)
    places = {index} | counterparts(messages_of(rows), index)
    return [rows[place] for place in sorted(places)]


def _removals(snapshot: Snapshot, sequences: Collection[int]) -> tuple[list[Removed], int | None]:
    """What becomes of the tree without those of *sequences* that are in the history, the last first; and its head."""
    history = snapshot.messages().history(all_branches=True).order_by("sequence")
    parents = dict(history.filter(sequence__in=sequences).values_list("sequence", "parent_sequence"))
    is_head, head = snapshot.state.parent_sequence is None, snapshot.head
    removals: list[Removed] = []
    for sequence in sorted(parents, reverse=True):
        parent, child = parents[sequence], None
        others = history.exclude(sequence__in=[each.sequence for each in removals])
        if parent is None:
            parent = others.filter(sequence__lt=sequence).values_list("sequence", flat=True).last() or 0
        else:
            following = others.filter(sequence__gt=sequence).values_list("sequence", "parent_sequence").first()
            child = following[0] if following is not None and following[1] is None else None
        removals.append(Removed(sequence, parent, child))
        if sequence == head:
            is_head, head = False, parent
    return removals, None if is_head else head
