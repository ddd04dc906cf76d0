"""Removing messages, and what quotes them, from a memory and the history: the decisions of ``pop`` and ``remove``."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence

from chatmemory_django.core.branches import summaries_with
from chatmemory_django.core.shortening import first_words, title_of
from chatmemory_django.core.tool_calls import MAX_DISTANCE, counterparts
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.row_codec import Address
from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.models.message_codec import complete
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django.changes import Change, Cut, Removed
from chatmemory_django.stores.django.relocations import stored_rows
from chatmemory_django.stores.django.rows import SUMMARY, Row, messages_of
from chatmemory_django.stores.django.snapshots import Snapshot, without

MAX_GROUP = 1_000
"""How many messages behind a removed one are searched for the original of all of them."""

MAX_READ = 100
"""How many originals are read at a time."""

TITLING = {MessageType.USER, MessageType.AI}
"""The types of message of which titles are made."""

_GROUP = re.compile(r',"rows":(\d{1,9})\}\Z')
"""The end of an original that is several messages; ``formats.verbatim`` writes it."""


class Removal:
    """
    A decision to remove the messages *sequences*, or the newest one, from the memory and the history.

    With *with_counterparts*, the calls or results that belong to them are removed, too. Returns the removed rows; none
    if the newest is requested and the memory is empty.
    """

    holds_for_nothing = False

    def __init__(self, sequences: Sequence[int] | None, *, with_counterparts: bool = False) -> None:
        self._sequences = sequences
        self._with_counterparts = with_counterparts

    def __call__(self, snapshot: Snapshot) -> tuple[list[Row], Change | None]:
        """Decide how the memory changes."""
        state = snapshot.state
        memory = snapshot.memory(state.counted_by)
        sequences = self._sequences
        if sequences is None:
            if not (remembered := [row.sequence for row in memory if row.part != SUMMARY]):
                return [], None
            sequences = [max(remembered)]
        rows = _rows(snapshot, sequences, memory, with_counterparts=self._with_counterparts)
        out = {row.sequence for row in rows}
        summaries = snapshot.summaries()
        emptied = out | (summaries_with(out, summaries, snapshot.tree) if summaries else set())
        removals, head, moved = _removals(snapshot, out)
        stays = {removed.sequence: removed.parent for removed in removals}
        cuts, forgotten = _cuts(snapshot, moved, stays)
        after = without(state, memory, emptied)._replace(
            total_messages=state.total_messages - len(removals),
            parent_sequence=head,
            forgotten_through=max(forgotten, stays.get(state.forgotten_through, state.forgotten_through)),
        )
        left = [row.sequence for row in memory if row.sequence in emptied]
        originals = _originals(snapshot, out)
        titles = {title_of(message) for message in messages_of(rows) if message.type in TITLING} - {""}
        unpinned = snapshot.pinned(sequence__in=out)
        return rows, Change(
            state,
            after._replace(pinned_count=state.pinned_count - len(unpinned)),
            left=left,
            removals=removals,
            emptied=sorted(emptied),
            titles=titles,
            originals=originals,
            cuts=cuts,
        )


class Unquoting:
    """
    A decision to remove what quotes the messages *sequences*, which are old and about to be deleted: the summaries that
    cover one of them, and the title, if it is made of one.
    """

    holds_for_nothing = False

    def __init__(self, sequences: Sequence[int]) -> None:
        self._sequences = sequences

    def __call__(self, snapshot: Snapshot) -> tuple[None, Change | None]:
        """Decide how the memory changes: the next summary is made of what is left."""
        state, summaries = snapshot.state, snapshot.summaries()
        emptied = summaries_with(set(self._sequences), summaries, snapshot.tree) if summaries else set()
        old = snapshot.messages().history(all_branches=True).filter(sequence__in=self._sequences, type__in=TITLING)
        titled = Conversation.objects.using(snapshot.using).filter(pk=state.id).exclude(title="")
        titles = set(titled.values_list("title", flat=True))
        titles &= set(map(first_words, old.values_list("text", flat=True))) if titles else set()
        if not emptied and not titles:
            return None, None
        memory = snapshot.memory(state.counted_by)
        left = [row.sequence for row in memory if row.sequence in emptied]
        after = without(state, memory, emptied)
        return None, Change(state, after, left=left, emptied=sorted(emptied), titles=titles)


class Popping:
    """A decision to remove the newest message; returns it with its files, or None if the memory is empty."""

    holds_for_nothing = False

    def __call__(self, snapshot: Snapshot) -> tuple[ChatMessage | None, Change | None]:
        """Decide how the memory changes."""
        rows, change = Removal(None)(snapshot)
        if not rows:
            return None, change
        # Before they are deleted: what is removed meanwhile is decided again, as all that has changed.
        at = Address(snapshot.using, snapshot.state.id, snapshot.key)
        [message] = messages_of([rows[0]._replace(is_cleared=False)])
        return complete([message], [rows[0].sequence], at)[0], change


def _rows(snapshot: Snapshot, sequences: Sequence[int], memory: list[Row], *, with_counterparts: bool) -> list[Row]:
    """Return the rows of the messages *sequences*, each in the history or the *memory*, and of what belongs to them."""
    rows = {row.sequence: row for row in stored_rows(snapshot, sequences)}
    remembered = {row.sequence: row for row in memory}
    for sequence in dict.fromkeys(sequences):
        if sequence in rows:
            if with_counterparts:
                rows |= {row.sequence: row for row in group_of(snapshot, sequence)}
        elif sequence in remembered:
            rows[sequence] = remembered[sequence]
        else:
            raise MessageNotFoundError(snapshot.key, sequence)
    return [rows[sequence] for sequence in sorted(rows)]


def group_of(snapshot: Snapshot, sequence: int) -> list[Row]:
    """Return the row of message *sequence* of the history, and the rows of what belongs to it."""
    on_path = snapshot.message(sequence).on_path
    near = snapshot.messages().history(all_branches=True).filter(on_path=on_path).values_list("sequence", flat=True)
    before = near.filter(sequence__lt=sequence).order_by("-sequence")[:MAX_DISTANCE]
    after = near.filter(sequence__gt=sequence).order_by("sequence")[:MAX_DISTANCE]
    rows = stored_rows(snapshot, [*before, sequence, *after])
    index = [row.sequence for row in rows].index(sequence)
    return [rows[each] for each in {index} | counterparts(messages_of(rows), index)]


def _originals(snapshot: Snapshot, sequences: Collection[int]) -> list[int]:
    """
    Return the messages with an original that has the text of one of *sequences*, too.

    An original that is several messages is stored next to the last of them, with their number.
    """
    given = snapshot.messages().filter(verbatim__isnull=False).order_by("sequence")
    around = given.filter(sequence__range=(min(sequences) + 1, max(sequences) + MAX_GROUP))
    ends = list(around.values_list("sequence", flat=True))
    behind = {bisect_right(ends, sequence): sequence for sequence in sorted(sequences)}
    groups = {ends[index]: sequence for index, sequence in behind.items() if index < len(ends)}
    originals: list[int] = []
    for batch in in_parts(list(groups), MAX_READ):
        for last, verbatim in given.filter(sequence__in=batch).values_list("sequence", "verbatim"):
            group = _GROUP.search(verbatim or "")
            if group is not None and last - int(group[1]) < groups[last]:
                originals.append(last)
    return originals


def _removals(snapshot: Snapshot, sequences: Collection[int]) -> tuple[list[Removed], int | None, Mapping[int, int]]:
    """
    Return the removals of *sequences* from the history, the conversation's new head, and the cuts of removed messages.

    The cuts are mapped by the messages that they move to.
    """
    history = snapshot.messages().history(all_branches=True).order_by("sequence")
    first, last = min(sequences), max(sequences)
    between = {row[0]: row for row in history.filter(sequence__range=(first, last)).values_list(*_LINKS)}
    before = history.filter(sequence__lt=first).values_list("sequence", flat=True).last() or 0
    following = history.filter(sequence__gt=last).values_list("sequence", "parent_sequence").first()
    is_newest, head = snapshot.state.parent_sequence is None, snapshot.head
    previous = dict(zip(between, [before, *between], strict=False))
    named: dict[int, tuple[int, int | None]] = {}  # the parents of removed messages, and the child that must name it
    for sequence, parent, _ in reversed(between.values()):
        if sequence not in sequences:
            following = sequence, parent
            continue
        child = None
        if parent is not None and following is not None and following[1] is None:
            child = following[0]
            following = child, parent
        named[sequence] = previous[sequence] if parent is None else parent, child
    removals: dict[int, Removed] = {}
    cuts: dict[int, int] = {}
    for sequence, (parent, child) in reversed(named.items()):
        stays = removals[parent].parent if parent in removals else parent
        removals[sequence] = Removed(sequence, stays, child)
        cut = between[sequence][2]
        if cut is not None and stays:
            cuts[stays] = min(cut, cuts.get(stays, cut))
    if head in removals:
        return [*removals.values()], removals[head].parent, cuts
    return [*removals.values()], None if is_newest else head, cuts


def _cuts(snapshot: Snapshot, moved: Mapping[int, int], stays: Mapping[int, int]) -> tuple[list[Cut], int]:
    """
    Return the cuts *moved* to the messages that replace removed ones, and the last of them on the path that remains.

    *stays* maps each removed message to the one that replaces it as a parent.
    """
    cuts: list[Cut] = []
    forgotten = 0
    path = snapshot.messages().history().exclude(sequence__in=stays).order_by("sequence")
    for sequence, before in moved.items():
        known = snapshot.message(sequence)
        parent = snapshot.parent_of(known)
        cuts.append(Cut(sequence, stays.get(parent, parent), before))
        following = path.filter(sequence__gt=sequence).values_list("sequence", flat=True).first()
        if known.on_path and (following is None or following >= before):
            forgotten = max(forgotten, sequence)
    return cuts, forgotten


_LINKS = ("sequence", "parent_sequence", "cleared_before")
