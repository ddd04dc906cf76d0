"""
What a write does to a conversation: from the state that it was read in to the next, with the rows to write.

Nothing is written here, and whoever calls makes sure that what was decided is written only to the state that it was
decided on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

import msgspec

from chatmemory_django import conf
from chatmemory_django.ids import checked_client_message_id
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.rows import Columns, NewRow, Row, State, sent_bytes, to_columns, to_message, to_metadata
from chatmemory_django.stores.base import Appended, Metadata
from chatmemory_django.stores.django.snapshots import FRONT, Snapshot
from chatmemory_django.windows import Entry, Eviction, Window, continuation, to_entry

MAX_INTEGER = 2_147_483_647
"""The largest number that Django's ``PositiveIntegerField`` holds on every database."""

MAX_READ = 4_096
"""How many sequences of the front of a window are read at a time at most."""

Counted: TypeAlias = dict[tuple[int, int], int]
"""What messages cost, by the key of their row. A row says the same for ever, so it is counted once."""


class UncountedError(Exception):
    """Messages must be counted, which is not done while others wait for the lock. *count* counts them."""

    def __init__(self, count: Callable[[], object]) -> None:
        super().__init__()
        self.count = count


class Change(NamedTuple):
    """What a write does to a conversation."""

    before: State
    after: State
    rows: Sequence[NewRow] = ()
    """The rows to write."""
    left: Sequence[int] = ()
    """The sequences of the messages that leave the memory."""
    counts: Mapping[int, int] = {}
    """Token counts for rows that stay, by sequence; ``after.counted_by`` made them."""
    completes: Sequence[int] = ()
    """The sequences of the messages whose turn ends."""
    is_retry: bool = True
    """Whether a message may have one of the client message ids already."""

    @property
    def superseded(self) -> list[int]:
        """The messages that leave, but whose rows stay inside the window."""
        return [each for each in self.left if self.after.window_start <= each < self.before.next_sequence]

    @property
    def only_adds(self) -> bool:
        """Whether rows are added and none is changed."""
        return bool(self.rows) and not (self.superseded or self.counts or self.completes)

    @property
    def is_activity(self) -> bool:
        """Whether anything is done to the memory; to count it anew is not."""
        return self.after[2:6] != self.before[2:6] or bool(self.completes)

    @property
    def client_message_ids(self) -> list[str]:
        """The ids of which it has to be made sure that no message of the conversation has one."""
        if not self.is_retry:
            return []
        return [row.client_message_id for row in self.rows if row.client_message_id is not None]

    def checked(self) -> Change:
        """Return this, or raise ``ValueError`` for a number that no column can hold."""
        numbers = (self.after.next_sequence, self.after.memory_tokens, *(row.token_count or 0 for row in self.rows))
        if max(numbers) > MAX_INTEGER:
            raise ValueError(f"A conversation holds numbers up to {MAX_INTEGER}; this write needs {max(numbers)}.")
        return self


