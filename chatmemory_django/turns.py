"""
A turn: what is said to the LLM and what it answers, as one unit.

The memory is read once, and written once when the turn ends well. A turn that fails or is cancelled leaves nothing.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.stores.base import Metadata, checked_messages
from chatmemory_django.windows import Eviction

if TYPE_CHECKING:
    from chatmemory_django.memory import ChatMemory

Persist: TypeAlias = Literal["late", "early"]
"""When a turn is stored: all of it at its end, or what the user says at once, marked as incomplete until then."""


class Turn:
    """
    One turn with *memory*; ``ChatMemory.turn`` makes it, ``with`` or ``async with`` begins and ends it.

    Others may write to the memory meanwhile: what the turn adds comes behind that, under the lock of the moment.
    """

    def __init__(self, memory: ChatMemory, persist: Persist = "late") -> None:
        if persist not in {"late", "early"}:
            raise ValueError(f"persist must be 'late' or 'early', not {persist!r}.")
        self._memory = memory
        self._persist = persist
        self._seen: Eviction | None = None
        self._unseen: list[ChatMessage] = []
        self._unwritten: list[tuple[ChatMessage, Metadata]] = []
        self._incomplete: dict[int, Metadata] = {}

    @property
    def messages(self) -> list[ChatMessage]:
        """What to send now: the memory as it was when the turn began, with what the turn has added since."""
        begun = self._begun()
        unseen, self._unseen = self._unseen, []
        for message in unseen:  # not before: of a reply that nobody reads here, nothing need be counted
            begun.add(message)
        return self._memory.readable(begun.messages())

    def add(self, *messages: ChatMessage, metadata: Metadata = None) -> None:
        """
        Add *messages* to the turn, with *metadata* beside each.

        They are stored when it ends; early turns store user messages at once.
        """
        self._begun()
        new = checked_messages(messages)
        self._unseen += new
        self._unwritten += [(message, metadata) for message in new]
        if self._persist == "early" and any(message.type == MessageType.USER for message in new):
            self._write(incomplete=True)

    async def aadd(self, *messages: ChatMessage, metadata: Metadata = None) -> None:
        """See ``add``. Only an early turn has to wait here."""
        await self._memory.store.run(self.add, *messages, metadata=metadata)

    def _begin(self) -> Self:
        self._seen = self._memory.store.read_memory(self._memory.id, self._memory.window())
        return self

    def _begun(self) -> Eviction:
        if self._seen is None:
            raise RuntimeError("The turn has not begun; use it as 'with memory.turn() as turn:'.")
        return self._seen

    def _write(self, *, incomplete: bool = False) -> None:
        new, self._unwritten = self._unwritten, []
        if not new and not self._incomplete:
            return
        messages, metadata = [message for message, _ in new], [its_metadata for _, its_metadata in new]
        completed = {} if incomplete else self._incomplete
        keys = self._memory.append(messages, metadata=metadata, incomplete=incomplete, completed=completed)
        if incomplete:
            self._incomplete.update(zip(keys, metadata, strict=True))

    def __enter__(self) -> Self:
        return self._begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self._write()

    async def __aenter__(self) -> Self:
        return await self._memory.store.run(self._begin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is None:
            await self._memory.store.run(self._write)
