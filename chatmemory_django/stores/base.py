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
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar

from chatmemory_django.messages import MESSAGE_CLASSES, ChatMessage, SystemMessage
from chatmemory_django.pending import Pending
from chatmemory_django.reasons import Explained, Reader, Said, explain
from chatmemory_django.windows import Eviction, Window

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
"""What a site keeps beside a message, a JSON object: the model, its usage, why it stopped."""


class Appended(NamedTuple):
    """The result of adding messages."""

    eviction: Eviction
    keys: list[int]
    """For each message its key or, where it was not stored again, that of the one that was there."""
    conversation: object = None
    """See ``Reading.conversation``."""


class AppendOptions(TypedDict, total=False):
    """What can be stored beside messages; see ``ChatMemoryStore.append_messages``."""

    metadata: Sequence[Metadata]
    client_message_ids: Sequence[str | None]
    verbatim: Sequence[str | None] | None
    archived: bool
    is_complete: bool
    completes: Sequence[int]
    is_retry: bool
    after: int | None
    aside: bool
    takes_up: Sequence[int]


class Reading(NamedTuple):
    """A memory that can be added to without being written."""

    eviction: Eviction
    conversation: object = None
    """What tells this conversation from a later one with the same memory id; None where there is none to tell."""


class ConversationErasedError(RuntimeError):
    """The conversation was erased since it was read, so what belongs to it is not stored."""


class MemoryIdTakenError(ValueError):
    """A conversation is to be made under a memory id that another one has."""


class MessageNotFoundError(LookupError):
    """The conversation has no message of that sequence, or it is no part of what was asked for."""

    def __init__(self, memory_id: object, sequence: int) -> None:
        super().__init__(f"The conversation {str(memory_id)!r} has no message {sequence} that can be used here.")
        self.memory_id = memory_id
        self.sequence = sequence


