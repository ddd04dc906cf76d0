"""Adding messages: the decision of ``append_messages``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, repeat

import msgspec

from chatmemory_django.core.windows import NOTHING_LEAVES, Entry, Eviction, Window, to_entry
from chatmemory_django.messages import ChatMessage, MessageType, NewMessage, new_messages
from chatmemory_django.models.columns import Columns, to_message
from chatmemory_django.stores.base import Appended, LeaseLostError, MessageNotFoundError, Phase
from chatmemory_django.stores.django.changes import Change, Cut
from chatmemory_django.stores.django.entries import Counted, counts_of, entry_of, has_counts, read_eviction
from chatmemory_django.stores.django.relocations import Relocation, relocate, stored_rows
from chatmemory_django.stores.django.rows import NewRow, Row, State, memory_columns, new_row
from chatmemory_django.stores.django.snapshots import FRONT, SUMMARY, WINDOW, Snapshot

MAX_READ = 4_096
"""How many sequences of the front of a window are read at a time, at most."""


class Addition:
    """
    A decision to add *messages*; called with a snapshot, it returns the result and the change to write, if any.

    ``ValueError`` or ``TypeError`` if a message cannot be stored.
    """

    holds_for_nothing = True  # that an equal system message is in the memory was true when it was read

    def __init__(
        self,
        messages: Sequence[ChatMessage | NewMessage],
        window: Window,
        *,
        after: int | None = None,
        repeats: bool = False,
        archived: bool = False,
        phase: Phase | None = None,
        turn: Sequence[int] = (),
        newest: int | None = None,
        is_retry: bool = True,
        costs: Sequence[int | None] = (),
    ) -> None:
        self._after = after
        self._repeats = repeats
        self._archived = archived
        self._phase = phase
        self._turn = turn
        self._newest = newest
        self._is_retry = is_retry
        self._window = window
        new = new_messages(messages)
        self._messages = [each.message for each in new]
        self._rows = [new_row(each, f"messages[{index}].") for index, each in enumerate(new)]
        for row in self._rows:
            row.is_complete = phase not in {"open", "round"} or row.type != MessageType.USER
        _check_unique(self._rows)
        counted = costs or repeat(None, len(new))
        self._costs = [
            window.cost(message) if cost is None and window.is_additive else cost
            for message, cost in zip(self._messages, counted, strict=True)
        ]
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[Appended, Change | None]:
        """Decide how the memory changes."""
        state, window = snapshot.state, self._window
        if self._newest not in {None, snapshot.head if self._newest else None}:
            raise LeaseLostError(f"Others have added messages to {snapshot.key!r} meanwhile; nothing is stored.")
        names = [row.client_message_id for row in self._rows if row.client_message_id is not None]
        # Without the lock this is unknown: then the UPDATE checks the ids, and a retry comes back with the lock.
        known = snapshot.sequences_of(names) if names and snapshot.is_locked else {}
        # Known messages were stored together with everything else.
        after = None if self._after is None or known else snapshot.message(self._after)
        if after is not None and self._phase == "open":
            return self._set_aside(snapshot, after.sequence)
        aside: Sequence[int] = () if after is None else [each for each in self._turn if each > after.sequence]
        cleared = snapshot.cleared_at(aside) if aside else None
        if cleared is not None:  # nothing up to it comes back
            after, aside = cleared, [each for each in aside if each > cleared.sequence]
        cuts: list[Cut] = []
        if after is not None and aside and after.cleared_before is not None:
            # If the memory was cleared after they were stored, they come after that all the same.
            cuts = [Cut(after.sequence, snapshot.parent_of(after), aside[0])]
        relocation: Relocation | None = None
        uncounted: Sequence[Row] = ()
        held: Sequence[Entry] = ()
        ends = self._phase == "end"
        if after is not None and not after.is_head:
            relocation = relocate(snapshot, after, window, self._counted)
            eviction, uncounted = relocation.eviction, relocation.uncounted
        elif has_counts(snapshot, window) and not aside:
            held = self._held(snapshot) if ends and self._turn else ()
            eviction = self._from_front(snapshot, held)
        else:
            eviction, uncounted = read_eviction(snapshot, window, self._counted)
            if ends and self._turn and not aside:
                eviction, held = eviction.split(min(self._turn))
        if self._phase is not None and not ends:
            eviction.keeps_from = NOTHING_LEAVES
        for entry in held:
            eviction.add_again(entry)
        taken_up: list[int] = []
        if aside:
            rows = stored_rows(snapshot, aside, window, self._counted)
            uncounted = [*uncounted, *(row for row in rows if window.counter and row.tokens is None)]
            taken_up = self._take_up(snapshot, eviction, aside, rows)
        added: list[NewRow] = []
        keys: list[int] = []
        begun = len(eviction.added)
        for message, row, cost in zip(self._messages, self._rows, self._costs, strict=True):
            if row.client_message_id in known:
                keys.append(known[row.client_message_id])
                continue
            if self._archived:
                keys.append(eviction.pass_by(message, cost))
            else:
                keys.append(eviction.add(message, cost, repeats=self._repeats))
            if len(eviction.added) > begun + len(added):
                added.append(msgspec.structs.replace(row, sequence=keys[-1]))
                if row.client_message_id is not None:
                    known[row.client_message_id] = keys[-1]
        # Continuing from a question answers it.
        answered = [] if after is None or after.is_complete or cleared or self._phase == "round" else [after.sequence]
        completes = [*(self._turn if ends else ()), *answered]
        if not (added or completes or relocation):
            return Appended(eviction, keys, state.id), None
        change = self._change(state, eviction, added, uncounted, relocation, aside, cuts, taken_up, completes)
        if self._phase is not None and not ends:
            before = snapshot.held if self._turn else ()
            gone = {entry.key for entry in (*eviction.replaced, *eviction.passed_by)}
            new = (entry for entry in eviction.added[begun:] if entry.key not in gone)
            change = change._replace(held=None if before is None else (*before, *new))
        return Appended(eviction, keys, state.id), change

    def _set_aside(self, snapshot: Snapshot, after: int) -> tuple[Appended, Change]:
        """Store the messages as a branch that begins after message *after* and is not on the path."""
        state = snapshot.state
        rows = [
            msgspec.structs.replace(
                row, sequence=sequence, parent_sequence=parent, superseded=True, on_path=False, token_count=cost
            )
            for row, sequence, parent, cost in zip(
                self._rows, count(state.next_sequence), chain([after], repeat(None)), self._costs, strict=False
            )
        ]
        for row in rows:
            if self._window.counter:
                row.counted_by = self._window.counter
            else:
                row.token_count = None
        state_after = state._replace(
            next_sequence=state.next_sequence + len(rows),
            total_messages=state.total_messages + len(rows),
            parent_sequence=snapshot.head,
        )
        change = Change(state, state_after, rows, is_retry=self._is_retry).checked()
        return Appended(Eviction.of([], self._window), [row.sequence for row in rows], state.id), change

    def _take_up(
        self, snapshot: Snapshot, eviction: Eviction, aside: Sequence[int], stored: Iterable[Row]
    ) -> list[int]:
        """Add the messages *stored* aside to *eviction*, and return the sequences of those that were added."""
        rows = {row.sequence: row for row in stored}
        for sequence in aside:
            if sequence not in rows:
                raise MessageNotFoundError(snapshot.key, sequence)
            entry = entry_of(rows[sequence], self._window, self._counted)
            if entry.message is not None:
                eviction.add(entry.message, entry.cost, key=sequence)
        return [entry.key for entry in eviction.added]

    def _held(self, snapshot: Snapshot) -> Sequence[Entry]:
        """Return what was added since the turn has begun, and evicted nothing: it is added again when the turn ends."""
        first, pinned = min(self._turn), snapshot.state.pinned_sequence
        if snapshot.held is not None:
            return [entry for entry in snapshot.held if entry.key >= first and entry.key != pinned]
        rows = [row for row in snapshot.memory(self._window.counter, sequence__gte=first) if row.part == WINDOW]
        return [entry_of(row, self._window, self._counted) for row in rows]

    def _from_front(self, snapshot: Snapshot, held: Sequence[Entry]) -> Eviction:
        """Return the memory before the addition, without *held*, read only as far as messages are evicted."""
        state, window = snapshot.state, self._window
        later = {entry.key for entry in held}
        systems: list[Entry] = []
        if not window.keeps_all and any(message.type == MessageType.SYSTEM for message in self._messages):
            rows = snapshot.memory(window.counter, type=MessageType.SYSTEM.value)
            systems = [entry_of(row, window) for row in rows if row.part != SUMMARY and row.sequence not in later]
        summary = None if state.summary_sequence is None else Entry(state.summary_sequence, MessageType.SYSTEM)
        return Eviction(
            window,
            (entry for entry in _entries(snapshot, window, summary) if entry.key not in later),
            next_key=state.next_sequence,
            pinned=None if state.pinned_sequence is None else Entry(state.pinned_sequence, MessageType.SYSTEM),
            summary=summary,
            systems=systems,
            total=window.overhead
            + (state.memory_tokens if window.estimator else state.memory_messages)
            - sum(entry.cost or 0 for entry in held),
        )

    def _change(
        self,
        before: State,
        eviction: Eviction,
        rows: list[NewRow],
        uncounted: Sequence[Row],
        relocation: Relocation | None,
        aside: Sequence[int],
        cuts: Sequence[Cut],
        taken_up: list[int],
        completes: Sequence[int],
    ) -> Change:
        window = self._window
        state = before if relocation is None else relocation.state
        # Messages stored aside are on the path even if an equal one is in the memory: the next message follows them.
        hidden = [key for key in aside if key not in taken_up]
        start = min([state.window_start, *taken_up]) if eviction.start is None else eviction.start
        out = [entry.key for entry in (*eviction.evicted, *eviction.replaced, *eviction.passed_by)]
        count = state.memory_messages + len(taken_up) + len(rows) - len(out)
        if self._archived and count == sum(each is not None for each in (eviction.pinned, eviction.summary)):
            start = eviction.next_key  # a window that begins at a history of only archived messages reads all of it
        gone = set(out)
        for row in rows:
            row.superseded = row.sequence >= start and row.sequence in gone
        for row, entry in zip(rows, eviction.added[len(eviction.added) - len(rows) :], strict=True):
            if window.counter:
                row.token_count, row.counted_by = entry.cost, window.counter
        if rows:
            rows[0].parent_sequence = aside[-1] if aside else state.parent_sequence
        passed_systems = self._archived and any(row.type == MessageType.SYSTEM for row in rows)
        after = state._replace(
            next_sequence=state.next_sequence + len(rows),
            total_messages=state.total_messages + len(rows),
            window_start=start,
            parent_sequence=None if rows else aside[-1] if aside else state.parent_sequence,
            has_lost_system=state.has_lost_system or passed_systems,
            **memory_columns(eviction, count),
        )
        if self._archived and rows:  # they are left out on purpose
            after = after._replace(kept_out_through=rows[-1].sequence)
        kept = [row for row in uncounted if row.sequence not in gone]  # usually none
        counts = counts_of(kept, self._counted) if kept else {}
        # Others may have continued from messages stored aside; then these were in the memory, and stay there.
        left = out if relocation is None else [*(key for key in relocation.left if key not in taken_up), *out]
        hidden += () if relocation is None else relocation.hidden
        change = Change(before, after, rows, left=left, counts=counts, completes=completes, is_retry=self._is_retry)
        return change._replace(relocation=relocation, taken_up=aside, cuts=cuts, hidden=hidden).checked()


def _check_unique(rows: Sequence[NewRow]) -> None:
    """Raise ``ValueError`` if two different messages of *rows* have the same client message id."""
    contents: dict[str, Columns] = {}
    for row in rows:
        columns = Columns(row.type, row.text, row.payload)
        if row.client_message_id is not None and contents.setdefault(row.client_message_id, columns) != columns:
            raise ValueError(f"Two messages have the client message id {row.client_message_id!r}; ids must be unique.")


def _entries(snapshot: Snapshot, window: Window, summary: Entry | None) -> Iterator[Entry]:
    """Yield the entries of the window from its front, read on demand; after that, *summary* has its cost, too."""
    pinned, start = snapshot.state.pinned_sequence, snapshot.state.window_start
    for row in snapshot.front:
        if row.sequence != pinned:
            message = None if row.payload is None else to_message(row.type, "", row.payload)
            cost = row.token_count if row.counted_by == window.counter else None
            cost = cost if window.estimator else 1
            yield Entry(row.sequence, row.type, cost=cost) if message is None else to_entry(row.sequence, message, cost)
    start, size = start + snapshot.front_length, 4 * FRONT
    while start < snapshot.state.next_sequence:
        stored = snapshot.behind_front(start, size, window.counter)
        yield from (entry_of(row, window) for row in stored if row.sequence != pinned)
        start, size = start + size, min(4 * size, MAX_READ)
        if not stored:
            start = snapshot.next_in_window(start) or snapshot.state.next_sequence
    if summary is not None:
        [found] = [each for each in snapshot.memory(window.counter, sequence=summary.key) if each.part == SUMMARY]
        summary.cost = entry_of(found, window).cost
