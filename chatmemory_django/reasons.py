"""Why a message is sent to the LLM, or is not: pure functions of a memory, and of how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from chatmemory_django.messages import AiMessage, ChatMessage, MessageType
from chatmemory_django.windows import Eviction, Window, start_on_user


class Reason(StrEnum):
    """Why a message is sent, or is not."""

    IN_WINDOW = "in_window"
    PINNED = "pinned"
    """It is the system message, which never leaves."""
    SUMMARY = "summary"
    """It is the summary of what has left the memory."""
    REFILLED = "refilled"
    """It had left the memory, and is in it again since the conversation went back."""
    DOES_NOT_FIT = "does_not_fit"
    """It is in the memory, but the window of this moment is too small for it."""
    BEFORE_FIRST_USER = "before_first_user"
    """The memory is read from a user message on."""
    UNPAIRED_TOOL = "unpaired_tool"
    """A call of a tool without its result, or a result without its call."""
    EVICTED = "evicted"
    """Later messages pushed it out, or the memory was cleared."""
    SUMMARIZED = "summarized"
    """Later messages pushed it out, and the summary covers it."""
    SUPERSEDED = "superseded"
    """Another system message took its place, or stands for it, being equal; or another memory was set."""
    OFF_PATH = "off_path"
    """It was said on another branch of the conversation."""


class Explained(NamedTuple):
    """A message, and what becomes of it."""

    sequence: int
    message: ChatMessage
    reason: Reason
    sent: ChatMessage | None
    """What the LLM is sent of it: None if it is out, and not always all of its calls."""
    tokens: int | None
    """As the window counts, or as they were counted when it was stored; None if nobody did."""

    @property
    def is_sent(self) -> bool:
        """Whether the LLM is sent it, or some of it."""
        return self.sent is not None


class Reader(Protocol):
    """How a memory is read; see ``ChatMemory``."""

    @property
    def start_on_user(self) -> bool:
        """Whether what is read begins at a user message."""

    def window(self) -> Window:
        """The window as it is now."""

    def readable(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """*messages* as the LLM may see them."""


class Said(NamedTuple):
    """A message of a conversation, as a store has it."""

    sequence: int
    message: ChatMessage
    tokens: int | None
    parent: int | None = None
    """Which one it follows, None for the one before it in the history; for a summary the last one that it covers."""
    is_on_path: bool = True
    is_superseded: bool = False


def explain(
    memory: Sequence[Said],
    recent: Sequence[Said],
    reader: Reader,
    *,
    pinned: int | None = None,
    summary: int | None = None,
    forgotten_through: int = 0,
) -> list[Explained]:
    """
    Explain each of *recent*, the end of the history with all branches, and of *memory*, which comes last, in its order.

    *pinned*, *summary* and *forgotten_through* are the conversation's.
    """
    explained = _explain_memory(memory, reader, pinned, summary)
    remembered = {said.sequence for said in memory}
    if came_back := _came_back(memory, recent, reader.window(), {pinned, summary}):
        explained = [
            each._replace(reason=Reason.REFILLED)
            if each.sequence in came_back and each.reason == Reason.IN_WINDOW
            else each
            for each in explained
        ]
    through = next((said.parent or 0 for said in memory if said.sequence == summary), 0)
    out = [
        Explained(said.sequence, said.message, _reason_out(said, forgotten_through, through), None, said.tokens)
        for said in recent
        if said.sequence not in remembered
    ]
    return out + explained


def _explain_memory(memory: Sequence[Said], reader: Reader, pinned: int | None, summary: int | None) -> list[Explained]:
    """Explain each message of *memory*; those with something to be sent are what is read of it."""
    messages = [said.message for said in memory]
    sequences = [said.sequence for said in memory]
    window = reader.window()
    known = [_cost(said, window) for said in memory] if window.is_additive else None
    place = sequences.index(summary) if summary in sequences else None
    eviction = Eviction.of(messages, window, known, summary=place)
    eviction.trim()
    kept = {entry.key: messages[entry.key] for entry in eviction.entries()}
    first = None if eviction.pinned is None else eviction.pinned.key
    sent = _sent(list(kept.values()), reader)
    started = {id(message) for message in start_on_user(list(kept.values()))} if reader.start_on_user else None
    explained = []
    for index, said in enumerate(memory):
        if index not in kept:
            reason = Reason.DOES_NOT_FIT
        elif id(said.message) in sent:
            is_pinned = index == first or said.sequence == pinned
            reason = Reason.PINNED if is_pinned else Reason.SUMMARY if index == place else Reason.IN_WINDOW
        elif started is not None and id(said.message) not in started:
            reason = Reason.BEFORE_FIRST_USER
        else:
            reason = Reason.UNPAIRED_TOOL
        explained.append(Explained(said.sequence, said.message, reason, sent.get(id(said.message)), said.tokens))
    return explained


def _reason_out(said: Said, forgotten_through: int, through: int) -> Reason:
    """Why what was *said* is not in the memory, whose summary covers what is up to *through*."""
    if not said.is_on_path:
        return Reason.OFF_PATH
    is_known = said.sequence > forgotten_through
    if said.is_superseded or (is_known and said.message.type == MessageType.SYSTEM):  # such are replaced, never evicted
        return Reason.SUPERSEDED
    return Reason.SUMMARIZED if is_known and said.sequence <= through else Reason.EVICTED


def _came_back(memory: Sequence[Said], recent: Sequence[Said], window: Window, front: set[int | None]) -> set[int]:
    """
    The sequences of what is in *memory* and had left it before the conversation went back.

    No store records that. It follows from what was said on other branches: with all of a branch behind it, a message
    had no room in the window. What is not among *recent* is not known of, and the window is taken to be as it was.
    """
    if all(said.is_on_path for said in recent):
        return set()
    room = window.limit - window.overhead - sum(_cost(said, window) for said in memory if said.sequence in front)
    ends: dict[int, tuple[int, int]] = {}
    longest: dict[int, int] = {}
    before = 0
    for said in recent:
        parent, before = before if said.parent is None else said.parent, said.sequence
        if not said.is_on_path:
            fork, behind = ends.get(parent, (parent, 0))
            ends[said.sequence] = fork, behind + _cost(said, window)
            longest[fork] = max(longest.get(fork, 0), ends[said.sequence][1])
    came_back: set[int] = set()
    for fork, behind in longest.items():
        left = behind
        for said in reversed(memory):
            if said.sequence <= fork and said.sequence not in front:
                left += _cost(said, window)
                if left > room:
                    came_back.add(said.sequence)
    return came_back


def _cost(said: Said, window: Window) -> int:
    if window.estimator is None:
        return 1
    return window.cost(said.message) if said.tokens is None else said.tokens


def _sent(kept: list[ChatMessage], reader: Reader) -> dict[int, ChatMessage]:
    """What is sent of the messages in *kept*, by their ids."""
    readable = reader.readable(kept)
    sent: dict[int, ChatMessage] = {}
    place = 0
    for message in kept:
        if place < len(readable) and _is_of(readable[place], message):
            sent[id(message)] = readable[place]
            place += 1
    return sent


def _is_of(readable: ChatMessage, message: ChatMessage) -> bool:
    """Whether *readable* is *message*, or what a repair has left of it."""
    if readable is message:
        return True
    if not isinstance(readable, AiMessage) or not isinstance(message, AiMessage):
        return False
    calls = {id(request) for request in message.tool_execution_requests}
    left = {id(request) for request in readable.tool_execution_requests}
    return readable.text is message.text and (left < calls) and (left != set() or readable.text is not None)
