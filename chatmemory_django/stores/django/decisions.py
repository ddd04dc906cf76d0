"""The decisions of most operations: to set, recount, clear, evict from and rewind a memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chatmemory_django.core.refills import left_out
from chatmemory_django.core.tool_calls import NOT_ACCEPTED, REJECTED
from chatmemory_django.core.windows import Eviction, Window, continuation
from chatmemory_django.messages import ChatMessage, MessageType, NewMessage, ToolExecutionResultMessage
from chatmemory_django.models.columns import Columns, to_message
from chatmemory_django.models.copies import refuse_held
from chatmemory_django.models.windows import Bounds, in_memory
from chatmemory_django.stores.django.changes import Change, Cut, NewRow, limit_columns, new_row
from chatmemory_django.stores.django.relocations import relocate
from chatmemory_django.stores.django.rows import OUTSIDE, SUMMARY, WINDOW, Row, State, as_remembered
from chatmemory_django.stores.django.snapshots import Counted, Snapshot, count_rows, counts_of, without


class Replacement:
    """
    A decision to replace the memory with *messages*; called with a snapshot, it returns the change to write, if any.

    If the new memory only drops messages at the front and adds some at the end, exactly that is done, and the added
    messages become history. Anything else is a memory that the caller composed, for example of a summary: it is written
    after all other rows, and is not part of the history unless that was empty. *costs* are what *counter* counted for
    each message. *trimmed* is the eviction of those that did not fit, if there was a window.
    """

    holds_for_nothing = False

    def __init__(
        self,
        messages: Sequence[ChatMessage],
        costs: Sequence[int] = (),
        counter: str = "",
        *,
        keep_history: bool,
        trimmed: Eviction | None = None,
    ) -> None:
        self._keep_history = keep_history
        self._evicted = [] if trimmed is None else [_columns_of(entry.message) for entry in trimmed.evicted]
        self._limits = limit_columns(trimmed) if trimmed is not None and trimmed.is_limited else {}
        self._rows = [new_row(NewMessage(message)) for message in messages]
        # Compared as columns, since in Python 1 == True.
        self._columns = [Columns(row.type, row.text, row.payload) for row in self._rows]
        self._counter = counter
        for row, cost in zip(self._rows, costs, strict=False):
            row.token_count, row.counted_by = cost, counter

    def __call__(self, snapshot: Snapshot) -> tuple[None, Change | None]:
        """Decide how the memory changes."""
        state, new = snapshot.state, self._rows
        rows = [as_remembered(row) for row in snapshot.memory(self._counter or state.counted_by)]
        if [Columns(row.type, row.text, row.payload) for row in rows] == self._columns:
            return None, None
        old = [row for row in rows if row.part != SUMMARY]  # a memory that is set has no summary
        columns = [Columns(row.type, row.text, row.payload) for row in old]
        goes_on = continuation(columns, self._columns)
        keeps_first, index = goes_on or (False, len(old))
        kept = [*old[:keeps_first], *old[index:]]
        is_pinned = keeps_first or (kept != [] and kept[0].sequence == state.pinned_sequence)
        window = [row for row in kept[is_pinned:] if row.part != OUTSIDE]
        unpinned = [row.sequence for row in old if row.part > WINDOW and row not in kept]
        stay_away = left_out(columns[keeps_first:index], self._evicted if goes_on else ())
        kept_out = [row.sequence for row in old[keeps_first:][: len(stay_away)] if row.type != MessageType.SYSTEM]
        in_history = goes_on is not None or state.next_sequence == 1
        added = [
            msgspec.structs.replace(row, sequence=sequence, in_history=in_history, on_path=in_history)
            for sequence, row in enumerate(new[len(kept) :], state.next_sequence)
        ]
        parent = state.parent_sequence
        if added and in_history:
            added[0].parent_sequence, parent = parent, None
        counter = self._counter or ("" if added else state.counted_by)
        costs: list[int | None] = [row.tokens for row in kept]
        counts: dict[int, int] = {}
        if self._counter:
            costs = [row.token_count for row in new]
            counts = {row.sequence: new[each].token_count or 0 for each, row in enumerate(kept) if row.tokens is None}
        after = state._replace(
            next_sequence=state.next_sequence + len(added),
            total_messages=state.total_messages + (len(added) if in_history else 0),
            window_start=window[0].sequence if window else state.next_sequence,
            pinned_sequence=kept[0].sequence if is_pinned else None,
            summary_sequence=None,
            parent_sequence=parent,
            memory_messages=len(new),
            memory_tokens=sum(cost or 0 for cost in costs) if counter else 0,
            counted_by=counter,
            kept_out_through=max([state.kept_out_through, *kept_out]),
            pinned_count=state.pinned_count - len(unpinned),
            **self._limits,
        )
        cuts: list[Cut] = []
        if not in_history:
            cuts, after = cut(snapshot, after, keep_history=self._keep_history)
        stays = {row.sequence for row in kept}
        left = [row.sequence for row in rows if row.sequence not in stays]
        if any(row.type == MessageType.SYSTEM and row.sequence not in stays for row in old):
            after = after._replace(has_lost_system=True)
        return None, Change(state, after, added, left, counts, cuts=cuts, unpinned=unpinned).checked()


def _columns_of(message: ChatMessage | None) -> Columns:
    """Return the columns of *message*, or some that no message has if it cannot be stored."""
    nothing = Columns("", "", None)
    try:
        row = None if message is None else new_row(NewMessage(message))
    except (TypeError, ValueError):
        return nothing
    return nothing if row is None else Columns(row.type, row.text, row.payload)


def cut(snapshot: Snapshot, after: State, *, keep_history: bool) -> tuple[list[Cut], State]:
    """
    Return the cut at the head of the path, unless it is there already, and the state *after* it.

    Without *keep_history*, the memory is deleted as it is left: then the cut is at the last message that stays.
    """
    before = snapshot.state
    head = before.parent_sequence
    history = snapshot.messages().history(all_branches=True).order_by("-sequence")
    if not keep_history:
        history = history.exclude(in_memory(Bounds.of(before)))
        head = history.filter(on_path=True).values_list("sequence", flat=True).first() or 0
    if head is not None:
        history = history.filter(sequence__lte=head)
    (found, parent), (previous, _) = [*history.values_list("sequence", "parent_sequence")[:2], (0, 0), (0, 0)][:2]
    head = found if head is None else head
    if found != head or head in {0, before.forgotten_through}:  # without a history, it may be deleted
        return [], after
    added = Cut(head, previous if parent is None else parent, before.next_sequence)
    return [added], after._replace(parent_sequence=head, forgotten_through=head)


class Recounting:
    """A decision to recount a memory by *window*; called with a snapshot, it returns its tokens and the change."""

    holds_for_nothing = False

    def __init__(self, window: Window) -> None:
        self._window = window
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[int, Change | None]:
        """Decide the new counts."""
        rows = snapshot.memory("")
        count_rows(rows, snapshot, self._window, self._counted)
        counts = counts_of(rows, self._counted)
        total, state = sum(counts.values()), snapshot.state
        after = state._replace(memory_tokens=total, counted_by=self._window.counter)
        return total, Change(state, after, counts=counts).checked()


class Clearing:
    """
    A decision to clear the memory: nothing up to the newest message of the path is remembered again after it.

    No summary is left, and nothing is pinned on any branch. With *names_left*, the change names the messages that leave
    the memory. Raises ``ProtectedError`` if the conversation is held, see ``models.copies.Hold``.
    """

    holds_for_nothing = False

    def __init__(self, *, names_left: bool, keep_history: bool) -> None:
        self._names_left = names_left
        self._keep_history = keep_history

    def __call__(self, snapshot: Snapshot) -> tuple[None, Change | None]:
        """Decide where the memory begins next."""
        state = snapshot.state
        summaries = [*snapshot.summaries()]
        left = [row.sequence for row in snapshot.memory("")] if self._names_left else []
        after = state._replace(
            window_start=state.next_sequence,
            pinned_sequence=None,
            summary_sequence=None,
            memory_messages=0,
            memory_tokens=0,
            counted_by="",
            pinned_count=0,
        )
        unpinned = snapshot.pinned()
        cuts, after = cut(snapshot, after, keep_history=self._keep_history)
        if not (state.memory_messages or summaries or cuts or unpinned):
            return None, None
        refuse_held(snapshot.using, [state.id])
        return None, Change(state, after, left=left, emptied=summaries, cuts=cuts, unpinned=unpinned)


class Evicting:
    """A decision to evict the first *count* messages of the memory but those pinned; returns their sequences."""

    holds_for_nothing = False

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, snapshot: Snapshot) -> tuple[list[int], Change | None]:
        """Decide where the memory begins next."""
        state = snapshot.state
        memory = snapshot.memory(state.counted_by)
        first = [row for row in memory if row.part <= WINDOW][: self._count]
        left = [row.sequence for row in first]
        if not left:
            return [], None
        after = without(state, memory, left)
        out = [row.sequence for row in first if row.type != MessageType.SYSTEM]
        after = after._replace(kept_out_through=max([state.kept_out_through, *out]))
        return left, Change(state, after, left=left)


class Rejecting:
    """
    A decision to take messages out of the memory that a model's server did not accept, for *reason*.

    They stay in the history, with the reason in their metadata. In the place of results of tools, the memory has notes.
    """

    holds_for_nothing = False

    def __init__(self, sequences: Sequence[int], reason: str, window: Window) -> None:
        self._sequences = sequences
        self._reason = reason
        self._window = window

    def __call__(self, snapshot: Snapshot) -> tuple[None, Change | None]:
        """Decide how the memory changes."""
        state = snapshot.state
        rows = snapshot.messages().history(all_branches=True).filter(sequence__in=self._sequences)
        found = dict(rows.values_list("sequence", "metadata"))
        metadata = {sequence: {**(each or {}), REJECTED: self._reason} for sequence, each in found.items()}
        memory = snapshot.memory(state.counted_by)
        out = [row for row in memory if row.sequence in metadata]
        if not metadata:
            return None, None
        notes = [note for row in out if (note := self._note(row)) is not None]
        for sequence, note in enumerate(notes, state.next_sequence):
            note.sequence, note.in_history, note.on_path = sequence, False, False
        after = without(state, memory, {row.sequence for row in out})
        tokens = sum(note.token_count or 0 for note in notes)
        unpinned = snapshot.pinned(sequence__in=list(metadata))
        after = after._replace(
            next_sequence=state.next_sequence + len(notes),
            window_start=state.window_start,
            memory_messages=after.memory_messages + len(notes),
            memory_tokens=after.memory_tokens + tokens if state.counted_by else 0,
            parent_sequence=snapshot.head if notes else state.parent_sequence,
            pinned_count=state.pinned_count - len(unpinned),
        )
        left = [row.sequence for row in out]
        return None, Change(state, after, notes, left, metadata=metadata, unpinned=unpinned).checked()

    def _note(self, row: Row) -> NewRow | None:
        message = to_message(row.type, row.text, row.payload)
        if not isinstance(message, ToolExecutionResultMessage):
            return None
        note = ToolExecutionResultMessage(message.id, message.tool_name, NOT_ACCEPTED, is_error=True)
        new = new_row(NewMessage(note))
        if self._window.counter:
            new.token_count, new.counted_by = self._window.cost(note), self._window.counter
        return new


class Relocating:
    """A decision to continue from message *to*, or from its newest descendant; returns the sequence of that message."""

    holds_for_nothing = False

    def __init__(self, to: int, window: Window, *, newest: bool) -> None:
        self._to = to
        self._window = window
        self._newest = newest
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[int, Change | None]:
        """Decide how the memory changes."""
        to = snapshot.message(self._to)
        if self._newest:
            to = snapshot.newest(sequence__lte=snapshot.tree.newest_from(to.sequence))
        if to.is_head:
            return to.sequence, None
        relocation = relocate(snapshot, to, self._window, self._counted)
        change = Change(
            snapshot.state,
            relocation.state,
            left=relocation.left,
            counts=counts_of(relocation.uncounted, self._counted),
            relocation=relocation,
            hidden=relocation.hidden,
        )
        return to.sequence, change.checked()
