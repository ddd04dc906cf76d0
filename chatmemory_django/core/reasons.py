"""Why a message is sent to the LLM or not: pure functions of a memory and of how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from chatmemory_django.core.windows import Eviction, Window, start_on_user
from chatmemory_django.messages import AiMessage, ChatMessage, MessageType


class Reason(StrEnum):
    """Why a message is sent to the LLM, or is not."""

    IN_WINDOW = "in_window"
    PINNED = "pinned"
    """It is the system message, which is never evicted."""
    SUMMARY = "summary"
    """It is the summary of what has left the memory."""
    REFILLED = "refilled"
    """It had left the memory, and returned when the conversation was rewound."""
    DOES_NOT_FIT = "does_not_fit"
    """It is in the memory, but the current window is too small for it."""
    BEFORE_FIRST_USER = "before_first_user"
    """The memory is only read from the first user message on."""
    UNPAIRED_TOOL = "unpaired_tool"
    """It is a tool call without a result, or a result without a call."""
    EVICTED = "evicted"
    """Later messages displaced it, or the memory was cleared."""
    SUMMARIZED = "summarized"
    """Later messages displaced it, and the summary covers it."""
    SUPERSEDED = "superseded"
    """Another system message replaced it or is equal to it, or another memory was set."""
    OFF_PATH = "off_path"
    """It is on another branch of the conversation."""


class Explained(NamedTuple):
    """A message, and whether and why it is sent."""

    sequence: int
    message: ChatMessage
    reason: Reason
    sent: ChatMessage | None
    """What is sent to the LLM: None if nothing is, and not always with all of its tool calls."""
    tokens: int | None
    """As counted by the window, or when the message was stored; None if it was not counted."""

    @property
    def is_sent(self) -> bool:
        """Whether the message, or part of it, is sent to the LLM."""
        return self.sent is not None


class Reader(Protocol):
    """How a memory is read; see ``ChatMemory``."""

    @property
    def start_on_user(self) -> bool:
        """Whether the messages that are read begin at a user message."""

    def window(self) -> Window:
        """Return the current window."""

    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Return *messages* as the LLM receives them."""


class StoredMessage(NamedTuple):
    """A message of a conversation as a store has it."""

    sequence: int
    message: ChatMessage
    tokens: int | None
    parent: int | None = None
    """
    Which message it follows, None for the one before it in the history; for a summary, the last message that it covers.
    """
    is_on_path: bool = True
    is_superseded: bool = False


def explain(
    memory: Sequence[StoredMessage],
    recent: Sequence[StoredMessage],
    reader: Reader,
    *,
    pinned: int | None = None,
    summary: int | None = None,
    forgotten_through: int = 0,
) -> list[Explained]:
    """
    Explain each of *recent*, the newest messages of all branches, and of *memory*, which comes last, in its order.

    *pinned*, *summary* and *forgotten_through* are the columns of the conversation.
    """
    explained = _explain_memory(memory, reader, pinned, summary)
    remembered = {stored.sequence for stored in memory}
    if came_back := _came_back(memory, recent, reader.window(), {pinned, summary}):
        explained = [
            each._replace(reason=Reason.REFILLED)
            if each.sequence in came_back and each.reason == Reason.IN_WINDOW
            else each
            for each in explained
        ]
    through = next((stored.parent or 0 for stored in memory if stored.sequence == summary), 0)
    out = [
        Explained(stored.sequence, stored.message, _reason_out(stored, forgotten_through, through), None, stored.tokens)
        for stored in recent
        if stored.sequence not in remembered
    ]
    return out + explained


