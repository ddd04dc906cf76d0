"""Removing messages from a memory and the history: the decision of ``pop`` and ``remove``."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chatmemory_django.core.tool_calls import MAX_DISTANCE, counterparts
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django.changes import Change, Removed
from chatmemory_django.stores.django.entries import messages_of
from chatmemory_django.stores.django.relocations import stored_rows
from chatmemory_django.stores.django.rows import Row
from chatmemory_django.stores.django.snapshots import SUMMARY, Snapshot, without


class Removal:
    """
    A decision to remove the messages *sequences*, or the newest one, from the memory and the history.

    With *with_counterparts*, the calls or results that belong to them are removed, too. Returns the removed rows; none
    if the newest is requested and the memory is empty.
    """

    holds_for_nothing = False

    def __init__(self, sequences: Sequence[int] | None, *, with_counterparts: bool = False) -> None:
        self._sequences = sequences
        self._with_counterparts = with_counterparts

    def __call__(self, snapshot: Snapshot) -> tuple[list[Row], Change | None]:
        """Decide how the memory changes."""
        state = snapshot.state
        memory = snapshot.memory(state.counted_by)
        sequences = self._sequences
        if sequences is None:
            if not (remembered := [row.sequence for row in memory if row.part != SUMMARY]):
                return [], None
            sequences = [max(remembered)]
        rows = _rows(snapshot, sequences, memory, with_counterparts=self._with_counterparts)
        out = {row.sequence for row in rows}
        removals, head = _removals(snapshot, out)
        after = without(state, memory, out)._replace(
            total_messages=state.total_messages - len(removals), parent_sequence=head
        )
        if state.summary_sequence in out:  # so that no rewind finds it again
            removals.append(Removed(state.summary_sequence, 0))
        left = [row.sequence for row in memory if row.sequence in out]
        return rows, Change(state, after, left=left, removals=removals)


def _rows(snapshot: Snapshot, sequences: Sequence[int], memory: list[Row], *, with_counterparts: bool) -> list[Row]:
    """Return the rows of the messages *sequences*, each in the history or the *memory*, and of what belongs to them."""
    rows = {row.sequence: row for row in stored_rows(snapshot, sequences)}
    remembered = {row.sequence: row for row in memory}
    for sequence in dict.fromkeys(sequences):
        if sequence in rows:
            if with_counterparts:
                rows |= {row.sequence: row for row in _counterparts(snapshot, sequence)}
        elif sequence in remembered:
            rows[sequence] = remembered[sequence]
        else:
            raise MessageNotFoundError(snapshot.key, sequence)
    return [rows[sequence] for sequence in sorted(rows)]


def _counterparts(snapshot: Snapshot, sequence: int) -> list[Row]:
    """Return the row of message *sequence* of the history, and the rows of what belongs to it."""
    is_on_path = snapshot.is_on_path(sequence)
    near = snapshot.messages().history(all_branches=True).filter(on_path=is_on_path).values_list("sequence", flat=True)
    before = near.filter(sequence__lt=sequence).order_by("-sequence")[:MAX_DISTANCE]
    after = near.filter(sequence__gt=sequence).order_by("sequence")[:MAX_DISTANCE]
    rows = stored_rows(snapshot, [*before, sequence, *after])
    index = [row.sequence for row in rows].index(sequence)
    return [rows[each] for each in {index} | counterparts(messages_of(rows), index)]


def _removals(snapshot: Snapshot, sequences: Collection[int]) -> tuple[list[Removed], int | None]:
    """Return the removals of *sequences* from the history, last one first, and the conversation's new head."""
    history = (
        snapshot.messages().history(all_branches=True).order_by("sequence").values_list("sequence", "parent_sequence")
    )
    between = dict(history.filter(sequence__range=(min(sequences), max(sequences))))
    is_head, head = snapshot.state.parent_sequence is None, snapshot.head
    before = history.filter(sequence__lt=min(sequences)).last() or (0, None)
    following = history.filter(sequence__gt=max(sequences)).first()
    previous = dict(zip(between, [before[0], *between], strict=False))
    removals: list[Removed] = []
    for sequence, parent in reversed(between.items()):
        if sequence not in sequences:
            following = sequence, parent
            continue
        child = None
        if parent is None:
            parent = previous[sequence]
        elif following is not None and following[1] is None:
            child = following[0]
            following = child, parent
        removals.append(Removed(sequence, parent, child))
        if sequence == head:
            is_head, head = False, parent
    return removals, None if is_head else head
