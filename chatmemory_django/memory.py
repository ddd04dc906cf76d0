"""
Memories: a store seen through a window.

``add`` and ``set`` leave at most what the window holds in the store, ``messages`` shows at most that, and both ask a
dynamic limit anew. The rules are those of LangChain4j's windows; ``windows`` states them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

from chatmemory_django import windows
from chatmemory_django.ids import memory_key
from chatmemory_django.messages import ChatMessage
from chatmemory_django.reasons import Explained
from chatmemory_django.stores.base import (
    Appended,
    AppendOptions,
    ChatMemoryStore,
    Metadata,
    SimpleChatMemoryStore,
    SimpleStoreAdapter,
    checked_messages,
)
from chatmemory_django.stores.in_process import SingleSlotChatMemoryStore
from chatmemory_django.tokens import TokenCountEstimator
from chatmemory_django.tool_calls import repair_tools
from chatmemory_django.turns import Persist, Turn
from chatmemory_django.windows import Window

logger = logging.getLogger(__name__)

Limit: TypeAlias = int | Callable[[object], int]
"""A whole number above 0, or a function from the memory id to one, asked at each use."""


class MemoryOptions(TypedDict, total=False):
    """What every memory can be told, beside its limit."""

    id: object
    store: ChatMemoryStore | SimpleChatMemoryStore | None
    always_keep_system_message_first: bool
    start_on_user: bool
    repair_tools: bool


class ChatMemory(ABC):
    """
    The messages of one conversation that are sent to the LLM.

    *id* names the memory in its *store*; without a store the memory lives in this object alone. Two options change
    what ``messages`` gives and never what is stored: *start_on_user* begins at a user message, system messages aside;
    *repair_tools* leaves out calls of tools without a result and results without a call.
    """

    def __init__(
        self,
        *,
        id: object = "default",
        store: ChatMemoryStore | SimpleChatMemoryStore | None = None,
        always_keep_system_message_first: bool = False,
        start_on_user: bool = False,
        repair_tools: bool = False,
    ) -> None:
        memory_key(id)
        self.id = id
        self.always_keep_system_message_first = always_keep_system_message_first
        self.start_on_user = start_on_user
        self.repair_tools = repair_tools
        if store is None:
            store = SingleSlotChatMemoryStore(id)
        self.store = store if isinstance(store, ChatMemoryStore) else SimpleStoreAdapter(store)
        self.window()  # a wrong limit fails here, not at the first message

    @abstractmethod
    def window(self) -> Window:
        """The window as it is now; ``ValueError`` if the limit is no whole number above 0."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} in {self.store!r}>"

    def add(
        self,
        *messages: ChatMessage,
        metadata: Metadata | Sequence[Metadata] = None,
        client_message_ids: Sequence[str | None] | None = None,
        verbatim: Sequence[str | None] | None = None,
        after: int | None = None,
    ) -> list[int]:
        """
        Add *messages* at the end, all or none, and evict what no longer fits.

        A system message equal to the first one present changes nothing; a different one replaces it. *metadata*, a
        JSON object, is kept beside each message where the store has a place for it; a sequence has one for each.
        *client_message_ids* has an id of up to 64 characters, or None, for each: a message whose id the conversation
        has already is not stored again, so what failed can be tried again. *verbatim* is for adapters of other
        frameworks: for each message what they were given, as JSON, or None where the message says it all. With it,
        each message becomes a row of the history, a system message that repeats the present one included. With
        *after*, the memory is first rewound to that message, in the same step: to edit what was said, give the message
        before it.

        Returns for each message its key, in the Django store its sequence; for one that was not stored again, that of
        the one that was there.
        """
        if not messages:
            return []
        appended = self._add(messages, metadata, client_message_ids, verbatim, after)
        if appended.eviction.evicted:
            self._after_eviction()
        return appended.keys

    def _add(
        self,
        messages: Sequence[ChatMessage],
        metadata: Metadata | Sequence[Metadata],
        client_message_ids: Sequence[str | None] | None,
        verbatim: Sequence[str | None] | None,
        after: int | None,
    ) -> Appended:
        each: Sequence[Any] = metadata if isinstance(metadata, (list, tuple)) else [metadata] * len(messages)
        return self._append(
            messages, metadata=each, client_message_ids=client_message_ids or (), verbatim=verbatim, after=after
        )

    def _after_eviction(self) -> None:  # noqa: B027  # most memories do nothing
        """Do what follows once an ``add``, or a turn, has evicted messages; a turn calls this, too."""

    async def _aafter_eviction(self) -> None:  # noqa: B027
        """See ``_after_eviction``."""

    def _append(
        self, messages: Sequence[ChatMessage], *, conversation: object = None, **options: Unpack[AppendOptions]
    ) -> Appended:
        """Add *messages* with what a store keeps beside them; a turn calls this, too."""
        messages = checked_messages(messages)
        beside: dict[str, Sequence[object]] = {
            "metadata": options.get("metadata", ()),
            "client_message_ids": options.get("client_message_ids", ()),
            "verbatim": options.get("verbatim") or (),
        }
        for name, items in beside.items():
            if len(items) not in {0, len(messages)}:
                raise ValueError(
                    f"{name} must have an item for each of the {len(messages)} messages, not {len(items)}."
                )
        appended = self.store.append_messages(self.id, messages, self.window(), conversation=conversation, **options)
        eviction = appended.eviction
        if eviction.lost_all:
            logger.warning(
                "None of the %d messages just added to memory %r is left in it: the last costs %s, the limit is %d.",
                len(eviction.added),
                self.id,
                eviction.added[-1].cost,
                eviction.window.limit,
            )
        return appended

    def set(self, messages: Iterable[ChatMessage]) -> None:
        """Make *messages*, as far as they fit, the whole memory. No system message is moved or replaced."""
        self.store.replace_messages(self.id, checked_messages(messages), self.window())

    def messages(self) -> list[ChatMessage]:
        """The messages that fit the window now, oldest first; nothing is written."""
        return self.readable(self.store.read_messages(self.id, self.window()))

    def turn(self, persist: Persist = "late", *, after: int | None = None) -> Turn:
        """
        A turn with the LLM as one unit, for ``with`` or ``async with``: one read, and one write if it ends well.

        With "early", what the user says is stored at once, marked as incomplete until the turn ends. With *after*, the
        turn begins as if the memory had been rewound to that message, and rewinds it when it ends: to regenerate an
        answer, give the user's message; to edit that, the message before it. If the turn fails, the conversation is
        where it was, and what an early turn has stored is a branch of its own; without a history, it is a late one.
        """
        return Turn(self, persist, after=after)

    def rewind(self, to: int) -> None:
        """
        Go on from message *to*, a sequence of the history, or from the start if that is 0.

        What came later leaves the memory and the path; it stays in the history as a branch. Where *to* lies before the
        window, the memory is filled again with what fits of the path up to it, and with the system message of that
        time. Of a message on another branch, the path is the one that leads there.

        Raises:
            MessageNotFoundError: The history has no message *to*.
            NotImplementedError: The store keeps no history.

        """
        self.store.rewind(self.id, to, self.window())

    def switch(self, to: int) -> int:
        """
        Go on from the newest message that was said on from *to*, and return its sequence.

        That is the other answer, and the conversation that followed from it. Otherwise like ``rewind``.
        """
        return self.store.switch(self.id, to, self.window())

    def pop(self) -> ChatMessage | None:
        """Take the newest message in the memory out of it and of the history, and return it; None if it is empty."""
        return self.store.pop(self.id)

    def evict(self, count: int) -> list[int]:
        """
        Evict the first *count* messages of the memory, or all if it has fewer, and return their sequences.

        They stay in the history. A system message in front is the first of them, whatever keeps it there.
        """
        if type(count) is not int or count < 0:
            raise ValueError(f"count must be a whole number, 0 or above, not {count!r}.")
        return self.store.evict(self.id, count)

    def remove(self, *sequences: int, with_results: bool = False) -> list[int]:
        """
        Take the messages *sequences* out of the memory and of the history; return the sequences of what is out now.

        *with_results* takes with each what belongs to it: the results that answer its calls, or the call that it
        answers and that one's other results. They are looked for among the 128 messages before and after it. The
        history no longer shows the messages; a sequence is never given again.

        Raises:
            MessageNotFoundError: One of *sequences* is neither in the memory nor in the history; none is taken out.
            NotImplementedError: The store keeps no history.

        """
        return self.store.remove(self.id, *sequences, with_results=with_results)

    def explain(self, count: int = 50) -> list[Explained]:
        """
        For each of the last *count* messages of the history, whether the LLM is sent it now, and why, or why not.

        Those of all branches are among them, and in the end all that are in the memory, in its order. Nothing is
        written. A store without history explains the memory alone.
        """
        if type(count) is not int or count < 1:
            raise ValueError(f"count must be a whole number above 0, not {count!r}.")
        return self.store.explain(self.id, self, count)

    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """*messages* as ``start_on_user`` and ``repair_tools`` let the LLM see them."""
        if self.start_on_user:
            messages = windows.start_on_user(messages)
        if self.repair_tools:
            messages = repair_tools(messages)
        return messages

    def clear(self) -> None:
        """Forget everything."""
        self.store.delete_messages(self.id)

    async def aadd(
        self,
        *messages: ChatMessage,
        metadata: Metadata | Sequence[Metadata] = None,
        client_message_ids: Sequence[str | None] | None = None,
        verbatim: Sequence[str | None] | None = None,
        after: int | None = None,
    ) -> list[int]:
        """See ``add``."""
        if not messages:
            return []
        appended = await self.store.run(self._add, messages, metadata, client_message_ids, verbatim, after)
        if appended.eviction.evicted:
            await self._aafter_eviction()
        return appended.keys

    async def aset(self, messages: Iterable[ChatMessage]) -> None:
        """See ``set``."""
        await self.store.run(self.set, messages)

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

    async def aexplain(self, count: int = 50) -> list[Explained]:
        """See ``explain``."""
        return await self.store.run(self.explain, count)

    def _limit(self, name: str, limit: Limit) -> int:
        value: object = limit(self.id) if callable(limit) else limit
        if type(value) is int and value > 0:  # no bool, no "10"
            return value
        raise ValueError(f"{name} must be a whole number above 0, not {value!r}.")


