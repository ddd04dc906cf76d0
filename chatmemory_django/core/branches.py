"""
Branches: the tree of a conversation's messages, and the memory when the conversation continues from another message.

A message's parent is the one before it in the history, unless the message names another. Only messages that name their
parent are needed to know the tree: from one of them up to the next is a run, in which each message is the child of the
one before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from chatmemory_django.core.refills import filled
from chatmemory_django.core.windows import Entry, Eviction, Window
from chatmemory_django.messages import MessageType


class Tree:
    """
    The messages of a conversation as runs.

    *named_parents* are pairs of a sequence and its parent's sequence; each pair begins a run. *next_sequence* is above
    all sequences. *cuts* are the messages after which the memory was cleared, each with the sequence that came next
    then; the first message that followed such a one names it as its parent.
    """

    def __init__(
        self,
        named_parents: Iterable[tuple[int, int]],
        next_sequence: int,
        cuts: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        pairs = sorted({1: 0, **dict(named_parents)}.items())
        self._starts = [sequence for sequence, _ in pairs]
        self._parents = [parent for _, parent in pairs]
        self._ends = [*(start - 1 for start in self._starts[1:]), next_sequence - 1]
        self._cuts = cuts

    def path_to(self, sequence: int) -> list[tuple[int, int]]:
        """Return the path from the first message to *sequence*: the first and last sequence of each part, in order."""
        parts: list[tuple[int, int]] = []
        while sequence > 0:
            run = self._run_of(sequence)
            parts.append((self._starts[run], sequence))
            sequence = self._parents[run]
        return parts[::-1]

    def remembered(self, to: int) -> list[tuple[int, int]]:
        """Return the path to *to* without what was cleared before a later part of it was added."""
        parts = self.path_to(to)
        for index in range(len(parts) - 1, 0, -1):
            start, cut = parts[index][0], self._cuts.get(parts[index - 1][1])
            if cut is not None and start >= cut:
                return parts[index:]
        return parts

    def forgotten(self, to: int) -> int:
        """Return the last message on the path to *to* after which the memory was cleared; 0 without one."""
        if to in self._cuts:
            return to
        parts = self.remembered(to)
        return self._parents[self._run_of(parts[0][0])] if parts else 0

    def newest_from(self, sequence: int) -> int:
        """Return an upper bound for the newest message among the descendants of *sequence*."""
        first = self._run_of(sequence)
        reached = {first: sequence}  # the runs that descend from it, and the sequence at which each does
        for run in range(first + 1, len(self._starts)):
            parent = self._parents[run]
            if parent >= reached.get(self._run_of(parent), parent + 1):
                reached[run] = self._starts[run]
        return self._ends[max(reached)]

    def _run_of(self, sequence: int) -> int:
        return max(0, bisect_right(self._starts, sequence) - 1)


def is_on(path: Iterable[tuple[int, int]], sequence: int) -> bool:
    """Return whether message *sequence* is in one of the parts of *path*."""
    return any(start <= sequence <= end for start, end in path)


def is_cut(sequence: int, before: int, next_sequence: int) -> bool:
    """Return whether message *sequence* can have been the newest when *before* was the sequence that came next."""
    return sequence < before <= next_sequence


def fork_point(path: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> int:
    """Return the last message that both paths share; 0 if they share none."""
    shared = 0
    for (start, end), (other_start, other_end) in zip(path, other, strict=False):
        if start != other_start:
            break
        shared = min(end, other_end)
        if end != other_end:
            break
    return shared


class Summary(NamedTuple):
    """A summary and the last message that it covers."""

    entry: Entry
    through: int


def summaries_with(sequences: Collection[int], summaries: Mapping[int, int], tree: Tree) -> set[int]:
    """
    Return which of *summaries* cover one of the messages *sequences*, and from which older ones these can have grown.

    *summaries* maps the key of each to the last message that it covers.
    """
    found: set[int] = set()
    for summary, through in sorted(summaries.items(), reverse=True):
        covered = () if summary in found else tree.remembered(through)
        if any(is_on(covered, each) for each in sequences):
            found.update(each for each in summaries if each <= summary and is_on(covered, summaries[each]))
    return found


class Path(Protocol):
    """The path that a conversation continues on, read only as far as needed."""

    def systems(self, to: int, behind: int) -> Iterable[Entry]:
        """Return the system messages from *to* back to the first one after *behind*."""

    def backwards(self, to: int, behind: int) -> Iterable[Entry]:
        """Return the messages from *to* back to the first one after *behind*, without system messages."""

    def summary(self, to: int, behind: int) -> Summary | None:
        """Return the latest summary that covers nothing after *to* and something after *behind*."""


class Present(NamedTuple):
    """A memory before the conversation continues from another message."""

    entries: Sequence[Entry]
    """In the order of the memory, without the summary, and without pins that have left the window."""
    has_lost_system: bool = True
    """Whether the path may have a system message although the memory has none. Without, the path is not searched."""


def moved(
    present: Present,
    path: Path,
    window: Window,
    *,
    to: int,
    shared: int,
    forgotten: int,
    next_key: int,
    pins: Sequence[Entry] = (),
) -> Eviction:
    """
    Return the memory of a conversation that continues from message *to*, which is not the one it continues from now.

    *path* leads to that message, and up to *shared* it is the path in use. If *to* is inside the window, the messages
    after it leave the memory. If it is before the window, the memory is filled with what fits: the path is read
    backwards, as far as the latest summary. In both cases the system message of that time is put in front, and after it
    those of *pins*, the pinned messages of the path, that would be left out. Nothing else up to *forgotten*, where the
    memory was cleared, comes back.
    """
    summary = path.summary(to, forgotten)
    system = _system(present, path, to=to, shared=shared, forgotten=forgotten)
    front = [entry for entry in (system, summary.entry if summary else None) if entry is not None]
    leads = present.entries[:1] and present.entries[0].type == MessageType.SYSTEM
    following = present.entries[bool(leads) :]
    if to == shared and following and to >= following[0].key:
        leading = None if system is None else system.key
        rest = [entry for entry in following if forgotten < entry.key <= to and entry.key != leading]
    else:
        behind = max(forgotten, summary.through if summary else 0)
        rest = filled(path.backwards(to, behind), front, window)
    pinned = None
    if system is not None:
        if window.always_keep_system_message_first or not rest or system.key < rest[0].key:
            pinned = system
        else:
            rest = sorted([*rest, system], key=lambda entry: entry.key)
    within = {entry.key for entry in rest}
    eviction = Eviction.of_entries(
        rest,
        window,
        next_key=next_key,
        pinned=pinned,
        summary=summary.entry if summary else None,
        pins=[entry for entry in pins if entry.key not in within],
    )
    eviction.trim()
    eviction.begin()  # what was evicted so far left with the move, not with the next addition
    return eviction


def _system(present: Present, path: Path, *, to: int, shared: int, forgotten: int) -> Entry | None:
    """Return the system message that was in force at message *to*."""
    systems = [entry for entry in present.entries if entry.type == MessageType.SYSTEM]
    now = next((entry for entry in systems if forgotten < entry.key <= shared), None)
    # Whatever is newer on the shared part of the path would have replaced it.
    is_known = now is not None or not (systems or present.has_lost_system)
    behind = max(shared, forgotten) if is_known else forgotten
    return _in_force(path.systems(to, behind), now) if to > behind else now


def _in_force(backwards: Iterable[Entry], before: Entry | None) -> Entry | None:
    """Return which of the system messages *backwards*, read as far as *before*, is in the memory: never a repeat."""
    found: Entry | None = None
    for entry in backwards:
        if found is not None and entry.message != found.message:
            return found
        found = entry
    return before if before is not None and (found is None or found.message == before.message) else found


class Thinning:
    """
    A tree some of whose messages are deleted: the nearest remaining ancestor stands in for each.

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
        index = bisect_right(self._path, sequence, key=lambda part: part[0])
        return self._path[index - 1] if index else (0, -1)
