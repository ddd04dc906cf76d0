"""Stores that keep memories in this process, and lose them when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from chatmemory_django.core.limits import memory_key
from chatmemory_django.messages import ChatMessage, checked_messages
from chatmemory_django.stores.base import ChatMemoryStore


class InMemoryChatMemoryStore(ChatMemoryStore):
    """
    Any number of memories in this process, safe to use from many threads, lost when the process ends.

    As in LangChain4j, what leaves a memory is gone. ``DjangoChatMemoryStore`` keeps a history; SQLite needs no server.
    """

    def __init__(self) -> None:
        self._memories: dict[str, tuple[ChatMessage, ...]] = {}
        self._lock = threading.RLock()

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        return list(self._memories.get(self._key(memory_id), ()))

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        key, kept = self._key(memory_id), checked_messages(messages)
        with self._lock:
            self._memories[key] = kept

    def delete_messages(self, memory_id: object) -> None:
        key = self._key(memory_id)
        with self._lock:
            self._memories.pop(key, None)

    @contextmanager
    def exclusive(self, memory_id: object) -> Iterator[None]:
        with self._lock:
            yield

    def _key(self, memory_id: object) -> str:
        return memory_key(memory_id)


class SingleSlotChatMemoryStore(InMemoryChatMemoryStore):
    """The single memory named *memory_id*, kept in this process. Any other id raises ``ValueError``."""

    def __init__(self, memory_id: object) -> None:
        super().__init__()
        self._only_key = memory_key(memory_id)

    def _key(self, memory_id: object) -> str:
        key = memory_key(memory_id)
        if key != self._only_key:
            raise ValueError(f"This store only has the memory {self._only_key!r}, not {key!r}.")
        return key
