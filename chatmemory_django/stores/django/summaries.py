"""Summaries: which messages are to be summarized, and the decision to store a summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from django.db.models import Subquery, Value
from django.db.models.functions import Coalesce

from chatmemory_django.core.pending import Failure, Pending, take
from chatmemory_django.core.windows import Entry, Window
from chatmemory_django.messages import MessageType, NewMessage, SystemMessage
from chatmemory_django.models import Conversation, MessageQuerySet
from chatmemory_django.models.windows import Bounds
from chatmemory_django.stores.django.changes import Change, memory_columns, new_row
from chatmemory_django.stores.django.rows import Row, in_window
from chatmemory_django.stores.django.snapshots import Counted, Snapshot, counts_of, entry_of, read_eviction

PAGE = 32
"""How many messages are read at a time: a summary rarely covers more."""


class Summarizing:
    """
    A decision to store *summary* if what it covers is still *pending*; returns whether it was stored.

    ``ValueError`` if it cannot be stored.
    """

    holds_for_nothing = False

    def __init__(self, pending: Pending, summary: SystemMessage, window: Window) -> None:
        self._pending = pending
        self._summary = summary
        self._window = window.without_clearing()
        self._row = new_row(NewMessage(summary, {"through": pending.keys[-1]}))
        self._cost = window.cost(summary) if window.is_additive else None
        self._counted: Counted = {}

    def __call__(self, snapshot: Snapshot) -> tuple[bool, Change | None]:
        """Decide how the memory changes."""
        state, window = snapshot.state, self._window
        if not self._is_pending(snapshot):
            return False, None
        eviction, uncounted = read_eviction(snapshot, window, self._counted)
        sequence = eviction.put_summary(self._summary, self._cost)
        if eviction.summary is None:
            return False, None
        row = msgspec.structs.replace(
            self._row,
            sequence=sequence,
            token_count=self._cost if window.counter else None,
            counted_by=window.counter,
            superseded=True,
            in_history=False,
            on_path=False,
            parent_sequence=self._pending.keys[-1],
        )
        left = [entry.key for entry in (*eviction.evicted, *eviction.replaced)]
        after = state._replace(
            next_sequence=eviction.next_key,
            window_start=state.window_start if eviction.start is None else eviction.start,
            **memory_columns(eviction, state.memory_messages + 1 - len(left)),
        )
        counts = counts_of((row for row in uncounted if row.sequence not in left), self._counted)
        return True, Change(state, after, [row], left, counts).checked()

    def _is_pending(self, snapshot: Snapshot) -> bool:
        """Return whether the conversation still matches *pending*; messages added since then make no difference."""
        state, pending = snapshot.state, self._pending
        stands = state.id, state.summary_sequence, state.forgotten_through
        if stands != (pending.conversation, pending.summary, pending.forgotten_through):
            return False
        keys = pending.keys
        first = uncovered(snapshot, pending.behind).values_list("sequence", flat=True)[: len(keys)]
        return list(first) == keys


def read_pending(snapshot: Snapshot, window: Window, max_tokens: int, *, waits: bool) -> Pending | None:
    """See ``ChatMemoryStore.read_pending``."""
    state = snapshot.state
    text: str | None = None
    through: int | None = 0
    if state.summary_sequence is None:
        conversation = Conversation.objects.using(snapshot.using).filter(pk=state.id)
        noted = conversation.values_list("summary_failure", flat=True).first()
    else:
        summary = snapshot.messages().filter(sequence=state.summary_sequence)
        columns = summary.values_list("text", "parent_sequence", "conversation__summary_failure")
        text, through, noted = columns.first() or (None, None, None)
    behind, next_key = max(state.forgotten_through, through or 0), state.next_sequence
    failure = None if noted is None or noted[0] != behind else Failure._make(noted)
    if waits and failure is not None and failure.lasts(next_key):
        return None
    found = _entries(snapshot, behind, window)
    entries, messages, has_more = take(found, window, max_tokens, failure.times if failure else 0)
    if not entries:
        return None
    replaces, cleared = state.summary_sequence, state.forgotten_through
    return Pending(entries, messages, has_more, text, replaces, cleared, behind, next_key, failure, state.id)


def uncovered(snapshot: Snapshot, behind: int) -> MessageQuerySet:
    """Return the rows after *behind* that have left the memory, in order; system messages are never summarized."""
    # Not the start of the window: after it, there may be messages that were archived without ever being in it.
    in_memory = snapshot.messages().filter(sequence__gte=snapshot.state.window_start, superseded=False)
    if snapshot.state.pinned_sequence is not None:
        in_memory = in_memory.exclude(sequence=snapshot.state.pinned_sequence)
    first = Subquery(in_memory.order_by("sequence").values("sequence")[:1])
    end = Coalesce(first, Value(snapshot.state.next_sequence))
    rows = snapshot.messages().history().filter(sequence__gt=behind, sequence__lt=end)
    return rows.exclude(type=MessageType.SYSTEM.value).order_by("sequence")


def _entries(snapshot: Snapshot, behind: int, window: Window) -> Iterator[Entry]:
    while rows := _page(snapshot, behind, window):
        yield from (entry_of(row, window) for row in rows)
        if len(rows) < PAGE:
            break
        behind = rows[-1].sequence


def _page(snapshot: Snapshot, behind: int, window: Window) -> Sequence[Row]:
    rows = in_window(uncovered(snapshot, behind), window.counter, Bounds.of(snapshot.state))
    found = map(Row._make, rows.values_list(*Row._fields)[:PAGE])
    # What was cleared is summarized whole.
    return [row._replace(tokens=None, is_cleared=False) if row.is_cleared else row for row in found]
