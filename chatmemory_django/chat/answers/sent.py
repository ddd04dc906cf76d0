"""
What a request of an answer sends: the memory as it is arranged around the answer that is running.

    system message · summary · earlier messages · context and question · the answer's own calls and results

Nothing here reads or writes a database: it is the same for the same messages, and what it shortens stays whole in its
row.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace
from pydantic_core import to_json

from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.model import ChatModel, ResponseFormat, ToolSpecification
from chatmemory_django.chat.outgoing import with_speaker
from chatmemory_django.core.limits import texts_of
from chatmemory_django.core.shortening import shortened
from chatmemory_django.core.tool_calls import UNKNOWN, in_order_of_calls
from chatmemory_django.core.windows import Entry, Eviction, Window, to_entry
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    MessageType,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)

SYSTEM, USER, RESULT = MessageType.SYSTEM, MessageType.USER, MessageType.TOOL_EXECUTION_RESULT

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

RESULTS_PER_WINDOW = 4
"""
How many results of full length a window of tokens holds, unless ``max_result_tokens`` is given: one of them leaves most
of the window to the question, to what was written before, and to further results.
"""

MIN_RESULT_TOKENS = 32
"""How many tokens a result has at least before it is bounded for being a large part of a small window."""

CHARACTERS_PER_TOKEN = 4
"""What a token of a result counts as in a window of messages, which has no estimator."""

MAX_COUNTS = 10_000
"""How many counts a process remembers, at about 200 bytes each: the tools, and the thinking in busy conversations."""

LONGEST = date(2026, 9, 30)
"""A day with one of the longest lines."""

_counts: dict[tuple[str, bytes], int] = {}
"""The tokens of a text, by the name of what counted it and the text's hash."""


class Sent(NamedTuple):
    """What one request sends."""

    messages: list[ChatMessage]
    left_out: int
    """How many earlier messages of the memory did not fit beside the answer."""
    shortened: dict[int, Shortened]
    """The results that are sent shortened, by their keys in the memory."""
    keys: list[int]
    """Of each message in the memory; a result that is made here has that of its call."""


def day_line(day: date) -> str:
    """Return the line that shows a model that *day* begins: always the same one, so that prompt caches know it."""
    return f"[{day.isoformat()}, {WEEKDAYS[day.weekday()]}]"


def to_send(
    memory: Sequence[Entry],
    begun: int,
    window: Window,
    *,
    summary_key: int | None = None,
    context: str | None = None,
    day_of: Callable[[int], date] | None = None,
    pending: Mapping[tuple[int, int], str] = MappingProxyType({}),
    extra: Callable[[ChatMessage], int] = lambda _: 0,
    overhead: int = 0,
    max_result_tokens: int | None = None,
    starts_on_user: bool = False,
) -> Sent:
    """
    Return what to send of *memory*, whose messages from the key *begun* on, the question, are of the running answer.

    The last system message that is not the summary (*summary_key*) comes first. *context* is a text in front of the
    question's contents. What a person wrote has a line in front with the name. With *day_of*, which
    returns the day of a message by its key, the messages of a user with which a day begins have a ``day_line`` in
    front, and so has the first one that is sent. Every call has one result, directly behind its message and in the
    order of the calls; one that is not stored is an error with the text that *pending* has for the key of the message
    and the position of the call, by default ``UNKNOWN``. Results without a call are left out, and with *starts_on_user*
    earlier messages before the first of a user.

    Results have at most *max_result_tokens*: by default a quarter of a window of tokens, and no limit in a window of
    messages, where a token counts as four characters. Earlier messages leave by the rules of *window* to make room for
    those of the answer, which never do. A window of messages may then be exceeded. In a window of tokens, *extra* is
    what the model is sent with a message in addition to what the window counts, and *overhead* with all of them; if the
    answer's own messages do not fit, its results are shortened further, the largest first.

    Messages that stay are sent unchanged from one request to the next, as long as there is no need to shorten more.

    Raises:
        QuestionTooLongError: The question does not fit, with the system message, pins, *context* and *overhead*.
        AnswerTooLongError: The answer's own messages do not fit, even with all results shortened.

    """
    if day_of is not None:  # the message that becomes the first one, once others have left, may need a line as well
        overhead += _tokens(day_line(LONGEST), window)
    arranged = Arranged(SentWindow(window, extra, overhead), memory, begun, summary_key, pending)
    arranged.put_speakers()
    arranged.put_context(context)
    if day_of is not None:
        arranged.put_days(day_of)
    arranged.bound_results(max_result_tokens)
    left_out = 0
    if not arranged.fits:
        left_out = arranged.make_room()
        arranged.fit()
    if starts_on_user:
        arranged.start_on_user()
    if day_of is not None:
        arranged.put_days(day_of, only_first=True)
    parts = arranged.parts()
    return Sent([part.message for part in parts], left_out, arranged.cut(), [part.key for part in parts])