class Addition:
    """
    A decision to add *messages*; called with a snapshot, it returns what comes of it and the change to write, if any.

    ``ValueError`` or ``TypeError`` if a message cannot be stored.
    """

    def __init__(
        self,
        messages: Sequence[ChatMessage],
        window: Window,
        *,
        metadata: Sequence[Metadata] = (),
        client_message_ids: Sequence[str | None] = (),
        is_complete: bool = True,
        completes: Sequence[int] = (),
        is_retry: bool = True,
    ) -> None:
        self.counter = window.counter
        self._is_retry = is_retry
        self._messages = messages
        self._window = window
        self._completes = completes
        self._rows = [new_row(message, given) for message, given in zip_longest(messages, metadata[: len(messages)])]
        for index, (row, name) in enumerate(zip(self._rows, client_message_ids, strict=False)):
            row.client_message_id = checked_client_message_id(name, f"client_message_ids[{index}]")
        for row in self._rows:
            row.is_complete = is_complete
        _check_unique(self._rows)
        self._costs = [window.cost(message) if window.is_additive else None for message in messages]
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[Appended, Change | None]:
        """Decide what becomes of the memory."""
        state, window = snapshot.state, self._window
        uncounted: Sequence[Row] = ()
        if has_counts(snapshot, window):
            eviction = self._from_front(snapshot)
        else:
            eviction, uncounted = self._from_memory(snapshot)
        names = [row.client_message_id for row in self._rows if row.client_message_id is not None]
        # Without the lock nothing is known: then the UPDATE makes sure, and whoever tries again comes back with it.
        known = snapshot.sequences_of(names) if names and snapshot.is_locked else {}
        added: list[NewRow] = []
        keys: list[int] = []
        for message, row, cost in zip(self._messages, self._rows, self._costs, strict=True):
            if row.client_message_id in known:
                keys.append(known[row.client_message_id])
                continue
            keys.append(eviction.add(message, cost))
            if len(eviction.added) > len(added):
                added.append(msgspec.structs.replace(row, sequence=keys[-1]))
                if row.client_message_id is not None:
                    known[row.client_message_id] = keys[-1]
        if not added and not self._completes:
            return Appended(eviction, keys, state.id), None
        return Appended(eviction, keys, state.id), self._change(state, eviction, added, uncounted)

    def _from_front(self, snapshot: Snapshot) -> Eviction:
        """The memory before anything is added, read as far as messages leave it."""
        state, window = snapshot.state, self._window
        systems: list[Entry] = []
        if any(message.type == MessageType.SYSTEM for message in self._messages):
            rows = snapshot.memory(window.counter, type=MessageType.SYSTEM.value)
            systems = [_entry(row, window) for row in rows]
        return Eviction(
            window,
            _entries(snapshot, window),
            next_key=state.next_sequence,
            pinned=None if state.pinned_sequence is None else Entry(state.pinned_sequence, MessageType.SYSTEM),
            systems=systems,
            total=window.overhead + (state.memory_tokens if window.estimator else state.memory_messages),
        )

    def _from_memory(self, snapshot: Snapshot) -> tuple[Eviction, Sequence[Row]]:
        """The same, read whole, with the rows whose tokens have to be kept."""
        window = self._window
        rows = snapshot.memory(window.counter)
        uncounted = [row for row in rows if row.tokens is None] if window.counter else []
        if missing := [row for row in uncounted if _place(row) not in self._counted]:
            count = partial(count_rows, missing, window, self._counted)
            if not snapshot.may_count:
                raise UncountedError(count)
            count()
        entries = [_entry(row, window, self._counted.get(_place(row))) for row in rows]
        total = window.overhead + sum(entry.cost or 0 for entry in entries) if window.is_additive else None
        systems = [entry for entry in entries if entry.type == MessageType.SYSTEM]
        pinned = entries.pop(0) if rows and rows[0].sequence == snapshot.state.pinned_sequence else None
        eviction = Eviction(
            window, entries, next_key=snapshot.state.next_sequence, pinned=pinned, systems=systems, total=total
        )
        return eviction, uncounted

    def _change(self, state: State, eviction: Eviction, rows: list[NewRow], uncounted: Sequence[Row]) -> Change:
        window = self._window
        start = state.window_start if eviction.start is None else eviction.start
        left = [entry.key for entry in (*eviction.evicted, *eviction.replaced)]
        gone = set(left)
        for row, entry in zip(rows, eviction.added, strict=True):
            row.superseded = entry.key >= start and entry.key in gone
            if window.counter:
                row.token_count, row.counted_by = entry.cost, window.counter
        after = state._replace(
            next_sequence=state.next_sequence + len(rows),
            total_messages=state.total_messages + len(rows),
            window_start=start,
            pinned_sequence=None if eviction.pinned is None else eviction.pinned.key,
            memory_messages=state.memory_messages + len(rows) - len(left),
            memory_tokens=eviction.total - window.overhead if window.counter and eviction.total is not None else 0,
            counted_by=window.counter,
        )
        counts = {row.sequence: self._counted[_place(row)] for row in uncounted if row.sequence not in gone}
        return Change(state, after, rows, left, counts, self._completes, self._is_retry).checked()


