"""Adding messages: the decision of ``append_messages``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, repeat
from typing import Unpack

import msgspec

from chatmemory_django.core.windows import NOTHING_LEAVES, Entry, Eviction, Window, to_entry
from chatmemory_django.messages import ChatMessage, MessageType, NewMessage, new_messages
from chatmemory_django.models.columns import Columns, to_message
from chatmemory_django.stores.base import AddOptions, Appended, LeaseLostError, MessageNotFoundError
from chatmemory_django.stores.django.changes import Change, Cut, NewRow, Relocation, memory_columns, new_row
from chatmemory_django.stores.django.relocations import relocate, stored_rows
from chatmemory_django.stores.django.rows import FRONT, SUMMARY, WINDOW, Row, State
from chatmemory_django.stores.django.snapshots import Counted, Known, Snapshot, counts_of, entry_of, read_eviction

MAX_READ = 4_096
"""How many sequences of the front of a window are read at a time, at most."""


@dataclass
class _Start:
    """The memory to which messages are added, and what else changes since it is that one."""

    eviction: Eviction
    uncounted: Sequence[Row] = ()
    """The rows whose token counts must be stored."""
    relocation: Relocation | None = None
    aside: Sequence[int] = ()
    """The messages of the turn that were stored aside, ..."""
    taken_up: Sequence[int] = ()
    """... and those of them that are added to the memory before the others."""
    cuts: Sequence[Cut] = ()
    answered: Sequence[int] = ()
    """The question that the messages answer, since they continue from it."""


class Addition:
    """
    A decision to add *messages*; called with a snapshot, it returns the result and the change to write, if any.

    ``ValueError`` or ``TypeError`` if a message cannot be stored.
    """

    holds_for_nothing = True  # that an equal system message is in the memory was true when it was read

    def __init__(
        self, messages: Sequence[ChatMessage | NewMessage], window: Window, **options: Unpack[AddOptions]
    ) -> None:
        self._after = options.get("after")
        self._repeats = options.get("repeats", False)
        self._archived = options.get("archived", False)
        self._turn = options.get("turn", ())
        self._newest = options.get("newest")
        self._is_retry = options.get("is_retry", True)
        self._phase = phase = options.get("phase")
        self._goes_on = phase in {"open", "round"}
        self._window = self._given = window
        new = new_messages(messages)
        self._messages = [each.message for each in new]
        self._rows = [new_row(each, f"messages[{index}].") for index, each in enumerate(new)]
        for row in self._rows:
            row.is_complete = not self._goes_on or row.type != MessageType.USER
        _check_unique(self._rows)
        counted = options.get("costs") or repeat(None, len(new))
        self._costs = [
            window.cost(message) if cost is None and window.is_additive else cost
            for message, cost in zip(self._messages, counted, strict=True)
        ]
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[Appended, Change | None]:
        """Decide how the memory changes."""
        state = snapshot.state
        is_at_once = bool(self._turn) or self._after is not None  # as are a rewind and what is stored aside
        self._window = self._given if is_at_once else snapshot.present(self._given)
        if self._newest not in {None, snapshot.head if self._newest else None}:
            raise LeaseLostError(f"Others have added messages to {snapshot.key!r} meanwhile; nothing is stored.")
        names = [row.client_message_id for row in self._rows if row.client_message_id is not None]
        # Without the lock this is unknown: then the UPDATE checks the ids, and a retry comes back with the lock.
        known = snapshot.sequences_of(names) if names and snapshot.is_locked else {}
        # Known messages were stored together with everything else.
        after = None if self._after is None or known else snapshot.message(self._after)
        if after is not None and self._phase == "open":
            return self._set_aside(snapshot, self._rows, self._costs, [after.sequence])
        start = self._start(snapshot, after)
        eviction, begun = start.eviction, len(start.eviction.added)
        added, keys = self._add(eviction, known)
        answered = start.answered if added or start.aside else ()  # else nothing is the answer
        completes = [*(self._turn if self._phase == "end" else ()), *answered]
        if not (added or completes or start.relocation):
            return Appended(eviction, keys, state.id), None
        change = self._change(state, start, added, completes)
        if self._goes_on:
            before = snapshot.held if self._turn else ()
            gone = {entry.key for entry in (*eviction.replaced, *eviction.passed_by)}
            new = (entry for entry in eviction.added[begun:] if entry.key not in gone)
            change = change._replace(held=None if before is None else (*before, *new))
        return Appended(eviction, keys, state.id), change

    def _may_clear(self, state: State) -> bool:
        """Return whether results may be cleared, for which the whole memory is read: it will be more than fits."""
        window = self._window
        if window.clears is None or (self._goes_on and not window.is_cold):
            return False
        most = window.evict_to if window.is_cold else None
        total = window.overhead + (state.memory_tokens if window.estimator else state.memory_messages)
        return total + sum(cost or 0 for cost in self._costs) > (window.limit if most is None else most)

    def _start(self, snapshot: Snapshot, after: Known | None) -> _Start:
        """Return the memory to which the messages are added: as it is now, or as it would be *after* that one."""
        state, window = snapshot.state, self._window
        ends = self._phase == "end" and bool(self._turn)
        aside: Sequence[int] = () if after is None else [each for each in self._turn if each > after.sequence]
        answered = [] if after is None or after.is_complete or self._phase == "round" else [after.sequence]
        cleared = snapshot.cleared_at(aside) if aside else None
        if cleared is not None:  # nothing up to it comes back
            after, aside, answered = cleared, [each for each in aside if each > cleared.sequence], []
        held: Sequence[Entry] = ()
        if after is not None and not after.is_head:
            relocation = relocate(snapshot, after, self._given, self._counted)
            start = _Start(relocation.eviction, relocation.uncounted, relocation)
        elif snapshot.has_counts(window) and not (aside or state.pinned_count or self._may_clear(state)):
            held = self._held(snapshot) if ends else ()
            start = _Start(self._from_front(snapshot, held))
        else:
            start = _Start(*read_eviction(snapshot, window, self._counted))
            if ends and not aside:
                start.eviction, held = start.eviction.split(min(self._turn))
        start.aside, start.answered = aside, answered
        if self._goes_on:
            if start.eviction.window.is_cold:
                start.eviction.trim()
            start.eviction.keeps_from = NOTHING_LEAVES
        for entry in held:
            start.eviction.add_again(entry)
        if after is not None and aside:
            self._take_up(snapshot, start)
            if after.cleared_before is not None:
                # If the memory was cleared after they were stored, they come after that all the same.
                start.cuts = [Cut(after.sequence, snapshot.parent_of(after), aside[0])]
        return start

    def _add(self, eviction: Eviction, known: dict[str | None, int]) -> tuple[list[NewRow], list[int]]:
        """Add the messages to *eviction*, but those that are *known*; return the new rows, and the keys of all."""
        added: list[NewRow] = []
        keys: list[int] = []
        for message, row, cost in zip(self._messages, self._rows, self._costs, strict=True):
            if row.client_message_id in known:
                keys.append(known[row.client_message_id])
                continue
            count = len(eviction.added)
            if self._archived:
                keys.append(eviction.pass_by(message, cost))
            else:
                keys.append(eviction.add(message, cost, repeats=self._repeats))
            if len(eviction.added) > count:
                added.append(msgspec.structs.replace(row, sequence=keys[-1]))
                if row.client_message_id is not None:
                    known[row.client_message_id] = keys[-1]
        return added, keys

    def _set_aside(
        self,
        snapshot: Snapshot,
        new: Sequence[NewRow],
        costs: Sequence[int | None],
        parents: Iterable[int | None],
    ) -> tuple[Appended, Change]:
        """Store *new* as branches that are not on the path; each without one of *parents* follows the last."""
        state = snapshot.state
        rows = [
            msgspec.structs.replace(
                row, sequence=sequence, parent_sequence=parent, superseded=True, on_path=False, token_count=cost
            )
            for row, sequence, parent, cost in zip(
                new, count(state.next_sequence), chain(parents, repeat(None)), costs, strict=False
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

    def _take_up(self, snapshot: Snapshot, start: _Start) -> None:
        """Add the messages that were stored aside to the memory."""
        rows = {row.sequence: row for row in stored_rows(snapshot, start.aside, self._window, self._counted)}
        uncounted = (row for row in rows.values() if self._window.counter and row.tokens is None)
        start.uncounted = [*start.uncounted, *uncounted]
        for sequence in start.aside:
            if sequence not in rows:
                raise MessageNotFoundError(snapshot.key, sequence)
            entry = entry_of(rows[sequence], self._window, self._counted)
            if entry.is_pinned:  # while the conversation went on from it
                start.eviction.add_again(entry)
            elif entry.message is not None:
                start.eviction.add(entry.message, entry.cost, key=sequence)
        start.taken_up = [entry.key for entry in start.eviction.added]

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

    def _change(self, before: State, start: _Start, rows: list[NewRow], completes: Sequence[int]) -> Change:
        """Return the change that adds *rows* to the memory of *start*, and ends the turns of *completes*."""
        window, eviction, relocation = self._window, start.eviction, start.relocation
        state, aside, taken_up = before if relocation is None else relocation.state, start.aside, start.taken_up
        # Messages stored aside are on the path even if an equal one is in the memory: the next message follows them.
        hidden = [key for key in aside if key not in taken_up]
        begins = min([state.window_start, *taken_up]) if eviction.start is None else eviction.start
        out = [entry.key for entry in (*eviction.evicted, *eviction.replaced, *eviction.passed_by)]
        count = state.memory_messages + len(taken_up) + len(rows) - len(out)
        if self._archived and count == len(eviction.front):
            begins = eviction.next_key  # a window that begins at a history of only archived messages reads all of it
        gone = set(out)
        for row, entry in zip(rows, eviction.added[len(eviction.added) - len(rows) :], strict=True):
            row.superseded = row.sequence >= begins and row.sequence in gone
            row.is_cleared = row.sequence in eviction.cleared
            if window.counter:
                row.token_count, row.counted_by = eviction.cleared.get(entry.key, entry).cost, window.counter
        if rows:
            rows[0].parent_sequence = aside[-1] if aside else state.parent_sequence
        passed_systems = self._archived and any(row.type == MessageType.SYSTEM for row in rows)
        after = state._replace(
            next_sequence=state.next_sequence + len(rows),
            total_messages=state.total_messages + len(rows),
            window_start=begins,
            parent_sequence=None if rows else aside[-1] if aside else state.parent_sequence,
            has_lost_system=state.has_lost_system or passed_systems,
            **memory_columns(eviction, count),
        )
        if self._archived and rows:  # they are left out on purpose
            after = after._replace(kept_out_through=rows[-1].sequence)
        kept = [row for row in start.uncounted if row.sequence not in gone]  # usually none
        added = {row.sequence for row in rows}
        cleared = {key: each for key, each in eviction.cleared.items() if key not in added}
        counts = counts_of(kept, self._counted) if kept else {}
        if window.counter:
            counts |= {key: each.cost or 0 for key, each in cleared.items()}
        # Others may have continued from messages stored aside; then these were in the memory, and stay there.
        left = out if relocation is None else [*(key for key in relocation.left if key not in taken_up), *out]
        return Change(
            before,
            after,
            rows,
            left=left,
            counts=counts,
            cleared=[*cleared],
            completes=completes,
            is_retry=self._is_retry,
            relocation=relocation,
            taken_up=aside,
            cuts=start.cuts,
            hidden=hidden if relocation is None else [*hidden, *relocation.hidden],
        ).checked()


class Aside(Addition):
    """
    A decision to store *messages* as branches that are not on the path: the memory stays as it is.

    Each follows the one of *parents* in its place, 0 for none, or if that is None, the message before it.
    """

    def __init__(
        self, messages: Sequence[ChatMessage | NewMessage], window: Window, parents: Sequence[int | None]
    ) -> None:
        super().__init__(messages, window, after=parents[0])
        self._parents = parents

    def __call__(self, snapshot: Snapshot) -> tuple[Appended, Change | None]:
        """Decide what is written: what is there already, or was removed, is not stored again."""
        names = [row.client_message_id for row in self._rows if row.client_message_id is not None]
        known = snapshot.sequences_of(names) if names and snapshot.is_locked else {}
        keys: list[int] = []
        new: list[tuple[NewRow, int | None, int | None]] = []
        last = 0
        for row, cost, given in zip(self._rows, self._costs, self._parents, strict=True):
            if row.client_message_id in known:
                keys.append(known[row.client_message_id])
                continue
            parent = keys[-1] if given is None and keys[-1] != last else given
            last = snapshot.state.next_sequence + len(new)
            new.append((row, cost, parent))
            keys.append(last)
        if not new:
            return Appended(Eviction.of([], self._window), keys, snapshot.state.id), None
        appended, change = self._set_aside(snapshot, *zip(*new, strict=True))
        return appended._replace(keys=keys), change


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