class SentWindow(Window):
    """A window as *window*, where each message costs *extra* more, and all of them together *overhead* more."""

    def __init__(self, window: Window, extra: Callable[[ChatMessage], int], overhead: int) -> None:
        evict_to = None if window.evict_to is None else window.evict_to + window.reserved
        limit, clears = window.limit + window.reserved, window.clears
        super().__init__(limit, window.estimator, evict_to=evict_to, keeps_all=True, clears=clears)
        self.counts_tokens = window.estimator is not None
        self._extra = extra
        self._added = overhead if self.counts_tokens else 0
        self.overhead += self._added

    def cost(self, message: ChatMessage) -> int:
        return super().cost(message) + (self._extra(message) if self.counts_tokens else 0)

    def total(self, messages: Sequence[ChatMessage]) -> int:
        extra = sum(map(self._extra, messages)) if self.counts_tokens else 0
        return super().total(messages) + self._added + extra

    def parts(self, memory: Iterable[Entry]) -> list[Part]:
        """Return the parts that the entries of *memory* are, whose costs are as *window* counts them."""
        counted, extra = self.counts_tokens, self._extra
        return [
            Part(
                entry.key,
                message,
                cost + extra(message) if isinstance(message, AiMessage) and message.thinking else cost,
            )
            if counted and (cost := entry.cost) is not None
            else Part(entry.key, message, self.cost(message))
            for entry in memory
            if (message := entry.message) is not None
        ]

    def tokens(self, result: ChatMessage) -> int:
        """Return the tokens of *result*; a window of messages counts its characters."""
        return self.cost(result) if self.counts_tokens else sum(map(len, texts_of(result))) // CHARACTERS_PER_TOKEN


class Part(msgspec.Struct, gc=False):
    """A message as it is sent."""

    key: int
    """Of its row; of that of the call, if it is a result that is made here."""
    message: ChatMessage
    cost: int
    is_made: bool = False
    whole: ChatMessage | None = None
    """The stored result, if a shortened one is sent, ..."""
    of: int = 0
    """... and its tokens."""


class Shortened(NamedTuple):
    """How many tokens of a result are *sent*, and how many it has."""

    sent: int
    of: int


