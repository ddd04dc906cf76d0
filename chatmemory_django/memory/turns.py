"""
A turn: the messages to the LLM and its answer, as one unit.

The memory is read once, and written once if the turn succeeds. A turn that fails or is cancelled stores nothing, unless
it is early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, Unpack

from msgspec.structs import replace

from chatmemory_django.core.tool_calls import has_open_calls
from chatmemory_django.core.windows import NOTHING_LEAVES, Entry, Eviction, Window
from chatmemory_django.messages import ChatMessage, MessageType, NewMessage, new_messages
from chatmemory_django.private import private
from chatmemory_django.stores.base import Appended, AppendOptions, Beside, ChatMemoryStore, Phase

Persist: TypeAlias = Literal["late", "early"]
"""When a turn is stored: everything at its end, or user messages at once, marked as incomplete until then."""


class Begun(NamedTuple):
    """
    What is stored of a turn that goes on: its *messages*, their *keys*, and the message *after* which it came.

    With None as *after*, it goes on behind all others; then *messages* are none, since the memory has them.
    """

    after: int | None
    keys: Sequence[int]
    messages: Sequence[ChatMessage]


class _Memory(Protocol):
    """What a turn uses of a ``ChatMemory``."""

    id: object
    store: ChatMemoryStore

    def window(self) -> Window: ...
    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]: ...
    def _append(
        self, messages: Sequence[NewMessage], *, conversation: object = None, **options: Unpack[AppendOptions]
    ) -> Appended: ...
    def _after_eviction(self) -> None: ...
    async def _aafter_eviction(self) -> None: ...


class Turn:
    """
    One turn with *memory*; ``ChatMemory.turn`` creates it, ``with`` or ``async with`` begins and ends it.

    Other writers may add to the memory in the meantime: the turn's messages are added after theirs.
    """

    def __init__(
        self, memory: _Memory, persist: Persist = "late", *, after: int | None = None, begun: Begun | None = None
    ) -> None:
        if persist not in {"late", "early"}:
            raise ValueError(f"persist must be 'late' or 'early', not {persist!r}.")
        self._memory = memory
        self._persist = persist
        self._after = after
        self.earlier = after if begun is None else begun.after
        """The message behind which the memory is read as it was then; None for the memory as it is now."""
        self._stored = [] if begun is None else list(begun.keys)
        """The keys of what is stored of the turn, in the order in which it was added."""
        self.question = None if begun is None else begun.keys[0]
        """The key of the first message of a user in the turn, once that is stored."""
        self.fence: int | None = None
        """The conversation's fence when the turn has taken it; with another one, nothing of the turn is stored."""
        self.seen_fence: int | None = None
        """The conversation's fence when the turn began; None if the store has none."""
        self.is_handed_over = False
        """Whether, when the turn began, a person answered in the conversation, or was waited for."""
        self._seen: Eviction | None = None
        self._conversation: object = None
        self._unseen: list[ChatMessage] = [] if begun is None else list(begun.messages)
        self._unwritten: list[NewMessage] = []
        self._failed: tuple[list[NewMessage], list[NewMessage]] = ([], [])
        """The messages of an ``add`` that failed, as they were given and with their client message ids."""
        self._entries: dict[int, Entry] = {}
        """What was counted, by the identity of the message."""
        self._newest: int | None = None
        self._is_retry = False
        self._has_evicted = False
        self._has_ended = False
        self.rows_beside: Beside | None = None
        """What to write in the transaction of the turn's next write, if the store can; otherwise, the caller does."""
        self._beside: Callable[[object, list[int]], object] | None = None

    def begin(self) -> Self:
        """Read the memory, as ``with`` does when it is entered; ``end`` is the counterpart."""
        memory, window = self._memory, self._memory.window()
        if self._stored:  # what it has stored stays
            window = window.at_once()
        self._seen, self._conversation, self.seen_fence, self.is_handed_over = (
            memory.store.read_memory(memory.id, window)
            if self.earlier is None
            else memory.store.read_memory_after(memory.id, window, self.earlier)
        )
        self._begun_at = self._seen.next_key
        return self

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages to send now: the memory as it was when the turn began, and what the turn has added since."""
        return self._memory.readable(self._with_added(self._begun()).messages())

    def unevicted(self) -> tuple[Eviction, int]:
        """Return the same memory, from which nothing has left to make room, and the key of the turn's first message."""
        begun = self._begun()
        begun.keeps_from = NOTHING_LEAVES
        return self._with_added(begun), self._begun_at

    def _with_added(self, begun: Eviction) -> Eviction:
        unseen, self._unseen = self._unseen, []
        for message in unseen:  # not earlier: a reply that is never read here need not be counted
            begun.add(message, self._cost(message))
        return begun

    @property
    def is_compacted(self) -> bool:
        """Whether ``messages`` has a summary, or lacks what has left the memory since the turn began."""
        begun = self._begun()
        return bool(begun.evicted) or begun.summary is not None

    @property
    def has_open_calls(self) -> bool:
        """Whether the memory ends with calls of tools that have no results, also if it leaves these out for the LLM."""
        return has_open_calls(self._begun().messages())

    def beside(self, store: Callable[[object, list[int]], object]) -> None:
        """
        Call *store* in the transaction of the turn's next write, if the store has any.

        It receives what identifies the conversation, and the keys of the messages that are stored then.
        """
        self._beside = store

    def show(self, message: ChatMessage) -> None:
        """Send *message*, which is stored and has left the memory, with what comes next of the turn."""
        self._unseen.append(message)

    @private
    def add(self, *messages: ChatMessage | NewMessage) -> None:
        """
        Add *messages* to the turn; see ``ChatMemory.add``.

        They are stored when the turn ends; early turns store user messages at once. If that fails, the turn is
        unchanged, and they can be added again.
        """
        self._begun()
        given = new_messages(messages)
        new = self._failed[1] if given == self._failed[0] else self._named(given)
        if self._is_early() and any(each.message.type == MessageType.USER for each in new):
            self._failed = given, new
            self._unwritten, unwritten = [*self._unwritten, *new], self._unwritten
            try:
                self.save("open")
            except BaseException:
                self._unwritten = unwritten
                raise
            self._failed = ([], [])
        else:
            self._unwritten += new
        self._unseen += (each.message for each in new)

    @private
    async def aadd(self, *messages: ChatMessage | NewMessage) -> None:
        """See ``add``. Only early turns have anything to wait for."""
        await self._memory.store.run(self.add, *messages)

    def end(self) -> None:
        """
        Store what the turn has added, as ``with`` does when it is exited; this can be retried after an error.

        Raises:
            ConversationErasedError: The conversation was erased since the turn began.

        """
        if self.write():
            self.follow()

    async def aend(self, afterwards: Callable[[Awaitable[None]], Awaitable[None]] | None = None) -> None:
        """
        See ``end``. What a memory does after an eviction, for example summarizing, is passed to *afterwards*, if given:
        the turn is stored by then, and need not wait for it.
        """
        if await self._memory.store.run(self.write):
            await (self.afollow() if afterwards is None else afterwards(self.afollow()))

    def write(self) -> bool:
        """Do the first step of ``end``: store what has not been stored yet; return whether ``follow`` comes next."""
        self._begun()
        if self._unwritten or (self._stored and not self._has_ended):
            self._write("end")
            self._has_ended = True
        has_evicted, self._has_evicted = self._has_evicted, False
        return has_evicted

    def follow(self) -> None:
        """Do the second step of ``end``: what the memory does after an eviction, for example summarizing."""
        self._memory._after_eviction()

    def afollow(self) -> Awaitable[None]:
        """Return the second step of ``aend``, see ``follow``."""
        return self._memory._aafter_eviction()

    def reject(self, count: int, reason: str) -> None:
        """Take the last *count* stored messages of the turn out of the memory; see ``ChatMemoryStore.reject``."""
        memory = self._memory
        if keys := self._stored[-count:] if count else []:
            memory.store.reject(memory.id, keys, reason, memory.window(), fence=self.fence)
            self._conversation = getattr(getattr(self._conversation, "state", None), "id", self._conversation)

    def save(self, phase: Literal["open", "round"] = "round", *, only_newest: bool = False) -> None:
        """
        Store what the turn has added so far, but evict nothing: the turn goes on.

        With *only_newest*, ``LeaseLostError`` if others have added something since the turn's last message.

        With *after*, what opens a turn becomes a branch of its own, and the first round continues from that. This can
        be retried after an error; what is stored stays if the turn never ends.
        """
        self._begun()
        if self._unwritten:
            self._newest = self._stored[-1] if only_newest and self._stored else None
            self._write(phase)

    def _save(self, phase: Phase, beside: Beside | None) -> list[int]:
        new = self._unwritten
        after = self._after if phase != "open" or self._after is None else (self._stored or [self._after])[-1]
        keys = self._store(new, after=after, phase=phase, turn=self._stored, beside=beside)
        is_aside = phase == "open" and self._after is not None
        for key, each in zip(keys, new, strict=True):
            if is_aside or each.message.type != MessageType.SYSTEM:  # an equal system message may be an old one
                self._stored.append(key)
            if self.question is None and each.message.type == MessageType.USER:
                self.question = key
        self._unwritten = []
        if phase != "open":
            self._after = None  # the turn's own messages are the newest now
        return keys

    @private
    def _write(self, phase: Phase) -> None:
        beside, self.rows_beside = self.rows_beside, None  # if this fails, the caller writes it
        if self._beside is None:
            self._save(phase, beside)
            return
        with self._memory.store.exclusive(self._memory.id):
            keys = self._save(phase, beside)
            self._beside(self._conversation, keys)
        self._beside = None

    def _is_early(self) -> bool:
        return self._persist == "early" and self.can_open

    @property
    def can_open(self) -> bool:
        """Whether questions can be stored alone: without a history, a branch that may never go on cannot be."""
        return self._after is None or self._memory.store.keep_history

    def _named(self, given: Sequence[NewMessage]) -> list[NewMessage]:
        """Return *given* with client message ids if the store keeps them, so that retries store nothing twice."""
        if not self._memory.store.keeps_client_message_ids:
            return [replace(each, client_message_id=None) for each in given]
        self._is_retry |= any(each.client_message_id for each in given)
        return [each if each.client_message_id else replace(each, client_message_id=token_hex(16)) for each in given]

    def _store(self, new: Sequence[NewMessage], **options: Unpack[AppendOptions]) -> list[int]:
        options["is_retry"], self._is_retry = self._is_retry, True
        self._note(self._begun())
        options["costs"] = [self._cost(each.message) for each in new]
        options["fence"], options["newest"] = self.fence, self._newest
        appended = self._memory._append(new, conversation=self._conversation, **options)
        self._conversation, self._is_retry = appended.conversation, False
        self._has_evicted |= bool(appended.eviction.evicted)
        self._note(appended.eviction)
        return appended.keys

    def _note(self, eviction: Eviction) -> None:
        """Note what was added to *eviction*, so that nothing is counted twice."""
        self._entries.update((id(entry.message), entry) for entry in eviction.added)

    def _cost(self, message: ChatMessage) -> int | None:
        entry = self._entries.get(id(message))
        return None if entry is None else entry.cost

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
