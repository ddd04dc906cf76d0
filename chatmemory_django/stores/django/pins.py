"""Pins: the decisions to keep messages in a memory, whatever leaves it, and to keep them no longer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.core.windows import MAX_PINS, Window
from chatmemory_django.messages import MessageType
from chatmemory_django.models.windows import Bounds, is_in_memory
from chatmemory_django.stores.base import MessageNotFoundError, PinError
from chatmemory_django.stores.django.changes import Change
from chatmemory_django.stores.django.relocations import stored_rows
from chatmemory_django.stores.django.removals import group_of
from chatmemory_django.stores.django.rows import Row, State
from chatmemory_django.stores.django.snapshots import Counted, Snapshot, count_rows, entry_of


class Pinning:
    """
    A decision to pin the message *sequence* and what belongs to it; returns their sequences.

    Nothing leaves the memory for it before something is added. ``MessageNotFoundError`` if the message is not on the
    path, ``PinError`` if it cannot be pinned.
    """

    holds_for_nothing = False

    def __init__(self, sequence: int, window: Window) -> None:
        self._sequence = sequence
        self._window = window
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[list[int], Change | None]:
        """Decide what is pinned, and what of it returns to the memory."""
        state = snapshot.state
        if self._sequence < 1 or not snapshot.message(self._sequence).on_path:
            raise MessageNotFoundError(snapshot.key, self._sequence)
        group = _group(snapshot, self._sequence)
        rows = snapshot.messages().filter(sequence__in=group)
        superseded = dict(rows.exclude(metadata__has_key=REJECTED).values_list("sequence", "superseded"))
        if self._sequence not in superseded:
            raise PinError(f"Message {self._sequence} cannot be pinned: the model's server did not accept it.")
        group, pinned = sorted(superseded), set(snapshot.pinned(on_path=True))
        new = set(group) - pinned
        if not new:
            return group, None
        found = self._read(snapshot, pinned | new)
        self._check(state, new, found)
        enters = {
            each
            for each in new
            if not is_in_memory(each, Bounds.of(state), superseded=superseded[each], is_pinned=False)
        }
        after = state._replace(
            pinned_count=state.pinned_count + len(new), memory_messages=state.memory_messages + len(enters)
        )
        counts: dict[int, int] = {}
        if state.counted_by and state.counted_by == self._window.counter:
            costs = {each: self._cost(found[each]) for each in new}
            counts = {each: cost for each, cost in costs.items() if found[each].tokens is None}
            markers = snapshot.messages().filter(sequence__in=new - enters, is_cleared=True)
            freed = sum(tokens or 0 for tokens in markers.values_list("token_count", flat=True))
            back = enters | set(markers.values_list("sequence", flat=True))
            tokens = state.memory_tokens + sum(costs[each] for each in back) - freed
            after = after._replace(memory_tokens=tokens)
        elif state.counted_by:  # by another estimator
            after = after._replace(memory_tokens=0, counted_by="")
        return group, Change(state, after, counts=counts, pinned=sorted(new)).checked()

    def _read(self, snapshot: Snapshot, sequences: Collection[int]) -> Mapping[int, Row]:
        """Return the rows of *sequences* by sequence: whole, and counted if the window's counts can be stored."""
        rows = stored_rows(snapshot, sequences, self._window)
        whole = [row._replace(is_cleared=False, tokens=None) if row.is_cleared else row for row in rows]
        if self._window.counter:
            count_rows([row for row in whole if row.tokens is None], snapshot, self._window, self._counted)
        return {row.sequence: row for row in whole}

    def _check(self, state: State, new: Collection[int], found: Mapping[int, Row]) -> None:
        """Raise ``PinError`` if *new* cannot be pinned, or not beside the others that were *found*."""
        if any(found[each].type == MessageType.SYSTEM for each in new):
            raise PinError(
                f"Message {self._sequence} is a system message: it stays without a pin until another replaces it."
            )
        if (count := state.pinned_count + len(new)) > MAX_PINS:
            raise PinError(f"{count} messages of the conversation would be pinned; at most {MAX_PINS} can be.")
        size, limit = sum(map(self._cost, found.values())), self._window.pins_limit
        if size > limit:
            unit = self._window.measure
            raise PinError(f"The pinned messages would take {size} {unit} of the window; they may take {limit}.")

    def _cost(self, row: Row) -> int:
        entry = entry_of(row, self._window, self._counted)
        if entry.cost is None and entry.message is not None:
            entry.cost = self._window.cost(entry.message)
        return entry.cost or 0


class Unpinning:
    """
    A decision to pin the message *sequence* and what belongs to it no longer; returns their sequences.

    Those that have left the window leave the memory. ``MessageNotFoundError`` if the history has no such message.
    """

    holds_for_nothing = False

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence

    def __call__(self, snapshot: Snapshot) -> tuple[list[int], Change | None]:
        """Decide what leaves the memory."""
        state = snapshot.state
        if self._sequence < 1:
            raise MessageNotFoundError(snapshot.key, self._sequence)
        snapshot.message(self._sequence)
        group = _group(snapshot, self._sequence)
        unpinned = snapshot.pinned(sequence__in=group)
        if not unpinned:
            return group, None
        rows = snapshot.messages().filter(sequence__in=unpinned, superseded=False, sequence__lt=state.window_start)
        left = dict(rows.values_list("sequence", "token_count"))
        after = state._replace(
            pinned_count=state.pinned_count - len(unpinned), memory_messages=state.memory_messages - len(left)
        )
        if state.counted_by:
            after = after._replace(memory_tokens=state.memory_tokens - sum(tokens or 0 for tokens in left.values()))
        return group, Change(state, after, left=sorted(left), unpinned=unpinned)


def _group(snapshot: Snapshot, sequence: int) -> list[int]:
    """Return the sequences of the message *sequence* of the history and of what belongs to it, in order."""
    return sorted(row.sequence for row in group_of(snapshot, sequence))
