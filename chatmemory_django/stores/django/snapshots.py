"""What a writer has read of a conversation when it decides on a change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from django.db import connections
from django.db.backends.utils import CursorWrapper
from django.db.models import Subquery, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce
from django.utils.timezone import is_naive, make_aware

from chatmemory_django.core.branches import Tree
from chatmemory_django.core.clearing import cleared
from chatmemory_django.core.windows import Entry, Eviction, Window, pins, to_entry
from chatmemory_django.db.transactions import as_now, sees_otherwise
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Message, MessageQuerySet
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.windows import Bounds
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import statements
from chatmemory_django.stores.django.rows import (
    FRONT,
    OUTSIDE,
    PIN,
    SUMMARY,
    WINDOW,
    FrontRow,
    Row,
    State,
    front_of,
    in_order,
    memory_rows,
    messages_of,
    summary_index,
)

Counted: TypeAlias = dict[tuple[int, int, bool], int]
"""The costs of messages, by ``key_of`` their row. The content of a row never changes, so it is counted once."""

key_of = attrgetter("conversation_id", "sequence", "is_cleared")
"""Return the key of a row, and whether a marker is in its place."""


class UncountedError(Exception):
    """Messages must be counted, which is not done while other writers wait for the lock. *count* counts them."""

    def __init__(self, count: Callable[[], object]) -> None:
        super().__init__()
        self.count = count


class Known(NamedTuple):
    """A message of the history, as the branches need it; 0 is the start of the conversation."""

    sequence: int = 0
    on_path: bool = True
    is_complete: bool = True
    """Whether its turn has ended."""
    parent_sequence: int | None = None
    cleared_before: int | None = None
    is_head: bool = False
    """Whether it is the newest message of the path."""


_KNOWN = Known._fields[:-1]
_SEQUENCE = Row._fields.index("sequence")


class Snapshot:
    """
    A conversation as its writer read it: its *state* and, if they were read with it, *front*, its window's first rows.

    Other data that a decision needs is read when requested. It *may_count* messages unless other writers wait for it.
    """

    def __init__(
        self,
        key: str,
        state: State,
        using: str,
        front: Sequence[FrontRow] | None = None,
        *,
        is_own: bool = True,
    ) -> None:
        self.key = key
        """The memory id."""
        self.state = state
        self.is_own = is_own
        """Whether the conversation belongs to the store's owner, if it has one."""
        self.using = using
        self.is_locked = False
        self.front = front or ()
        self.front_length = 0 if front is None else FRONT
        """The number of sequences that *front* covers."""
        self.may_count = True
        self.held: Sequence[Entry] | None = None
        """What a turn that goes on has added so far without evicting anything; None if that is not known here."""
        self.hidden: Collection[int] = ()
        """The sequences of rows inside the window that are not in the memory, which is filled again."""

    def beginning_at(self, state: State) -> Snapshot:
        """Return the conversation with this *state*, whose window may begin earlier, still without the front of it."""
        earlier = Snapshot(self.key, state, self.using, is_own=self.is_own)
        earlier.is_locked, earlier.may_count = self.is_locked, self.may_count
        earlier.front_length = self.front_length + self.state.window_start - state.window_start
        return earlier

    def after(self, state: State, held: Sequence[Entry] | None) -> Snapshot:
        """Return the conversation as it is after a write that only added rows, and made this *state* of it."""
        written = Snapshot(self.key, state._replace(version=state.version + 1, updated_at=None), self.using)
        written.held = held
        if state.window_start < self.state.window_start:
            return written  # the memory was filled again
        written.front = [row for row in self.front if row.sequence >= state.window_start]
        end = min(self.state.window_start + self.front_length, self.state.next_sequence)
        written.front_length = max(0, end - state.window_start)
        return written

    def present(self, window: Window) -> Window:
        """Return *window* as it is after the time in which nothing was written to the conversation."""
        moment = self.state.updated_at
        if window.idle is None or moment is None:
            return window
        if isinstance(moment, str):  # of JSON
            moment = datetime.fromisoformat(moment)
        if is_naive(moment):
            moment = make_aware(moment, connections[self.using].timezone)
        return window.after(datetime.now(UTC) - moment)

    def has_counts(self, window: Window) -> bool:
        """Return whether *window* can use the counters of the conversation, without reading its memory."""
        state = self.state
        return window.is_additive and (not state.memory_messages or window.counter in {"", state.counted_by})

    def memory(self, counter: str, **only: Any) -> list[Row]:
        """Return the rows in the memory, in its order, with the tokens that *counter* has counted."""
        return list(map(Row._make, self.memory_rows(counter, **only)))

    def memory_rows(self, counter: str, *, verbatim: bool = False, **only: Any) -> Sequence[tuple[Any, ...]]:
        """Return the same as tuples, followed by *verbatim* if requested."""
        messages = self.messages()
        if not (only or messages.query.select_for_update):
            with connections[self.using].cursor() as cursor:
                read = statements.read_rows(cursor, self.key, self.state, counter, verbatim=verbatim)
            return in_order([row for row in read if row[_SEQUENCE] not in self.hidden] if self.hidden else read)
        messages = messages.filter(**only).exclude(sequence__in=self.hidden)
        parts = memory_rows(messages, Bounds.of(self.state), counter=Value(counter), verbatim=verbatim)
        if messages.query.select_for_update:  # a union cannot lock
            return in_order([row for part in parts for row in part])
        return in_order(parts[0].union(*parts[1:], all=True).order_by())

    @cached_property
    def tree(self) -> Tree:
        """The branches of the conversation."""
        named = self.messages().history(all_branches=True).filter(parent_sequence__isnull=False)
        rows = list(named.values_list("sequence", "parent_sequence", "cleared_before"))
        cuts = {sequence: before for sequence, _, before in rows if before is not None}
        return Tree(((sequence, parent or 0) for sequence, parent, _ in rows), self.state.next_sequence, cuts)

    @cached_property
    def head(self) -> int:
        """The newest message of the path; 0 without one."""
        return self.newest().sequence if self.state.parent_sequence is None else self.state.parent_sequence

    def newest(self, **only: Any) -> Known:
        """Return the newest message of the history, on any branch; 0 without one."""
        rows = self.messages().history(all_branches=True).filter(**only).order_by("sequence")
        found = rows.values_list(*_KNOWN).last()
        known = Known() if found is None else Known(*found)
        return known._replace(is_head=known.sequence == self.head) if only else known

    def message(self, sequence: int) -> Known:
        """Return message *sequence* of the history, on any branch. ``MessageNotFoundError`` if it does not exist."""
        head = self.state.parent_sequence
        rows = self.messages().history(all_branches=True).filter(sequence__gte=sequence).order_by("sequence")
        found = [Known()] if sequence == 0 else []
        found += (Known(*row) for row in rows.values_list(*_KNOWN)[:2])
        if not found or found[0].sequence != sequence:
            raise MessageNotFoundError(self.key, sequence)
        return found[0]._replace(is_head=len(found) == 1 if head is None else head == sequence)

    def cleared_at(self, sequences: Sequence[int]) -> Known | None:
        """Return the last message of *sequences* after which the memory was cleared, or None."""
        cut = self.messages().filter(sequence__in=sequences, cleared_before__isnull=False).order_by("-sequence")
        found = cut.values_list("sequence", flat=True).first()
        return None if found is None else self.message(found)

    def parent_of(self, known: Known) -> int:
        """Return the message that *known* follows; 0 without one."""
        if known.parent_sequence is not None:
            return known.parent_sequence
        return self.newest(sequence__lt=known.sequence).sequence

    def summaries(self) -> dict[int, int]:
        """Return the last message that each summary covers, in use or not, by the sequence of the summary."""
        if self.state.total_messages == self.state.next_sequence - 1:
            return {}  # every stored row is part of the history
        rows = self.messages().filter(in_history=False, parent_sequence__isnull=False)
        return {sequence: through or 0 for sequence, through in rows.values_list("sequence", "parent_sequence")}

    def summarized_through(self) -> Combinable | int:
        """Return the last message that the summary in the memory covers, as a value or a subquery; 0 without one."""
        if self.state.summary_sequence is None:
            return 0
        through = self.messages().filter(sequence=self.state.summary_sequence).values_list("parent_sequence", flat=True)
        if self.is_locked:  # in a subquery, MySQL would see it as it was
            return through.first() or 0
        return Coalesce(Subquery(through), Value(0))

    def pinned(self, **only: Any) -> list[int]:
        """Return the sequences of the messages that are pinned, on any branch."""
        if not self.state.pinned_count:
            return []
        return list(self.messages().filter(is_pinned=True, **only).values_list("sequence", flat=True))

    def behind_front(self, start: int, count: int, counter: str) -> list[Row]:
        """Return the rows of the window from *start* that have one of the next *count* sequences."""
        _, window = memory_rows(self.messages(), Bounds(start, None, None), counter=Value(counter))
        return list(map(Row._make, window.filter(sequence__lt=start + count).order_by("sequence")))

    def next_in_window(self, start: int) -> int | None:
        """Return the sequence of the first row of the window from *start*: branches may have left a gap."""
        rows = self.messages().filter(sequence__gte=start, superseded=False)
        return rows.order_by("sequence").values_list("sequence", flat=True).first()

    def sequences_of(self, client_message_ids: Sequence[str]) -> dict[str | None, int]:
        """Return the sequences of the messages that have one of *client_message_ids*, by that id."""
        known = self.messages().filter(client_message_id__in=client_message_ids)
        return dict(known.values_list("client_message_id", "sequence"))

    def messages(self) -> MessageQuerySet:
        """Return the rows of the conversation, to be read in their current state."""
        messages = Message.objects.using(self.using).filter(conversation_id=self.state.id).order_by()
        return as_now(messages) if self.is_locked else messages


