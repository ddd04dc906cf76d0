"""
A turn: the messages to the LLM and its answer, as one unit.

The memory is read once, and written once if the turn succeeds. A turn that fails or is cancelled stores nothing, unless
it is early.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, Unpack

from chatmemory_django.core.windows import Eviction, Window
from chatmemory_django.messages import ChatMessage, MessageType, Metadata
from chatmemory_django.stores.base import Appended, AppendOptions, ChatMemoryStore, checked_messages

Persist: TypeAlias = Literal["late", "early"]
"""When a turn is stored: everything at its end, or user messages at once, marked as incomplete until then."""


class _Memory(Protocol):
    """What a turn uses of a ``ChatMemory``."""

    id: object
    store: ChatMemoryStore

    def window(self) -> Window: ...
    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]: ...
    def _append(
        self, messages: Sequence[ChatMessage], *, conversation: object = None, **options: Unpack[AppendOptions]
    ) -> Appended: ...
    def _after_eviction(self) -> None: ...
    async def _aafter_eviction(self) -> None: ...


class _Unwritten(NamedTuple):
    """A message of the turn that is not stored yet."""

    message: ChatMessage
    metadata: Metadata
    client_message_id: str | None
    """Generated here, so that the message is stored only once however often that is retried."""


class Turn:
    """
    One turn with *memory*; ``ChatMemory.turn`` creates it, ``with`` or ``async with`` begins and ends it.

    Other writers may add to the memory in the meantime: the turn's messages are added after theirs.
    """

    def __init__(self, memory: _Memory, persist: Persist = "late", *, after: int | None = None) -> None:
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
        """Read the memory, as ``with`` does when it is entered; ``end`` is the counterpart."""
        memory, window = self._memory, self._memory.window()
        self._seen, self._conversation = (
            memory.store.read_memory(memory.id, window)
            if self._after is None
            else memory.store.read_memory_after(memory.id, window, self._after)
        )
        return self

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages to send now: the memory as it was when the turn began, and what the turn has added since."""
        begun = self._begun()
        unseen, self._unseen = self._unseen, []
        for message in unseen:  # not earlier: a reply that is never read here need not be counted
            begun.add(message)
        return self._memory.readable(begun.messages())

    def add(
        self,
        *messages: ChatMessage,
        metadata: Metadata = None,
        client_message_ids: Sequence[str | None] | None = None,
    ) -> None:
        """
        Add *messages* to the turn, with *metadata* for each, and with their *client_message_ids*, if any.

        They are stored when the turn ends; early turns store user messages at once. If that fails, the turn is
        unchanged, and they can be added again.
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
        """See ``add``. Only early turns have anything to wait for."""
        await self._memory.store.run(self.add, *messages, metadata=metadata, client_message_ids=client_message_ids)

    def end(self) -> None:
        """
        Store what the turn has added, as ``with`` does when it is exited; this can be retried after an error.

        Raises:
            ConversationErasedError: The conversation was erased since the turn began.

        """
        if self._end():
            self._memory._after_eviction()

    async def aend(self) -> None:
        """See ``end``."""
        if await self._memory.store.run(self._end):
            await self._memory._aafter_eviction()

    def _end(self) -> bool:
        """Store what has not been stored yet; return whether the turn has evicted messages."""
        self._begun()
        if self._unwritten or self._incomplete:
            takes_up = [] if self._after is None else self._incomplete
            self._store(self._unwritten, completes=self._incomplete, takes_up=takes_up)
            self._unwritten, self._incomplete = [], []
        has_evicted, self._has_evicted = self._has_evicted, False
        return has_evicted

    def _is_early(self) -> bool:
        # Without a history, a branch that may never be continued cannot be stored.
        return self._persist == "early" and (self._after is None or self._memory.store.keep_history)

    def _named(
        self, messages: Sequence[ChatMessage], metadata: Metadata, given: Sequence[str | None] | None
    ) -> list[_Unwritten]:
        """Return *messages* with their client message ids: those of the failed attempt, if it had the same messages."""
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
