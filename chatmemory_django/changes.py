"""
What a write makes of a conversation: from the state that it was read in to the next, with the rows to write.

Nothing is written here; of the database only so much is read as a change depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from chatmemory_django import statements
from chatmemory_django.front import Front
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import INCOMPLETE
from chatmemory_django.rows import Columns, to_columns, to_message, to_metadata
from chatmemory_django.statements import NewRow, Row, State
from chatmemory_django.stores.base import Appended, Notes
from chatmemory_django.windows import Entry, Eviction, Window, to_entry

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

TOKENS = Row._fields.index("tokens")


class Addition:
    """Messages to add to the memory *key*. ``ValueError`` or ``TypeError`` if one of them cannot be written."""

    def __init__(self, key: str, messages: Sequence[ChatMessage], window: Window, notes: Notes) -> None:
        self.key = key
        self.window = window
        self.completed = notes.get("completed")
        self._messages = messages
        self._drafts = _drafts(messages, notes)
        self._costs = [window.cost(message) if window.is_additive else None for message in messages]

    def to(self, state: State, cursor: CursorWrapper) -> tuple[Appended, Change | None]:
        """What comes of adding them to a memory in *state*, and what there is to write, if there is."""
        front: Front | None = None
        if self.window.is_additive:
            front = Front(state, self.window, sum(filter(None, self._costs)), cursor)
            eviction = self._eviction(state, front, cursor)
        else:
            rows = statements.memory(self.key, cursor, self.window.counter)
            eviction = _whole_eviction(state, rows, self.window)
        client_ids = [draft.client_id for draft in self._drafts if draft.client_id]
        stored = statements.with_client_ids(state, client_ids, cursor) if client_ids else {}
        added: list[NewRow] = []
        keys: list[int] = []
        for message, draft, cost in zip(self._messages, self._drafts, self._costs, strict=True):
            if draft.client_id in stored:
                keys.append(stored[draft.client_id])
                continue
            keys.append(eviction.add(message, cost))
            if len(eviction.added) > len(added):
                added.append(draft)
                if draft.client_id:
                    stored[draft.client_id] = keys[-1]
        return Appended(eviction, keys), Change.by(eviction, state, added, front) if added else None

    def _eviction(self, state: State, front: Front, cursor: CursorWrapper) -> Eviction:
        """The memory before they are added. It is read as far as they push it out."""
        systems: list[Entry] = []
        if any(message.type == MessageType.SYSTEM for message in self._messages):
            rows = statements.memory(self.key, cursor, self.window.counter, only_systems=True)
            systems = entries_of(rows, self.window)
        return Eviction(
            self.window,
            front,
            next_key=state.next_sequence,
            pinned=None if state.pinned_sequence is None else Entry(state.pinned_sequence, MessageType.SYSTEM),
            systems=systems,
            total=front.total,
        )


class Change(NamedTuple):
    """What a write makes of a conversation."""

    before: State
    after: State
    rows: list[NewRow]
    """The rows to write."""
    left: list[int]
    """The sequences of the messages that leave the memory."""

    @property
    def superseded(self) -> list[int]:
        """Those of them whose rows are there, and stay behind inside the window."""
        return [each for each in self.left if self.after.window_start <= each < self.before.next_sequence]

    @classmethod
    def by(cls, eviction: Eviction, state: State, rows: list[NewRow], front: Front | None) -> Change:
        """The change that *eviction* has come to, *rows* being what was added. *front* is what it was made of."""
        window = eviction.window
        counter = window.counter
        start = state.window_start if eviction.start is None else eviction.start
        left = [entry.key for entry in eviction.evicted] + [entry.key for entry in eviction.replaced]
        for row, entry in zip(rows, eviction.added, strict=True):
            row.sequence = entry.key
            row.superseded = entry.key >= start and entry.key in left
            if counter:
                row.token_count, row.token_counter = entry.cost, counter
        after = State(
            state.id,
            state.owner_id,
            next_sequence=state.next_sequence + len(rows),
            said_messages=state.said_messages + len(rows),
            window_start=start,
            pinned_sequence=None if eviction.pinned is None else eviction.pinned.key,
            memory_messages=state.memory_messages + len(rows) - len(left),
            memory_tokens=eviction.total - window.overhead if counter and eviction.total is not None else 0,
            token_counter=counter,
            front=front.after(eviction) if front else "",
        )
        return cls(state, after, rows, left)

    @classmethod
    def to(cls, state: State, old: list[Row], columns: Sequence[Columns], kept_from: tuple[bool, int] | None) -> Change:
        """The change from the rows *old* to a memory of *columns*, which goes on from them as *kept_from* says."""
        keeps_first, index = kept_from or (False, len(old))
        kept = [*old[:keeps_first], *old[index:]]
        pinned = kept[0].sequence if keeps_first or (kept and kept[0].sequence == state.pinned_sequence) else None
        rest = [row.sequence for row in kept if row.sequence != pinned]
        in_history = kept_from is not None or state.next_sequence == 1
        rows = [
            NewRow(*new, sequence=sequence, in_history=in_history)
            for sequence, new in enumerate(columns[len(kept) :], state.next_sequence)
        ]
        counter = "" if rows else state.token_counter
        after = State(
            state.id,
            state.owner_id,
            next_sequence=state.next_sequence + len(rows),
            said_messages=state.said_messages + (len(rows) if in_history else 0),
            window_start=rest[0] if rest else state.next_sequence,
            pinned_sequence=pinned,
            memory_messages=len(columns),
            memory_tokens=sum(row.tokens or 0 for row in kept) if counter else 0,
            token_counter=counter,
            front="",
        )
        return cls(state, after, rows, [row.sequence for row in old[keeps_first:index]])


def _drafts(messages: Sequence[ChatMessage], notes: Notes) -> list[NewRow]:
    """The rows of *messages* but for their places; an error if they cannot be written."""
    rows = [NewRow(*to_columns(message)) for message in messages]
    for row, metadata in zip(rows, notes.get("metadata", ()), strict=False):
        row.metadata = to_metadata(metadata)
    if notes.get("incomplete"):
        for row in rows:
            row.metadata = {**(row.metadata or {}), **INCOMPLETE}
    for index, client_id in enumerate(notes.get("client_ids", ())):
        if not isinstance(client_id, (UUID, NoneType)):
            raise TypeError(f"client_ids[{index}] must be a UUID or None, not {type(client_id).__name__}.")
        rows[index].client_id = client_id
    return rows


def messages_of(rows: Sequence[tuple[Any, ...]]) -> list[ChatMessage]:
    """The messages of *rows*, which are as ``Row`` is."""
    types, texts, payloads, *_ = zip(*rows, strict=True) if rows else [()] * 3
    return list(map(to_message, types, texts, payloads))


def costs_of(rows: Sequence[tuple[Any, ...]], messages: Sequence[ChatMessage], window: Window) -> list[int] | None:
    """What *messages*, which *rows* hold, cost each; counted only where that is not kept. None if it says nothing."""
    if not window.is_additive:
        return None
    if window.estimator is None:
        return [1] * len(rows)
    costs = [row[TOKENS] for row in rows]
    if None in costs:
        return [window.cost(message) if cost is None else cost for message, cost in zip(messages, costs, strict=True)]
    return costs


def has_counts(state: State, window: Window) -> bool:
    """Whether *window* can go by what is kept of a memory in *state*, without reading it."""
    return window.is_additive and (not state.memory_messages or window.counter in {"", state.token_counter})


def entries_of(rows: Sequence[Row], window: Window) -> list[Entry]:
    """The entries of *rows*."""
    messages = messages_of(rows)
    costs: Sequence[int | None] = costs_of(rows, messages, window) or [None] * len(rows)
    return [to_entry(row.sequence, message, cost) for row, message, cost in zip(rows, messages, costs, strict=True)]


def _whole_eviction(state: State, rows: Sequence[Row], window: Window) -> Eviction:
    """The memory of *rows*, where only the whole of it can be counted."""
    entries = entries_of(rows, window)
    systems = [entry for entry in entries if entry.type == MessageType.SYSTEM]
    pinned = None if state.pinned_sequence is None else entries.pop(0)
    return Eviction(window, entries, next_key=state.next_sequence, pinned=pinned, systems=systems)
