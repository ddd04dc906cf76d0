"""
Writes to a conversation: read, decide, write if the version is still the one that was read, or try again with a lock.

This is the only way to write: every operation is a decision, a function from a ``Snapshot`` to its result and the
``Change`` to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import attrgetter, or_
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce, Least
from django.dispatch import Signal
from django.utils import timezone

from chatmemory_django import signals
from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.core.windows import Window
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_batches, in_parts
from chatmemory_django.db.engines import combines, queues
from chatmemory_django.db.row_codec import Address, Coder, RowCodec
from chatmemory_django.db.transactions import note_lock, sees_committed, sees_otherwise, tried_again
from chatmemory_django.models import Conversation, Message, MessageQuerySet, message_codec
from chatmemory_django.models.conversations import create_once
from chatmemory_django.models.copies import forget_copies, is_held
from chatmemory_django.models.message_codec import Extracted, Uploads
from chatmemory_django.models.windows import Bounds, in_memory, memory_parts
from chatmemory_django.stores.base import Beside, ConversationErasedError, LeaseLostError
from chatmemory_django.stores.django import snapshots, statements
from chatmemory_django.stores.django.changes import Change, Cut, NewRow, Relocation, Removed, max_row_bytes
from chatmemory_django.stores.django.refills import refill
from chatmemory_django.stores.django.snapshots import Counted, Snapshot, UncountedError

MAX_ROWS = statements.MAX_PARAMETERS // len(statements.NEW_ROW)
"""How many rows one INSERT writes at most: a statement is recorded for each number of rows up to this."""

MAX_COUNTS = 15
"""
How often messages are counted without a lock. If other writers are faster each time, they wait for the next count.
"""

_R = TypeVar("_R", covariant=True)
_T = TypeVar("_T")
_D = TypeVar("_D")


class WriteDecision(Protocol[_R]):
    """An operation on a conversation, decided on a snapshot of it."""

    holds_for_nothing: bool
    """Whether a decision to write nothing is valid whatever other writers have written in the meantime."""

    def __call__(self, snapshot: Snapshot) -> tuple[_R, Change | None]:
        """Return the result of the operation, and what to write for it, if anything."""


class _Decided(NamedTuple, Generic[_D]):
    """What was decided on a snapshot, or why it is refused."""

    snapshot: Snapshot | None
    result: _D | None = None
    change: Change | None = None
    is_written: bool = False
    refusal: Exception | None = None


class Write:
    """
    A write to the conversation *key* in the database *using*, for *owner*, if there is one.

    If the conversation does not exist and *create* is false, nothing is done. If *conversation* identifies one, as
    ``Reading`` does, it must still be that one; a snapshot of it is decided on first. With a *fence*, it must still
    have that one, which each answer that takes the conversation raises. If *window* has outgrown the memory, that is
    filled again first. What is *beside* is written as well, unless that is inside a transaction of the caller, which
    must not fail if it cannot be.
    """

    def __init__(
        self,
        key: str,
        using: str,
        owner: Any,
        *,
        keep_history: bool,
        create: bool = True,
        conversation: object = None,
        left_signal: Signal = signals.messages_evicted,
        beside: Beside | None = None,
        fence: int | None = None,
        window: Window | None = None,
    ) -> None:
        self._key = key
        self._fence = fence
        self._using = using
        self._connection = connections[using]
        self._owner = owner
        self._keep_history = keep_history
        self._creates = create and conversation is None
        seen = conversation if isinstance(conversation, Snapshot) else None
        self._conversation = conversation if seen is None else seen.state.id
        self._seen = seen if seen is not None and seen.using == using else None
        self._left_signal = left_signal
        self._window = window
        self._counted: Counted = {}
        is_apart = beside is None or beside.using != using or self._connection.in_atomic_block
        self._beside = Beside((), using) if beside is None or is_apart else beside
        self._written: tuple[Snapshot | None, Change | None] = None, None
        self._uploads: Uploads | None = None
        self._holds_lock = False
        """Whether this SQLite transaction has tried to write, and so is the only one that can."""

    def run(self, decide: WriteDecision[_T]) -> _T | None:
        """
        Write what *decide* decides, and return its result; None if the conversation does not exist and is not created.

        A deadlock is retried, unless it is inside a transaction of the caller.
        """
        try:
            result = tried_again(self._using, partial(self._run_counted, decide))
        except Exception as exc:
            self._beside.are_written = False
            if self._beside.rows and isinstance(exc, DatabaseError) and not isinstance(exc, OperationalError):
                self._beside = Beside((), self._using)
                return self.run(decide)  # messages are stored even if that cannot be, as for an erased user
            if isinstance(exc, DatabaseError) and self._connection.in_atomic_block:
                transaction.set_rollback(True, using=self._using)  # as ``Model.save`` does
            if self._uploads is not None:
                self._uploads.end(exc)
            raise
        if self._uploads is not None:
            self._uploads.end()
        return result

    def lock(self, *, may_count: bool = True) -> Snapshot | None:
        """Lock the conversation, waiting for other writers, and read it as it is then; create it if requested."""
        with self._connection.cursor() as cursor:
            snapshot = self._locked(cursor)
            if snapshot is None and self._creates:
                create_once(self._using, self._key, self._owner)
                snapshot = self._locked(cursor)
        if snapshot is not None:
            snapshot.is_locked, snapshot.may_count = True, may_count
        return snapshot

    def look(self, see: Callable[[Snapshot], _T]) -> _T | None:
        """
        Return the result of *see* on the conversation as it is at one moment; None if there is no such conversation.

        It is read without a lock, or with one if another writer changed it in the meantime or if a plain SELECT may see
        a state that never existed.
        """
        found, refusal = tried_again(self._using, partial(self._look, see))
        if refusal is not None:  # raised here, so that the caller's transaction stays usable
            raise refusal
        return found

    def _look(self, see: Callable[[Snapshot], _T]) -> tuple[_T | None, Exception | None]:
        if not sees_otherwise(self._connection):
            with self._connection.cursor() as cursor:
                snapshot = snapshots.read(cursor, self._key, self._owner)
            seen = _seen(see, snapshot)
            if snapshot is None or self._is_as(snapshot):
                return seen
        with transaction.atomic(using=self._using, savepoint=False):
            return _seen(see, self.lock())

    def _is_as(self, snapshot: Snapshot) -> bool:
        """Return whether no one has written to the conversation since *snapshot* was taken."""
        state = snapshot.state
        return Conversation.objects.using(self._using).filter(pk=state.id, version=state.version).exists()

    def _locked(self, cursor: CursorWrapper) -> Snapshot | None:
        if queues(self._connection):
            note_lock(self._connection, self._key)
            return snapshots.lock(cursor, self._key, self._owner)
        if not self._holds_lock:  # a DEFERRED transaction acquires its lock by this
            Conversation.objects.using(self._using).filter(memory_id=self._key).update(version=F("version"))
        return snapshots.read(cursor, self._key, self._owner)

    def _run_counted(self, decide: WriteDecision[_T]) -> _T | None:
        for _ in range(MAX_COUNTS):
            try:
                return self._attempt(decide, may_count=False)
            except UncountedError as exc:
                exc.count()
        return self._attempt(decide, may_count=True)

    def _attempt(self, decide: WriteDecision[_T], *, may_count: bool) -> _T | None:
        self._holds_lock = self._beside.are_written = False
        with self._connection.cursor() as cursor:
            decided = self._decided_unlocked(decide, cursor)
            if decided is None or not decided.is_written:
                if decided is not None and message_codec.installed is not None:
                    self._upload(decided.change)
                with transaction.atomic(using=self._using, savepoint=False):
                    if decided is None or not self._is_written(decided.change, cursor):
                        decided = self._decided_locked(decide, may_count=may_count)
                        if decided.refusal is None and not self._is_written(decided.change, cursor):
                            raise OperationalError(f"The conversation {self._key!r} changed although it was locked.")
        if decided.refusal is not None:
            raise decided.refusal
        self._written = decided.snapshot, decided.change
        return decided.result

    @property
    def written(self) -> Snapshot | None:
        """The conversation as ``run`` has written it, if that is committed, so that the next write can build on it."""
        snapshot, change = self._written
        if snapshot is None or change is None or not (change.only_adds and sees_committed(self._connection)):
            return None
        return snapshot.after(change.after, change.held)

    def _unlocked(self, cursor: CursorWrapper) -> Iterator[Snapshot | None]:
        """Yield what can be decided on without a lock: the conversation as the caller has seen it, and as it is now."""
        if self._seen is not None:
            yield self._seen
        if sees_otherwise(self._connection):
            return
        snapshot = snapshots.read(cursor, self._key, self._owner)
        if snapshot is None and self._creates:
            create_once(self._using, self._key, self._owner)
            snapshot = snapshots.read(cursor, self._key, self._owner)
        yield snapshot

    def _decided_unlocked(self, decide: WriteDecision[_T], cursor: CursorWrapper) -> _Decided[_T] | None:
        """Return what *decide* decides without a lock, and write it if one statement can; None if nothing holds."""
        for snapshot in self._unlocked(cursor):
            try:
                result, change = self._decided(decide, snapshot)
            except DatabaseError:
                raise
            except Exception:  # noqa: BLE001, S112  # the state it was decided on may be outdated
                continue
            if change is None:
                # This may be outdated as well; if something is written, the UPDATE compares the version.
                holds = decide.holds_for_nothing and snapshot is not self._seen
                if holds or snapshot is None or self._is_as(snapshot):
                    return _Decided(snapshot, result, is_written=True)
            elif not self._fits_one_statement(change):
                return _Decided(snapshot, result, change)
            elif self._is_written_at_once(change, cursor):
                return _Decided(snapshot, result, change, is_written=True)
        return None

    def _decided_locked(self, decide: WriteDecision[_T], *, may_count: bool) -> _Decided[_T]:
        """Return what *decide* decides on the conversation as it is now, which it locks for that."""
        try:
            snapshot = self.lock(may_count=may_count)
            decided = _Decided(snapshot, *self._decided(decide, snapshot))
            self._upload(decided.change)
        except DatabaseError:
            raise
        except Exception as exc:  # noqa: BLE001  # raised outside, so that the caller's transaction stays usable
            return _Decided(None, refusal=exc)
        return decided

    def _decided(self, decide: WriteDecision[_T], snapshot: Snapshot | None) -> tuple[_T | None, Change | None]:
        expected = self._conversation
        if expected is not None and (snapshot is None or snapshot.state.id != expected):
            raise ConversationErasedError(
                f"The conversation {self._key!r} was erased in the meantime; nothing is stored."
            )
        if snapshot is None:
            if self._creates:
                raise RuntimeError("The conversation is not visible yet.")
            return None, None
        if not snapshot.is_own:
            raise not_own(self._key)
        if self._fence not in {None, snapshot.state.fence}:
            raise LeaseLostError(f"Another answer has begun in the conversation {self._key!r}; nothing is stored.")
        if self._window is not None and self._window.outgrows(snapshot.state):
            return refill(snapshot, self._window, self._counted).decided(decide)
        return decide(snapshot)

    def _fits_one_statement(self, change: Change) -> bool:
        """Return whether one statement can write *change*, where one ``combines``: it only adds, and a few rows."""
        return (
            combines(self._connection)
            and change.only_adds
            and (self._keep_history or not change.left)
            and len(_batches(change.rows)) == 1
            and (message_codec.installed is None or not _files_of(change))
        )

    def _upload(self, change: Change | None) -> None:
        """Store the files of *change*, if it has any: before a lock is held, unless it was decided with one."""
        codec = message_codec.installed
        if codec is not None and change is not None and (files := _files_of(change)):
            self._uploads = self._uploads or codec.uploads(self._using)
            self._uploads.store(_owner_of(change), change.before.id, files)

    def _is_written_at_once(self, change: Change, cursor: CursorWrapper) -> bool:
        """Write *change* in one statement if the conversation is as it was read; return whether it was."""
        coder = None if row_codec.installed is None else self._coder(row_codec.installed, change)
        is_written = statements.move_and_insert(cursor, change, self._owner, timezone.now(), self._beside.rows, coder)
        if is_written:
            self._beside.are_written = True
            self._announce(change, change.rows)
        return is_written

    def _coder(self, codec: RowCodec, change: Change) -> Coder:
        return codec.at(Address(self._using, change.before.id, self._key, _owner_of(change)))

    def _is_written(self, change: Change | None, cursor: CursorWrapper) -> bool:
        """Write *change* if the conversation is as it was read; return whether it was."""
        if change is None:
            return True
        now = timezone.now()
        is_moved = statements.move(cursor, change, self._owner, now)
        self._holds_lock = True
        if not is_moved:
            return False
        # What would be deleted as it leaves the memory stays in the history then.
        self._keep_history = self._keep_history or is_held(self._using, change.before.id)
        rows = change.rows
        if not change.only_adds or change.completes or not self._keep_history:
            self._change_rows(change)
            if not self._keep_history:
                gone = set(change.left)
                rows = [row for row in rows if row.sequence not in gone]
        coder = None if row_codec.installed is None else self._coder(row_codec.installed, change)
        for new in _batches(rows):
            statements.insert(cursor, change.before.id, new, now, coder)
        if self._beside.rows:
            statements.write_beside(cursor, change.before.id, self._beside.rows)
            self._beside.are_written = True
        if self._uploads is not None:
            self._uploads.refer(_owner_of(change), change.before.id, [(row.sequence, row.files) for row in rows])
        self._announce(change, rows)
        return True

    def _change_rows(self, change: Change) -> None:
        """Write the changes that *change* makes to existing rows."""
        before, after = change.before, change.after
        messages = Message.objects.using(self._using).filter(conversation_id=before.id)
        if change.pinned:
            pinned = messages.filter(sequence__in=change.pinned)
            pinned.filter(is_cleared=True).update(is_cleared=False, token_count=None, counted_by="")
            pinned.update(is_pinned=True, superseded=False)
        if change.unpinned:
            messages.filter(sequence__in=change.unpinned).update(is_pinned=False)
        if not self._keep_history:
            stays = in_memory(Bounds.of(after)) & ~Q(sequence__in=change.superseded)
            for part in memory_parts(Bounds.of(before)):
                messages.filter(part).exclude(stays).delete()
            messages.filter(sequence__in=change.unpinned).exclude(stays).delete()
            if change.relocation is not None or change.removals:
                messages.filter(sequence__in=change.left).delete()
            if change.relocation is not None and before.pinned_count:  # those on the branch that it left are gone
                left = messages.filter(is_pinned=True).count()
                Conversation.objects.using(self._using).filter(pk=before.id).update(pinned_count=left)
            if message_codec.installed is not None:
                message_codec.installed.release(self._using, [before.id])
        if change.relocation is not None:
            _relocate(messages, change.relocation)
        if change.superseded and (self._keep_history or change.relocation is not None or change.hidden):
            messages.filter(sequence__in=change.superseded).update(superseded=True)
        if change.taken_up:
            gone = change.superseded  # others that have left it already are before the window, and may come back
            taken_up = messages.filter(sequence__in=change.taken_up)
            taken_up.update(on_path=True)
            taken_up.exclude(sequence__in=gone).update(superseded=False)
        _follow(messages, change.removals)
        for batch in in_parts(change.emptied, MAX_ROWS):
            messages.filter(sequence__in=batch).update(**_EMPTY)
        if change.originals:
            originals = messages.filter(sequence__in=change.originals)
            originals.update(verbatim=None)
            if message_codec.installed is not None:
                message_codec.installed.release_originals(originals)
        if change.emptied:
            forget_copies(self._using, {before.id: self._key})
        if change.titles:
            conversation = Conversation.objects.using(self._using).filter(pk=before.id)
            if conversation.values_list("title", flat=True).get() in change.titles:
                conversation.update(title="")
        for cut in change.cuts:
            write_cut(messages, cut)
        for sequence, metadata in change.metadata.items():
            messages.filter(sequence=sequence).update(metadata=metadata)
        if change.completes:
            messages.filter(sequence__in=change.completes, is_complete=False).update(is_complete=True)
        for batch in in_parts(change.cleared, MAX_ROWS):
            messages.filter(sequence__in=batch).update(is_cleared=True, token_count=None, counted_by="")
        write_counts(messages, change.counts, after.counted_by)

    def _announce(self, change: Change, rows: Sequence[NewRow]) -> None:
        """Send the signals of *change*, which stored *rows*, after the commit."""
        added = [row.sequence for row in rows]
        for signal, sequences in ((signals.messages_added, added), (self._left_signal, change.left)):
            if not sequences or not signal.receivers:
                continue
            # Its other fields are read when they are accessed.
            conversation = Conversation.from_db(self._using, ("id", "memory_id"), (change.before.id, self._key))
            send = partial(
                signal.send_robust,
                Conversation,
                conversation=conversation,
                sequences=tuple(sequences),
                using=self._using,
            )
            call_after_commit(send, self._using)


def _files_of(change: Change) -> list[Extracted]:
    return [file for row in change.rows for file in row.files]


def _owner_of(change: Change) -> str | None:
    owner: Any = Conversation._meta.get_field("owner")
    return owner.to_key(change.before.owner)  # type: ignore[no-any-return]


def call_after_commit(call: Callable[[], object], using: str) -> None:
    """Call *call* after the transaction in the database *using* is committed; at once outside of transactions."""
    # The block is needed with autocommit off: then Django accepts callbacks only inside a block.
    with transaction.atomic(using=using, savepoint=False):
        transaction.on_commit(call, using=using)


def write_counts(messages: MessageQuerySet, counts: Mapping[int, int], counted_by: str) -> None:
    """Write the token *counts* that *counted_by* made, by the sequence of *messages*, of one conversation."""
    for part in in_parts(list(counts.items()), MAX_ROWS):
        batch = dict(part)
        tokens = Case(*(When(sequence=sequence, then=Value(count)) for sequence, count in batch.items()))
        messages.filter(sequence__in=batch).update(token_count=tokens, counted_by=counted_by)


def write_cut(messages: MessageQuerySet, cut: Cut) -> None:
    """Write *cut* to its message, if it is one of *messages*, of one conversation."""
    # A message that names its parent already keeps it.
    parent = Coalesce("parent_sequence", Value(cut.parent))
    lower = Least(Coalesce("cleared_before", Value(cut.before)), Value(cut.before))
    messages.filter(sequence=cut.sequence).update(parent_sequence=parent, cleared_before=lower)


def not_own(key: str) -> PermissionDenied:
    """Return the error for the conversation *key*, which belongs to another user than the store's owner."""
    return PermissionDenied(f"The conversation {key!r} belongs to another user.")


