"""
A turn: what is said to the LLM and what it answers, as one unit.

The memory is read once, and written once when the turn ends well. A turn that fails or is cancelled leaves nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeAlias, Unpack

from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.stores.base import AppendOptions, Metadata, checked_messages
from chatmemory_django.windows import Eviction

if TYPE_CHECKING:
    from chatmemory_django.memory import ChatMemory

Persist: TypeAlias = Literal["late", "early"]
"""When a turn is stored: all of it at its end, or user messages at once, marked as incomplete until then."""


class _Unwritten(NamedTuple):
    """A message of the turn that is not stored yet."""

    message: ChatMessage
    metadata: Metadata
    client_message_id: str | None
    """Given here, so that it is stored once however often that is tried."""


class Turn:
    """
    One turn with *memory*; ``ChatMemory.turn`` makes it, ``with`` or ``async with`` begins and ends it.

    Others may write to the memory meanwhile: what the turn adds comes behind that.
    """

    def __init__(self, memory: ChatMemory, persist: Persist = "late", *, after: int | None = None) -> None:
        if persist not in {"late", "early"}:
            raise ValueError(f"persist must be 'late' or 'early', not {persist!r}.")
        self._memory = memory
        self._persist = persist
        self._after = after
        self._seen: Eviction | None = None
        self._conversation: object = None
        self._unseen: list[ChatMessage] = []
        self._unwritten: list[_Unwritten] = []
        self._failed: list[_Unwritten] = []
        self._incomplete: list[int] = []
        self._is_retry = False
        self._has_evicted = False

    def begin(self) -> Self:
        """Read the memory, as ``with`` does at its beginning; ``end`` is the other half."""
        memory, window = self._memory, self._memory.window()
        self._seen, self._conversation = (
            memory.store.read_memory(memory.id, window)
            if self._after is None
            else memory.store.read_memory_after(memory.id, window, self._after)
        )
        return self

    @property
    def messages(self) -> list[ChatMessage]:
        """What to send now: the memory as it was when the turn began, with what the turn has added since."""
        begun = self._begun()
        unseen, self._unseen = self._unseen, []
        for message in unseen:  # not before: of a reply that nobody reads here, nothing need be counted
            begun.add(message)
        return self._memory.readable(begun.messages())

    def add(
        self,
        *messages: ChatMessage,
        metadata: Metadata = None,
        client_message_ids: Sequence[str | None] | None = None,
    ) -> None:
        """
        Add *messages* to the turn, with *metadata* beside each, and *client_message_ids* if they have any.

        They are stored when it ends; early turns store user messages at once. If that fails, the turn is as it was
        before, and they can be added again.
        """
        self._begun()
        new = self._named(checked_messages(messages), metadata, client_message_ids)
        if self._is_early() and any(message.type == MessageType.USER for message in messages):
            self._failed = new
            options: AppendOptions = {"is_complete": False}
            if self._after is not None:
                options["aside"], options["after"] = True, (self._incomplete or [self._after])[-1]
            self._incomplete += self._store([*self._unwritten, *new], **options)
            self._unwritten, self._failed = [], []
        else:
            self._unwritten += new
        self._unseen += messages

    async def aadd(
        self,
        *messages: ChatMessage,
        metadata: Metadata = None,
        client_message_ids: Sequence[str | None] | None = None,
    ) -> None:
        """See ``add``. Only an early turn has to wait here."""
        await self._memory.store.run(self.add, *messages, metadata=metadata, client_message_ids=client_message_ids)

    def end(self) -> None:
        """
        Store what the turn has added, as ``with`` does at its end; after an error this can be done again.

        ``ConversationErasedError`` if the conversation that the turn began with is gone.
        """
        if self._end():
            self._memory._after_eviction()

    async def aend(self) -> None:
        """See ``end``."""
        if await self._memory.store.run(self._end):
            await self._memory._aafter_eviction()

    def _end(self) -> bool:
        """Store what there is to be stored; returns whether the turn has evicted messages."""
        self._begun()
        if self._unwritten or self._incomplete:
            takes_up = [] if self._after is None else self._incomplete
            self._store(self._unwritten, completes=self._incomplete, takes_up=takes_up)
            self._unwritten, self._incomplete = [], []
        has_evicted, self._has_evicted = self._has_evicted, False
        return has_evicted

    def _is_early(self) -> bool:
        # Without history there is no place for a branch that may never be gone on with.
        return self._persist == "early" and (self._after is None or self._memory.store.keep_history)

    def _named(
        self, messages: Sequence[ChatMessage], metadata: Metadata, given: Sequence[str | None] | None
    ) -> list[_Unwritten]:
        """*messages* with their client message ids: those of the last attempt, if it was made with the same."""
        if given is not None and len(given) != len(messages):
            raise ValueError(
                f"client_message_ids must have an item for each of the {len(messages)} messages, not {len(given)}."
            )
        if given is None and [(each.message, each.metadata) for each in self._failed] == [
            (message, metadata) for message in messages
        ]:
            return self._failed
        makes_ids = self._memory.store.keeps_client_message_ids
        ids = given or [None] * len(messages)
        self._is_retry |= any(ids)
        return [
            _Unwritten(message, metadata, name or (uuid.uuid4().hex if makes_ids else None))
            for message, name in zip(messages, ids, strict=True)
        ]

    def _store(self, unwritten: Sequence[_Unwritten], **options: Unpack[AppendOptions]) -> list[int]:
        if self._memory.store.keeps_client_message_ids:
            options["client_message_ids"] = [each.client_message_id for each in unwritten]
        options["metadata"] = [each.metadata for each in unwritten]
        options["is_retry"], self._is_retry = self._is_retry, True
        if self._after is not None:
            options.setdefault("after", self._after)
        messages = [each.message for each in unwritten]
        appended = self._memory._append(messages, conversation=self._conversation, **options)
        self._conversation, self._is_retry = appended.conversation, False
        self._has_evicted |= bool(appended.eviction.evicted)
        return appended.keys

    def _begun(self) -> Eviction:
        if self._seen is None:
            raise RuntimeError("The turn has not begun; use it as 'with memory.turn() as turn:'.")
        return self._seen

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.end()

    async def __aenter__(self) -> Self:
        return await self._memory.store.run(self.begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is None:
            await self.aend()
