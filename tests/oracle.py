"""
What a conversation must be after any sequence of operations: a tree of messages in plain dicts.

This is the memory's documentation as a program, for tests to compare stores with. It is written to be read, not to be
fast, and uses nothing of the package except for its messages.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from copy import copy
from typing import NamedTuple, Protocol, Self

from chatmemory_django.codec import message_to_json
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)

NEAR = 128
"""How many messages before and after a message are searched for the calls or results that belong to it."""

MOST_PINS = 20
"""How many messages can be pinned."""

MOST_AT_ONCE = 256
"""How many messages one summary covers at most."""


class Estimator(Protocol):
    """What counts tokens. The count of a list can differ from the sum of its messages' counts."""

    def estimate_token_count_in_message(self, message: ChatMessage) -> int: ...
    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int: ...


class Clears(NamedTuple):
    """Which old results of tools make way before messages do."""

    keep: int
    """How many of the newest results stay."""
    at_least: int | None = None
    """How much clearing must free, or messages are evicted as well, down to ``evict_to``."""
    exclude: Collection[str] = ()
    """The tools whose results stay."""


class Window(NamedTuple):
    """The limit of a memory: a number of messages or, with an *estimator*, of tokens."""

    limit: int
    estimator: Estimator | None = None
    system_first: bool = False
    keeps_all: bool = False
    """Whether system messages are like any other ones."""
    evict_to: int | None = None
    """What a memory that exceeds the limit is evicted down to; None: no more than must be."""
    refills: bool = False
    """Whether messages come back that a smaller limit had evicted."""
    clears: Clears | None = None
    is_cold: bool = False
    """Whether the memory goes on after a pause, and so is evicted down to ``evict_to`` first, whatever it takes."""

    @property
    def measure(self) -> str:
        """What the limit is a number of."""
        return "messages" if self.estimator is None else "tokens"

    @classmethod
    def unbounded(cls) -> Self:
        """Return a window that keeps everything."""
        return cls(sys.maxsize, keeps_all=True)

    def cost(self, message: ChatMessage) -> int:
        """Return what evicting *message* frees."""
        return 1 if self.estimator is None else self.estimator.estimate_token_count_in_message(message)

    def total(self, messages: Sequence[ChatMessage]) -> int:
        """Return what *messages* take together."""
        return len(messages) if self.estimator is None else self.estimator.estimate_token_count_in_messages(messages)

    def fitting(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return those of *messages*, a memory of their own, that fit."""
        oracle = Oracle()
        oracle.messages = dict(enumerate(messages, 1))
        oracle.window = list(oracle.messages)
        return oracle.seen(self._replace(clears=None)).memory_messages()


class MissingError(LookupError):
    """The history has no such message."""


class Oracle:
    """A conversation. Sequences from 1 are given to everything that is stored; 0 is the beginning, before them all."""

    def __init__(self) -> None:
        self.next = 1
        """The sequence that is given next."""
        self.messages: dict[int, ChatMessage] = {}
        """Everything that has a text: not what was removed or deleted."""
        self.parents: dict[int, int] = {}
        """Of each message of the history, the one that it follows, which may be deleted by now."""
        self.head = 0
        """The message from which the conversation continues: the end of the path."""
        self.cuts: dict[int, int] = {}
        """Where the memory was cleared: the message that was the head, and the sequence that was given next."""
        self.summaries: dict[int, int] = {}
        """Of each summary, the last message that it covers, ..."""
        self.bases: dict[int, int] = {}
        """... and the message up to which everything was forgotten when it was made."""
        self.pinned: int | None = None
        """The system message that is protected in front of the memory."""
        self.summary: int | None = None
        """The summary in the memory, behind the system message."""
        self.window: list[int] = []
        """The rest of the memory."""
        self.evicted: tuple[int, str] | None = None
        """The limit that evicted last, and what it is a number of."""
        self.cleared: set[int] = set()
        """The results in whose place the memory has a marker; they keep their text."""
        self.pins: set[int] = set()
        """The messages that stay in the memory while they are on the path, ..."""
        self.aside: set[int] = set()
        """... and those of them that do not fit what is seen of it now."""
        self.kept_out = 0
        """The last message that was evicted on purpose, or left out of a memory that was set."""

    def copy(self) -> Self:
        """Return the same conversation, independent of this one."""
        twin = copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, copy(value))
        return twin

    # What is there

    def memory(self) -> list[int]:
        """Return the memory: the system message that leads, the summary, pins that left the window, and the rest."""
        outside = self._outside()
        lead = self._lead() if self.pinned is not None or not outside else []
        return [*lead, *self._present(self.summary), *outside, *(self._rest() if lead else self.window)]

    def memory_messages(self) -> list[ChatMessage]:
        return [self.remembered(each) for each in self.memory() if each not in self.aside]

    def remembered(self, sequence: int) -> ChatMessage:
        """Return what the memory has of a message: of a result that is cleared, a marker."""
        message = self.messages[sequence]
        return marker(message) if sequence in self.cleared else message

    def seen(self, window: Window, after: int | None = None) -> Self:
        """Return the conversation as *window* shows it, as if it went on from message *after*; nothing is changed."""
        twin = self.filled_again(window)
        goes_on = after is None
        if after is not None:
            twin._rewind(after, window)
        twin._trim(window, is_cold=window.is_cold and goes_on)
        return twin

    def filled_again(self, window: Window | None) -> Self:
        """
        Return the conversation with what comes back to its memory if *window* is larger than what evicted last.

        That are the last messages of the path before the memory, as many as fit: not what was forgotten or kept out,
        nor what the summary covers. They begin with no result, whose call is not there. If they do not all fit, what
        there is may have ``evict_to`` then.
        """
        twin = self.copy()
        if window is None or not window.refills or self.evicted is None or self.evicted[1] != window.measure:
            return twin
        if window.limit <= self.evicted[0]:
            return twin
        twin.evicted = window.limit, window.measure
        behind = max(self.boundary(self.head), self._covered(), self.kept_out)
        there = [each for each in self.path() if behind < each < self._start() and not self._is_system(each)]

        def size(back: Sequence[int]) -> int:
            return window.total([self.remembered(each) for each in (*self.memory(), *back)])

        most = window.limit if window.evict_to is None or size(there) <= window.limit else window.evict_to
        possible = (there[index:] for index in range(len(there)) if not self._is_result(there[index]))
        back = next((each for each in possible if size(each) <= most), [])
        twin.window = [*back, *self.window]
        if self.pinned is not None and back and back[0] < self.pinned and not window.system_first:
            twin.pinned, twin.window = None, sorted([self.pinned, *twin.window])
        return twin

    def path(self, to: int | None = None) -> list[int]:
        """Return the messages from the first one to message *to*, or to the head."""
        return [each for each in self._line(to) if each in self.messages]

    def history(self) -> list[int]:
        """Return the messages of all branches."""
        return [each for each in self.parents if each in self.messages]

    def boundary(self, to: int) -> int:
        """Return the message up to which everything is forgotten for message *to*; 0 if nothing is."""
        following: int | None = None
        for each in reversed(self._line(to)):
            if each in self.cuts and (following is None or following >= self.cuts[each]):
                return each
            following = each
        return 0

    def pending(self) -> list[int]:
        """Return the messages that left the memory and that no summary covers."""
        behind = max(self.boundary(self.head), self._covered())
        end = self.window[0] if self.window else self.next
        return [each for each in self.path() if behind < each < end and not self._is_system(each)]

    def to_summarize(self, window: Window, most: int) -> tuple[list[int], bool]:
        """Return those of the pending messages that one summary of *most* tokens covers, and whether there are more."""
        taken: list[int] = []
        tokens = before = 0
        for each in self.pending():
            tokens += window.cost(self.messages[each])
            if not self._is_result(each):
                before = len(taken)  # those before this message, which its results follow
            if len(taken) == MOST_AT_ONCE or (before and tokens > most):
                return taken[: before or None], True
            taken.append(each)
        return taken, False

    # What is done

    def add(
        self,
        messages: Sequence[ChatMessage],
        window: Window,
        *,
        after: int | None = None,
        completes: Sequence[int] = (),
        repeats: bool = False,
        archived: bool = False,
        evicts: bool = True,
    ) -> list[int]:
        """
        Add *messages*, and before them those that were set aside, which are *completes*; return their sequences.

        For those of a turn that goes on, nothing *evicts*.
        """
        twin = self.filled_again(window)
        before = twin.copy()
        room = window if evicts else window._replace(limit=sys.maxsize, evict_to=None)
        sequences = twin._append(messages, window, room, after, completes, repeats=repeats, archived=archived)
        twin.aside = set()
        is_cold = window.is_cold and after is None  # a pause is none for what goes on elsewhere
        if vars(twin) != vars(before) and (twin.next != before.next or not is_cold or completes):
            self._become(twin)
        return sequences

    def _append(
        self,
        messages: Sequence[ChatMessage],
        window: Window,
        room: Window,
        after: int | None,
        completes: Sequence[int],
        *,
        repeats: bool,
        archived: bool,
    ) -> list[int]:
        is_cold = window.is_cold and after is None
        if is_cold:
            self._trim(window, is_cold=True)
        room = room if is_cold else room._replace(is_cold=False)
        if after is not None:
            self._check(after, *completes)
            if cleared := [each for each in completes if each in self.cuts]:  # nothing up to it comes back
                after, completes = cleared[-1], [each for each in completes if each > cleared[-1]]
            self._rewind(after, window)
            if completes and after in self.cuts:  # what was set aside counts from now on
                self.cuts[after] = min(self.cuts[after], completes[0])
            for each in completes:
                if self._same_system(self.messages[each], window) is None:
                    self._receive(each, room)
                self.head = each
        sequences = []
        for message in messages:
            same = None if archived else self._same_system(message, window)
            if same is not None and not repeats:
                sequences.append(same)
                continue
            self.head = self._store(message, after=self.head)
            sequences.append(self.head)
            if same is None and not archived:
                self._receive(self.head, room)
            if archived:
                self.kept_out = self.head
        return sequences

    def end_turn(self, turn: Sequence[int], messages: Sequence[ChatMessage], window: Window) -> list[int]:
        """Add *messages*, with which *turn* ends, and before them, one by one, all that was added since it began."""
        since = [each for each in self.window if each >= min(turn)]
        self.window = self.window[: len(self.window) - len(since)]
        pins, self.pins = self.pins, self.pins.difference(since)
        for each in since:
            self._trim(window)
            self.window.append(each)
            self.pins |= pins & {each}
            self._trim(window)
        return self.add(messages, window)

    def set_aside(self, messages: Sequence[ChatMessage], after: int, window: Window | None = None) -> list[int]:
        """Store *messages* as a branch that nobody has entered yet."""
        self._check(after)
        self._become(self.filled_again(window))
        sequences: list[int] = []
        for message in messages:
            sequences.append(self._store(message, after=sequences[-1] if sequences else after))
        return sequences

    def set(self, messages: Sequence[ChatMessage], window: Window | None = None) -> None:
        """
        Make *messages* the memory.

        If that drops some at the front and adds others at the end, the others are added now. Anything else is a memory
        that somebody composed: the history stays as it is, and is forgotten for what is added from now on.
        """
        given, limited = _comparable(messages), False
        if window is not None:
            limited, messages = window.total(messages) > window.limit, window.fitting(messages)
        new = _comparable(messages)
        twin = self.filled_again(window)
        if new == _comparable(twin.memory_messages()):
            return
        self._become(twin)
        old = [each for each in self.memory() if each != self.summary]
        kept = self._kept(old, new)
        not_left_out = kept if not kept or new == given else self._kept(old, given)
        self.kept_out = max([self.kept_out, *self._fronts(old, not_left_out)])
        if limited:
            self.evicted = window.limit, window.measure
        is_composed = bool(old and not kept)
        if is_composed:
            self._cut()
        self.summary = None
        outside = self._outside()
        self.pins -= {*old} - {*kept}
        stays_in_front = bool(kept) and (kept[0] == self.pinned or (kept[0] == old[0] and len(kept) < len(old)))
        self.pinned = kept[0] if stays_in_front else None
        self.window = [each for each in kept[self.pinned is not None :] if each not in outside]
        for message in messages[len(kept) :]:
            sequence = self._store(message, after=None if is_composed else self.head)
            self.head = self.head if is_composed else sequence
            self.window.append(sequence)

    def clear(self) -> None:
        """Empty the memory and every summary. What is added from now on knows nothing of what there is so far."""
        self._cut()
        for each in list(self.summaries):
            self._empty(each)
        self.pins = set()
        self._leave(self.memory())

    def evict(self, count: int, window: Window | None = None) -> list[int]:
        """Take the first *count* messages out of the memory that are not pinned."""
        twin = self.filled_again(window)
        evicted = [each for each in twin.memory() if each not in self.pins][:count]
        if evicted:
            self._become(twin)
            self.kept_out = max([self.kept_out, *(each for each in evicted if not self._is_system(each))])
            self._leave(evicted)
        return evicted

    def pop(self, window: Window | None = None) -> ChatMessage | None:
        """Remove the newest message of the memory, which is never the summary."""
        twin = self.filled_again(window)
        remembered = [each for each in twin.memory() if each != self.summary]
        if not remembered:
            return None
        self._become(twin)
        message = self.messages[max(remembered)]
        self.remove(max(remembered))
        return message

    def remove(self, *sequences: int, with_results: bool = False) -> list[int]:
        """Remove messages from memory and history, with the summaries that can have it."""
        for each in sequences:
            if each not in self.history() and each not in self.memory():
                raise MissingError(each)
        removed = set(sequences)
        if with_results:
            removed.update(*(self._counterparts(each) for each in sequences))
        covering = {summary for summary in self.summaries for each in removed if self._covers(summary, each)}
        for summary in covering | {older for newer in covering for older in self._grown_from(newer)}:
            self._empty(summary)
        for each in sorted(removed):
            self._leave([each])
            self._empty(each)
            self._take_out(each)
        return sorted(removed)

    def can_pin(self, sequence: int, window: Window) -> bool:
        """Return whether there is room for a message of the path, and what belongs to it: in half of *window*."""
        pins = self.pins.union(self.group(sequence))
        costs = (window.cost(self.messages[each]) for each in pins.intersection(self.path()))
        has_room = len(pins) <= MOST_PINS and sum(costs) <= window.limit // 2
        return pins == self.pins or (has_room and not self._is_system(sequence))

    def pin(self, sequence: int) -> list[int]:
        """Keep a message of the path in the memory, with what belongs to it; inside the window, in its place."""
        new = {*self.group(sequence)} - self.pins
        self.pins |= new
        self.window = sorted({*self.window, *(each for each in new if each > self._start())})
        return self.group(sequence)

    def unpin(self, sequence: int) -> list[int]:
        """Keep it no longer."""
        self.pins.difference_update(self.group(sequence))
        return self.group(sequence)

    def rewind(self, to: int, window: Window) -> None:
        """Go on from message *to*."""
        self._check(to)
        if to != self.head:
            self._become(self.filled_again(window))
            self._rewind(to, window)
            self.aside = set()

    def _rewind(self, to: int, window: Window) -> None:
        self._check(to)
        if to == self.head:
            return
        path, before, forgotten = self.path(to), self.path(), self.boundary(to)
        shared = max((each for each in path if each in before), default=0)
        following = self._rest()
        memory = [*self._lead(), *following]
        system = self._system_at(path, memory, shared, forgotten)
        self.summary = self._summary_at(path, forgotten)
        self.pinned = None
        if to == shared and following and following[0] <= to:
            self.window = [each for each in following if forgotten < each <= to and each != system]
        else:
            behind = max(forgotten, self._covered())
            there = [each for each in path if each > behind and not self._is_system(each)]
            self.window = self._last_of(there, [*self._present(system), *self._present(self.summary)], window)
        if system is not None:
            if window.system_first or not self.window or system < self.window[0]:
                self.pinned = system
            else:
                self.window = sorted([*self.window, system])
        self.head = to
        self._trim(window._replace(clears=None))
        self.kept_out = self.kept_out if self.kept_out < self._start() else 0

    def switch(self, to: int, window: Window) -> int:
        """Go on from the newest message that descends from message *to*."""
        self._check(to)
        descendants = {to}
        for each in sorted(self.parents):  # a message comes after the one that it follows
            if self.parents[each] in descendants:
                descendants.add(each)
        newest = max(descendants & {to, *self.history()})
        self.rewind(newest, window)
        return newest

    def put_summary(self, message: SystemMessage, covered: Sequence[int], window: Window) -> bool:
        """Make *message*, which covers the pending messages *covered*, the summary, if it fits the memory."""
        if not covered or self.pending()[: len(covered)] != list(covered):
            return False
        twin = self.copy()
        twin.summary = twin._store(message, after=None)
        twin._trim(window._replace(clears=None))
        twin.aside = set()
        if twin.summary is None:
            return False
        twin.summaries[twin.summary], twin.bases[twin.summary] = covered[-1], self.boundary(self.head)
        self._become(twin)
        return True

    def forked(self, through: int | None, window: Window) -> Self:
        """Return a copy that goes on from message *through*, without what is not on its path."""
        twin = self.copy()
        if through is not None:
            twin._rewind(through, window)
            twin.aside = set()
        path = twin._line()
        twin.parents = {each: twin.parents[each] for each in path}
        twin.summaries = {each: last for each, last in twin.summaries.items() if last in path}
        kept = {*path, *twin.summaries, *twin.memory()}
        twin.messages = {each: message for each, message in twin.messages.items() if each in kept}
        twin.cleared &= kept
        twin.pins &= kept
        twin.next = max(kept, default=0) + 1
        # What is added to it comes after everything that was forgotten.
        twin.cuts = {each: min(cut, twin.next) for each, cut in twin.cuts.items() if each in path}
        twin.kept_out = min(twin.kept_out, twin.next - 1)
        return twin

    def forget_history(self) -> None:
        """Delete whatever is not in the memory; the conversation continues from what is left of its path."""
        self.delete(self.messages.keys() - self.memory())
        self.head = ([0, *self.path()])[-1]

    def delete(self, sequences: Iterable[int]) -> None:
        """Delete *sequences*. Unlike those that are removed, they keep their places in the tree, but not their cuts."""
        for each in sequences:
            self._empty(each)
        for each in sorted(self.cuts, reverse=True):
            if each not in self.messages:
                last, cut = [0, *self.path(each)][-1], self.cuts.pop(each)
                if last:
                    self.cuts[last] = min(cut, self.cuts.get(last, cut))
                    self.head = last if self.head == each else self.head

    # The window

    def _trim(self, window: Window, *, is_cold: bool = False) -> None:
        """
        Evict from the front until the memory fits *window*: never a system message in front; last, the summary.

        Pins stay. Of those that have left the window, only the newest that fit in half of the limit count.
        """
        total, low = window.total(self.memory_messages()), window.limit
        if total > window.limit or (is_cold and window.evict_to is not None and total > window.evict_to):
            total -= self._lay_aside(window)
            freed = self._clear(window)
            total -= freed
            least = None if window.clears is None else window.clears.at_least
            is_too_little = window.is_cold or least is None or freed < least
            if window.evict_to is not None and (is_too_little or total > window.limit):
                low = window.evict_to
        if total > low:
            self.evicted = window.limit, window.measure
        while self.window and (total > window.limit or (total > low and len(self.window) > self._first_group())):
            first = self.window[0]
            group = self.window[: self._first_group()]
            stays = [each in self.pins for each in group]
            leaving = group[: [*stays, not stays[0]].index(not stays[0])]
            if self.pinned is None and self._is_system(first):
                self.pinned = first
            elif first not in self.pins:
                total -= sum(window.cost(self.remembered(each)) for each in leaving)
            del self.window[: len(leaving)]
            total -= self._lay_aside(window)
        if total > window.limit:
            self.summary = None
        self._protect()

    def _lay_aside(self, window: Window) -> int:
        """Leave out the oldest pins outside the window that take more than half of it, and return what that frees."""
        pins = [each for each in self._outside() if each not in self.aside]
        costs = [window.cost(self.remembered(each)) for each in pins]
        first = 0
        while sum(costs[first:]) > window.limit // 2:
            calls_tools = self._calls_tools(pins[first])
            first += 1
            while calls_tools and first < len(pins) and self._is_result(pins[first]):
                first += 1
        self.aside.update(pins[:first])
        return sum(costs[:first])

    def _outside(self) -> list[int]:
        """Return the pins of the path that have left the window."""
        return [each for each in self.path() if each in self.pins and each not in self.window] if self.pins else []

    def _clear(self, window: Window) -> int:
        """
        Clear results of tools, and return what that frees: not the newest ones, none of excluded tools, none that is no
        larger than its marker, and none that comes after the newest message of a user, whose answer may be running.
        """
        if window.clears is None:
            return 0
        results = [each for each in self.window if self._is_result(each)]
        newest = results[::-1][: window.clears.keep]
        users = [index for index, each in enumerate(self.window) if isinstance(self.messages[each], UserMessage)]
        answered = self.window[: users[-1]] if users else []
        freed = 0
        for each in results:
            result = self.remembered(each)
            if each in newest or each not in answered or result.tool_name in window.clears.exclude:
                continue
            saved = window.cost(result) - window.cost(marker(result))
            longer = len("".join(content.text for content in result.contents)) > len(marker(result).text)
            if saved > 0 or (window.estimator is None and longer):
                self.cleared.add(each)
                freed += saved
        return freed

    def _start(self) -> int:
        """Return where the window begins."""
        return [*self.window, self.next][0]

    def _become(self, twin: Self) -> None:
        vars(self).update(vars(twin))

    def _first_group(self) -> int:
        """Return how many messages leave the memory with the first one: the results that stand directly behind it."""
        size = 1
        if self._calls_tools(self.window[0]):
            while size < len(self.window) and self._is_result(self.window[size]):
                size += 1
        return size

    def _receive(self, sequence: int, window: Window) -> None:
        """Take a stored message into the memory. A system message takes the place of the present one."""
        self._trim(window)
        if self._is_system(sequence) and not window.keeps_all:
            replaced = self._systems()[:1]
            self.pinned = None if self.pinned in replaced else self.pinned
            self.window = [each for each in self.window if each not in replaced]
            if window.system_first:
                self.pinned = sequence
        if self.pinned != sequence:
            self.window.append(sequence)
        self._trim(window)

    def _same_system(self, message: ChatMessage, window: Window) -> int | None:
        """Return the present system message, if *message* is an equal one: adding that changes nothing."""
        present = [] if window.keeps_all else self._systems()
        if isinstance(message, SystemMessage) and present and self.messages[present[0]] == message:
            return present[0]
        return None

    def _last_of(self, path: Sequence[int], front: Sequence[int], window: Window) -> list[int]:
        """Return the last messages of *path*, from the first one, reading backwards, that no longer fits."""
        for index in reversed(range(len(path))):
            size = window.total([self.remembered(each) for each in (*front, *path[index:])])
            if size > window.limit and not self._is_result(path[index]):
                return list(path[index:])
        return list(path)

    def _fronts(self, old: Sequence[int], kept: Sequence[int]) -> list[int]:
        """Return the messages of the *old* memory that are not *kept*, without system messages."""
        return [each for each in old if each not in kept and not self._is_system(each)]

    def _systems(self) -> list[int]:
        return [each for each in self.memory() if each != self.summary and self._is_system(each)]

    def _lead(self) -> list[int]:
        """Return the system message in front: the pinned one, or the first of the window."""
        if self.pinned is not None:
            return [self.pinned]
        return [each for each in self.window[:1] if self._is_system(each)]

    def _rest(self) -> list[int]:
        return self.window if self.pinned is not None else self.window[len(self._lead()) :]

    def _leave(self, sequences: Collection[int]) -> None:
        """Take *sequences* out of the memory."""
        self.pinned = None if self.pinned in sequences else self.pinned
        self.summary = None if self.summary in sequences else self.summary
        self.window = [each for each in self.window if each not in sequences]
        self._protect()

    def _protect(self) -> None:
        """Protect the system message that leads in front of a summary, which is not in the window."""
        if self.summary is not None and self.pinned is None and self._lead():
            self.pinned = self.window.pop(0)

    def _kept(self, old: Sequence[int], new: Sequence[str]) -> list[int]:
        """Return which of the *old* messages a *new* memory begins with, if it only drops some at the front."""
        before = _comparable(self.remembered(each) for each in old)
        if stay := _overlap(before, new):
            return list(old[-stay:])
        if old and self._is_system(old[0]) and before[:1] == new[:1] and (stay := _overlap(before[2:], new[1:])):
            return [old[0], *old[-stay:]]
        return []

    # The tree

    def _store(self, message: ChatMessage, *, after: int | None) -> int:
        """Give *message* a sequence; it is history if it comes *after* another one."""
        sequence = self.next
        self.next += 1
        self.messages[sequence] = message
        if after is not None:
            self.parents[sequence] = after
        return sequence

    def _line(self, to: int | None = None) -> list[int]:
        """Return the path to message *to*, or to the head, with what was deleted."""
        line: list[int] = []
        each = self.head if to is None else to
        while each:
            line.append(each)
            each = self.parents[each]
        return line[::-1]

    def _cut(self) -> None:
        """Leave a cut at the head, unless there is one, or nothing to forget."""
        if self.head:
            self.cuts.setdefault(self.head, self.next)

    def _empty(self, sequence: int) -> None:
        """Delete the text of a message."""
        self.messages.pop(sequence, None)
        self.cleared.discard(sequence)
        self.pins.discard(sequence)
        self.summaries.pop(sequence, None)
        self.bases.pop(sequence, None)
        self._leave([sequence])

    def _take_out(self, sequence: int) -> None:
        """Take a message out of the tree: its parent gets its children and its cut."""
        if sequence not in self.parents:
            return
        parent = self.parents.pop(sequence)
        for each, other in self.parents.items():
            if other == sequence:
                self.parents[each] = parent
        cut = self.cuts.pop(sequence, None)
        if cut is not None and parent:
            self.cuts[parent] = min(cut, self.cuts.get(parent, cut))
        if self.head == sequence:
            self.head = parent

    def _check(self, *sequences: int) -> None:
        for each in sequences:
            if each != 0 and (each not in self.parents or each not in self.messages):
                raise MissingError(each)

    def _system_at(self, path: Sequence[int], memory: Sequence[int], shared: int, forgotten: int) -> int | None:
        """Return the system message at the end of *path*."""
        present = [each for each in memory if self._is_system(each) and forgotten < each <= shared]
        system = present[0] if present else None
        systems = (each for each in path if each > (shared if present else forgotten) and self._is_system(each))
        for each in systems:
            if system is None or self.messages[each] != self.messages[system]:
                system = each
        return system

    # Summaries

    def _summary_at(self, path: Sequence[int], forgotten: int) -> int | None:
        """Return the summary that covers most of *path*; of several, the newest."""
        found = [(last, each) for each, last in self.summaries.items() if last in path and last > forgotten]
        return max(found)[1] if found else None

    def _covered(self) -> int:
        """Return the last message that the summary in the memory covers."""
        return 0 if self.summary is None else self.summaries[self.summary]

    def _covers(self, summary: int, sequence: int) -> bool:
        """Return whether *summary* can have something of message *sequence*, which may be deleted by now."""
        return sequence > self.bases[summary] and sequence in self._line(self.summaries[summary])

    def _grown_from(self, summary: int) -> list[int]:
        """Return the older summaries that *summary* can have been made of."""
        return [each for each, last in self.summaries.items() if each < summary and self._covers(summary, last)]

    # Messages

    def group(self, sequence: int) -> list[int]:
        """Return a message with what belongs to it: the whole call, if it is part of one."""
        return self._counterparts(sequence) or [sequence]

    def _counterparts(self, sequence: int) -> list[int]:
        """Return a call with its results, if the message is one of them."""
        path = self.path()
        there = [each for each in sorted(self.history()) if (each in path) == (sequence in path)]
        if sequence not in there:
            return []
        index = there.index(sequence)
        answered: dict[int, list[int]] = {}
        open_calls: list[tuple[int, str | None, str | None]] = []
        for each in there[max(0, index - NEAR) : index + NEAR + 1]:
            message = self.messages[each]
            if isinstance(message, AiMessage):
                open_calls += ((each, call.id, call.name) for call in message.tool_execution_requests)
            elif isinstance(message, ToolExecutionResultMessage):
                for call in reversed(open_calls):
                    by_id = message.id is not None and call[1] == message.id
                    by_name = message.id is None and call[1] is None and call[2] == message.tool_name
                    if by_id or by_name:
                        open_calls.remove(call)
                        answered.setdefault(call[0], [call[0]]).append(each)
                        break
        return next((together for together in answered.values() if sequence in together), [])

    def _is_system(self, sequence: int) -> bool:
        return isinstance(self.messages[sequence], SystemMessage)

    def _is_result(self, sequence: int) -> bool:
        return isinstance(self.messages[sequence], ToolExecutionResultMessage)

    def _calls_tools(self, sequence: int) -> bool:
        message = self.messages[sequence]
        return isinstance(message, AiMessage) and bool(message.tool_execution_requests)

    def _present(self, sequence: int | None) -> list[int]:
        return [] if sequence is None else [sequence]


def marker(result: ToolExecutionResultMessage) -> ToolExecutionResultMessage:
    """Return what a model is sent in the place of *result*: the same for each of a tool."""
    name = result.tool_name or "this tool"
    text = f"[The result of {name} was cleared to save space. Call it again if needed.]"
    return ToolExecutionResultMessage(
        result.id, result.tool_name, [TextContent(text)], result.is_error, result.attributes
    )


def _comparable(messages: Iterable[ChatMessage]) -> list[str]:
    """Return messages as JSON: in Python, 1 and True are equal."""
    return [message_to_json(message) for message in messages]


def _overlap(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many messages at the end of *old* are, at most, the beginning of *new*."""
    return next((count for count in range(min(len(old), len(new)), 0, -1) if old[-count:] == new[:count]), 0)
