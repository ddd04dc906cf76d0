"""
Which messages stay in a memory: the rules of LangChain4j's windows, as pure functions of (type, calls tools?, cost).

A memory only ever loses messages at its front, behind a system message that is protected there. So the result of an
eviction is described by two positions: the protected message (*pinned*) and where the rest begins (*start*). A store
that reads its messages lazily reads only those that are evicted.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from datetime import timedelta
from types import MappingProxyType
from typing import Protocol, Self

import msgspec

from chatmemory_django.core.clearing import ClearToolResults, cleared, is_shorter_cleared
from chatmemory_django.core.limits import MAX_INTEGER, checked_counter
from chatmemory_django.messages import AiMessage, ChatMessage, MessageType, ToolExecutionResultMessage
from chatmemory_django.tokens import TokenCountEstimator

MAX_PINS = 20
"""How many messages of a conversation can be pinned, those of other branches and the partners of calls included."""

PINS_SHARE = 2
"""Pinned messages may take one part in this many of a window."""

NO_PINS: Mapping[int, bool] = MappingProxyType({})


class Evicted(Protocol):
    """A memory that knows what evicted last; see ``models.Conversation``."""

    @property
    def evicted_limit(self) -> int | None:
        """The limit; None if nothing was evicted."""

    @property
    def evicted_by(self) -> str:
        """Its ``measure``."""


class Window:
    """
    The rule that limits a memory: at most *limit* messages or, with an estimator, *limit* tokens.

    With *evict_to*, a memory that exceeds the limit is evicted down to that lower mark, but not its newest message if
    that fits. So the beginning of what is sent stays the same until the limit is reached again, and a vendor's prompt
    cache holds. Without it, as in LangChain4j, no more is evicted than must be.

    With *idle*, a memory is evicted down to the mark as well when it goes on after a longer pause than that, see
    ``after``: by then, no cache knows its beginning any more.

    A window is additive if the total of a list is ``overhead`` plus the costs of its messages, so that costs can be
    stored and added up. ``counter`` is stored with them, as the name of what counted; it is empty if costs cannot be
    stored, and for a window of messages, which needs none.

    A window that *keeps_all* applies no rule to system messages either: added messages stay unchanged until they are
    removed. One that *refills* brings back what a smaller limit had evicted, see ``core.refills``. What is *reserved*
    of the limit is for what is sent beside the messages, for example the specifications of tools. If it *clears*, old
    results of tools are cleared before messages are evicted.
    """

    def __init__(
        self,
        limit: int,
        estimator: TokenCountEstimator | None = None,
        *,
        evict_to: int | None = None,
        always_keep_system_message_first: bool = False,
        keeps_all: bool = False,
        refills: bool = False,
        reserved: int = 0,
        clears: ClearToolResults | None = None,
        idle: timedelta | None = None,
    ) -> None:
        self.idle = idle
        self.is_cold = False
        """Whether the memory is first evicted down to the mark, whatever its limit."""
        self.reserved = min(reserved, (limit if evict_to is None else evict_to) - 1)
        self.limit = limit - self.reserved
        self.evict_to = None if evict_to is None else evict_to - self.reserved
        self.estimator = estimator
        self.always_keep_system_message_first = always_keep_system_message_first
        self.keeps_all = keeps_all
        self.refills = refills
        self.clears = clears
        # See AdditiveTokenCountEstimator. isinstance() with a protocol would take longer than the rest of this method.
        name, tokens_per_list = getattr(estimator, "name", ""), getattr(estimator, "tokens_per_list", None)
        is_additive = bool(name) and tokens_per_list is not None
        self.counter: str = checked_counter(name) if is_additive else ""
        self.overhead: int = tokens_per_list or 0 if is_additive else 0
        self.is_additive = estimator is None or is_additive

    def unbounded(self) -> Window:
        """Return a window that keeps all messages, and counts like this one if its counts can be stored."""
        return Window(sys.maxsize, self.estimator if self.is_additive else None, keeps_all=True)

    def without_clearing(self) -> Window:
        """Return this window, but one that clears nothing."""
        if self.clears is None:
            return self
        window = copy(self)
        window.clears = None
        return window

    def after(self, pause: timedelta) -> Window:
        """Return the window for what comes after such a *pause*."""
        if self.idle is None or pause <= self.idle:
            return self
        cold = copy(self)
        cold.is_cold = True
        return cold

    def at_once(self) -> Window:
        """Return the window for what goes on, however long the pause was."""
        if self.idle is None:
            return self
        warm = copy(self)
        warm.idle = None
        return warm

    @property
    def evicted_limit(self) -> int:
        """The limit, as it is stored with what it has evicted; a larger one would evict nothing that can be stored."""
        return min(self.limit + self.reserved, MAX_INTEGER)

    @property
    def measure(self) -> str:
        """What the limit is a number of; tokens are tokens whatever counts them, since another model may count them."""
        return "messages" if self.estimator is None else "tokens"

    def outgrows(self, memory: Evicted) -> bool:
        """Return whether this window fills *memory* again: it has a larger limit than the one that evicted last."""
        limit = memory.evicted_limit if self.refills else None
        return limit is not None and memory.evicted_by == self.measure and self.evicted_limit > limit

    def cost(self, message: ChatMessage) -> int:
        """Return how much of the limit *message* takes on its own."""
        return 1 if self.estimator is None else self.estimator.estimate_token_count_in_message(message)

    def total(self, messages: Sequence[ChatMessage]) -> int:
        """Return how much of the limit *messages* take together, which is not always the sum of their costs."""
        return len(messages) if self.estimator is None else self.estimator.estimate_token_count_in_messages(messages)

    @property
    def pins_limit(self) -> int:
        """How much of the limit pinned messages may take together."""
        return self.limit // PINS_SHARE

    def trim(
        self,
        messages: Sequence[ChatMessage],
        costs: Sequence[int] | None = None,
        *,
        summary: int | None = None,
        pins: Mapping[int, bool] = NO_PINS,
    ) -> list[ChatMessage]:
        """Return a new list of those of *messages* that fit; see ``trimmed``."""
        if costs is not None and not self.is_cold and self.overhead + sum(costs) <= self.limit:
            return list(messages)
        return self.trimmed(messages, costs, summary=summary, pins=pins).messages()

    def trimmed(
        self,
        messages: Sequence[ChatMessage],
        costs: Sequence[int] | None = None,
        *,
        summary: int | None = None,
        keys: Sequence[int] | None = None,
        pins: Mapping[int, bool] = NO_PINS,
    ) -> Eviction:
        """Return the memory that *messages* are, without those that do not fit; see ``Eviction.of``."""
        eviction = Eviction.of(messages, self, costs, summary=summary, keys=keys, pins=pins)
        eviction.trim()
        return eviction


NOTHING_LEAVES = -1
"""See ``Eviction``."""


class Entry(msgspec.Struct, gc=False):
    """A message as eviction sees it. *key* orders it in its memory; a *cost* of None is computed when needed."""

    key: int
    type: str
    calls_tools: bool = False
    cost: int | None = None
    message: ChatMessage | None = None
    is_pinned: bool = False
    """Whether it stays in the memory when it leaves the window."""

    def __repr__(self) -> str:
        return f"<Entry {self.key} {self.type}>"


def to_entry(key: int, message: ChatMessage, cost: int | None = None) -> Entry:
    """Return the entry of *message*."""
    calls_tools = isinstance(message, AiMessage) and message.tool_execution_requests != ()
    return Entry(key, message.type, calls_tools, cost, message)


class Eviction:
    """
    A memory to which messages are added at the end, and from which they are evicted at the front.

    *stored* are the entries in the memory, in order, without *pinned*, the system message protected in front of them,
    and *summary*, which comes after that and is evicted last; they are read lazily. A system message that leads the
    others is pinned, so that the summary comes after it. *systems* are the entries of all system messages except the
    summary, with their messages. Added messages get keys from *next_key* on.

    *total* is how much of the limit the memory takes, if the store keeps that number; costs are then added to it and
    subtracted from it. If it is None, the whole memory is counted at every trim, and all entries need messages.

    *pins* are the pinned entries that have left the window, in order; they come between the summary and the *stored*.
    Others that are pinned join them instead of being evicted. If a memory exceeds its limit, they may take
    ``pins_limit`` of it: the oldest of them that do not fit are *aside*, in the memory, but not in ``entries``.

    Entries with keys from *keeps_from* on are never evicted, even if the memory then exceeds its limit; with
    ``NOTHING_LEAVES``, nothing is, not even the summary.
    """

    def __init__(
        self,
        window: Window,
        stored: Iterable[Entry],
        *,
        next_key: int,
        pinned: Entry | None = None,
        summary: Entry | None = None,
        pins: Sequence[Entry] = (),
        systems: Iterable[Entry] = (),
        total: int | None = None,
        keeps_from: int | None = None,
    ) -> None:
        self.window = window
        self.pinned = pinned
        self.summary = summary
        self.pins = list(pins)
        self.aside: list[Entry] = []
        self.total = total
        self._is_cold = window.is_cold
        self.next_key = next_key
        self.keeps_from = sys.maxsize if keeps_from is None else keeps_from
        self.is_limited = False
        """Whether this window's limit has decided where the memory begins, and not an earlier one."""
        self.begin()
        self._stored = iter(stored)
        self._front: deque[Entry] = deque()  # read from the store, but still in the memory
        self._new: deque[Entry] = deque()
        self._systems = [] if window.keeps_all else list(systems)
        self._gone: set[int] = set()  # the keys of evicted and replaced messages

    def begin(self) -> None:
        """Forget what was added and evicted so far, but not what is in the memory."""
        self.start: int | None = None
        """Messages from this key on are still in the memory; None until one is evicted."""
        self.added: list[Entry] = []
        self.evicted: list[Entry] = []
        self.replaced: list[Entry] = []
        self.cleared: dict[int, Entry] = {}
        """The entries of markers that took the place of results, by their keys."""
        self.passed_by: list[Entry] = []
        """
        Added messages that are not in the memory: an equal one already is, or they are only meant for the history.
        """

    @classmethod
    def of(
        cls,
        messages: Sequence[ChatMessage],
        window: Window,
        costs: Sequence[int] | None = None,
        *,
        summary: int | None = None,
        keys: Sequence[int] | None = None,
        pins: Mapping[int, bool] = NO_PINS,
    ) -> Self:
        """
        Return an eviction for a plain list. *keys* are those of its messages and of the next one, by default indexes.

        *costs* are those of its messages, if they are additive. *summary* is the index of the summary, if there is one;
        a message in front of it is pinned. *pins* are the indexes of the pinned messages, in order, each with whether
        it has left the window; what comes before all of these is the system message, and the summary.
        """
        cost_of: Sequence[int | None] = costs or [None] * len(messages)
        key_of = range(len(messages) + 1) if keys is None else keys
        entries = list(map(to_entry, key_of, messages, cost_of))
        for index in pins:
            entries[index].is_pinned = True
        outside = [index for index, is_outside in pins.items() if is_outside]
        leading = outside[0] if summary is None and outside else summary
        front = outside[-1] + 1 if outside else 0 if summary is None else summary + 1
        digest = None if summary is None else entries[summary]
        return cls(
            window,
            entries[front:],
            next_key=key_of[len(entries)],
            pinned=entries[0] if leading else None,
            summary=digest,
            pins=[entries[index] for index in outside],
            systems=[each for each in entries if each.type == MessageType.SYSTEM and each is not digest],
            total=None if costs is None else window.overhead + sum(costs),
        )

    @classmethod
    def of_entries(
        cls,
        entries: Sequence[Entry],
        window: Window,
        *,
        next_key: int,
        pinned: Entry | None = None,
        summary: Entry | None = None,
        pins: Sequence[Entry] = (),
        keeps_from: int | None = None,
    ) -> Self:
        """Return an eviction for a memory that was read completely: *entries* are what comes after the *pins*."""
        everything = [*(entry for entry in (pinned, summary) if entry is not None), *pins, *entries]
        return cls(
            window,
            entries,
            next_key=next_key,
            pinned=pinned,
            summary=summary,
            pins=pins,
            systems=[each for each in everything if each.type == MessageType.SYSTEM and each is not summary],
            total=total_of(everything, window),
            keeps_from=keeps_from,
        )

    def add(
        self, message: ChatMessage, cost: int | None = None, *, key: int | None = None, repeats: bool = False
    ) -> int:
        """
        Add *message* at the end and evict what no longer fits; return its key, or that of its equal.

        *key* is passed for a message that is already stored; it must be above all others. With *repeats*, a system
        message equal to the current one gets a key of its own, though the memory stays unchanged.
        """
        if message.type == MessageType.SYSTEM and self._systems and self._systems[0].message == message:
            return self.pass_by(message, cost) if repeats else self._systems[0].key
        self.trim()
        entry = to_entry(self.next_key if key is None else key, message, cost)
        if key is None:
            self.next_key += 1
        self.added.append(entry)
        if entry.type == MessageType.SYSTEM and not self.window.keeps_all:
            self._replace_system(entry)
        else:
            self._new.append(entry)
        if self.total is not None:
            self.total += self._cost(entry)
        self.trim()
        return entry.key

    def add_again(self, entry: Entry) -> None:
        """Add *entry*, which was in the memory, at the end, and evict what no longer fits."""
        self.trim()
        self.added.append(entry)
        self._new.append(entry)
        if entry.type == MessageType.SYSTEM and not self.window.keeps_all:
            self._systems.append(entry)
        if self.total is not None:
            self.total += self._cost(entry)
        self.trim()

    def split(self, key: int) -> tuple[Eviction, list[Entry]]:
        """Return this memory without the messages from *key* on, and these; the pinned one stays in it."""
        front = {entry.key for entry in self.front}
        earlier: list[Entry] = []
        later: list[Entry] = []
        for entry in self.entries():
            if entry.key not in front:
                (later if entry.key >= key else earlier).append(entry)
        memory = Eviction.of_entries(
            earlier,
            self.window,
            next_key=self.next_key,
            pinned=self.pinned,
            summary=self.summary,
            pins=self.pins,
        )
        return memory, later

    def pass_by(self, message: ChatMessage, cost: int | None = None) -> int:
        """Record a *message* that is only meant for the history, and return its key."""
        entry = to_entry(self.next_key, message, cost)
        self.next_key += 1
        self.added.append(entry)
        self.passed_by.append(entry)
        return entry.key

    def put_summary(self, message: ChatMessage, cost: int | None = None) -> int:
        """Replace the summary with *message*, evict what no longer fits, and return its key."""
        if self.summary is not None:
            self.replaced.append(self.summary)
            if self.total is not None:
                self.total -= self._cost(self.summary)
        self.summary = to_entry(self.next_key, message, cost)
        self.next_key += 1
        if self.total is not None:
            self.total += self._cost(self.summary)
        self.trim()
        return self.next_key - 1

    def trim(self) -> None:
        """Evict messages at the front, except a system message at index 0, if the memory exceeds its limit."""
        total = self.window.total(self.messages()) if self.total is None else self.total
        is_cold, self._is_cold = self._is_cold, False
        if total > self.window.limit or (is_cold and total > (self.window.evict_to or total)):
            self._make_room(total)
        self._pin_leading()

    def _make_room(self, total: int) -> None:
        """Evict messages from a memory that has *total*."""
        limit, low = self.window.limit, self.window.evict_to
        total -= self._lay_aside()
        if self.window.clears is not None:
            freed = self._clear_results(self.window.clears)
            total -= freed
            if self.window.clears.is_enough(freed) and total <= limit and not self.window.is_cold:
                low = None
        is_over = total > limit or (low is not None and total > low)
        self.is_limited |= self.keeps_from != NOTHING_LEAVES and is_over
        pop = self._pop if self.keeps_from == sys.maxsize else self._pop_unkept
        while total > limit and (entry := pop()) is not None:
            total -= self._evict_next(entry)
        if total > limit and self.summary is not None and self.keeps_from > NOTHING_LEAVES:
            summary, self.summary = self.summary, None
            total -= self._evict(summary)
        if low is not None:
            while total > low and (entry := self._pop_unless_last()) is not None:
                total -= self._evict_next(entry)
        if self.total is not None:
            self.total = total

    def _clear_results(self, clears: ClearToolResults) -> int:
        """Put markers in the place of old results, and return what that freed."""
        self._front.extend(self._stored)
        freed = 0
        for entry, message in self._old_results(clears):
            marker = to_entry(entry.key, cleared(message))
            saved = self._cost(entry) - self._cost(marker)
            if saved > 0 or (self.window.estimator is None and is_shorter_cleared(message)):
                self.cleared[entry.key] = marker
                freed += saved
        # Not changed in place: a decision that is made again begins with the same entries.
        self._front = deque(self.cleared.get(entry.key, entry) for entry in self._front)
        self._new = deque(self.cleared.get(entry.key, entry) for entry in self._new)
        return freed

    def _old_results(self, clears: ClearToolResults) -> Iterator[tuple[Entry, ToolExecutionResultMessage]]:
        """Yield the results that *clears* does not keep, for their age or their tool."""
        memory = [entry for entry in (*self._front, *self._new) if entry.key not in self._gone]
        users = [index for index, entry in enumerate(memory) if entry.type == MessageType.USER]
        results = [index for index, entry in enumerate(memory) if entry.type == MessageType.TOOL_EXECUTION_RESULT]
        for index in results[: max(0, len(results) - clears.keep)]:
            entry = memory[index]
            if not users or index > users[-1] or entry.key >= self.keeps_from:
                return  # of the running answer
            message = entry.message
            if entry.is_pinned or not isinstance(message, ToolExecutionResultMessage):
                continue
            if message.tool_name not in clears.exclude:
                yield entry, message

    def entries(self) -> list[Entry]:
        """Return the entries in the memory, in order. This reads everything that is stored."""
        self._front.extend(self._stored)
        rest = [*self._front, *self._new]
        if self._gone:
            rest = [entry for entry in rest if entry.key not in self._gone]
        return [*(entry for entry in (self.pinned, self.summary) if entry is not None), *self.pins, *rest]

    @property
    def front(self) -> list[Entry]:
        """The entries that are in the memory before the window, those *aside* included."""
        return [*(entry for entry in (self.pinned, self.summary) if entry is not None), *self.aside, *self.pins]

    def messages(self) -> list[ChatMessage]:
        """Return the messages in the memory, in order; their entries must have them."""
        return [entry.message for entry in self.entries() if entry.message is not None]

    @property
    def lost_all(self) -> bool:
        """Whether messages were added, and neither any of them nor an equal one is left."""
        return self.added != [] and not self.passed_by and all(entry.key in self._gone for entry in self.added)

    def _pop(self) -> Entry | None:
        """Return the next entry at the front, after the pinned one; None at the end."""
        while True:
            if self._front:
                entry = self._front.popleft()
            elif (following := next(self._stored, None)) is not None:
                entry = following
            elif self._new:
                entry = self._new.popleft()
            else:
                return None
            self.start = entry.key + 1
            if entry.key not in self._gone:
                return entry

    def _pop_unkept(self) -> Entry | None:
        """Return the next entry at the front unless it must stay; None then, and at the end."""
        start = self.start
        entry = self._pop()
        if entry is None or entry.key < self.keeps_from:
            return entry
        self._front.appendleft(entry)
        self.start = start
        return None

    def _pop_unless_last(self) -> Entry | None:
        """Return the next entry at the front unless nothing comes after it and its results; None then, and it stays."""
        start, group = self.start, []
        while (entry := self._pop()) is not None:
            group.append(entry)
            is_result = group[0].calls_tools and entry.type == MessageType.TOOL_EXECUTION_RESULT
            if entry.key >= self.keeps_from or (len(group) > 1 and not is_result):
                break
        self._front.extendleft(reversed(group))
        self.start = start
        return None if entry is None or group[0].key >= self.keeps_from else self._pop()

    def _pin_leading(self) -> None:
        """Pin the message at the front if it belongs before the summary."""
        if self.summary is None or self.pinned is not None:
            return  # the front is not read without need
        start = self.start
        entry = self._pop()
        if pins(entry, pinned=self.pinned, summary=self.summary):
            self.pinned = entry
        elif entry is not None:
            self._front.appendleft(entry)
            self.start = start

    def _evict_next(self, entry: Entry) -> int:
        """Evict *entry*, which was at the front, with the results of its calls, or pin it; return what that freed."""
        if self.pinned is None and entry.type == MessageType.SYSTEM:
            self.pinned = entry
            return 0
        if entry.is_pinned:
            return self._keep(entry)
        return self._evict(entry) + (self._evict_results() if entry.calls_tools else 0)

    def _keep(self, entry: Entry) -> int:
        """Keep *entry*, which is pinned and was at the front, with the results of its calls; return what that freed."""
        self.pins.append(entry)
        while entry.calls_tools and (following := self._pop()) is not None:
            if following.type != MessageType.TOOL_EXECUTION_RESULT or not following.is_pinned:
                self.start = following.key
                self._front.appendleft(following)
                break
            self.pins.append(following)
        return self._lay_aside()

    def _lay_aside(self) -> int:
        """Leave out the oldest pins that have left the window, if they take too much of it; return what that freed."""
        size, freed = sum(map(self._cost, self.pins)), 0
        while self.pins and size - freed > self.window.pins_limit:
            calls_tools = self.pins[0].calls_tools
            freed += self._cost(self.pins[0])
            self.aside.append(self.pins.pop(0))
            while calls_tools and self.pins and self.pins[0].type == MessageType.TOOL_EXECUTION_RESULT:
                freed += self._cost(self.pins[0])
                self.aside.append(self.pins.pop(0))
        return freed

    def _evict(self, entry: Entry) -> int:
        """Evict *entry* and return its cost."""
        self.evicted.append(entry)
        self._forget(entry)
        return self._cost(entry)

    def _evict_results(self) -> int:
        """Evict the tool results that are now at the front and return their cost."""
        freed = 0
        while (entry := self._pop()) is not None:
            is_result = entry.type == MessageType.TOOL_EXECUTION_RESULT and not entry.is_pinned
            if not is_result or entry.key >= self.keeps_from:
                self.start = entry.key
                self._front.appendleft(entry)
                break
            freed += self._evict(entry)
        return freed

    def _replace_system(self, entry: Entry) -> None:
        """Put *entry* where the rules require, and remove the current system message from the memory."""
        if self._systems:
            old = self._systems[0]
            self.replaced.append(old)
            self._forget(old)
            if self.total is not None:
                self.total -= self._cost(old)
            if self.pinned is not None and self.pinned.key == old.key:
                self.pinned = None
        if self.window.always_keep_system_message_first:
            self.pinned = entry
            self._systems.insert(0, entry)
        else:
            self._new.append(entry)
            self._systems.append(entry)

    def _forget(self, entry: Entry) -> None:
        self._gone.add(entry.key)
        if entry.type == MessageType.SYSTEM:
            self._systems = [system for system in self._systems if system.key != entry.key]

    def _cost(self, entry: Entry) -> int:
        if entry.cost is None:
            if entry.message is None:
                raise ValueError(f"The entry with key {entry.key} has neither a cost nor a message to count.")
            entry.cost = self.window.cost(entry.message)
        return entry.cost


