"""What the LLM would be sent now, message by message, and why the others would not be."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import AiMessage, ChatMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.windows import Eviction, Window, start_on_user


class Reason(StrEnum):
    """Why a message is sent, or is not."""

    IN_WINDOW = "in_window"
    PINNED = "pinned"
    """It is the system message, which never leaves."""
    DOES_NOT_FIT = "does_not_fit"
    """It is in the memory, but the window of this moment is too small for it."""
    BEFORE_FIRST_USER = "before_first_user"
    """The memory is read from a user message on."""
    UNPAIRED_TOOL = "unpaired_tool"
    """A call of a tool without its result, or a result without its call."""
    EVICTED = "evicted"
    """Later messages pushed it out, or the memory was cleared."""
    SUPERSEDED = "superseded"
    """Another system message took its place, or another memory was set."""


class Reading(NamedTuple):
    """A row, and what becomes of it."""

    row: Message
    reason: Reason
    sent: ChatMessage | None
    """What the LLM is sent of it: None if it is out, and not always all of its calls."""
    tokens: int | None
    """As the window counts, or as they were counted when it was stored; None if nobody did."""


def read(conversation: Conversation, memory: ChatMemory) -> list[Reading]:
    """
    A reading of each message in the memory of *conversation*, in its order, as seen through the window of *memory*.

    Those with something to be sent are what ``memory.messages()`` gives. One statement; nothing is written.
    """
    rows = list(conversation.memory())
    messages = [row.chat_message for row in rows]
    window = memory.window()
    costs = [_tokens(row, message, window) for row, message in zip(rows, messages, strict=True)]
    adds_up = window.is_additive and window.estimator is not None
    known = [1] * len(rows) if window.estimator is None else [cost or 0 for cost in costs] if adds_up else None
    eviction = Eviction.of(messages, window, known)
    eviction.trim()
    kept = {entry.key: messages[entry.key] for entry in eviction.entries()}
    pinned = None if eviction.pinned is None else eviction.pinned.key
    sent = _sent(list(kept.values()), memory)
    started = {id(message) for message in start_on_user(list(kept.values()))} if memory.start_on_user else None
    readings = []
    for index, (row, message) in enumerate(zip(rows, messages, strict=True)):
        if index not in kept:
            reason = Reason.DOES_NOT_FIT
        elif id(message) in sent:
            is_pinned = index == pinned or row.sequence == conversation.pinned_sequence
            reason = Reason.PINNED if is_pinned else Reason.IN_WINDOW
        elif started is not None and id(message) not in started:
            reason = Reason.BEFORE_FIRST_USER
        else:
            reason = Reason.UNPAIRED_TOOL
        readings.append(Reading(row, reason, sent.get(id(message)), costs[index]))
    return readings


def read_recent(conversation: Conversation, memory: ChatMemory, count: int) -> list[Reading]:
    """
    A reading of each of the last *count* messages of the history of *conversation*, and of all in its memory.

    The memory comes last, in its order. Two statements.
    """
    remembered = read(conversation, memory)
    window = memory.window()
    in_memory = {reading.row.sequence for reading in remembered}
    recent = conversation.history().order_by("-sequence")[:count]
    out = [
        Reading(
            row,
            Reason.SUPERSEDED if row.superseded else Reason.EVICTED,
            None,
            _tokens(row, row.chat_message, window),
        )
        for row in reversed(recent)
        if row.sequence not in in_memory
    ]
    return out + remembered


def _tokens(row: Message, message: ChatMessage, window: Window) -> int | None:
    if window.estimator is None or (window.counter and row.counted_by == window.counter):
        return row.token_count
    return window.cost(message)


def _sent(kept: list[ChatMessage], memory: ChatMemory) -> dict[int, ChatMessage]:
    """What is sent of the messages in *kept*, by their ids."""
    readable = memory.readable(kept)
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
