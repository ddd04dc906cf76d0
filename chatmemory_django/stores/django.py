"""
Memories in Django's database: every message a row, the memory a window on the rows.

A writer locks the row of the conversation first, so writers to one conversation queue and writers to different ones
never meet. Rows are written once: what an ``add`` evicts it evicts by moving the start of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, Unpack, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connections, router, transaction

from chatmemory_django import conf, signals, statements
from chatmemory_django.front import Front
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import INCOMPLETE, Conversation, Message
from chatmemory_django.prepared import prepared_cursor
from chatmemory_django.rows import Columns, to_columns, to_message, to_metadata
from chatmemory_django.statements import NewRow, Row, State
from chatmemory_django.stores.base import (
    Appended,
    ChatMemoryStore,
    Notes,
    checked_messages,
    memory_key,
)
from chatmemory_django.windows import Entry, Eviction, Window, continuation, to_entry

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.db.backends.utils import CursorWrapper
    from django.dispatch import Signal

TOKENS = Row._fields.index("tokens")

_P = ParamSpec("_P")
_R = TypeVar("_R")


class DjangoChatMemoryStore(ChatMemoryStore):
    """
    Memories in the database *using*, or where the router says.

    *keep_history* is whether messages stay in the database once they have left the memory; by default the setting
    ``KEEP_HISTORY`` says. With an *owner*, new conversations are the owner's, and those of others are out of reach:
    ``PermissionDenied`` to a writer, empty to a reader.
    """

    def __init__(
        self, using: str | None = None, keep_history: bool | None = None, *, owner: AbstractBaseUser | None = None
    ) -> None:
        if owner is not None and owner.pk is None:
            raise ValueError("owner must be a saved user, or None for no owner at all.")
        self.using = using
        self._keep_history = keep_history
        self.owner = owner

    @property
    def keep_history(self) -> bool:
        """Whether messages stay in the database once they have left the memory."""
        return conf.keep_history() if self._keep_history is None else self._keep_history

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        return _messages(self._read(memory_key(memory_id)))

    def read_messages(self, memory_id: object, window: Window) -> list[ChatMessage]:
        messages, costs = self._read_counted(memory_id, window)
        if costs is not None and window.overhead + sum(costs) <= window.limit:
            return messages
        return window.trim(messages, costs)

    def read_memory(self, memory_id: object, window: Window) -> Eviction:
        messages, costs = self._read_counted(memory_id, window)
        eviction = Eviction.of(messages, window, costs)
        eviction.trim()
        return eviction

    def append_messages(
        self,
        memory_id: object,
        messages: Sequence[ChatMessage],
        window: Window,
        **notes: Unpack[Notes],
    ) -> Appended:
        key = memory_key(memory_id)
        # All that can be refused or takes time is done before anybody has to wait for the lock.
        drafts = _drafts(messages, notes)
        costs = [window.cost(message) if window.is_additive else None for message in messages]
        with self._locked(key) as (state, cursor):
            front: Front | None = None
            if window.is_additive:
                state = self._recounted(key, state, window, cursor)
                front = Front(state, window, sum(filter(None, costs)), cursor)
                eviction = self._eviction(key, state, messages, window, front, cursor)
            else:
                eviction = _whole_eviction(state, statements.memory(key, cursor, window.counter), window)
            client_ids = [draft.client_id for draft in drafts if draft.client_id]
            stored = statements.with_client_ids(state, client_ids, cursor) if client_ids else {}
            added: list[NewRow] = []
            keys: list[int] = []
            for message, draft, cost in zip(messages, drafts, costs, strict=True):
                if draft.client_id in stored:
                    keys.append(stored[draft.client_id])
                    continue
                keys.append(eviction.add(message, cost))
                if len(eviction.added) > len(added):
                    added.append(draft)
                    if draft.client_id:
                        stored[draft.client_id] = keys[-1]
            if added:
                self._write(key, state, _Change.by(eviction, state, added, front), cursor)
            if completed := notes.get("completed"):
                statements.complete(state, completed, cursor)
        return Appended(eviction, keys)

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        """
        Make *messages* the memory under *memory_id*.

        Where they say "drop some at the front, add some at the end", that is done, and what was added was said.
        Anything else is a memory that somebody made, of a summary for example: it is written behind all that was said,
        and is no part of the history unless there was none.
        """
        key = memory_key(memory_id)
        columns = [to_columns(message) for message in checked_messages(messages)]
        with self._locked(key, create=bool(columns)) as (state, cursor):
            if state is None:
                return
            rows = statements.memory(key, cursor, state.token_counter)
            # As columns, since to Python 1 and True are the same.
            old = [Columns(row.type, row.text, row.payload) for row in rows]
            if old != columns:
                self._write(key, state, _Change.to(state, rows, columns, continuation(old, columns)), cursor)

    def delete_messages(self, memory_id: object) -> None:
        key = memory_key(memory_id)
        with self._locked(key, create=False) as (state, cursor):
            if state is None:
                return
            is_heard = signals.memory_cleared.has_listeners(Conversation)
            sequences = [row.sequence for row in statements.memory(key, cursor, "")] if is_heard else []
            self._write(key, state, _Change.to(state, [], [], None), cursor)
            self._announce(signals.memory_cleared, key, state, sequences, cursor)

    def recount(self, memory_id: object, window: Window) -> int:
        """
        Count the memory under *memory_id* anew, as *window* does, whatever was counted before, and keep the counts.

        Returns its tokens, 0 for an unknown id; ``ValueError`` if *window* has no count that could be kept.
        """
        if not window.counter:
            raise ValueError("window has no count of tokens to keep; give one whose estimator has a name.")
        key = memory_key(memory_id)
        with self._locked(key, create=False) as (state, cursor):
            if state is None:
                return 0
            counts = {
                row.sequence: window.cost(to_message(row.type, row.text, row.payload))
                for row in statements.memory(key, cursor, "")
            }
            statements.keep_counts(state, counts, window.counter, cursor)
            total = sum(counts.values())
            statements.keep_total(state, total, window.counter, cursor)
            return total

    @contextmanager
    def exclusive(self, memory_id: object) -> Iterator[None]:
        """A transaction in which nobody else writes to *memory_id*."""
        with self._locked(memory_key(memory_id)):
            yield

    async def run(self, method: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        # Django has no asynchronous transactions: a whole one takes one hop into the thread that has the connection.
        return await sync_to_async(method, thread_sensitive=True)(*args, **kwargs)

    def _read(self, key: str, counter: str = "") -> Sequence[tuple[Any, ...]]:
        owner_id = None if self.owner is None else self.owner.pk
        with prepared_cursor(connections[self.using or router.db_for_read(Message)]) as cursor:
            return statements.memory_values(key, cursor, counter, owner_id=owner_id)

    def _read_counted(self, memory_id: object, window: Window) -> tuple[list[ChatMessage], list[int] | None]:
        rows = self._read(memory_key(memory_id), window.counter)
        messages = _messages(rows)
        return messages, _costs(rows, messages, window)

    @overload
    def _locked(self, key: str) -> AbstractContextManager[tuple[State, CursorWrapper]]: ...

    @overload
    def _locked(self, key: str, *, create: bool) -> AbstractContextManager[tuple[State | None, CursorWrapper]]: ...

    @contextmanager
    def _locked(self, key: str, *, create: bool = True) -> Iterator[Any]:
        """A transaction in which nobody else writes to the conversation: its row, and the cursor for all the rest."""
        owner_id = None if self.owner is None else self.owner.pk
        using = self.using or router.db_for_write(Conversation)
        with transaction.atomic(using=using, savepoint=False), prepared_cursor(connections[using]) as cursor:
            state = statements.lock(key, cursor)
            if state is None and create:
                statements.create(key, owner_id, cursor)
                state = statements.lock(key, cursor)
            if state is None or owner_id is None or state.owner_id == owner_id:
                yield state, cursor
                return
        # Out here, so that a transaction around this one can go on.
        raise PermissionDenied(f"The conversation {key!r} belongs to somebody else.")

    def _recounted(self, key: str, state: State, window: Window, cursor: CursorWrapper) -> State:
        """*state* with counters that *window* can go by. Counts that the rows did not have are kept there."""
        if window.estimator is None or not state.memory_messages or state.token_counter == window.counter:
            return state
        rows = statements.memory(key, cursor, window.counter)
        counts = {entry.key: entry.cost or 0 for entry in _counted(rows, window)}
        uncounted = {row.sequence: counts[row.sequence] for row in rows if row.tokens is None}
        statements.keep_counts(state, uncounted, window.counter, cursor)
        return state._replace(memory_tokens=sum(counts.values()), token_counter=window.counter, front="")

    def _eviction(
        self,
        key: str,
        state: State,
        messages: Sequence[ChatMessage],
        window: Window,
        front: Front,
        cursor: CursorWrapper,
    ) -> Eviction:
        """The memory before *messages* are added to it. It is read as far as they push it out."""
        systems: list[Entry] = []
        if any(message.type == MessageType.SYSTEM for message in messages):
            systems = _counted(statements.memory(key, cursor, window.counter, only_systems=True), window)
        return Eviction(
            window,
            front,
            next_key=state.next_sequence,
            pinned=None if state.pinned_sequence is None else Entry(state.pinned_sequence, MessageType.SYSTEM),
            systems=systems,
            total=front.total,
        )

    def _write(self, key: str, before: State, change: _Change, cursor: CursorWrapper) -> None:
        """Write *change*, and tell of it once it is committed."""
        after, rows, left = change
        superseded = [sequence for sequence in left if after.window_start <= sequence < before.next_sequence]
        if not self.keep_history:
            statements.delete_left(after, superseded, cursor)
            statements.write(after, [row for row in rows if row.sequence not in left], cursor)
        else:
            if superseded:
                statements.supersede(after, superseded, cursor)
            statements.write(after, rows, cursor)
        self._announce(signals.messages_added, key, after, [row.sequence for row in rows], cursor)
        self._announce(signals.messages_evicted, key, after, left, cursor)

    def _announce(
        self, signal: Signal, key: str, state: State, sequences: Sequence[int], cursor: CursorWrapper
    ) -> None:
        if not sequences or not signal.receivers:
            return
        using = cursor.db.alias
        conversation = Conversation.from_db(using, ("id", "memory_id"), (state.id, key))  # the rest is deferred
        send = partial(
            signal.send_robust, Conversation, conversation=conversation, sequences=tuple(sequences), using=using
        )
        transaction.on_commit(send, using=using)


class _Change(NamedTuple):
    """What a write makes of a conversation."""

    state: State
    rows: list[NewRow]
    """The rows to write."""
    left: list[int]
    """The sequences of the messages that leave the memory."""

    @classmethod
    def by(cls, eviction: Eviction, state: State, rows: list[NewRow], front: Front | None) -> _Change:
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
        return cls(after, rows, left)

    @classmethod
    def to(
        cls, state: State, old: list[Row], columns: Sequence[Columns], kept_from: tuple[bool, int] | None
    ) -> _Change:
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
        return cls(after, rows, [row.sequence for row in old[keeps_first:index]])


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


def _messages(rows: Sequence[tuple[Any, ...]]) -> list[ChatMessage]:
    """The messages of *rows*, which are as ``Row`` is."""
    types, texts, payloads, *_ = zip(*rows, strict=True) if rows else [()] * 3
    return list(map(to_message, types, texts, payloads))


def _costs(rows: Sequence[tuple[Any, ...]], messages: Sequence[ChatMessage], window: Window) -> list[int] | None:
    """What *messages*, which *rows* hold, cost each; counted only where that is not kept. None if it says nothing."""
    if not window.is_additive:
        return None
    if window.estimator is None:
        return [1] * len(rows)
    costs = [row[TOKENS] for row in rows]
    if None in costs:
        return [window.cost(message) if cost is None else cost for message, cost in zip(messages, costs, strict=True)]
    return costs


def _counted(rows: Sequence[Row], window: Window) -> list[Entry]:
    """The entries of *rows*."""
    messages = _messages(rows)
    costs: Sequence[int | None] = _costs(rows, messages, window) or [None] * len(rows)
    return [to_entry(row.sequence, message, cost) for row, message, cost in zip(rows, messages, costs, strict=True)]


def _whole_eviction(state: State, rows: Sequence[Row], window: Window) -> Eviction:
    """The memory of *rows*, where only the whole of it can be counted."""
    entries = _counted(rows, window)
    systems = [entry for entry in entries if entry.type == MessageType.SYSTEM]
    pinned = None if state.pinned_sequence is None else entries.pop(0)
    return Eviction(window, entries, next_key=state.next_sequence, pinned=pinned, systems=systems)