def _seen(see: Callable[[Snapshot], _T], snapshot: Snapshot | None) -> tuple[_T | None, Exception | None]:
    """Return the result of *see* on *snapshot*, and the error that it raised."""
    if snapshot is None:
        return None, None
    if not snapshot.is_own:
        return None, not_own(snapshot.key)
    try:
        return see(snapshot), None
    except DatabaseError:
        raise
    except Exception as exc:  # noqa: BLE001  # raised by look(), unless the state that was seen is outdated
        return None, exc


def _relocate(messages: MessageQuerySet, relocation: Relocation) -> None:
    """Write which of *messages*, of one conversation, are on its path."""
    behind = messages.filter(Q(on_path=True) | Q(superseded=False), sequence__gt=relocation.shared)
    behind.update(on_path=False, superseded=True)
    for parts in in_parts(relocation.entered, MAX_ROWS):
        within = messages.filter(sequence__range=(parts[0][0], parts[-1][1]), in_history=True)
        is_rejected = Case(When(metadata__has_key=REJECTED, then=Value(True)), default=Value(False))  # it stays away
        within.filter(reduce(or_, (Q(sequence__range=part) for part in parts))).update(
            on_path=True, superseded=is_rejected
        )
    if relocation.shown:
        messages.filter(sequence__in=relocation.shown).update(superseded=False)


