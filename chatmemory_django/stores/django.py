"""
Memories in Django's database: every message a row, the memory a window on the rows.

A writer locks the row of the conversation first, so writers to one conversation queue and writers to different ones
never meet. On PostgreSQL an ``add`` does without: one statement writes, if the row is still as it was read. Rows are
written once: what an ``add`` evicts it evicts by moving the start of the window.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connections, router, transaction

from chatmemory_django import conf, signals, statements
from chatmemory_django.changes import Addition, Change, costs_of, entries_of, has_counts, messages_of
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.prepared import prepared_cursor
from chatmemory_django.rows import Columns, to_columns, to_message
from chatmemory_django.statements import State
from chatmemory_django.stores.base import (
    Appended,
    ChatMemoryStore,
    Notes,
    checked_messages,
    memory_key,
)
from chatmemory_django.windows import Eviction, Window, continuation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.db.backends.utils import CursorWrapper
    from django.dispatch import Signal

CONTENDED_SECONDS = 1.0
"""How long writers take the lock at once, after one of them was too late without it."""

MAX_CONTENDED = 1_000
"""Of how many conversations that is remembered."""

_contended: dict[str, float] = {}
"""The memory ids of conversations with several writers at a time, and until when to take them for that."""

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
        return messages_of(self._read(memory_key(memory_id)))

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
        addition = Addition(key, messages, window, notes)
        if (appended := self._append_unlocked(addition)) is not None:
            return appended
        with self._locked(key) as (state, cursor):
            appended, change = addition.to(self._recounted(key, state, window, cursor), cursor)
            if change is not None:
                self._write(key, change, cursor)
            if addition.completed:
                statements.complete(state, addition.completed, cursor)
        return appended

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
                self._write(key, Change.to(state, rows, columns, continuation(old, columns)), cursor)

    def delete_messages(self, memory_id: object) -> None:
        key = memory_key(memory_id)
        with self._locked(key, create=False) as (state, cursor):
            if state is None:
                return
            is_heard = signals.memory_cleared.receivers
            sequences = [row.sequence for row in statements.memory(key, cursor, "")] if is_heard else []
            self._write(key, Change.to(state, [], [], None), cursor)
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
        messages = messages_of(rows)
        return messages, costs_of(rows, messages, window)

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
            if state is None or self._is_owned(state):
                yield state, cursor
                return
        # Out here, so that a transaction around this one can go on.
        raise PermissionDenied(f"The conversation {key!r} belongs to somebody else.")

    def _is_owned(self, state: State) -> bool:
        return self.owner is None or state.owner_id == self.owner.pk

    def _recounted(self, key: str, state: State, window: Window, cursor: CursorWrapper) -> State:
        """*state* with counters that *window* can go by. Counts that the rows did not have are kept there."""
        if not window.is_additive or has_counts(state, window):
            return state
        rows = statements.memory(key, cursor, window.counter)
        counts = {entry.key: entry.cost or 0 for entry in entries_of(rows, window)}
        uncounted = {row.sequence: counts[row.sequence] for row in rows if row.tokens is None}
        statements.keep_counts(state, uncounted, window.counter, cursor)
        return state._replace(memory_tokens=sum(counts.values()), token_counter=window.counter, front="")

    def _append_unlocked(self, addition: Addition) -> Appended | None:
        """
        Add by one statement, without a transaction around it: it writes nothing if somebody else was faster.

        None if nothing is done: that was so, or it takes more than such a statement, which only PostgreSQL has.
        """
        connection = connections[self.using or router.db_for_write(Conversation)]
        if connection.vendor != "postgresql" or addition.completed or not self.keep_history:
            return None
        if _contended.get(addition.key, 0.0) > time.monotonic():
            return None
        with prepared_cursor(connection) as cursor:
            state = statements.unlocked(addition.key, cursor)
            if state is None or not self._is_owned(state) or not has_counts(state, addition.window):
                return None
            appended, change = addition.to(state, cursor)
            if change is None:
                return appended
            if change.superseded:
                return None
            if not statements.write_if_unchanged(change.before, change.after, change.rows, cursor):
                if len(_contended) >= MAX_CONTENDED:
                    _contended.clear()
                _contended[addition.key] = time.monotonic() + CONTENDED_SECONDS
                return None
            self._tell(addition.key, change, cursor)
        return appended

    def _write(self, key: str, change: Change, cursor: CursorWrapper) -> None:
        """Write *change*, and tell of it once it is committed."""
        rows, superseded = change.rows, change.superseded
        if not self.keep_history:
            statements.delete_left(change.after, superseded, cursor)
            rows = [row for row in rows if row.sequence not in change.left]
        elif superseded:
            statements.supersede(change.after, superseded, cursor)
        statements.write(change.after, rows, cursor)
        self._tell(key, change, cursor)

    def _tell(self, key: str, change: Change, cursor: CursorWrapper) -> None:
        sequences = [row.sequence for row in change.rows]
        self._announce(signals.messages_added, key, change.after, sequences, cursor)
        self._announce(signals.messages_evicted, key, change.after, change.left, cursor)

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
