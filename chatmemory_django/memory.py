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
    ) -> list[int]:
        """
        Add *messages* at the end, all or none, and evict what no longer fits.

        A system message equal to the first one present changes nothing; a different one replaces it. *metadata*, a
        JSON object, is kept beside each message where the store has a place for it; a sequence has one for each.
        *client_message_ids* has an id of up to 64 characters, or None, for each: a message whose id the conversation
        has already is not stored again, so what failed can be tried again.

        Returns for each message its key, in the Django store its sequence; for one that was not stored again, that of
        the one that was there.
        """
        if not messages:
            return []
        each: Sequence[Any] = metadata if isinstance(metadata, (list, tuple)) else [metadata] * len(messages)
        return self._append(messages, metadata=each, client_message_ids=client_message_ids or ()).keys

    def _append(
        self, messages: Sequence[ChatMessage], *, conversation: object = None, **options: Unpack[AppendOptions]
    ) -> Appended:
        """Add *messages* with what a store keeps beside them; a turn calls this, too."""
        messages = checked_messages(messages)
        beside: dict[str, Sequence[object]] = {
            "metadata": options.get("metadata", ()),
            "client_message_ids": options.get("client_message_ids", ()),
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

    def turn(self, persist: Persist = "late") -> Turn:
        """
        A turn with the LLM as one unit, for ``with`` or ``async with``: one read, and one write if it ends well.

        With "early", what the user says is stored at once, marked as incomplete until the turn ends.
        """
        return Turn(self, persist)

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
    ) -> list[int]:
        """See ``add``."""
        return await self.store.run(self.add, *messages, metadata=metadata, client_message_ids=client_message_ids)

    async def aset(self, messages: Iterable[ChatMessage]) -> None:
        """See ``set``."""
        await self.store.run(self.set, messages)

    async def amessages(self) -> list[ChatMessage]:
        """See ``messages``."""
        return await self.store.run(self.messages)

    async def aclear(self) -> None:
        """See ``clear``."""
        await self.store.run(self.clear)

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