class MessageWindowChatMemory(ChatMemory):
    """The last *max_messages* messages, the system message at their front among them."""

    def __init__(
        self,
        *,
        max_messages: Limit,
        **options: Unpack[MemoryOptions],
    ) -> None:
        self.max_messages = max_messages
        super().__init__(**options)

    def window(self) -> Window:
        return Window(
            self._limit("max_messages", self.max_messages),
            always_keep_system_message_first=self.always_keep_system_message_first,
        )


class TokenWindowChatMemory(ChatMemory):
    """
    The last messages that together take at most *max_tokens* tokens, as *token_count_estimator* counts.

    A message is whole or not there: one that is larger than the limit is let go of at once, unless it is the system
    message.
    """

    def __init__(
        self,
        *,
        max_tokens: Limit,
        token_count_estimator: TokenCountEstimator,
        **options: Unpack[MemoryOptions],
    ) -> None:
        for method in ("in_text", "in_message", "in_messages"):
            if not callable(getattr(token_count_estimator, f"estimate_token_count_{method}", None)):
                given = type(token_count_estimator).__name__
                raise TypeError(f"token_count_estimator has no estimate_token_count_{method}(), being {given}.")
        self.max_tokens = max_tokens
        self.token_count_estimator = token_count_estimator
        super().__init__(**options)

    def window(self) -> Window:
        return Window(
            self._limit("max_tokens", self.max_tokens),
            self.token_count_estimator,
            always_keep_system_message_first=self.always_keep_system_message_first,
        )
