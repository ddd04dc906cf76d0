"""Which messages follow which, where some of them go, or where it is not known whether what is said of them is so."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from chatmemory_django.branches import Tree


class Thinning:
    """
    A tree of which some messages go: in their place stands the nearest message before them, on their path, that stays.

    *named_parents* are pairs of a sequence and its parent's, in order, and *asked* are the sequences whose stand-in is
    to be known, of the same part of the tree; *last* is the message before that part.
    """

    def __init__(self, named_parents: Iterable[tuple[int, int]], asked: Iterable[int], last: int = 0) -> None:
        self._starts = deque(sorted(named_parents))
        self._asked = deque(sorted(set(asked)))
        self._last = last
        self._stand_ins: dict[int, int] = {}

    def parent_of(self, sequence: int) -> int | None:
        """Return the parent that *sequence* has to name; messages that stay are given one by one, in order."""
        is_start = self._reach(sequence)
        parent = self._last if is_start else None
        self._last = sequence
        return parent

    def stand_in(self, sequence: int) -> int:
        """Return what stands for *sequence*, once all that stays up to it was given."""
        self._reach(sequence)
        self._note_before(sequence + 1)
        return self._stand_ins.get(sequence, sequence)

    def _reach(self, sequence: int) -> bool:
        """Go on to *sequence*; return whether a branch has begun since the last message that stays."""
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
    Which messages of a conversation follow which, and which of them are said to be on its path.

    They are given in order. Little is kept of those that name no parent.
    """

    def __init__(self) -> None:
        self._named: list[tuple[int, int]] = []
        self._stretches: list[tuple[int, int, bool]] = []
        """Their first and their last message, and whether they are said to be on the path."""
        self._path: list[tuple[int, int]] = []

    def add(self, sequence: int, parent: int | None, *, on_path: bool) -> None:
        """Note that *sequence*, of the history, names *parent*."""
        if parent is not None:
            self._named.append((sequence, min(parent, sequence - 1)))  # one that comes later leads nowhere
        if parent is None and self._stretches and self._stretches[-1][2] == on_path:
            self._stretches[-1] = (self._stretches[-1][0], sequence, on_path)
        else:
            self._stretches.append((sequence, sequence, on_path))

    def wrong(self, head: int | None) -> list[tuple[int, int, bool]]:
        """Return the stretches of which the wrong is said, if the conversation goes on from *head*, or the newest."""
        last = self._stretches[-1][1] if self._stretches else 0
        self._path = Tree(self._named, last + 1).path_to(last if head is None else head)
        return [stretch for stretch in self._stretches if not self._is_right(*stretch)]

    def leads_through(self, sequence: int) -> bool:
        """Return whether *sequence* is on the path that ``wrong`` has gone by; 0, before all of it, is."""
        if sequence == 0:
            return True
        start, end = self._part_at(sequence)
        return start <= sequence <= end

    def _is_right(self, first: int, last: int, on_path: bool) -> bool:
        start, end = self._part_at(last)
        return start <= first and last <= end if on_path else end < first

    def _part_at(self, sequence: int) -> tuple[int, int]:
        """The part of the path that begins at *sequence* or before."""
        place = bisect_right(self._path, sequence, key=lambda part: part[0])
        return self._path[place - 1] if place else (0, -1)
