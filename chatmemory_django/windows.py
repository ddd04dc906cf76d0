"""
Which messages stay in a memory: the rules of LangChain4j's windows, as pure functions of (kind, calls tools?, cost).

A memory only ever loses messages at its front, behind a system message that is protected there. So what an eviction
leaves is told by two places: the protected message (*pinned*) and where the rest begins (*start*). Nothing behind that
need be looked at, and a store that reads its messages lazily reads no more than what leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

import msgspec

from chatmemory_django.messages import AiMessage, ChatMessage, MessageType, ToolExecutionResultMessage
from chatmemory_django.tokens import TokenCountEstimator


class Window:
    """
    The rule that bounds a memory: at most *limit* messages or, with an estimator, *limit* tokens.

    A window is additive if the total of a list is its ``overhead`` and the sum of the costs, so that costs can be kept
    and added up. ``counter`` is the name to keep beside them, to say what counted; it is empty where nothing can be
    kept, and for a window of messages, where nothing need be.
    """

    def __init__(
        self,
        limit: int,
        estimator: TokenCountEstimator | None = None,
        *,
        always_keep_system_message_first: bool = False,
    ) -> None:
        self.limit = limit
        self.estimator = estimator
        self.always_keep_system_message_first = always_keep_system_message_first
        # See AdditiveTokenCountEstimator. To ask isinstance() of a protocol takes longer than all else here.
        name, tokens_per_list = getattr(estimator, "name", ""), getattr(estimator, "tokens_per_list", None)
        is_additive = bool(name) and tokens_per_list is not None
        self.counter: str = name if is_additive else ""
        self.overhead: int = tokens_per_list or 0 if is_additive else 0
        self.is_additive = estimator is None or is_additive

    def cost(self, message: ChatMessage) -> int:
        """What *message* alone takes of the limit."""
        return 1 if self.estimator is None else self.estimator.estimate_token_count_in_message(message)

    def total(self, messages: Sequence[ChatMessage]) -> int:
        """What *messages* together take of the limit: not always the sum of their costs."""
        return len(messages) if self.estimator is None else self.estimator.estimate_token_count_in_messages(messages)

    def trim(self, messages: Sequence[ChatMessage], costs: Sequence[int] | None = None) -> list[ChatMessage]:
        """A new list of those of *messages* that fit; *costs* are what they cost each, if that is known and tells."""
        eviction = Eviction.of(messages, self, costs)
        eviction.trim()
        return eviction.messages()


class Entry(msgspec.Struct, gc=False):
    """A message as eviction sees it. *key* orders it in its memory; a *cost* of None is asked for when needed."""

    key: int
    type: str
    calls_tools: bool = False
    cost: int | None = None
    message: ChatMessage | None = None


def to_entry(key: int, message: ChatMessage, cost: int | None = None) -> Entry:
    """The entry of *message*."""
    calls_tools = isinstance(message, AiMessage) and message.tool_execution_requests != ()
    return Entry(key, message.type, calls_tools, cost, message)


class Eviction:
    """
    A memory while messages are added at its end and leave at its front.

    *stored* are the entries in the memory, in order and without *pinned*, the system message protected in front of
    them; they are read lazily. *systems* are the entries of all system messages among both, with their messages.
    Added messages get the keys from *next_key* on.

    *total* is what the memory takes of the limit, where a store keeps that number; costs are then added to it and
    subtracted from it. Where it is None, the whole is counted anew at every trim, and all entries need messages.
    """

    def __init__(
        self,
        window: Window,
        stored: Iterable[Entry],
        *,
        next_key: int,
        pinned: Entry | None = None,
        systems: Iterable[Entry] = (),
        total: int | None = None,
    ) -> None:
        self.window = window
        self.pinned = pinned
        self.total = total
        self.next_key = next_key
        self.start: int | None = None
        """The key from which on messages are still in the memory, once any left at the front."""
        self.added: list[Entry] = []
        self.evicted: list[Entry] = []
        self.replaced: list[Entry] = []
        self._stored = iter(stored)
        self._front: deque[Entry] = deque()  # taken from the store, but not out of the memory
        self._new: deque[Entry] = deque()
        self._systems = list(systems)
        self._gone: set[int] = set()  # the keys of what was evicted or replaced

    @classmethod
    def of(cls, messages: Sequence[ChatMessage], window: Window, costs: Sequence[int] | None = None) -> Self:
        """An eviction from a memory that is a plain list, of which *costs* are known, if they tell its total."""
        cost_of: Sequence[int | None] = costs or [None] * len(messages)
        stored = [to_entry(index, message, cost_of[index]) for index, message in enumerate(messages)]
        systems = [entry for entry in stored if entry.type == MessageType.SYSTEM]
        total = None if costs is None else window.overhead + sum(costs)
        return cls(window, stored, next_key=len(stored), systems=systems, total=total)

    def add(self, message: ChatMessage, cost: int | None = None) -> int:
        """Add *message* at the end, then let go of what no longer fits. Returns its key, or that of its equal."""
        if message.type == MessageType.SYSTEM and self._systems and self._systems[0].message == message:
            return self._systems[0].key
        self.trim()
        entry = to_entry(self.next_key, message, cost)
        self.next_key += 1
        self.added.append(entry)
        if entry.type == MessageType.SYSTEM:
            self._replace_system(entry)
        else:
            self._new.append(entry)
        if self.total is not None:
            self.total += self._cost(entry)
        self.trim()
        return entry.key

    def trim(self) -> None:
        """While the memory is over the limit, let go of its first message that is no system message at index 0."""
        total = self.window.total(self.messages()) if self.total is None else self.total
        while total > self.window.limit and (entry := self._pop()) is not None:
            if self.pinned is None and entry.type == MessageType.SYSTEM:
                self.pinned = entry
                continue
            total -= self._evict(entry)
            if entry.calls_tools:
                total -= self._evict_results()
        if self.total is not None:
            self.total = total

    def entries(self) -> list[Entry]:
        """What is in the memory, in order. This reads all that is stored."""
        self._front.extend(self._stored)
        rest = [entry for entry in (*self._front, *self._new) if entry.key not in self._gone]
        return rest if self.pinned is None else [self.pinned, *rest]

    def messages(self) -> list[ChatMessage]:
        """The messages in the memory, in order; their entries must carry them."""
        return [entry.message for entry in self.entries() if entry.message is not None]

    @property
    def lost_all(self) -> bool:
        """Whether messages were added and none of them is left."""
        return self.added != [] and all(entry.key in self._gone for entry in self.added)

    def _pop(self) -> Entry | None:
        """The next entry at the front, behind the pinned one; None at the end."""
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

    def _evict(self, entry: Entry) -> int:
        """Let *entry* go, and return its cost."""
        self.evicted.append(entry)
        self._forget(entry)
        return self._cost(entry)

    def _evict_results(self) -> int:
        """Let the tool results go that now stand at the front, and return their cost."""
        freed = 0
        while (entry := self._pop()) is not None:
            if entry.type != MessageType.TOOL_EXECUTION_RESULT:
                self.start = entry.key
                self._front.appendleft(entry)
                break
            freed += self._evict(entry)
        return freed

    def _replace_system(self, entry: Entry) -> None:
        """Put *entry* in the place that the rules have for it, and the present system message out of the memory."""
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
    """Anything that tells of which type of message it is."""

    @property
    def type(self) -> str:
        """One of ``MessageType``."""


def continuation(old: Sequence[HasType], new: Sequence[HasType]) -> tuple[bool, int] | None:
    """
    How *new* goes on from *old* by losing messages at the front and getting others at the end.

    Returns whether the first message stays in front as a protected system message does, and the index in *old* from
    which on all others stay, the smallest there is. None if nothing but such a system message would stay.
    """
    if not old:
        return False, 0
    for index in range(len(old)):
        if list(old[index:]) == list(new[: len(old) - index]):
            return False, index
    if new and old[0].type == MessageType.SYSTEM and old[0] == new[0]:
        for index in range(2, len(old)):
            if list(old[index:]) == list(new[1 : len(old) - index + 1]):
                return True, index
    return None


def start_on_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """*messages* without those before the first user message, system messages aside."""
    started = False
    kept: list[ChatMessage] = []
    for message in messages:
        started = started or message.type == MessageType.USER
        if started or message.type == MessageType.SYSTEM:
            kept.append(message)
    return kept


def repair_tools(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """
    *messages* with no call of a tool that has no result, and no result that has no call.

    ``tool_answers`` says which belong together. An AI message keeps its text and its answered calls, and goes if it
    had nothing else.
    """
    answers = tool_answers(messages)
    results = set(answers.values())
    repaired: list[ChatMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolExecutionResultMessage) and index not in results:
            continue
        if isinstance(message, AiMessage) and message.tool_execution_requests:
            requests = tuple(
                request for place, request in enumerate(message.tool_execution_requests) if (index, place) in answers
            )
            if len(requests) < len(message.tool_execution_requests):
                if not requests and message.text is None:
                    continue
                message = msgspec.structs.replace(message, tool_execution_requests=requests)
        repaired.append(message)
    return repaired


def tool_answers(messages: Sequence[ChatMessage]) -> dict[tuple[int, int], int]:
    """
    Which results answer which calls: from (index of a message, place of a call in it) to the index of its result.

    A result answers the latest call before it that has the same id and no answer yet; calls and results without an id
    are matched by the name of the tool.
    """
    open_calls: dict[tuple[str | None, str | None], list[tuple[int, int]]] = {}
    answers: dict[tuple[int, int], int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AiMessage):
            for place, request in enumerate(message.tool_execution_requests):
                open_calls.setdefault(_call_key(request.id, request.name), []).append((index, place))
        elif isinstance(message, ToolExecutionResultMessage):
            calls = open_calls.get(_call_key(message.id, message.tool_name))
            if calls:
                answers[calls.pop()] = index
    return answers


def _call_key(call_id: str | None, name: str | None) -> tuple[str | None, str | None]:
    return (None, name) if call_id is None else (call_id, None)