class Replacement:
    """
    A decision to make *messages* the memory; called with a snapshot, it returns the change to write, if any.

    Where that means "drop some at the front, add some at the end", so it is done, and what is added becomes history.
    Anything else is a memory that somebody made, of a summary for example: it is written behind all other rows, and is
    no part of the history unless there was none. *costs* are what *counter* counted for each message.
    """

    def __init__(self, messages: Sequence[ChatMessage], costs: Sequence[int] = (), counter: str = "") -> None:
        self._rows = [new_row(message) for message in messages]
        # As columns, since to Python 1 and True are equal.
        self._columns = [Columns(row.type, row.text, row.payload) for row in self._rows]
        self.counter = counter
        for row, cost in zip(self._rows, costs, strict=False):
            row.token_count, row.counted_by = cost, counter

    def __call__(self, snapshot: Snapshot) -> tuple[None, Change | None]:
        """Decide what becomes of the memory."""
        state, new = snapshot.state, self._rows
        old = snapshot.memory(self.counter or state.counted_by)
        columns = [Columns(row.type, row.text, row.payload) for row in old]
        if columns == self._columns:
            return None, None
        goes_on = continuation(columns, self._columns)
        keeps_first, index = goes_on or (False, len(old))
        kept = [*old[:keeps_first], *old[index:]]
        is_pinned = keeps_first or (kept != [] and kept[0].sequence == state.pinned_sequence)
        window = kept[is_pinned:]
        in_history = goes_on is not None or state.next_sequence == 1
        rows = [
            msgspec.structs.replace(row, sequence=sequence, in_history=in_history)
            for sequence, row in enumerate(new[len(kept) :], state.next_sequence)
        ]
        counter = self.counter or ("" if rows else state.counted_by)
        costs: list[int | None] = [row.tokens for row in kept]
        counts: dict[int, int] = {}
        if self.counter:
            costs = [row.token_count for row in new]
            counts = {row.sequence: new[place].token_count or 0 for place, row in enumerate(kept) if row.tokens is None}
        after = state._replace(
            next_sequence=state.next_sequence + len(rows),
            total_messages=state.total_messages + (len(rows) if in_history else 0),
            window_start=window[0].sequence if window else state.next_sequence,
            pinned_sequence=kept[0].sequence if is_pinned else None,
            memory_messages=len(new),
            memory_tokens=sum(cost or 0 for cost in costs) if counter else 0,
            counted_by=counter,
        )
        return None, Change(state, after, rows, [row.sequence for row in old[keeps_first:index]], counts).checked()


class Recount:
    """A decision to count a memory anew by *window*; called with a snapshot, it returns its tokens and the change."""

    def __init__(self, window: Window) -> None:
        self.counter = window.counter
        self._window = window
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[int, Change | None]:
        """Decide what the counts are."""
        rows = snapshot.memory("")
        if missing := [row for row in rows if _place(row) not in self._counted]:
            count = partial(count_rows, missing, self._window, self._counted)
            if not snapshot.may_count:
                raise UncountedError(count)
            count()
        counts = {row.sequence: self._counted[_place(row)] for row in rows}
        total, state = sum(counts.values()), snapshot.state
        after = state._replace(memory_tokens=total, counted_by=self._window.counter)
        return total, Change(state, after, counts=counts).checked()


class Clearing:
    """A decision to empty the memory. The change names the messages that leave it if it *names_left*."""

    counter = ""

    def __init__(self, *, names_left: bool) -> None:
        self._names_left = names_left

    def __call__(self, snapshot: Snapshot) -> tuple[None, Change | None]:
        """Decide where the memory begins next."""
        state = snapshot.state
        if not state.memory_messages:
            return None, None
        left = [row.sequence for row in snapshot.memory("")] if self._names_left else []
        after = state._replace(
            window_start=state.next_sequence, pinned_sequence=None, memory_messages=0, memory_tokens=0, counted_by=""
        )
        return None, Change(state, after, left=left)