class Arranged:
    """What is sent, in its order: the system message, the summary, *earlier* messages, and the answer's *own* ones."""

    def __init__(
        self,
        window: SentWindow,
        memory: Sequence[Entry],
        begun: int,
        summary_key: int | None,
        pending: Mapping[tuple[int, int], str],
    ) -> None:
        self.window = window
        self.begun = begun
        self.context_cost = 0
        self._dated: set[int] = set()
        self._pinned = {each.key for each in memory if each.is_pinned}
        parts = window.parts(memory)
        types = {each.type for each in memory}  # most conversations have few, and then there is little to arrange
        systems = [part for part in parts if part.message.type == SYSTEM] if SYSTEM in types else []
        self.summary = next((part for part in systems if part.key == summary_key), None)
        self.system = next((part for part in reversed(systems) if part is not self.summary), None)
        if systems:
            parts = [part for part in parts if part is not self.system and part is not self.summary]
        self._has_tools = RESULT in types or any(map(attrgetter("calls_tools"), memory))
        if self._has_tools:
            parts = list(_paired(parts, window, pending))
            first = next(
                # A result belongs where its call is.
                (index for index, part in enumerate(parts) if part.key >= begun and not _is_result(part)),
                len(parts),
            )
        else:
            first = bisect_left(parts, begun, key=attrgetter("key"))
        self.earlier, self.own = parts[:first], parts[first:]

    def put_speakers(self) -> None:
        """Put a line in front of what a person wrote instead of the model."""
        for part in (*self.earlier, *self.own):
            if (spoken := with_speaker(part.message)) is not part.message:
                part.message, part.cost = spoken, self.window.cost(spoken)

    def put_context(self, context: str | None) -> None:
        """Put *context* in front of the question's contents; without a question, in a message of its own."""
        if context is None:
            return
        question = self.own[0] if self.own else None
        if question is None or not isinstance(question.message, UserMessage):
            message = UserMessage(context)
            self.own.insert(0, Part(self.begun, message, self.window.cost(message), is_made=True))
            return
        without = question.cost
        question.message = replace(question.message, contents=(TextContent(context), *question.message.contents))
        question.cost = self.window.cost(question.message)
        self.context_cost = question.cost - without

    def put_days(self, day_of: Callable[[int], date], *, only_first: bool = False) -> None:
        """
        Put the day in front of the contents of each user's message with which one begins; in front of the first one
        alone if the others have theirs already.
        """
        before: date | None = None
        asked = [part for part in (*self.earlier, *self.own) if part.message.type == USER and not part.is_made]
        for part in asked[:1] if only_first else asked:
            day = day_of(part.key)
            if day != before and part.key not in self._dated and isinstance(part.message, UserMessage):
                line = TextContent(day_line(day))
                part.message = replace(part.message, contents=(line, *part.message.contents))
                part.cost = self.window.cost(part.message)
                self._dated.add(part.key)
            before = day

    def bound_results(self, max_tokens: int | None) -> None:
        """Shorten each result that has more than *max_tokens*."""
        if not self._has_tools:
            return
        if max_tokens is None:
            if not self.window.counts_tokens:
                return
            max_tokens = max(self.window.limit // RESULTS_PER_WINDOW, MIN_RESULT_TOKENS)
        for part in _results([*self.earlier, *self.own]):
            if self.tokens(part) > max_tokens:
                self._shorten(part, max_tokens)

    @property
    def fits(self) -> bool:
        """Whether all of it fits in the window."""
        return self._total(self.parts()) <= self.window.limit

    def make_room(self) -> int:
        """
        Evict earlier messages until those of the answer fit beside them, and return how many; clear old results before.

        Earlier calls that would leave stay if this answer is about their results: then they are moved to its own.
        """
        evicted, has_summary, cleared = self._evicted()
        moved = [index for index in self._answered_now() if index in evicted] if evicted else []
        if moved:
            self.own[1:1] = [self.earlier[index] for index in moved]
            self.earlier = [part for index, part in enumerate(self.earlier) if index not in moved]
            evicted, has_summary, cleared = self._evicted()
        for index, marker in cleared.items():
            part = self.earlier[index]
            part.message, part.cost, part.whole = marker.message or part.message, marker.cost or 0, None
        if not has_summary:
            self.summary = None
        left_out = sum(not part.is_made for index, part in enumerate(self.earlier) if index in evicted)
        self.earlier = [part for index, part in enumerate(self.earlier) if index not in evicted]
        return left_out

    def _answered_now(self) -> list[int]:
        """Return the indexes of the earlier calls that this answer has results of, and of all their results."""
        callers: list[int] = []
        for index, part in enumerate(self.earlier):
            callers.append(callers[-1] if callers and _is_result(part) else index)
        parts = list(zip(callers, self.earlier, strict=True))
        answered = {caller for caller, part in parts if part.key >= self.begun and not part.is_made}
        return [index for index, (caller, _) in enumerate(parts) if caller in answered]

    def _evicted(self) -> tuple[set[int], bool, Mapping[int, Entry]]:
        """
        Return the indexes of the earlier messages that leave, whether the summary stays, and markers, by index.

        The answer's own are added one by one, so that a request evicts at least what the one before it did: with a
        lower mark, what is sent then begins with the same messages until the limit is exceeded again.
        """
        entries = [to_entry(index, part.message, part.cost) for index, part in enumerate([*self.earlier, *self.own])]
        first = len(self.earlier)
        for entry, part in zip(entries[:first], self.earlier, strict=True):
            entry.is_pinned = part.key in self._pinned
        eviction = Eviction.of_entries(
            entries[:first],
            self.window,
            next_key=len(entries),
            pinned=_entry(-2, self.system),
            summary=_entry(-1, self.summary),
            keeps_from=first,
        )
        eviction.trim()
        for entry, part in zip(entries[first:], self.own, strict=True):
            eviction.add(part.message, part.cost, key=entry.key)
        evicted = {entry.key for entry in (*eviction.evicted, *eviction.aside)}
        return evicted, eviction.summary is not None, eviction.cleared

    def fit(self) -> None:
        """Shorten the answer's own results, the largest first, until what is sent fits in a window of tokens."""
        if not self.window.counts_tokens or self.fits:
            return
        self._check_question()
        # By halves: shortened again and again by a little, a result would differ in each request.
        left = _results(self.own)
        while (total := self._total(self.parts())) > self.window.limit:
            if not left:
                raise AnswerTooLongError(total, self.window.limit)
            largest = max(left, key=lambda part: part.cost)
            if not self._shorten(largest, largest.cost // 2):
                left.remove(largest)

    def start_on_user(self) -> None:
        """Leave out the earlier messages before the first of a user, except system messages."""
        is_user = [part.message.type == MessageType.USER for part in self.earlier]
        first = is_user.index(True) if True in is_user else len(is_user)
        systems = [part for part in self.earlier[:first] if part.message.type == SYSTEM]
        self.earlier = [*systems, *self.earlier[first:]]

    def _shorten(self, part: Part, max_tokens: int) -> bool:
        """Shorten a result to about *max_tokens*; return whether it has become smaller."""
        tokens = self.tokens(part)
        whole, of = (part.message, tokens) if part.whole is None else (part.whole, part.of)
        [short] = shortened([whole], self.window.tokens, max_tokens)
        if self.window.tokens(short) >= tokens:
            return False
        part.message, part.cost, part.whole, part.of = short, self.window.cost(short), whole, of
        return True

    def _check_question(self) -> None:
        pinned = (part for part in self.earlier if part.key in self._pinned)
        alone = [*([] if self.system is None else [self.system]), *pinned, *self.own[:1]]
        needed, limit = self._total(alone), self.window.limit
        if needed > limit:
            own = sum(part.cost for part in self.own[:1]) - self.context_cost
            raise QuestionTooLongError(needed, limit, needed - own)

    def tokens(self, part: Part) -> int:
        """Return the tokens of a result as it is sent."""
        return part.cost if self.window.counts_tokens else self.window.tokens(part.message)

    def cut(self) -> dict[int, Shortened]:
        """Return which results are shortened, by their keys."""
        cut = [part for part in self.parts() if part.whole is not None] if self._has_tools else []
        return {part.key: Shortened(self.tokens(part), part.of) for part in cut}

    def parts(self) -> list[Part]:
        """Return all parts, in order."""
        front = [part for part in (self.system, self.summary) if part is not None]
        return [*front, *self.earlier, *self.own]

    def _total(self, parts: Sequence[Part]) -> int:
        if self.window.is_additive:
            return self.window.overhead + sum([part.cost for part in parts])
        return self.window.total([part.message for part in parts])


def _paired(parts: Sequence[Part], window: Window, pending: Mapping[tuple[int, int], str]) -> Iterator[Part]:
    """Yield *parts* with one result behind each call, made where there is none, and without other results."""
    for index, position in in_order_of_calls([part.message for part in parts]):
        if position is None:
            yield parts[index]
            continue
        part = parts[index]
        text = pending.get((part.key, position), UNKNOWN)
        call = part.message.tool_execution_requests[position]  # type: ignore[union-attr]  # it has calls
        made = ToolExecutionResultMessage.from_request(call, text, is_error=True)
        yield Part(part.key, made, window.cost(made), is_made=True)


def _results(parts: Iterable[Part]) -> list[Part]:
    """Return those of *parts* that are results of tools, stored ones alone."""
    return [part for part in parts if _is_result(part) and not part.is_made]


def _is_result(part: Part) -> bool:
    return part.message.type == RESULT


def _entry(key: int, part: Part | None) -> Entry | None:
    return None if part is None else to_entry(key, part.message, part.cost)


def specification_tokens(
    tools: Iterable[ToolSpecification], response_format: ResponseFormat | None, window: Window
) -> int:
    """Return the tokens of *tools* and of the format of the answer, as JSON; 0 if *window* counts none."""
    if window.estimator is None:
        return 0
    sent: list[tuple[object, ...]] = [(each.name, each.description, dict(each.parameters)) for each in tools]
    if response_format is not None and response_format.schema is not None:
        sent.append((response_format.name, dict(response_format.schema)))
    return sum(_tokens(to_json(each).decode(), window) for each in sent)


def thinking_tokens(model: ChatModel, window: Window) -> Callable[[ChatMessage], int]:
    """
    Return a function that returns the tokens of a message's thinking, if *model* is sent it; 0 if *window* counts none.

    Keep it for one answer: it asks the model about each message once.
    """
    known: dict[int, tuple[ChatMessage, int]] = {}  # with the messages, so that no other one gets their ids

    def tokens(message: ChatMessage) -> int:
        if not isinstance(message, AiMessage) or not message.thinking or window.estimator is None:
            return 0
        if id(message) not in known:
            known[id(message)] = message, _tokens(message.thinking, window) if model.returns_thinking(message) else 0
        return known[id(message)][1]

    return tokens


def _tokens(text: str, window: Window) -> int:
    """Return the tokens of *text*; each is counted once in a process if counts can be stored."""
    if window.estimator is None or not window.counter:
        return 0 if window.estimator is None else window.estimator.estimate_token_count_in_text(text)
    key = window.counter, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if key not in _counts:
        if len(_counts) >= MAX_COUNTS:
            _counts.clear()
        _counts[key] = window.estimator.estimate_token_count_in_text(text)
    return _counts[key]
