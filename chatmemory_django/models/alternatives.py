"""Positions of messages among their alternatives on other branches: "2 of 3"."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import models
from django.db.models import Count, F, OuterRef, Q, Subquery
from django.db.models.functions import Lag, Lead, RowNumber

from chatmemory_django.messages import MessageType

NEAR = 8
"""How far from a message its neighbor is searched at first: rows that are not part of the history may be in between."""


class Place(NamedTuple):
    """The position of a message among its alternatives, as in "2 of 3"."""

    number: int
    """Starts at 1, in the order in which the messages were stored."""
    of: int
    previous: int | None
    """The sequence of the alternative before it ..."""
    next: int | None
    """... and of the one after it."""


def children_of(history: models.QuerySet[Any], sequence: int) -> set[int]:
    """Return the messages of *history*, of one conversation, that follow message *sequence*; 0 is its beginning."""
    following = history.filter(sequence__gt=sequence).order_by("sequence")
    first = following.values_list("sequence", "parent_sequence").first()
    # Two queries: with OR in a single one, MariaDB and SQLite read the whole conversation.
    children = set(history.order_by().filter(parent_sequence=sequence).values_list("sequence", flat=True))
    if first is not None and first[1] is None:
        children.add(first[0])
    return children


def places_of(conversation: Any, rows: Iterable[Any], types: Collection[MessageType] | None) -> dict[int, Place]:
    """Return what ``Conversation.places`` does."""
    rows = list(rows)
    shown = [row for row in rows if row.in_history and (types is None or row.type in types)]
    is_branch = any(row.in_history and row.parent_sequence is not None for row in rows)
    if not shown or (not is_branch and _are_all_from(min(row.sequence for row in shown), rows, conversation)):
        return {}
    history = conversation.history(all_branches=True).order_by()
    if not is_branch and not history.filter(parent_sequence__isnull=False).exists():
        return {}
    parents = {row.sequence: row.parent_sequence for row in shown if row.parent_sequence is not None}
    # The message right after a parent may follow it without naming it: then it is the first alternative.
    first = {
        sequence: row.sequence
        for sequence, row in _beside(history, parents, 1).items()
        if row.parent_sequence is None and (types is None or row.type in types)
    }
    unnamed = {row.sequence: row.sequence for row in shown if row.parent_sequence is None}
    before = _beside(history, unnamed, -1)
    follows = {sequence: before[sequence].sequence if sequence in before else 0 for sequence in unnamed}
    named = _named_places(history, types, parents, {*parents.values(), *follows.values()})
    leading = {parent: sequence for sequence, (parent, place) in named.items() if place.number == 1}
    places = {
        sequence: Place(1, named[leading[parent]][1].of + 1, None, leading[parent])
        for sequence, parent in follows.items()
        if parent in leading
    }
    for sequence in parents.keys() & named.keys():  # a row may have been removed since it was read
        _, place = named[sequence]
        if sequence in first:
            place = Place(place.number + 1, place.of + 1, place.previous or first[sequence], place.next)
        if place.of > 1:
            places[sequence] = place
    return places


def _are_all_from(first: int, rows: Sequence[Any], conversation: Any) -> bool:
    """
    Return whether *rows* have all messages of *conversation* from message *first* on.

    If none of them names its parent, they have no alternatives: of those, all but the first name it, and come later.
    """
    end: int = conversation.next_sequence
    return len([row for row in rows if first <= row.sequence < end]) == end - first


def _beside(history: models.QuerySet[Any], origins: Mapping[int, int], step: int) -> dict[int, Any]:
    """
    Return the messages of *history* next to *origins*: before them if *step* is -1, after them if it is 1.

    *origins* maps the sequences of messages to sequences to search from; the result has the same keys.
    """
    within = range(step, step * (NEAR + 1), step)
    near = {origin + distance for origin in origins.values() for distance in within if origin + distance > 0}
    if not near:
        return {}
    rows = history.only("sequence", "parent_sequence", "type")
    found = {row.sequence: row for row in rows.filter(sequence__in=near)}
    beside: dict[int, Any] = {}
    for sequence, origin in origins.items():
        distance = next((each for each in within if origin + each in found), None)
        if distance is not None:
            beside[sequence] = found[origin + distance]
    missing = origins.keys() - beside.keys()
    far = [sequence for sequence in missing if step > 0 or origins[sequence] > NEAR + 1]
    return beside | _far_beside(history, far, step) if far else beside


def _far_beside(history: models.QuerySet[Any], sequences: Collection[int], step: int) -> dict[int, Any]:
    """Return the same for any distance; MariaDB reads much of the conversation for this."""
    there = history.model.objects.filter(in_history=True, conversation=OuterRef("conversation"))
    if step < 0:
        nearest = there.filter(sequence__lt=OuterRef("sequence")).order_by("-sequence")
    else:
        nearest = there.filter(sequence__gt=OuterRef("parent_sequence")).order_by("sequence")
    found = history.filter(sequence__in=sequences).annotate(beside=Subquery(nearest.values("sequence")[:1]))
    beside = dict(found.exclude(beside=None).values_list("sequence", "beside"))
    rows = history.only("sequence", "parent_sequence", "type").filter(sequence__in=set(beside.values()))
    by_sequence = {row.sequence: row for row in rows}
    return {sequence: by_sequence[its] for sequence, its in beside.items()}


def _named_places(
    history: models.QuerySet[Any],
    types: Collection[MessageType] | None,
    sequences: Collection[int],
    parents: Collection[int],
) -> dict[int, tuple[int, Place]]:
    """
    Return the parents and places of messages of *types*, by sequence, counting only messages that name their parent.

    Among those that name one of *parents*, the result has the first for each parent, and those of *sequences*.
    """
    if not parents:
        return {}
    # Not by the column itself: for that order, SQLite would read the whole conversation by its primary key.
    in_order: dict[str, Any] = {"partition_by": "parent_sequence", "order_by": F("sequence") + 0}
    named = history.filter(parent_sequence__in=parents)
    siblings = (named if types is None else named.filter(type__in=types)).annotate(
        number=models.Window(RowNumber(), **in_order),
        of=models.Window(Count("sequence"), partition_by="parent_sequence"),
        previous=models.Window(Lag("sequence"), **in_order),
        next=models.Window(Lead("sequence"), **in_order),
    )
    found = siblings.filter(Q(number=1) | Q(sequence__in=sequences))
    rows = found.values_list("sequence", "parent_sequence", *Place._fields)
    return {sequence: (parent or 0, Place(*place)) for sequence, parent, *place in rows}