class ChatMemoryStore(ABC):
    """
    A store that memories can ask for more than the three methods.

    A memory id is any value but None with a stable ``str()`` of 1 to 255 characters; values with the same ``str()``
    name the same memory.
    """

    keeps_client_message_ids = False
    """Whether ``append_messages`` takes client message ids, and so can be tried again after any error."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def keep_history(self) -> bool:
        """Whether messages are kept once they have left the memory."""
        return False

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
        *,
        metadata: Sequence[Metadata] = (),
        client_message_ids: Sequence[str | None] = (),
        verbatim: Sequence[str | None] | None = None,
        archived: bool = False,
        is_complete: bool = True,
        completes: Sequence[int] = (),
        is_retry: bool = True,
        after: int | None = None,
        aside: bool = False,
        takes_up: Sequence[int] = (),
        conversation: object = None,
    ) -> Appended:
        """
        Add *messages* under the rules of *window* as one step: all or none, and no other writer in between.

        *metadata* and *client_message_ids* have an item for each message. A message whose client message id the
        conversation has already is not stored again. *verbatim* has for each what another framework gave, as JSON, or
        None where the message says it all; then the history has each message as it was given, also a system message
        that repeats the present one, and that only the memory leaves out. What is *archived* becomes history alone, as
        if it had left the memory already.

        Unless *is_complete*, the messages belong to a turn that has not ended; *completes* are the keys of messages of
        a turn that ends now. Unless it *is_retry*, the caller has made up the client message ids just now, so no
        message can have one of them yet.

        The conversation goes on from message *after*, if that is given, as after ``rewind``. Messages that are stored
        *aside* begin a branch there, and neither the memory nor the path changes until a later call, with the same
        *after*, *takes_up* their keys.

        A store that has no place for these leaves them out, but promises nothing that it cannot keep: with client
        message ids, with *after*, with *verbatim*, or *archived*, this one raises ``NotImplementedError``.

        Raises:
            ConversationErasedError: The memory is no longer that of *conversation*, as ``read_memory`` named it.
            MessageNotFoundError: The history has no message *after*.

        """
        if any(client_message_ids):
            raise NotImplementedError(f"{type(self).__name__} keeps no client message ids; leave them out.")
        if verbatim is not None:
            raise NotImplementedError(f"{type(self).__name__} keeps nothing verbatim; leave it out.")
        if after is not None or archived:
            raise self._no_branches()
        with self.exclusive(memory_id):
            eviction = Eviction.of(self.get_messages(memory_id), window)
            keys = [eviction.add(message) for message in messages]
            if eviction.added:
                self.update_messages(memory_id, eviction.messages())
        return Appended(eviction, keys)

    def replace_messages(self, memory_id: object, messages: Sequence[ChatMessage], window: Window) -> None:
        """Keep those of *messages* that fit *window* under *memory_id*, and nothing else."""
        self.update_messages(memory_id, window.trim(messages))

    def read_messages(self, memory_id: object, window: Window) -> list[ChatMessage]:
        """The messages kept under *memory_id* that fit *window*; nothing is written."""
        return window.trim(self.get_messages(memory_id))

    def read_memory(self, memory_id: object, window: Window) -> Reading:
        """The same as something that can be added to without being written."""
        eviction = Eviction.of(self.get_messages(memory_id), window)
        eviction.trim()
        return Reading(eviction)

    def read_memory_after(self, memory_id: object, window: Window, after: int) -> Reading:
        """The same of the memory as it would be after ``rewind``."""
        raise self._no_branches()

    def rewind(self, memory_id: object, to: int, window: Window) -> None:
        """
        Go on from message *to* of the history, or from the start if that is 0; see ``ChatMemory.rewind``.

        Raises:
            MessageNotFoundError: The history has no message *to*.

        """
        raise self._no_branches()

    def switch(self, memory_id: object, to: int, window: Window) -> int:
        """Go on from the newest message that was said on from *to*, and return its key. Raises what ``rewind`` does."""
        raise self._no_branches()

    def pop(self, memory_id: object) -> ChatMessage | None:
        """Take the newest message in the memory out of it and of the history, and return it; None if it is empty."""
        raise self._no_branches()

    def evict(self, memory_id: object, count: int) -> list[int]:
        """Evict the first *count* messages of the memory, as far as there are so many; returns their keys."""
        raise self._no_branches()

    def remove(self, memory_id: object, *keys: int, with_results: bool = False) -> list[int]:
        """
        Take the messages *keys* out of the memory and the history; see ``ChatMemory.remove``. Returns what is out now.

        Raises:
            MessageNotFoundError: Neither the memory nor the history has a message of one of *keys*; none is taken out.

        """
        raise self._no_branches()

    def read_pending(self, memory_id: object, window: Window, max_tokens: int) -> Pending | None:
        """
        What has left the memory and no summary covers yet; None if there is nothing.

        That is what of the history is on the path, no system message, and not in the memory, behind what the summary
        covers and what was forgotten; the oldest first, and no more of it than ``pending.take`` has for *max_tokens*.
        """
        raise self._no_branches()

    def put_summary(self, memory_id: object, pending: Pending, summary: SystemMessage, window: Window) -> bool:
        """
        Put *summary*, which covers *pending*, behind the system message, in the place of the one that stands there.

        What no longer fits *window* is evicted. Returns False, and changes nothing, if another summary stands now, if
        what it covers is no longer what left the memory, or if it has no place beside the system message.
        """
        raise self._no_branches()

    def explain(self, memory_id: object, reader: Reader, count: int) -> list[Explained]:
        """
        Explain the last *count* messages of the history, of all branches, and all in the memory; see ``reasons``.

        A store that keeps no history explains the memory, and counts its messages from 1 on.
        """
        messages = self.get_messages(memory_id)
        return explain([Said(place, message, None) for place, message in enumerate(messages, 1)], (), reader)

    def after_commit(self, call: Callable[[], object]) -> None:
        """Call *call* once what was written is committed and nobody waits for it: here, at once."""
        call()

    def _no_branches(self) -> NotImplementedError:
        return NotImplementedError(
            f"{type(self).__name__} keeps no history to go back in; use DjangoChatMemoryStore or "
            "InMemoryChatMemoryStore(keep_history=True)."
        )

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.store).__name__})"

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        return list(self.store.get_messages(memory_id))

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        self.store.update_messages(memory_id, list(messages))

    def delete_messages(self, memory_id: object) -> None:
        self.store.delete_messages(memory_id)


def checked_messages(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """*messages* as a tuple; ``TypeError`` naming the first that is no message."""
    checked = tuple(messages)
    for index, message in enumerate(checked):
        if not isinstance(message, MESSAGE_CLASSES):
            raise TypeError(f"messages[{index}] must be a message, not {type(message).__name__}.")
    return checked