def _check_unique(rows: Sequence[NewRow]) -> None:
    """``ValueError`` if two different messages of *rows* have one client message id."""
    contents: dict[str, Columns] = {}
    for row in rows:
        columns = Columns(row.type, row.text, row.payload)
        if row.client_message_id is not None and contents.setdefault(row.client_message_id, columns) != columns:
            raise ValueError(f"Two messages have the client message id {row.client_message_id!r}; give each its own.")


def new_row(message: ChatMessage, metadata: Metadata = None) -> NewRow:
    """Return the row of *message*; ``TypeError`` or ``ValueError`` if it cannot be stored."""
    columns, metadata = to_columns(message), to_metadata(metadata)
    size = sent_bytes(columns.text) + sent_bytes(columns.payload or "")
    if metadata is not None:
        size += sent_bytes(json.dumps(metadata))  # as the field writes it
    if size > (limit := max_row_bytes()):
        raise ValueError(
            f"{type(message).__name__} takes {size} bytes in a statement, metadata and escapes included, but "
            f"CHATMEMORY['MAX_MESSAGE_BYTES'] allows for {limit}."
        )
    return NewRow(*columns, metadata=metadata, sent_bytes=size)


def max_row_bytes() -> int:
    """Return how large the rows of one INSERT may be: by default they fit the packet of 16 MiB that MariaDB takes."""
    return max(1_048_576, 4 * conf.max_message_bytes() - 65_536)


def messages_of(rows: Sequence[tuple[Any, ...]]) -> list[ChatMessage]:
    """Return the messages of *rows*, which are like ``Row``."""
    types, texts, payloads, *_ = zip(*rows, strict=True) if rows else [()] * 3
    return list(map(to_message, types, texts, payloads))


_tokens = itemgetter(Row._fields.index("tokens"))
_place = attrgetter("conversation_id", "sequence")


def costs_of(rows: Sequence[tuple[Any, ...]], messages: Sequence[ChatMessage], window: Window) -> list[int] | None:
    """Return the cost of each of *messages*, which *rows* hold; None if costs do not add up to a total."""
    if not window.is_additive:
        return None
    if window.estimator is None:
        return [1] * len(rows)
    costs = list(map(_tokens, rows))
    if None in costs:
        return [window.cost(message) if cost is None else cost for message, cost in zip(messages, costs, strict=True)]
    return costs


def has_counts(snapshot: Snapshot, window: Window) -> bool:
    """Whether *window* can go by the counters of the conversation, without reading its memory."""
    state = snapshot.state
    if not window.is_additive:
        return False
    return not state.memory_messages or window.counter in {"", state.counted_by}


def count_rows(rows: Sequence[Row], window: Window, counted: Counted) -> None:
    """Count *rows* as *window* does, into *counted*."""
    for row, message in zip(rows, messages_of(rows), strict=True):
        counted[_place(row)] = window.cost(message)


def _entries(snapshot: Snapshot, window: Window) -> Iterator[Entry]:
    """The entries of the window from its front on, read as they are asked for."""
    pinned, start = snapshot.state.pinned_sequence, snapshot.state.window_start
    for row in snapshot.front:
        if row.sequence != pinned:
            message = None if row.payload is None else to_message(row.type, "", row.payload)
            cost = row.token_count if row.counted_by == window.counter else None
            cost = cost if window.estimator else 1
            yield Entry(row.sequence, row.type, cost=cost) if message is None else to_entry(row.sequence, message, cost)
    start, count = start + snapshot.front_length, 4 * FRONT
    while start < snapshot.state.next_sequence:
        for stored in snapshot.behind_front(start, count, window.counter):
            if stored.sequence != pinned:
                yield _entry(stored, window)
        start, count = start + count, min(4 * count, MAX_READ)


def _entry(row: Row, window: Window, cost: int | None = None) -> Entry:
    if window.estimator is None:
        cost = 1
    elif window.is_additive and cost is None:
        cost = row.tokens
    return to_entry(row.sequence, to_message(row.type, row.text, row.payload), cost)