class HasType(Protocol):
    """Any object that has the type of a message."""

    @property
    def type(self) -> str:
        """One of ``MessageType``."""


def pins(first: HasType | None, *, pinned: object, summary: object) -> bool:
    """
    Return whether *first*, the message after the *pinned* one and the *summary*, must be pinned.

    A system message that leads its memory comes before the summary.
    """
    return first is not None and first.type == MessageType.SYSTEM and pinned is None and summary is not None


def total_of(entries: Iterable[Entry], window: Window) -> int | None:
    """Return how much of the limit *entries*, which have costs, take together; None if costs are not additive."""
    return window.overhead + sum(entry.cost or 0 for entry in entries) if window.is_additive else None


def continuation(old: Sequence[HasType], new: Sequence[HasType]) -> tuple[bool, int] | None:
    """
    Return how *new* continues *old*: without some messages at the front, and with others at the end.

    The result is whether the first message stays in front, as a protected system message does, and the smallest index
    in *old* from which all messages stay. None if only such a system message, or nothing, would stay.
    """
    if not old:
        return False, 0
    if stay := overlap(old, new):
        return False, len(old) - stay
    if new and old[0].type == MessageType.SYSTEM and old[0] == new[0] and (stay := overlap(old[2:], new[1:])):
        return True, len(old) - stay
    return None


def overlap(old: Sequence[HasType], new: Sequence[HasType]) -> int:
    """Return how many messages at the end of *old* are, at most, the beginning of *new*; in linear time."""
    # The prefix function of Knuth, Morris and Pratt. None, which equals no message, separates the two.
    joined = [*new[: len(old)], None, *old]
    borders = [0]
    for item in joined[1:]:
        border = borders[-1]
        while border and joined[border] != item:
            border = borders[border - 1]
        borders.append(border + (joined[border] == item))
    return borders[-1]


def start_on_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return *messages* without those before the first user message, but with all system messages."""
    started = False
    kept: list[ChatMessage] = []
    for message in messages:
        started = started or message.type == MessageType.USER
        if started or message.type == MessageType.SYSTEM:
            kept.append(message)
    return kept
