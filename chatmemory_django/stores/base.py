"""
Where memories are kept: the contract of a store.

A store needs three methods: ``get_messages``, ``update_messages``, ``delete_messages``. Any object that has them will
do. One that extends ``ChatMemoryStore`` may also say what it can do faster or more safely than that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar, Unpack
from uuid import UUID

from chatmemory_django.messages import MESSAGE_CLASSES, ChatMessage
from chatmemory_django.windows import Eviction, Window

MAX_MEMORY_ID_LENGTH = 255

_P = ParamSpec("_P")
_R = TypeVar("_R")


class SimpleChatMemoryStore(Protocol):
    """The least that a store has to offer."""

    def get_messages(self, memory_id: object) -> Sequence[ChatMessage]:
        """The messages kept under *memory_id*, oldest first; none for an unknown id."""

    def update_messages(self, memory_id: object, messages: list[ChatMessage]) -> None:
        """Keep exactly *messages* under *memory_id*."""

    def delete_messages(self, memory_id: object) -> None:
        """Keep nothing under *memory_id*. An unknown id is no error."""


Metadata: TypeAlias = Mapping[str, Any] | None
"""What a site notes of a message, a JSON object: the model, its usage, why it stopped."""


class Notes(TypedDict, total=False):
    """What can be kept beside messages. Sequences have an item for each message, in the same order."""

    metadata: Sequence[Metadata]
    client_ids: Sequence[UUID | None]
    """Names that their sender made up: a message whose name is there already is not stored again."""
    incomplete: bool
    """Whether they belong to a turn that has not ended, and ..."""
    completed: Mapping[int, Metadata]
    """... the keys of messages of a turn that ends now, with their metadata."""


class Appended(NamedTuple):
    """What came of messages that were added."""

    eviction: Eviction
    keys: list[int]
    """For each message its key or, where it was not stored again, that of the one that was there."""


class ChatMemoryStore(ABC):
    """
    A store that memories can ask for more than the three methods.

    A memory id is any value but None with a stable ``str()`` of 1 to 255 characters; values with the same ``str()``
    name the same memory.
    """

    @abstractmethod
    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        """The messages kept under *memory_id*, oldest first; none for an unknown id. The list is the caller's."""

    @abstractmethod
    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        """Keep exactly *messages* under *memory_id*."""

    @abstractmethod
    def delete_messages(self, memory_id: object) -> None:
        """Keep nothing under *memory_id*. An unknown id is no error."""

    @contextmanager
    def exclusive(self, memory_id: object) -> Iterator[None]:
        """A section in which nobody else writes to *memory_id*. This one promises nothing; override it."""
        yield

    def append_messages(
        self,
        memory_id: object,
        messages: Sequence[ChatMessage],
        window: Window,
        **notes: Unpack[Notes],
    ) -> Appended:
        """
        Add *messages* under the rules of *window* as one step: all or none, and no other writer in between.

        A store that has no place for *notes* leaves them out, but does not promise what it cannot keep: with client
        ids, this one raises ``NotImplementedError``.
        """
        if any(notes.get("client_ids", ())):
            raise NotImplementedError(f"{type(self).__name__} keeps no client ids, so it cannot tell a retry.")
        with self.exclusive(memory_id):
            eviction = Eviction.of(self.get_messages(memory_id), window)
            keys = [eviction.add(message) for message in messages]
            if eviction.added:
                self.update_messages(memory_id, eviction.messages())
        return Appended(eviction, keys)

    def read_messages(self, memory_id: object, window: Window) -> list[ChatMessage]:
        """The messages kept under *memory_id* that fit *window*; nothing is written."""
        return window.trim(self.get_messages(memory_id))

    def read_memory(self, memory_id: object, window: Window) -> Eviction:
        """The same as something that can be added to without being written."""
        eviction = Eviction.of(self.get_messages(memory_id), window)
        eviction.trim()
        return eviction

    async def run(self, method: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call *method*, which uses this store, without holding up the event loop."""
        return await asyncio.to_thread(method, *args, **kwargs)


class SimpleStoreAdapter(ChatMemoryStore):
    """A store of three methods, seen as one that has them all. ``TypeError`` if it does not have the three."""

    def __init__(self, store: SimpleChatMemoryStore) -> None:
        for method in ("get_messages", "update_messages", "delete_messages"):
            if not callable(getattr(store, method, None)):
                raise TypeError(f"store has no {method}(), being {type(store).__name__}.")
        self.store = store

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        return list(self.store.get_messages(memory_id))

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        self.store.update_messages(memory_id, list(messages))

    def delete_messages(self, memory_id: object) -> None:
        self.store.delete_messages(memory_id)


def memory_key(memory_id: object) -> str:
    """The string that *memory_id* is kept under; ``TypeError`` or ``ValueError`` if it cannot be one."""
    if memory_id is None:
        raise TypeError("A memory id must not be None; give a value with a stable str().")
    key = str(memory_id)
    if not 1 <= len(key) <= MAX_MEMORY_ID_LENGTH:
        raise ValueError(
            f"A memory id must have 1 to {MAX_MEMORY_ID_LENGTH} characters; this one has {len(key)}: {key[:20]!r}."
        )
    if "\0" in key or not _is_unicode(key):
        raise ValueError(f"A memory id must not hold NUL characters or lone surrogates, but is {key!r}.")
    return key


def checked_messages(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """*messages* as a tuple; ``TypeError`` naming the first that is no message."""
    checked = tuple(messages)
    for index, message in enumerate(checked):
        if not isinstance(message, MESSAGE_CLASSES):
            raise TypeError(f"messages[{index}] must be a message, not {type(message).__name__}.")
    return checked


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
