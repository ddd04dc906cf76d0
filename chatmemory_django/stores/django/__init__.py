"""
Memories in Django's database: every message is a row, the memory a window on the rows.

A write is optimistic: the conversation is read, the change is decided without a lock, and it is written if the
conversation's version is still the one that was read. If it is not, all of this is repeated with the row locked. Rows
are written once: an ``add`` evicts messages by moving the start of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from django.db import connections, router, transaction

from chatmemory_django import conf, signals
from chatmemory_django.core.limits import memory_key
from chatmemory_django.core.pending import Pending
from chatmemory_django.core.reasons import Explained, Reader
from chatmemory_django.core.windows import Eviction, Window
from chatmemory_django.db.row_codec import Address
from chatmemory_django.db.threads import in_slow_thread, in_thread
from chatmemory_django.db.transactions import has_locked, note_lock, sees_committed, tried_again
from chatmemory_django.messages import ChatMessage, NewMessage, SystemMessage, checked_messages
from chatmemory_django.models import Conversation, ConversationQuerySet, Message
from chatmemory_django.models.columns import HistoryRow
from chatmemory_django.models.message_codec import MissingFileError, complete, complete_rows, may_refer
from chatmemory_django.private import private
from chatmemory_django.stores.base import AddOptions, Appended, Beside, ChatMemoryStore, MessageNotFoundError, Reading
from chatmemory_django.stores.django import snapshots, statements
from chatmemory_django.stores.django.additions import Addition, Aside
from chatmemory_django.stores.django.decisions import Clearing, Evicting, Recounting, Rejecting, Relocating, Replacement
from chatmemory_django.stores.django.pins import Pinning, Unpinning
from chatmemory_django.stores.django.refills import refill
from chatmemory_django.stores.django.relocations import relocate
from chatmemory_django.stores.django.removals import Popping, Removal
from chatmemory_django.stores.django.rows import Row, as_remembered, costs_of, messages_of, pins_of, summary_index
from chatmemory_django.stores.django.snapshots import Snapshot, read_eviction
from chatmemory_django.stores.django.summaries import Summarizing, read_pending
from chatmemory_django.stores.django.writes import Write, call_after_commit, not_own

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MAX_READS = 8
"""How often a memory is read that is to be filled again, if other writers change it between the two queries."""

_payload = itemgetter(Row._fields.index("payload"))
_sequence = itemgetter(Row._fields.index("sequence"))

_P = ParamSpec("_P")
_R = TypeVar("_R")


class DjangoChatMemoryStore(ChatMemoryStore):
    """
    Memories in the database *using*, or the one that the router selects.

    *keep_history* is whether messages stay in the database after they have left the memory; the default is the setting
    ``KEEP_HISTORY``. With an *owner*, new conversations belong to the owner, and conversations of other users are
    inaccessible: writes and turns raise ``PermissionDenied``, reads return nothing.
    """

    keeps_client_message_ids = True

    def __init__(
        self, using: str | None = None, keep_history: bool | None = None, *, owner: AbstractBaseUser | None = None
    ) -> None:
        if owner is not None and not hasattr(owner, "pk"):
            raise TypeError(f"owner must be a user, or None for no owner, not {type(owner).__name__}.")
        if owner is not None and owner.pk is None:
            raise ValueError("owner must be a saved user, or None for no owner.")
        self.using = using
        self._keep_history = keep_history
        self.owner = owner

    def __repr__(self) -> str:
        owner = None if self.owner is None else self.owner.pk
        return f"{type(self).__name__}(using={self.using!r}, keep_history={self.keep_history}, owner={owner!r})"

    @property
    def keep_history(self) -> bool:
        """Whether messages stay in the database after they have left the memory."""
        return conf.general().KEEP_HISTORY if self._keep_history is None else self._keep_history

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        key = memory_key(memory_id)

        def read() -> list[ChatMessage]:
            rows = self._read(key)
            return self._completed(key, rows, messages_of(rows))

        return _again(read)

    @private
    def read_messages(self, memory_id: object, window: Window) -> list[ChatMessage]:
        key = memory_key(memory_id)

        def read() -> list[ChatMessage]:
            present = window
            if window.refills or window.idle is not None:
                snapshot, rows = self._read_filled(key, window, is_only_read=True)
                present = window if snapshot is None else snapshot.present(window)
            else:
                rows = self._read(key, window.counter)
            messages = messages_of(rows)
            costs = costs_of(rows, messages, window)
            completed = self._completed(key, rows, messages)
            return present.trim(completed, costs, summary=summary_index(rows), pins=pins_of(rows))

        return _again(read)

    @private
    def read_memory(self, memory_id: object, window: Window) -> Reading:
        return _again(partial(self._read_memory, memory_id, window))

    def _read_memory(self, memory_id: object, window: Window) -> Reading:
        key = memory_key(memory_id)
        snapshot, rows = self._read_filled(key, window)
        if snapshot is not None and not snapshot.is_own:
            raise not_own(key)
        # What a transaction sees may be rolled back, and then another writer may store the same version.
        is_certain = snapshot is None or sees_committed(connections[snapshot.using])
        conversation = snapshot if snapshot is None or is_certain else snapshot.state.id
        messages = messages_of(rows)
        costs = costs_of(rows, messages, window)
        keys = [*map(_sequence, rows), 1 if snapshot is None else snapshot.state.next_sequence]
        present = window if snapshot is None else snapshot.present(window)
        completed = self._completed(key, rows, messages)
        eviction = present.trimmed(completed, costs, summary=summary_index(rows), keys=keys, pins=pins_of(rows))
        if snapshot is None:
            return Reading(eviction, conversation, 0)
        return Reading(eviction, conversation, snapshot.state.fence, snapshot.state.is_handed_over)

    def _read_filled(
        self, key: str, window: Window, *, is_only_read: bool = False
    ) -> tuple[Snapshot | None, Sequence[tuple[Any, ...]]]:
        """Return the conversation as it is stored, and the rows of its memory, filled again if *window* is larger."""
        connection = connections[self.using or router.db_for_read(Message)]
        for _ in range(MAX_READS):
            if has_locked(connection, key):
                snapshot, rows = self._read_locked(connection.alias, key, window.counter)
            else:
                with connection.cursor() as cursor:
                    snapshot, rows = snapshots.read_with_memory(
                        cursor, key, window.counter, self._owner_key, is_only_read=is_only_read
                    )
            if snapshot is None or not snapshot.is_own or not window.outgrows(snapshot.state):
                break
            again = refill(snapshot, window, {})
            if again.is_of_one_moment:
                return snapshot, again.memory(rows)
        return snapshot, rows

    def _completed(self, key: str, rows: Sequence[tuple[Any, ...]], messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return the *messages* of *rows*, which are like ``Row``, with their files."""
        if not any(map(may_refer, filter(None, map(_payload, rows)))):
            return messages
        conversation, using = rows[0][Row._fields.index("conversation_id")], self.using or router.db_for_read(Message)
        return complete(messages, list(map(_sequence, rows)), Address(using, conversation, key), for_model=True)

    def read_history(
        self, memory_id: object, *, before: int | None = None, count: int | None = None
    ) -> list[HistoryRow]:
        """
        Return the last *count* messages of the history under *memory_id*, or all of them, newest first.

        With *before*, only messages before that sequence. Empty for an unknown id, or for a conversation of another
        owner.
        """
        with connections[self.using or router.db_for_read(Message)].cursor() as cursor:
            rows = statements.read_history(cursor, memory_key(memory_id), self._owner_key, before, count)
        return self._completed_history(memory_id, list(map(HistoryRow._make, rows)))

    def read_remembered(self, memory_id: object) -> list[HistoryRow]:
        """Return the messages of the memory under *memory_id*, in its order; none if it has another owner."""
        rows = [(Row._make(row), verbatim) for *row, verbatim in self._read(memory_key(memory_id), verbatim=True)]
        found = [
            HistoryRow(
                row.sequence, row.type, row.text, row.payload, None if row.is_cleared else verbatim, row.conversation_id
            )
            for row, verbatim in ((as_remembered(row), verbatim) for row, verbatim in rows)
        ]
        return self._completed_history(memory_id, found)

    def _completed_history(self, memory_id: object, rows: list[HistoryRow]) -> list[HistoryRow]:
        """Return *rows* with their files in their payloads, as what other frameworks are given of them needs it."""
        if not any(may_refer(row.payload, row.verbatim) for row in rows):
            return rows
        conversation = self.named(memory_id, self.using or router.db_for_read(Message))
        pk = conversation.values_list("pk", flat=True).first()
        return complete_rows(rows, Address(conversation.db, pk, memory_key(memory_id)))

    def named(self, memory_id: object, using: str | None = None) -> ConversationQuerySet:
        """
        Return a queryset of the conversation under *memory_id*, if it exists and belongs to the owner.

        It reads from the database for writes, or from *using*.
        """
        using = using or self.using or router.db_for_write(Conversation)
        return self.conversations(using).filter(memory_id=memory_key(memory_id))

    def conversations(self, using: str | None = None) -> ConversationQuerySet:
        """Return a queryset of the conversations, only the owner's if there is an owner."""
        found = Conversation.objects.using(using or self.using or router.db_for_read(Conversation))
        return found if self.owner is None else found.filter(owner=self._owner_key)

    @private
    def append_messages(
        self,
        memory_id: object,
        messages: Sequence[ChatMessage | NewMessage],
        window: Window,
        *,
        beside: Beside | None = None,
        fence: int | None = None,
        conversation: object = None,
        **options: Unpack[AddOptions],
    ) -> Appended:
        of_write = {"create": not options.get("after"), "window": window, "beside": beside, "fence": fence}
        write = self._write(memory_id, conversation=conversation, **of_write)
        appended = write.run(Addition(messages, window, **options))
        if appended is None:
            if after := options.get("after"):
                raise MessageNotFoundError(memory_id, after)
            return Appended(Eviction.of([], window), [])
        written = write.written if options.get("phase") in {"open", "round"} else None  # other writes are the last
        return appended if written is None else appended._replace(conversation=written)

    @private
    def set_aside(
        self,
        memory_id: object,
        messages: Sequence[ChatMessage | NewMessage],
        window: Window,
        parents: Sequence[int | None],
    ) -> Appended:
        """
        Store *messages* as branches that are not on the path, so that the memory stays as it is.

        Each follows the one of *parents*, sequences of messages that are there, in its place: 0 for none, None for the
        message before it. Those that are there already, by their client message ids, are not stored again.
        """
        appended = self._write(memory_id, create=True, window=window).run(Aside(messages, window, parents))
        return appended or Appended(Eviction.of([], window), [])

    @private
    def replace_messages(self, memory_id: object, messages: Sequence[ChatMessage], window: Window) -> None:
        costs = [window.cost(message) for message in messages] if window.is_additive else None
        eviction = window.without_clearing().trimmed(messages, costs)
        kept = [entry.cost or 0 for entry in eviction.entries()] if window.counter else []
        replacement = Replacement(
            eviction.messages(), kept, window.counter, keep_history=self.keep_history, trimmed=eviction
        )
        self._write(memory_id, create=bool(eviction.entries()), window=window).run(replacement)

    @private
    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        """Replace the memory under *memory_id* with *messages*; ``Replacement`` describes the effect on the history."""
        kept = checked_messages(messages)
        self._write(memory_id, create=bool(kept)).run(Replacement(kept, keep_history=self.keep_history))

    def delete_messages(self, memory_id: object) -> None:
        is_heard = bool(signals.memory_cleared.receivers)
        self._write(memory_id, create=False, left_signal=signals.memory_cleared).run(
            Clearing(names_left=is_heard, keep_history=self.keep_history)
        )

    def read_memory_after(self, memory_id: object, window: Window, after: int) -> Reading:
        key = memory_key(memory_id)

        def see(snapshot: Snapshot) -> Reading:
            if window.outgrows(snapshot.state):
                snapshot = refill(snapshot, window, {}).snapshot
            about = snapshot.state.id, snapshot.state.fence, snapshot.state.is_handed_over
            known = snapshot.message(after)
            if not known.is_head:
                return Reading(relocate(snapshot, known, window, {}).eviction, *about)
            eviction, _ = read_eviction(snapshot, window, {})
            eviction.trim()
            return Reading(eviction, *about)

        def read() -> Reading | None:
            reading = self._write(key, create=False).look(see)
            if reading is not None:
                self._complete(key, reading)
            return reading

        reading = _again(read)
        if reading is None and after:
            raise MessageNotFoundError(key, after)
        return reading or Reading(Eviction.of([], window), fence=0)

    def _complete(self, key: str, reading: Reading) -> None:
        """Give the messages of *reading* their files."""
        entries = [entry for entry in reading.eviction.entries() if entry.message is not None]
        messages = [entry.message for entry in entries if entry.message is not None]
        at = Address(self.using or router.db_for_write(Conversation), reading.conversation, key)
        completed = complete(messages, [entry.key for entry in entries], at, for_model=True)
        for entry, message in zip(entries, completed, strict=True):
            entry.message = message

    def rewind(self, memory_id: object, to: int, window: Window) -> None:
        self._relocate(memory_id, to, window, newest=False)

    def switch(self, memory_id: object, to: int, window: Window) -> int:
        return self._relocate(memory_id, to, window, newest=True)

    def pop(self, memory_id: object, window: Window | None = None) -> ChatMessage | None:
        return self._write(memory_id, create=False, window=window).run(Popping())

    def reject(
        self, memory_id: object, keys: Sequence[int], reason: str, window: Window, *, fence: int | None = None
    ) -> None:
        self._write(memory_id, create=False, fence=fence).run(Rejecting(keys, reason, window))

    def evict(self, memory_id: object, count: int, window: Window | None = None) -> list[int]:
        return self._write(memory_id, create=False, window=window).run(Evicting(count)) or []

    def remove(self, memory_id: object, *keys: int, with_results: bool = False) -> list[int]:
        if not keys:
            return []
        rows = self._write(memory_id, create=False).run(Removal(keys, with_counterparts=with_results))
        if rows is None:
            raise MessageNotFoundError(memory_id, keys[0])
        return [row.sequence for row in rows]

    def pin(self, memory_id: object, key: int, window: Window) -> list[int]:
        return self._pinned(memory_id, key, window, Pinning(key, window))

    def unpin(self, memory_id: object, key: int, window: Window | None = None) -> list[int]:
        return self._pinned(memory_id, key, window, Unpinning(key))

    def _pinned(self, memory_id: object, key: int, window: Window | None, decide: Pinning | Unpinning) -> list[int]:
        found = self._write(memory_id, create=False, window=window).run(decide)
        if found is None:
            raise MessageNotFoundError(memory_id, key)
        return found

    def read_pending(
        self, memory_id: object, window: Window, max_tokens: int, *, waits: bool = False
    ) -> Pending | None:
        return _again(partial(self._read_pending, memory_id, window, max_tokens, waits=waits))

    def _read_pending(self, memory_id: object, window: Window, max_tokens: int, *, waits: bool) -> Pending | None:
        connection, key = connections[self.using or router.db_for_write(Conversation)], memory_key(memory_id)
        if has_locked(connection, key):
            snapshot = self._write(memory_id, create=False).lock()
        else:  # no lock is needed: all of this is checked again when the summary is written
            with connection.cursor() as cursor:
                snapshot = snapshots.read(cursor, key, self._owner_key)
        if snapshot is None or not snapshot.is_own:
            return None
        pending = read_pending(snapshot, window, max_tokens, waits=waits)
        if pending is None:
            return None
        at = Address(snapshot.using, snapshot.state.id, snapshot.key)
        messages = complete(pending.messages, pending.keys[: len(pending.messages)], at, for_model=True)
        return pending._replace(messages=messages)

    @private
    def put_summary(self, memory_id: object, pending: Pending, summary: SystemMessage, window: Window) -> bool:
        return self._write(memory_id, create=False).run(Summarizing(pending, summary, window)) or False

    def put_failure(self, memory_id: object, pending: Pending) -> None:
        # Not a write that others have to respect: it changes nothing that they read, not even the version.
        using = self.using or router.db_for_write(Conversation)
        conversation = Conversation.objects.using(using).filter(pk__in=[pending.conversation])
        tried_again(using, partial(conversation.update, summary_failure=pending.failed()))
        note_lock(connections[using], memory_key(memory_id))

    def explain(self, memory_id: object, reader: Reader, count: int) -> list[Explained]:
        conversation = self.named(memory_id, self.using or router.db_for_read(Conversation)).first()
        return [] if conversation is None else conversation.read(reader).explain(conversation.recent(count))

    def after_commit(self, call: Callable[[], object]) -> None:
        call_after_commit(call, self.using or router.db_for_write(Conversation))

    def _relocate(self, memory_id: object, to: int, window: Window, *, newest: bool) -> int:
        found = self._write(memory_id, create=False, window=window).run(Relocating(to, window, newest=newest))
        if found is None and to:
            raise MessageNotFoundError(memory_id, to)
        return found or 0

    def recount(self, memory_id: object, window: Window) -> int:
        """
        Recount the tokens of the memory under *memory_id* with *window*, whatever counted them before, and store the
        counts.

        Returns the number of tokens, 0 for an unknown id.

        Raises:
            ValueError: The counts of *window* cannot be stored.

        """
        if not window.counter:
            raise ValueError("The token counts of window cannot be stored; use one whose estimator has a name.")
        return self._write(memory_id, create=False).run(Recounting(window)) or 0

    @contextmanager
    def exclusive(self, memory_id: object) -> Iterator[None]:
        """Open a transaction in which no one else writes to *memory_id*."""
        with transaction.atomic(using=self.using or router.db_for_write(Conversation), savepoint=False):
            self._write(memory_id).lock()
            yield

    @private
    async def run(self, method: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        # Django has no asynchronous transactions: a whole one runs in a single hop to the thread that has the
        # connection.
        return await in_thread(method, *args, **kwargs)

    async def run_slow(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        # It may use the database, too: a thread of its own would keep a connection open.
        return await in_slow_thread(function, *args, **kwargs)

    def _read(self, key: str, counter: str = "", *, verbatim: bool = False) -> Sequence[tuple[Any, ...]]:
        """Return the rows in the memory like ``memory_rows``, in its order; none if it has another owner."""
        connection = connections[self.using or router.db_for_read(Message)]
        if has_locked(connection, key):
            return self._read_locked(connection.alias, key, counter, verbatim=verbatim)[1]
        with connection.cursor() as cursor:
            return statements.read_memory(cursor, key, counter, self._owner_key, verbatim=verbatim)

    def _read_locked(
        self, using: str, key: str, counter: str, *, verbatim: bool = False
    ) -> tuple[Snapshot | None, Sequence[tuple[Any, ...]]]:
        """Return the conversation, which the transaction has locked, and the same rows, both as they are now."""
        snapshot = Write(key, using, self._owner_key, keep_history=True, create=False).lock()
        if snapshot is None or not snapshot.is_own:
            return snapshot, []
        return snapshot, snapshot.memory_rows(counter, verbatim=verbatim)

    def _write(self, memory_id: object, **options: Any) -> Write:
        using = self.using or router.db_for_write(Conversation)
        return Write(memory_key(memory_id), using, self._owner_key, keep_history=self.keep_history, **options)

    @property
    def _owner_key(self) -> Any:
        return None if self.owner is None else self.owner.pk


TRIES = 4
"""How often messages are read at most, if files of theirs are missing."""


def _again(read: Callable[[], _R]) -> _R:
    """Return what *read* returns, if need be at a later try: others may have removed messages with their files."""
    for _ in range(1, TRIES):
        with suppress(MissingFileError):
            return read()
    return read()
