"""Parents of messages: how they change when messages are deleted, and whether the stored ones are correct."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from chatmemory_django.branches import Tree


class Thinning:
    """
    A tree some of whose messages are deleted: the nearest remaining ancestor takes the place of each.

    *named_parents* are pairs of a sequence and its parent's sequence, in order. *asked* are the sequences whose
    replacements will be requested, of the same part of the tree; *last* is the message before that part.
    """

    def __init__(self, named_parents: Iterable[tuple[int, int]], asked: Iterable[int], last: int = 0) -> None:
        self._starts = deque(sorted(named_parents))
        self._asked = deque(sorted(set(asked)))
        self._last = last
        self._stand_ins: dict[int, int] = {}

    def parent_of(self, sequence: int) -> int | None:
        """Return the parent that *sequence* must name, or None; call this for each remaining message, in order."""
        is_start = self._reach(sequence)
        parent = self._last if is_start else None
        self._last = sequence
        return parent

    def stand_in(self, sequence: int) -> int:
        """Return the replacement of *sequence*, after all remaining messages up to it were passed to ``parent_of``."""
        self._reach(sequence)
        self._note_before(sequence + 1)
        return self._stand_ins.get(sequence, sequence)

    def _reach(self, sequence: int) -> bool:
        """Advance to *sequence*; return whether a branch has begun since the last remaining message."""
        begins = False
        while self._starts and self._starts[0][0] <= sequence:
            start, parent = self._starts.popleft()
            self._note_before(start)
            self._last = self._stand_ins.get(parent, parent)
            begins = True
        self._note_before(sequence)
        return begins

    def _note_before(self, sequence: int) -> None:
        while self._asked and self._asked[0] < sequence:
            self._stand_ins[self._asked.popleft()] = self._last


class Claims:
    """
    The parents of a conversation's messages, and which of the messages are marked as being on its path.

    Messages are added in order. Those that name no parent take little memory.
    """

    def __init__(self) -> None:
        self._named: list[tuple[int, int]] = []
        self._stretches: list[tuple[int, int, bool]] = []
        """For each stretch its first and last message, and whether they are marked as being on the path."""
        self._path: list[tuple[int, int]] = []

    def add(self, sequence: int, parent: int | None, *, on_path: bool) -> None:
        """Record that *sequence*, a message of the history, names *parent*."""
        if parent is not None:
            self._named.append((sequence, min(parent, sequence - 1)))  # a parent that comes later is invalid
        if parent is None and self._stretches and self._stretches[-1][2] == on_path:
            self._stretches[-1] = (self._stretches[-1][0], sequence, on_path)
        else:
            self._stretches.append((sequence, sequence, on_path))

    def wrong(self, head: int | None) -> list[tuple[int, int, bool]]:
        """Return the wrongly marked stretches if the conversation continues from *head*, or from its newest message."""
        last = self._stretches[-1][1] if self._stretches else 0
        self._path = Tree(self._named, last + 1).path_to(last if head is None else head)
        return [stretch for stretch in self._stretches if not self._is_right(*stretch)]

    def leads_through(self, sequence: int) -> bool:
        """Return whether *sequence* is on the path that ``wrong`` followed; 0, the start, always is."""
        if sequence == 0:
            return True
        start, end = self._part_at(sequence)
        return start <= sequence <= end

    def _is_right(self, first: int, last: int, on_path: bool) -> bool:
        start, end = self._part_at(last)
        return start <= first and last <= end if on_path else end < first

    def _part_at(self, sequence: int) -> tuple[int, int]:
        """Return the part of the path that begins at *sequence* or before it."""
        place = bisect_right(self._path, sequence, key=lambda part: part[0])
        return self._path[place - 1] if place else (0, -1)