def read(cursor: CursorWrapper, key: str, owner: object) -> Snapshot | None:
    """Read the conversation *key* without a lock, with the front of its window, and whether it belongs to *owner*."""
    found = statements.read(cursor, key, owner)
    if found is None:
        return None
    state, is_own, front = found
    return Snapshot(key, state, cursor.db.alias, front, is_own=is_own)


def lock(cursor: CursorWrapper, key: str, owner: object) -> Snapshot | None:
    """Lock the conversation *key*, waiting for other writers, and read it as it is then; not for SQLite."""
    found = statements.lock(cursor, key, owner)
    if found is None:
        return None
    # A SELECT without a lock may see what the transaction has read before; then the front is read on demand.
    if not sees_otherwise(cursor.db):
        return read(cursor, key, owner)
    return Snapshot(key, found[0], cursor.db.alias, is_own=found[1])


def read_with_memory(
    cursor: CursorWrapper, key: str, counter: str, owner: object, *, is_only_read: bool = False
) -> tuple[Snapshot | None, Sequence[tuple[Any, ...]]]:
    """
    Read the conversation *key* like ``read``, and its memory like ``statements.read_memory``, at once.

    The memory is empty if the conversation has another owner. If it *is_only_read*, the snapshot has no front.
    """
    if not statements.are_arrays(cursor.db):
        return _read_apart(cursor, key, counter, owner)
    found = statements.read_with_memory(cursor, key, counter, owner)
    if found is None:
        return None, []
    state, is_own, memory = found
    front = None if is_only_read else front_of(memory, state, counter)
    return Snapshot(key, state, cursor.db.alias, front, is_own=is_own), memory


