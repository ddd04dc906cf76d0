"""
Branches: which messages a conversation goes on from, and what is in its memory when it goes on from another one.

Messages form a tree. The parent of a message is the one before it in the history, or the one that it names. Only those
that name one have to be known to know the tree: from one of them to the next is a run, each message the child of the
one before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from chatmemory_django.messages import MessageType
from chatmemory_django.windows import Entry, Eviction, Window, total_of


class Tree:
    """
    The messages of a conversation as runs, which *named_parents* tell apart: pairs of a sequence and its parent's.

    *next_sequence* is behind all of them.
    """

    def __init__(self, named_parents: Iterable[tuple[int, int]], next_sequence: int) -> None:
        pairs = [(1, 0), *sorted(named_parents)]
        self._starts = [sequence for sequence, _ in pairs]
        self._parents = [parent for _, parent in pairs]
        self._ends = [*(start - 1 for start in self._starts[1:]), next_sequence - 1]

    def path_to(self, sequence: int) -> list[tuple[int, int]]:
        """Return the path from the first message to *sequence*: the first and the last of each part, in order."""
        parts: list[tuple[int, int]] = []
        while sequence > 0:
            run = self._run_of(sequence)
            parts.append((self._starts[run], sequence))
            sequence = self._parents[run]
        return parts[::-1]

    def newest_from(self, sequence: int) -> int:
        """Return where the newest message is, at the latest, that was said on from *sequence*."""
        first = self._run_of(sequence)
        reached = {first: sequence}  # the runs that go on from it, and from where on they do
        for run in range(first + 1, len(self._starts)):
            parent = self._parents[run]
            if parent >= reached.get(self._run_of(parent), parent + 1):
                reached[run] = self._starts[run]
        return self._ends[max(reached)]

    def _run_of(self, sequence: int) -> int:
        return max(0, bisect_right(self._starts, sequence) - 1)


def fork_point(path: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> int:
    """Return the last message that two paths share; 0 if they share none."""
    shared = 0
    for (start, end), (other_start, other_end) in zip(path, other, strict=False):
        if start != other_start:
            break
        shared = min(end, other_end)
        if end != other_end:
            break
    return shared


class Summary(NamedTuple):
    """A summary, and the last message that it covers."""

    entry: Entry
    through: int


class Path(Protocol):
    """The path that a conversation goes on along, read as far as it is needed."""

    def systems(self, to: int, behind: int) -> Iterable[Entry]:
        """The system messages from *to* back to the first one behind *behind*."""

    def backwards(self, to: int, behind: int) -> Iterable[Entry]:
        """The messages from *to* back to the first one behind *behind*, without system messages."""

    def summary(self, to: int, behind: int) -> Summary | None:
        """The latest summary that covers nothing after *to* and something behind *behind*."""


class Present(NamedTuple):
    """A memory as it is, before the conversation goes on from elsewhere."""

    entries: Sequence[Entry]
    """In its order, without the summary."""
    summary: Summary | None
    forgotten_through: int
    """What is up to here was cleared, or replaced by another memory."""


def moved(present: Present, path: Path, window: Window, *, to: int, shared: int, next_key: int) -> tuple[Eviction, int]:
    """
    Return the memory of a conversation that goes on from message *to*, and up to where it has forgotten what was said.

    *path* leads there, and up to *shared* it is the one in use. Within the window, what came later leaves the memory.
    Before it, the memory is what fits of the path: read backwards until it is full, behind the latest summary, with the
    system message of that time. What was cleared or replaced comes back only where *to* lies before that.
    """
    forgotten = present.forgotten_through if present.forgotten_through <= shared else 0
    summary = present.summary
    if to > shared or (summary is not None and summary.through > to):
        summary = path.summary(to, forgotten)
    system = _system(present, path, to=to, shared=shared, forgotten=forgotten)
    front = [entry for entry in (system, summary.entry if summary else None) if entry is not None]
    leads = present.entries[:1] and present.entries[0].type == MessageType.SYSTEM
    following = present.entries[bool(leads) :]
    if to == shared and following and to >= following[0].key:
        rest = [entry for entry in following if entry.key <= to and entry is not system]
    else:
        behind = max(forgotten, summary.through if summary else 0)
        rest = _filled(path.backwards(to, behind), front, window)
    pinned = None
    if system is not None:
        if window.always_keep_system_message_first or not rest or system.key < rest[0].key:
            pinned = system
        else:
            rest = sorted([*rest, system], key=lambda entry: entry.key)
    eviction = Eviction.of_entries(
        rest, window, next_key=next_key, pinned=pinned, summary=summary.entry if summary else None
    )
    eviction.trim()
    kept = eviction.entries()
    rest = kept[len([entry for entry in (eviction.pinned, eviction.summary) if entry is not None]) :]
    # Anew, so that what is added next finds nothing evicted yet.
    anew = Eviction.of_entries(rest, window, next_key=next_key, pinned=eviction.pinned, summary=eviction.summary)
    return anew, forgotten


def _system(present: Present, path: Path, *, to: int, shared: int, forgotten: int) -> Entry | None:
    """The system message of that time."""
    now = next((entry for entry in present.entries if entry.type == MessageType.SYSTEM), None)
    if present.forgotten_through if now is None else now.key > shared:
        return _in_force(path.systems(to, forgotten), None)
    # It is replaced, or forgotten, but never evicted: one that is there is the newest, and without one there was none.
    return _in_force(path.systems(to, shared), now) if to > shared else now


def _in_force(backwards: Iterable[Entry], before: Entry | None) -> Entry | None:
    """Of system messages, read backwards as far as *before*, the one that is in the memory: not one that repeats it."""
    found: Entry | None = None
    for entry in backwards:
        if found is not None and entry.message != found.message:
            return found
        found = entry
    return before if before is not None and (found is None or found.message == before.message) else found


def _filled(backwards: Iterable[Entry], front: Sequence[Entry], window: Window) -> list[Entry]:
    """What of a path is read for a memory that begins with *front*: all that fits, and what trimming has to see."""
    read: deque[Entry] = deque()
    total = total_of(front, window)
    for entry in backwards:
        read.appendleft(entry)
        if total is None:
            size = window.total([each.message for each in (*front, *read) if each.message is not None])
        else:
            size = total = total + (entry.cost or 0)
        # The results of a call are evicted with it, so what they answer must be known.
        if size > window.limit and entry.type != MessageType.TOOL_EXECUTION_RESULT:
            break
    return list(read)
