"""What every memory does with its store; subclasses define the window."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypedDict, Unpack

from chatmemory_django import observing
from chatmemory_django.core import windows
from chatmemory_django.core.clearing import ClearToolResults
from chatmemory_django.core.limits import memory_key
from chatmemory_django.core.reasons import Explained
from chatmemory_django.core.tool_calls import repair_tools
from chatmemory_django.core.windows import Window
from chatmemory_django.memory.turns import Begun, Persist, Turn
from chatmemory_django.messages import ChatMessage, NewMessage, checked_messages, one_by_one
from chatmemory_django.private import private
from chatmemory_django.stores.base import (
    Appended,
    AppendOptions,
    ChatMemoryStore,
    SimpleChatMemoryStore,
    SimpleStoreAdapter,
)
from chatmemory_django.stores.in_process import SingleSlotChatMemoryStore
from chatmemory_django.tokens import TokenCountEstimator

logger = logging.getLogger(__package__)

Limit: TypeAlias = int | Callable[[object], int]
"""A whole number above 0, or a function that takes the memory id and returns one, called at each use."""


class MemoryOptions(TypedDict, total=False):
    """The options that every memory accepts, in addition to its limit."""

    id: object
    store: ChatMemoryStore | SimpleChatMemoryStore | None
    evict_to: Limit | None
    idle: timedelta | None
    always_keep_system_message_first: bool
    start_on_user: bool
    repair_tools: bool
    refill: bool | None
    clear_tool_results: ClearToolResults | Mapping[str, Any] | bool | None


class ChatMemory(ABC):
    """
    The messages of one conversation that are sent to the LLM.

    *id* names the memory in its *store*; without a store, the memory exists only in this object. With *evict_to*, a
    memory that exceeds its limit is evicted down to that lower mark, which is of the limit's unit: what is sent then
    begins with the same messages for many turns, as prompt caches need. The newest message stays. After a pause longer
    than *idle*, when no cache has it any more, it is evicted down to the mark at once, if the store knows its last
    activity, as that in Django's database does. Two options change
    what ``messages`` returns, but never what is stored: with *start_on_user* it begins at a user message, system
    messages aside; with *repair_tools* it omits tool calls without a result and results without a call.

    With *refill*, a limit that has grown since it last evicted brings messages back, as many of the history as fit: the
    next read shows them, and the next write stores that. What was cleared, removed, evicted by ``evict`` or left out by
    ``set`` stays away, and so does what a summary covers. None, the default, is False, as in LangChain4j, unless
    ``get_chat_memory`` or an assistant makes the memory.

    With *clear_tool_results*, ``True`` or options as ``ClearToolResults`` has them, the ``add`` that would evict
    messages first puts a marker in the place of each old result of a tool. In the Django store, only the memory has the
    marker, and the row keeps the result. What was cleared stays cleared, also for a larger limit.
    """

    def __init__(
        self,
        *,
        id: object = "default",
        store: ChatMemoryStore | SimpleChatMemoryStore | None = None,
        evict_to: Limit | None = None,
        idle: timedelta | None = None,
        always_keep_system_message_first: bool = False,
        start_on_user: bool = False,
        repair_tools: bool = False,
        refill: bool | None = None,
        clear_tool_results: ClearToolResults | Mapping[str, Any] | bool | None = None,
    ) -> None:
        memory_key(id)
        self.id = id
        self.evict_to = evict_to
        self.idle = idle
        self.always_keep_system_message_first = always_keep_system_message_first
        self.start_on_user = start_on_user
        self.repair_tools = repair_tools
        self.refill = refill
        self.clear_tool_results = ClearToolResults.of(clear_tool_results)
        if store is None:
            store = SingleSlotChatMemoryStore(id)
        self.store = store if isinstance(store, ChatMemoryStore) else SimpleStoreAdapter(store)
        self._made: tuple[tuple[object, ...], Window] | None = None
        self.reserved_tokens = 0
        """How many tokens of a window of tokens are for what an assistant sends beside the messages."""
        self.labels: Mapping[str, str] = {}
        """The labels of calls of models that are made for it."""
        self.window()  # an invalid limit fails here, not at the first message

    @abstractmethod
    def window(self) -> Window:
        """
        Return the current window.

        Raises:
            ValueError: The limit is not a whole number above 0, or ``evict_to`` is not one below it.

        """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} in {self.store!r}>"

    @private
    def add(
        self,
        *messages: ChatMessage | NewMessage | Iterable[ChatMessage | NewMessage],
        after: int | None = None,
        repeats: bool = False,
    ) -> list[int]:
        """
        Add *messages*, or those in one iterable, at the end, all or none, and evict what no longer fits.

        Pass a ``NewMessage`` to store metadata, a client message id or another framework's original with a message. A
        system message equal to the first one in the memory changes nothing; a different one replaces it. With *after*,
        the memory is first rewound to that message, in the same step: to edit a message, pass the one before it.
        *repeats* is for adapters of other frameworks: each message becomes part of the history, even a system message
        that repeats the current one.

        Returns the key of each message, in the Django store its sequence; for a message that was not stored again, the
        key of the existing one.
        """
        given: Sequence[ChatMessage | NewMessage] = one_by_one(messages)
        if not given:
            return []
        appended = self._append(given, after=after, repeats=repeats)
        if appended.eviction.evicted:
            self._after_eviction()
        return appended.keys

    def _after_eviction(self) -> None:  # noqa: B027  # most memories do nothing
        """Run after an ``add`` or a turn has evicted messages; turns call this, too."""

    async def _aafter_eviction(self) -> None:  # noqa: B027
        """See ``_after_eviction``."""

    def _append(
        self,
        messages: Sequence[ChatMessage | NewMessage],
        *,
        conversation: object = None,
        **options: Unpack[AppendOptions],
    ) -> Appended:
        """Add *messages*, and warn if none of them fits; turns call this, too."""
        appended = self.store.append_messages(self.id, messages, self.window(), conversation=conversation, **options)
        eviction = appended.eviction
        if observing.observers and eviction.evicted:
            observing.note("evicted", count=len(eviction.evicted))
        if eviction.lost_all:
            logger.warning(
                "None of the %d messages just added to memory %r fits: the last one costs %s, and the limit is %d.",
                len(eviction.added),
                self.id,
                eviction.added[-1].cost,
                eviction.window.limit,
            )
        return appended

    @private
    def set(self, *messages: ChatMessage | Iterable[ChatMessage]) -> None:
        """
        Replace the memory with those of *messages*, or those in one iterable, that fit.

        No system message is moved or replaced. To leave nothing, pass an empty list, or call ``clear``.
        """
        if not messages:
            raise TypeError("set() takes at least one message, or an iterable of messages.")
        self.store.replace_messages(self.id, checked_messages(one_by_one(messages)), self.window())

    def messages(self) -> list[ChatMessage]:
        """Return the messages that currently fit the window, oldest first; nothing is written."""
        return self.readable(self.store.read_messages(self.id, self.window()))

    def turn(self, persist: Persist = "late", *, after: int | None = None, begun: Begun | None = None) -> Turn:
        """
        Return a turn with the LLM, for ``with`` or ``async with``: one read, and one write if the block succeeds.

        With "early", user messages are stored at once and marked as incomplete until the turn ends; ``Turn.save``
        stores more of it. Nothing is evicted before the end: then, as by one ``add`` of the whole turn; except that its
        first write after a pause of *idle* evicts down to the mark. With *after*, the turn begins as if the memory had
        been rewound to that message, and rewinds it when it ends: to regenerate an answer, pass the user's message; to
        edit the user's message, pass the one before it. If the turn fails, the conversation is unchanged, and what an
        early turn has stored remains as a separate branch; without a history, an early turn with *after* is stored
        late. *begun* is what is stored of a turn that goes on.
        """
        return Turn(self, persist, after=after, begun=begun)

    def rewind(self, to: int) -> None:
        """
        Continue the conversation from message *to*, a sequence of the history, or from the start if it is 0.

        Later messages leave the memory and the path; they remain in the history as a branch. If *to* is before the
        window, the memory is filled again with what fits of the path up to it, and with the system message of that
        time. If *to* is on another branch, that branch becomes the path.

        Raises:
            MessageNotFoundError: The history has no message *to*.
            NotImplementedError: The store keeps no history.

        """
        self.store.rewind(self.id, to, self.window())

    def switch(self, to: int) -> int:
        """
        Continue from the newest message that descends from *to*, and return its sequence.

        Use it to change to another answer and the conversation that followed it. Otherwise like ``rewind``.
        """
        return self.store.switch(self.id, to, self.window())

    def pop(self) -> ChatMessage | None:
        """
        Remove the newest message of the memory from it and from the history, and return it; None if the memory is
        empty.
        """
        return self.store.pop(self.id, self.window())

    def evict(self, count: int) -> list[int]:
        """
        Evict the first *count* messages of the memory, or all if it has fewer, and return their sequences.

        They stay in the history. A system message in front counts as the first, even a protected one. Pinned messages
        are passed over.
        """
        if type(count) is not int or count < 0:
            raise ValueError(f"count must be a whole number of at least 0, not {count!r}.")
        return self.store.evict(self.id, count, self.window())

    def remove(self, *sequences: int, with_results: bool = False) -> list[int]:
        """
        Remove the messages *sequences* from the memory and the history; return the sequences of all that were removed.

        *with_results* also removes what belongs to each: the results that answer its calls, or the call that it answers
        with that call's other results. They are searched among the 128 messages before and after it. The history no
        longer includes the removed messages; their sequences are never reused.

        Raises:
            MessageNotFoundError: One of *sequences* is neither in the memory nor in the history; nothing is removed.
            NotImplementedError: The store keeps no history.

        """
        return self.store.remove(self.id, *sequences, with_results=with_results)

    def pin(self, sequence: int) -> list[int]:
        """
        Keep message *sequence* of the path in the memory, whatever is evicted or summarized; return what is pinned.

        A call of tools is pinned with its results, a result with its call and that call's other results: the sequences
        of all of them are returned, also if they were pinned before. What has left the memory returns to it, between
        the system message with the summary and the window, in the order of the history; in the window, a message stays
        where it is. It counts towards the limit, and is sent whole even if its result was cleared. At most 20 messages
        of a conversation can be pinned, and they may take half of the window: if its limit shrinks, the oldest of
        those that have left the window are not sent until they fit again.

        A pin ends with ``unpin``, with ``remove`` and ``pop``, and when the memory is cleared or set without the
        message. On another branch it has no effect until the conversation returns to its message; a fork copies it.

        Raises:
            MessageNotFoundError: The path has no message *sequence*.
            PinError: It is a system message, or was rejected by the model's server, or there is no room for the pin.
            NotImplementedError: The store keeps no history.

        """
        return self.store.pin(self.id, sequence, self.window())

    def unpin(self, sequence: int) -> list[int]:
        """
        Undo ``pin`` for message *sequence*, on any branch, and what belongs to it; return the sequences of all of them.

        What has left the window leaves the memory. It changes nothing if the message is not pinned.

        Raises:
            MessageNotFoundError: The history has no message *sequence*.
            NotImplementedError: The store keeps no history.

        """
        return self.store.unpin(self.id, sequence, self.window())

    def explain(self, count: int = 50) -> list[Explained]:
        """
        Return for each of the last *count* messages of the history whether it is sent to the LLM now, and why or why
        not.

        These include messages of all branches; all messages in the memory come last, in its order. Nothing is written.
        A store without history explains only the memory.
        """
        if type(count) is not int or count < 1:
            raise ValueError(f"count must be a whole number above 0, not {count!r}.")
        return self.store.explain(self.id, self, count)

    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return *messages* as the LLM receives them, after ``start_on_user`` and ``repair_tools``."""
        if self.start_on_user:
            messages = windows.start_on_user(messages)
        if self.repair_tools:
            messages = repair_tools(messages)
        return messages

    def clear(self) -> None:
        """Clear the memory."""
        self.store.delete_messages(self.id)

    @private
    async def aadd(
        self,
        *messages: ChatMessage | NewMessage | Iterable[ChatMessage | NewMessage],
        after: int | None = None,
        repeats: bool = False,
    ) -> list[int]:
        """See ``add``."""
        given: Sequence[ChatMessage | NewMessage] = one_by_one(messages)
        if not given:
            return []
        appended = await self.store.run(self._append, given, after=after, repeats=repeats)
        if appended.eviction.evicted:
            await self._aafter_eviction()
        return appended.keys

    @private
    async def aset(self, *messages: ChatMessage | Iterable[ChatMessage]) -> None:
        """See ``set``."""
        await self.store.run(self.set, *messages)

    async def amessages(self) -> list[ChatMessage]:
        """See ``messages``."""
        return await self.store.run(self.messages)

    async def aclear(self) -> None:
        """See ``clear``."""
        await self.store.run(self.clear)

    async def arewind(self, to: int) -> None:
        """See ``rewind``."""
        await self.store.run(self.rewind, to)

    async def aswitch(self, to: int) -> int:
        """See ``switch``."""
        return await self.store.run(self.switch, to)

    async def apop(self) -> ChatMessage | None:
        """See ``pop``."""
        return await self.store.run(self.pop)

    async def aevict(self, count: int) -> list[int]:
        """See ``evict``."""
        return await self.store.run(self.evict, count)

    async def aremove(self, *sequences: int, with_results: bool = False) -> list[int]:
        """See ``remove``."""
        return await self.store.run(self.remove, *sequences, with_results=with_results)

    async def apin(self, sequence: int) -> list[int]:
        """See ``pin``."""
        return await self.store.run(self.pin, sequence)

    async def aunpin(self, sequence: int) -> list[int]:
        """See ``unpin``."""
        return await self.store.run(self.unpin, sequence)

    async def aexplain(self, count: int = 50) -> list[Explained]:
        """See ``explain``."""
        return await self.store.run(self.explain, count)

    def _window(self, name: str, limit: Limit, estimator: TokenCountEstimator | None = None) -> Window:
        """Return the window of this moment, whose *limit* is the option *name*."""
        most = self._limit(name, limit)
        evict_to = None if self.evict_to is None else self._limit("evict_to", self.evict_to)
        if evict_to is not None and evict_to >= most:
            raise ValueError(f"evict_to must be less than {name}, which is {most}, not {evict_to}.")
        if self.idle is not None and (not isinstance(self.idle, timedelta) or evict_to is None):
            raise ValueError(f"idle must be a timedelta, beside evict_to, or None, not {self.idle!r}.")
        reserved = 0 if estimator is None else self.reserved_tokens
        first, clears, refills = self.always_keep_system_message_first, self.clear_tool_results, self.refill is True
        options = most, estimator, evict_to, first, refills, reserved, clears, self.idle
        if self._made is None or self._made[0] != options:  # a turn asks several times, and few limits change
            self._made = (
                options,
                Window(
                    most,
                    estimator,
                    evict_to=evict_to,
                    always_keep_system_message_first=first,
                    refills=refills,
                    reserved=reserved,
                    clears=clears,
                    idle=self.idle,
                ),
            )
        return self._made[1]

    def _limit(self, name: str, limit: Limit) -> int:
        value: object = limit(self.id) if callable(limit) else limit
        if type(value) is int and value > 0:  # neither True nor "10"
            return value
        raise ValueError(f"{name} must be a whole number above 0, not {value!r}.")