def _explain_memory(
    memory: Sequence[StoredMessage], reader: Reader, pinned: int | None, summary: int | None
) -> list[Explained]:
    """Explain each message of *memory*; those with ``sent`` are the messages that are read from it."""
    messages = [stored.message for stored in memory]
    sequences = [stored.sequence for stored in memory]
    window = reader.window()
    known = [_cost(stored, window) for stored in memory] if window.is_additive else None
    place = sequences.index(summary) if summary in sequences else None
    eviction = Eviction.of(messages, window, known, summary=place)
    eviction.trim()
    kept = {entry.key: messages[entry.key] for entry in eviction.entries()}
    first = None if eviction.pinned is None else eviction.pinned.key
    sent = _sent(list(kept.values()), reader)
    started = {id(message) for message in start_on_user(list(kept.values()))} if reader.start_on_user else None
    explained = []
    for index, stored in enumerate(memory):
        if index not in kept:
            reason = Reason.DOES_NOT_FIT
        elif id(stored.message) in sent:
            is_pinned = index == first or stored.sequence == pinned
            reason = Reason.PINNED if is_pinned else Reason.SUMMARY if index == place else Reason.IN_WINDOW
        elif started is not None and id(stored.message) not in started:
            reason = Reason.BEFORE_FIRST_USER
        else:
            reason = Reason.UNPAIRED_TOOL
        explained.append(
            Explained(stored.sequence, stored.message, reason, sent.get(id(stored.message)), stored.tokens)
        )
    return explained


def _reason_out(stored: StoredMessage, forgotten_through: int, through: int) -> Reason:
    """Return why *stored* is not in the memory, whose summary covers everything up to *through*."""
    if not stored.is_on_path:
        return Reason.OFF_PATH
    is_known = stored.sequence > forgotten_through
    if stored.is_superseded or (
        is_known and stored.message.type == MessageType.SYSTEM
    ):  # these are replaced, never evicted
        return Reason.SUPERSEDED
    return Reason.SUMMARIZED if is_known and stored.sequence <= through else Reason.EVICTED


def _came_back(
    memory: Sequence[StoredMessage], recent: Sequence[StoredMessage], window: Window, front: set[int | None]
) -> set[int]:
    """
    Return the sequences of messages in *memory* that had left it before the conversation was rewound.

    No store records this. It follows from the messages on other branches: when all messages of a branch came after it,
    a message no longer fit the window. Messages that are not in *recent* are not considered, and the window is assumed
    to be unchanged.
    """
    if all(stored.is_on_path for stored in recent):
        return set()
    room = window.limit - window.overhead - sum(_cost(stored, window) for stored in memory if stored.sequence in front)
    ends: dict[int, tuple[int, int]] = {}
    longest: dict[int, int] = {}
    before = 0
    for stored in recent:
        parent, before = before if stored.parent is None else stored.parent, stored.sequence
        if not stored.is_on_path:
            fork, behind = ends.get(parent, (parent, 0))
            ends[stored.sequence] = fork, behind + _cost(stored, window)
            longest[fork] = max(longest.get(fork, 0), ends[stored.sequence][1])
    came_back: set[int] = set()
    for fork, behind in longest.items():
        left = behind
        for stored in reversed(memory):
            if stored.sequence <= fork and stored.sequence not in front:
                left += _cost(stored, window)
                if left > room:
                    came_back.add(stored.sequence)
    return came_back


def _cost(stored: StoredMessage, window: Window) -> int:
    if window.estimator is None:
        return 1
    return window.cost(stored.message) if stored.tokens is None else stored.tokens


def _sent(kept: list[ChatMessage], reader: Reader) -> dict[int, ChatMessage]:
    """Return what is sent of the messages in *kept*, by the ``id()`` of each."""
    readable = reader.readable(kept)
    sent: dict[int, ChatMessage] = {}
    place = 0
    for message in kept:
        if place < len(readable) and _is_of(readable[place], message):
            sent[id(message)] = readable[place]
            place += 1
    return sent


def _is_of(readable: ChatMessage, message: ChatMessage) -> bool:
    """Return whether *readable* is *message*, or what a repair has left of it."""
    if readable is message:
        return True
    if not isinstance(readable, AiMessage) or not isinstance(message, AiMessage):
        return False
    calls = {id(request) for request in message.tool_execution_requests}
    left = {id(request) for request in readable.tool_execution_requests}
    return readable.text is message.text and (left < calls) and (left != set() or readable.text is not None)