def _read_apart(
    cursor: CursorWrapper, key: str, counter: str, owner: object
) -> tuple[Snapshot | None, Sequence[tuple[Any, ...]]]:
    """Do what ``read_with_memory`` does in several statements, again if another writer was in between."""
    snapshot = read(cursor, key, owner)
    while snapshot is not None and snapshot.is_own:
        rows = statements.read_memory(cursor, key, counter, owner)
        before, snapshot = snapshot, read(cursor, key, owner)
        if snapshot is not None and snapshot.state == before.state:
            return snapshot, rows
    return snapshot, []


def without(state: State, memory: Sequence[Row], out: Collection[int]) -> State:
    """Return *state*, which has the memory *memory*, as it is after the messages *out* have left it."""
    kept = [row for row in memory if row.sequence not in out]
    pinned, summary = (None if each in out else each for each in (state.pinned_sequence, state.summary_sequence))
    first = next((row for row in kept if row.part in {WINDOW, PIN}), None)
    if first is not None and pins(first, pinned=pinned, summary=summary):
        pinned = first.sequence
    systems = (row for row in memory if row.type == MessageType.SYSTEM and row.part != SUMMARY)
    return state._replace(
        window_start=state.next_sequence if first is None else first.sequence,
        pinned_sequence=pinned,
        summary_sequence=summary,
        has_lost_system=state.has_lost_system or any(row.sequence in out for row in systems),
        memory_messages=len(kept),
        memory_tokens=sum(row.tokens or 0 for row in kept) if state.counted_by else 0,
    )


