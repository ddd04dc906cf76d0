"""
The contract of stores, in which memories are kept.

A store needs three methods: ``get_messages``, ``update_messages``, ``delete_messages``. Any object that has them is
enough. A subclass of ``ChatMemoryStore`` can override what it does faster or more safely.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeAlias, TypedDict, TypeVar

from chatmemory_django.core.pending import Pending
from chatmemory_django.core.reasons import Explained, Reader, Remembered, Uncounted
from chatmemory_django.core.windows import NOTHING_LEAVES, Eviction, Window
from chatmemory_django.messages import ChatMessage, NewMessage, SystemMessage, new_messages

_P = ParamSpec("_P")
_R = TypeVar("_R")


class SimpleChatMemoryStore(Protocol):
    """The minimum that a store must implement."""

    def get_messages(self, memory_id: object) -> Sequence[ChatMessage]:
        """Return the messages stored under *memory_id*, oldest first; none for an unknown id."""

    def update_messages(self, memory_id: object, messages: list[ChatMessage]) -> None:
        """Store exactly *messages* under *memory_id*."""

    def delete_messages(self, memory_id: object) -> None:
        """Delete everything stored under *memory_id*. An unknown id is not an error."""


Phase: TypeAlias = Literal["open", "round", "end"]
"""
The part of a turn that is stored: the question with which it opens, a round of calls or their results, or its end.
"""


class Appended(NamedTuple):
    """The result of adding messages."""

    eviction: Eviction
    keys: list[int]
    """The key of each message or, if it was not stored again, of the existing one."""
    conversation: object = None
    """See ``Reading.conversation``."""


class OtherRow(NamedTuple):
    """A row of a table of another app: a new one of the conversation, or the one that is changed."""

    model: Any
    """Its class; that of a new row has a foreign key ``conversation``."""
    values: Mapping[str, Any]
    """By the names of fields; without the conversation, which is known when a new row is written."""
    where: Mapping[str, Any] = {}
    """What the row that is changed has in other fields; if there is none, nothing is."""


@dataclass
class Beside:
    """Rows that a store can write together with messages."""

    rows: Sequence[OtherRow]
    using: str
    """The database in which they belong."""
    are_written: bool = False
    """Whether the store has written them; otherwise, the caller does."""


class AddOptions(TypedDict, total=False):
    """Those of the options of ``ChatMemoryStore.append_messages`` by which is decided what to add, see there."""

    after: int | None
    repeats: bool
    archived: bool
    phase: Phase | None
    turn: Sequence[int]
    newest: int | None
    is_retry: bool
    costs: Sequence[int | None]


class AppendOptions(AddOptions, total=False):
    """The options of ``ChatMemoryStore.append_messages``, see there."""

    beside: Beside | None
    fence: int | None


class Reading(NamedTuple):
    """A memory to which messages can be added without writing them."""

    eviction: Eviction
    conversation: object = None
    """Identifies this conversation among later ones with the same memory id; None if there is none."""
    fence: int | None = None
    """What ``append_messages`` may be given as *fence*; None if the store has none."""


class ConversationErasedError(RuntimeError):
    """The conversation was erased after it was read, so its messages are not stored."""


class BusyError(RuntimeError):
    """Another answer is being generated in this conversation."""

    def __init__(self) -> None:
        super().__init__("Another answer is being generated in this conversation; try again when it has ended.")


class LeaseLostError(RuntimeError):
    """Another answer has taken the conversation since this one began, so its messages are not stored."""


class MemoryIdTakenError(ValueError):
    """A conversation cannot be created, since another one has its memory id."""


class MessageNotFoundError(LookupError):
    """The conversation has no message with that sequence, or the operation does not apply to it."""

    def __init__(self, memory_id: object, sequence: int) -> None:
        super().__init__(f"The conversation {str(memory_id)!r} has no message {sequence} that can be used here.")
        self.memory_id = memory_id
        self.sequence = sequence


class PinError(ValueError):
    """A message cannot be pinned: too many are, they would take too much of the window, or it is a system message."""


class ChatMemoryStore(ABC):
    """
    A store with more than the three required methods.

    A memory id is any value except None with a stable ``str()`` of 1 to 255 characters; values with the same ``str()``
    name the same memory.
    """

    keeps_client_message_ids = False
    """Whether ``append_messages`` accepts client message ids, and so can be retried after any error."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def keep_history(self) -> bool:
        """Whether messages are kept after they have left the memory."""
        return False

    @abstractmethod
    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        """Return a new list of the messages stored under *memory_id*, oldest first; empty for an unknown id."""

    @abstractmethod
    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        """Store exactly *messages* under *memory_id*."""

    @abstractmethod
    def delete_messages(self, memory_id: object) -> None:
        """Delete everything stored under *memory_id*. An unknown id is not an error."""

    @contextmanager
    def exclusive(self, memory_id: object) -> Iterator[None]:
        """Exclude other writers to *memory_id* from the block. This implementation guarantees nothing; override it."""
        yield

    def append_messages(
        self,
        memory_id: object,
        messages: Sequence[ChatMessage | NewMessage],
        window: Window,
        *,
        after: int | None = None,
        repeats: bool = False,
        archived: bool = False,
        phase: Phase | None = None,
        turn: Sequence[int] = (),
        newest: int | None = None,
        is_retry: bool = True,
        costs: Sequence[int | None] = (),
        beside: Beside | None = None,
        fence: int | None = None,
        conversation: object = None,
    ) -> Appended:
        """
        Add *messages* by the rules of *window* in one step: all or none, without any other writer in between.

        With *after*, the conversation continues from that message, as after ``rewind``. With *repeats*, every message
        becomes part of the history, even a system message that repeats the current one and is only left out of the
        memory. *archived* messages become history only, as if they had left the memory already.

        With a *phase*, the messages belong to a turn, and *turn* are the keys of what it has stored before. Only its
        end evicts: as if all messages of the turn were added then, one by one, after what others added meanwhile.
        Questions are complete when the turn ends. With *after*, the messages that open a turn begin a branch there, and
        neither the memory nor the path changes until the next phase, with the same *after*. Without *is_retry*,
        the caller has just generated the client message ids, so no message can have one of them yet.
        *costs* are what the window has counted for *messages* already, None where it has not. What is *beside* them
        is written in the same transaction, or not at all. With a *fence*, nothing is written once the conversation has
        another one; nor with *newest*, if that is not the key of the newest message of the path.

        A store that does not support an option, or what comes with a ``NewMessage``, ignores it, unless it would break
        a promise: with client message ids, *verbatim*, *after*, *repeats* or *archived*, this implementation raises
        ``NotImplementedError``. Its keys are positions in the memory, from 1, so the end of a turn evicts all at once.

        Raises:
            ConversationErasedError: The memory no longer belongs to *conversation*, as ``read_memory`` returned it.
            LeaseLostError: The conversation has another *fence*, or another *newest* message.
            MessageNotFoundError: The history has no message *after*.

        """
        added = self._without_data(messages)
        if after is not None or repeats or archived:
            raise self._no_branches()
        with self.exclusive(memory_id):
            eviction = self._eviction(memory_id, window)
            if phase in {"open", "round"}:
                eviction.keeps_from = NOTHING_LEAVES
            elif turn:
                eviction.trim()
            keys = [eviction.add(message) for message in added]
            if eviction.added or eviction.evicted:
                self.update_messages(memory_id, eviction.messages())
        return Appended(eviction, keys)

    def replace_messages(self, memory_id: object, messages: Sequence[ChatMessage], window: Window) -> None:
        """Store those of *messages* that fit *window* under *memory_id*, and nothing else."""
        self.update_messages(memory_id, window.without_clearing().trim(messages))

    def read_messages(self, memory_id: object, window: Window) -> list[ChatMessage]:
        """Return the messages stored under *memory_id* that fit *window*; nothing is written."""
        return window.trim(self.get_messages(memory_id))

    def read_memory(self, memory_id: object, window: Window) -> Reading:
        """Return the same as a memory to which messages can be added without writing them."""
        eviction = self._eviction(memory_id, window)
        eviction.trim()
        return Reading(eviction)

    def read_memory_after(self, memory_id: object, window: Window, after: int) -> Reading:
        """Return the same for the memory as it would be after ``rewind``."""
        raise self._no_branches()

    def rewind(self, memory_id: object, to: int, window: Window) -> None:
        """
        Continue from message *to* of the history, or from the start if it is 0; see ``ChatMemory.rewind``.

        Raises:
            MessageNotFoundError: The history has no message *to*.

        """
        raise self._no_branches()

    def switch(self, memory_id: object, to: int, window: Window) -> int:
        """Continue from the newest message that descends from *to*, and return its key. Raises what ``rewind`` does."""
        raise self._no_branches()

    def pop(self, memory_id: object, window: Window | None = None) -> ChatMessage | None:
        """
        Remove the newest message of the memory, as *window* fills it again, from it and from the history, and return
        it; None if the memory is empty.
        """
        raise self._no_branches()

    def reject(  # noqa: B027  # it may be overridden
        self, memory_id: object, keys: Sequence[int], reason: str, window: Window, *, fence: int | None = None
    ) -> None:
        """
        Take the messages *keys*, which a model's server did not accept, out of the memory, and note the *reason*.

        They stay in the history. In the place of results of tools, the memory has notes. This implementation does
        nothing.

        Raises:
            LeaseLostError: The conversation has another *fence*.

        """

    def evict(self, memory_id: object, count: int, window: Window | None = None) -> list[int]:
        """
        Evict the first *count* messages of the memory, as *window* fills it again, or all if it has fewer; return their
        keys.
        """
        raise self._no_branches()

    def remove(self, memory_id: object, *keys: int, with_results: bool = False) -> list[int]:
        """
        Remove the messages *keys* from the memory and the history; see ``ChatMemory.remove``. Returns the keys of all
        removed.

        Raises:
            MessageNotFoundError: One of *keys* is neither in the memory nor in the history; nothing is removed.

        """
        raise self._no_branches()

    def pin(self, memory_id: object, key: int, window: Window) -> list[int]:
        """
        Pin the message *key* and what belongs to it; see ``ChatMemory.pin``. Returns the keys of all of these.

        Raises:
            MessageNotFoundError: The path has no message *key*.
            PinError: It cannot be pinned.

        """
        raise self._no_branches()

    def unpin(self, memory_id: object, key: int, window: Window | None = None) -> list[int]:
        """
        Pin the message *key* and what belongs to it no longer, and return the keys of all of these.

        Raises:
            MessageNotFoundError: The history has no message *key*.

        """
        raise self._no_branches()

    def read_pending(
        self, memory_id: object, window: Window, max_tokens: int, *, waits: bool = False
    ) -> Pending | None:
        """
        Return the messages that have left the memory and are not covered by a summary; None if there are none.

        These are messages of the path, except system messages, that are not in the memory and come after what the
        summary covers and after what was cleared; oldest first, and no more than ``core.pending.take`` returns for
        *max_tokens*. If it *waits*, None as well during the pause after failures.
        """
        raise self._no_branches()

    def put_summary(self, memory_id: object, pending: Pending, summary: SystemMessage, window: Window) -> bool:
        """
        Put *summary*, which covers *pending*, after the system message, in place of the current summary.

        What no longer fits *window* is evicted. Returns False, and changes nothing, if there is another summary now, if
        the messages that it covers are no longer those that left the memory, or if it does not fit next to the system
        message.
        """
        raise self._no_branches()

    def put_failure(self, memory_id: object, pending: Pending) -> None:  # noqa: B027  # it may be overridden
        """
        Note that *pending* could not be summarized, for ``read_pending``; see ``Pending.failed``.

        This implementation notes nothing, so that the same messages are summarized again with every eviction.
        """

    def explain(self, memory_id: object, reader: Reader, count: int) -> list[Explained]:
        """
        Explain the last *count* messages of the history, of all branches, and all in the memory; see ``core.reasons``.

        A store that keeps no history explains the memory, and numbers its messages from 1.
        """
        rows = [Uncounted(number, message) for number, message in enumerate(self.get_messages(memory_id), 1)]
        return Remembered(rows, reader).explain()

    def after_commit(self, call: Callable[[], object]) -> None:
        """Call *call* after what was written is committed and no other writer waits for it: here, at once."""
        call()

    def _without_data(self, messages: Iterable[ChatMessage | NewMessage]) -> list[ChatMessage]:
        """Return *messages* without what comes with them, which this store does not keep; it must not be a promise."""
        new = new_messages(messages)
        if any(each.client_message_id for each in new):
            raise NotImplementedError(f"{type(self).__name__} does not store client message ids; leave them out.")
        if any(each.verbatim for each in new):
            raise NotImplementedError(f"{type(self).__name__} does not store verbatim data; leave it out.")
        return [each.message for each in new]

    def _eviction(self, memory_id: object, window: Window) -> Eviction:
        """Return the memory, ready for additions; its messages are numbered from 1."""
        messages = self.get_messages(memory_id)
        costs = list(map(window.cost, messages)) if window.is_additive else None
        return Eviction.of(messages, window, costs, keys=range(1, len(messages) + 2))

    def _no_branches(self) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} keeps no history; use DjangoChatMemoryStore.")

    async def run(self, method: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call *method*, which uses this store, without blocking the event loop."""
        return await asyncio.to_thread(method, *args, **kwargs)

    async def run_slow(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call *function* of the site, which may take long, without blocking the event loop."""
        return await asyncio.to_thread(function, *args, **kwargs)


class SimpleStoreAdapter(ChatMemoryStore):
    """
    Adapter that turns a store of three methods into a ``ChatMemoryStore``. ``TypeError`` if one of the three is
    missing.
    """

    def __init__(self, store: SimpleChatMemoryStore) -> None:
        for method in ("get_messages", "update_messages", "delete_messages"):
            if not callable(getattr(store, method, None)):
                raise TypeError(f"store, of type {type(store).__name__}, has no {method}().")
        self.store = store

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.store).__name__})"

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        return list(self.store.get_messages(memory_id))

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        self.store.update_messages(memory_id, list(messages))

    def delete_messages(self, memory_id: object) -> None:
        self.store.delete_messages(memory_id)
