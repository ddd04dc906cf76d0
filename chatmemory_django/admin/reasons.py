"""Why the model is sent a message or is not, in words."""

from __future__ import annotations

from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatmemory_django.explain import Reading, read
from chatmemory_django.models import Conversation, MemoryStatus
from chatmemory_django.provider import known_memory
from chatmemory_django.reasons import Reason

MAX_EXPLAINED = 2_000
"""How many messages a memory has at most whose messages are explained one by one ..."""

MAX_EXPLAINED_SIZE = 8 * 1024 * 1024
"""... and how many characters. Of a larger one, pages show what the rows say alone."""


class Words(NamedTuple):
    """A reason, for people: a few words, and a sentence."""

    short: str | Promise
    long: str | Promise
    is_sent: bool = False
    """Whether the model is sent the message."""


WORDS: dict[Reason, Words] = {
    Reason.IN_WINDOW: Words(_("in the memory"), _("The model is sent this message."), is_sent=True),
    Reason.PINNED: Words(
        _("in the memory, pinned"),
        _("The model is sent this system message first, however many messages follow."),
        is_sent=True,
    ),
    Reason.SUMMARY: Words(
        _("summary"),
        _("It stands for what has left the memory: the model is sent it behind the system message."),
        is_sent=True,
    ),
    Reason.REFILLED: Words(
        _("in the memory again"),
        _("It had left the memory and came back when the conversation went back: the model is sent it."),
        is_sent=True,
    ),
    Reason.DOES_NOT_FIT: Words(
        _("does not fit the window"),
        _("It is in the memory, but the window of this moment is too small for it: the model is not sent it."),
    ),
    Reason.BEFORE_FIRST_USER: Words(
        _("before the first user message"),
        _("It is in the memory, but the model is sent what begins at a user message, as the settings require."),
    ),
    Reason.UNPAIRED_TOOL: Words(
        _("unpaired tool call"),
        _("A call without its result, or a result without its call: the settings keep such from the model."),
    ),
    Reason.EVICTED: Words(
        _("evicted"), _("It has left the memory: later messages needed the room, or the memory was cleared.")
    ),
    Reason.SUMMARIZED: Words(
        _("evicted, in the summary"),
        _("It has left the memory: later messages needed the room. The summary in the memory covers it."),
    ),
    Reason.OFF_PATH: Words(
        _("on another branch"),
        _("The conversation went on from an earlier message: the model is not sent what was said on other branches."),
    ),
    Reason.SUPERSEDED: Words(
        _("superseded"), _("It has left the memory: another system message replaced it, or another memory was set.")
    ),
}

IN_PART = Words(
    _("in the memory, in part"),
    _("The model is sent this message without those of its calls that have no result, as the settings require."),
    is_sent=True,
)

_OF_STATUS = {
    MemoryStatus.IN_MEMORY: Reason.IN_WINDOW,
    MemoryStatus.PINNED: Reason.PINNED,
    MemoryStatus.EVICTED: Reason.EVICTED,
    MemoryStatus.SUPERSEDED: Reason.SUPERSEDED,
    MemoryStatus.OFF_PATH: Reason.OFF_PATH,
}


def words_of(status: MemoryStatus) -> Words:
    """The reason that a row alone gives."""
    return WORDS[_OF_STATUS[status]]


def read_reasons(conversation: Conversation) -> dict[int, Words]:
    """
    The reason of each message in the memory of *conversation*, by sequence; two statements.

    Empty where they are not to be had within bounds: of a memory that is too large, of one whose tokens are not counted
    as the settings count, and where the settings or a message are invalid.
    """
    memory = known_memory(conversation.memory_id)
    if memory is None or not 0 < conversation.memory_messages <= MAX_EXPLAINED:
        return {}
    try:
        window = memory.window()
        if window.estimator is not None and not conversation.counted_by == window.counter != "":
            return {}  # every text would be counted
        if conversation.memory().total_size() > MAX_EXPLAINED_SIZE:
            return {}
        return {reading.row.sequence: _words(reading) for reading in read(conversation, memory)}
    except (TypeError, ValueError):
        return {}


def _words(reading: Reading) -> Words:
    is_whole = reading.sent is None or reading.row.payload is None or reading.sent == reading.row.chat_message
    return WORDS[reading.reason] if is_whole else IN_PART