def count_rows(rows: Sequence[Row], snapshot: Snapshot, window: Window, counted: Counted) -> None:
    """Count those of *rows* that are not in *counted* yet; ``UncountedError`` if that would make other writers wait."""
    missing = [row for row in rows if key_of(row) not in counted]
    if not missing:
        return
    do_count = partial(_count, missing, window, counted)
    if not snapshot.may_count:
        raise UncountedError(do_count)
    do_count()


def counts_of(rows: Iterable[Row], counted: Counted) -> dict[int, int]:
    """Return the counts of *rows*, of one conversation, from *counted*, by sequence."""
    return {row.sequence: counted[key_of(row)] for row in rows}


def read_eviction(snapshot: Snapshot, window: Window, counted: Counted) -> tuple[Eviction, Sequence[Row]]:
    """
    Read a memory, to be changed by the rules of *window*, and return it with the rows whose token counts must be
    stored.
    """
    rows = snapshot.memory(window.counter)
    uncounted = [row for row in rows if row.tokens is None] if window.counter else []
    count_rows(uncounted, snapshot, window, counted)
    entries = [entry_of(row, window, counted) for row in rows]
    index = summary_index(rows)
    summary = None if index is None else entries.pop(index)
    pinned = entries[0] if rows and rows[0].sequence == snapshot.state.pinned_sequence else None
    rest = entries[pinned is not None :]
    outside = sum(row.part == OUTSIDE for row in rows)
    eviction = Eviction.of_entries(
        rest[outside:],
        window,
        next_key=snapshot.state.next_sequence,
        pinned=pinned,
        summary=summary,
        pins=rest[:outside],
    )
    return eviction, uncounted


def entry_of(row: Row, window: Window, counted: Counted | None = None) -> Entry:
    """Return the entry of *row*, with the cost stored in the row or in *counted*."""
    cost: int | None = None
    if window.estimator is None:
        cost = 1
    elif window.is_additive:
        cost = row.tokens if row.tokens is not None or counted is None else counted.get(key_of(row))
    message = to_message(row.type, row.text, row.payload)
    entry = to_entry(row.sequence, cleared(message) if row.is_cleared else message, cost)
    entry.is_pinned = row.part > WINDOW
    return entry


def _count(rows: Sequence[Row], window: Window, counted: Counted) -> None:
    for row, message in zip(rows, messages_of(rows), strict=True):
        counted[key_of(row)] = window.cost(message)