def _follow(messages: MessageQuerySet, removals: Sequence[Removed]) -> None:
    """Let *messages* that follow one of *removals* follow what stays in its place."""
    stays = {removed.sequence: removed.parent for removed in removals}
    moved = {removed.child: removed.parent for removed in removals if removed.child is not None}
    for column, parents in (("parent_sequence", stays), ("sequence", moved)):
        for batch in in_parts(list(parents), MAX_ROWS):
            followed = Case(*(When(**{column: each}, then=Value(parents[each])) for each in batch))
            messages.filter(**{f"{column}__in": batch}).update(parent_sequence=followed)


_EMPTY: dict[str, Any] = {
    "text": "",
    "payload": None,
    "verbatim": None,
    "metadata": None,
    "rating_reason": None,
    "token_count": None,
    "counted_by": "",
    "is_complete": True,
    "superseded": True,
    "in_history": False,
    "on_path": False,
    "parent_sequence": None,
    "cleared_before": None,
    "is_cleared": False,
    "is_pinned": False,
}
"""All columns of a removed message except its sequence, its type and its client message id: it is not added again."""


def _batches(rows: Sequence[NewRow]) -> list[Sequence[NewRow]]:
    """Return *rows* in batches that fit one INSERT each."""
    return [rows] if len(rows) == 1 else [*in_batches(rows, attrgetter("sent_bytes"), max_row_bytes(), MAX_ROWS)]
