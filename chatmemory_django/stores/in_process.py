"""The stores that live in the process, and die with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from chatmemory_django.ids import memory_key
from chatmemory_django.messages import ChatMessage
from chatmemory_django.stores.base import ChatMemoryStore, checked_messages


class InMemoryChatMemoryStore(ChatMemoryStore):
    """Any number of memories, kept in this process, safe to use from many threads, and gone with the process."""

    def __init__(self) -> None:
        self._messages: dict[str, tuple[ChatMessage, ...]] = {}
        self._lock = threading.RLock()

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        return list(self._messages.get(self._key(memory_id), ()))

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        key, kept = self._key(memory_id), checked_messages(messages)
        with self._lock:
            self._messages[key] = kept

    def delete_messages(self, memory_id: object) -> None:
        key = self._key(memory_id)
        with self._lock:
            self._messages.pop(key, None)

    @contextmanager
    def exclusive(self, memory_id: object) -> Iterator[None]:
        with self._lock:
            yield

    def _key(self, memory_id: object) -> str:
        return memory_key(memory_id)


class SingleSlotChatMemoryStore(InMemoryChatMemoryStore):
    """The one memory named *memory_id*, kept in this process. Asked for another, it raises ``ValueError``."""

    def __init__(self, memory_id: object) -> None:
        super().__init__()
        self._only_key = memory_key(memory_id)

    def _key(self, memory_id: object) -> str:
        key = memory_key(memory_id)
        if key != self._only_key:
            raise ValueError(f"This store keeps the memory {self._only_key!r} and no other, so not {key!r}.")
        return key
