"""How the branches of a conversation change when messages are deleted from its history."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db.models import Q

from chatmemory_django.core.branches import Thinning
from chatmemory_django.models import Conversation, MessageQuerySet
from chatmemory_django.operations.one_by_one import messages_of
from chatmemory_django.stores.django.changes import Cut
from chatmemory_django.stores.django.writes import write_cut


def leave_branches(conversation: Conversation, gone: MessageQuerySet, around: tuple[int, int]) -> dict[str, Any]:
    """
    Make messages that follow one of *gone* follow the nearest remaining message before it, on its path.

    *gone* are rows of *conversation*, which is locked, in the range *around*. Returns the columns of the conversation
    that change with this. Without branches, this takes one query.
    """
    first, last = around
    rows = messages_of(conversation)
    history = rows.history(all_branches=True)
    in_range = Q(sequence__range=around, parent_sequence__isnull=False) | Q(parent_sequence__range=around)
    links = list(history.filter(in_range).values_list(*_PAIR, "cleared_before"))
    named = {sequence: parent or 0 for sequence, parent, _ in links}
    # A row with a parent that is not part of the history is a summary, and its parent is the last message that it
    # covers.
    summaries = rows.filter(in_history=False, parent_sequence__range=around)
    covered = {sequence: parent or 0 for sequence, parent in summaries.values_list(*_PAIR)}
    head = conversation.parent_sequence
    if not named and not covered and head is None:
        return {}
    before = history.filter(sequence__lt=first).values_list("sequence", flat=True).last() or 0
    following, parent = history.filter(sequence__gt=last).values_list(*_PAIR).first() or (None, None)
    if following is not None and parent is not None:
        named[following] = parent
    going = set(gone.values_list("sequence", flat=True))
    in_order = list(history.filter(sequence__range=around).values_list("sequence", flat=True))
    staying = [sequence for sequence in in_order if sequence not in going]
    newest = (staying or [before])[-1]
    if following is not None:
        staying.append(following)
    elif head is None and in_order and in_order[-1] in going:
        head = in_order[-1]  # until now it needed no name, being the newest message
    reached = last if following is None else following
    cuts = {sequence: cut for sequence, _, cut in links if cut is not None and sequence in going}
    asked = {parent for parent in (*named.values(), *covered.values(), *cuts, head or 0) if first <= parent <= last}
    starts = [(sequence, parent) for sequence, parent in named.items() if first <= sequence <= reached]
    thinning = Thinning(starts, asked, before)
    parents = {sequence: thinning.parent_of(sequence) for sequence in staying}
    parents |= {sequence: thinning.stand_in(parent) for sequence, parent in named.items() if sequence > reached}
    parents |= {sequence: thinning.stand_in(parent) for sequence, parent in covered.items()}
    present = named | covered
    by_parent: dict[int | None, list[int]] = defaultdict(list)
    for sequence, parent in parents.items():
        if parent != present.get(sequence):
            by_parent[parent].append(sequence)
    for parent, children in by_parent.items():
        rows.filter(sequence__in=children).update(parent_sequence=parent)
    stays = history.exclude(sequence__in=going)
    for sequence, cut in cuts.items():
        stand_in = thinning.stand_in(sequence)
        previous = stays.filter(sequence__lt=stand_in).values_list("sequence", flat=True).last() or 0
        write_cut(rows, Cut(stand_in, previous, cut))
    if head is None:
        return {}
    stand_in = thinning.stand_in(head)
    is_newest = conversation.parent_sequence is None and stand_in == newest
    return {"parent_sequence": None if is_newest else stand_in}


_PAIR = ("sequence", "parent_sequence")
