"""Explanations of why a message is or is not sent to the model, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from chatmemory_django.core.reasons import Explained, Reader, Reason
from chatmemory_django.models import Conversation, MemoryStatus

MAX_EXPLAINED = 2_000
"""Maximum number of messages of a memory whose messages are explained one by one ..."""

MAX_EXPLAINED_SIZE = 8 * 1024 * 1024
"""... and of characters. For a larger memory, pages show the status of each row instead."""


class ReasonWords(NamedTuple):
    """A reason in a few words, and in a sentence."""

    short: str | Promise
    long: str | Promise
    is_sent: bool = False
    """Whether the model is sent the message, ..."""
    changes: Sequence[str | Promise] = ()
    """... and what differs in what it is sent."""
    content: str = ""
    """What only those read who may read the messages."""


Changes: TypeAlias = Callable[[Conversation, Sequence[Explained]], Mapping[int, Sequence[str | Promise]]]
"""Returns sentences on what differs in what a model is sent of a conversation, by the sequence of the message."""

_registered: list[Changes] = []


def shows_changes(changes: Changes) -> None:
    """Register *changes*, an app's function: what it returns is shown with each message that is sent."""
    if changes not in _registered:
        _registered.append(changes)


WORDS: dict[Reason, ReasonWords] = {
    Reason.IN_WINDOW: ReasonWords(_("in the memory"), _("This message is sent to the model."), is_sent=True),
    Reason.PINNED: ReasonWords(
        _("in the memory, pinned"),
        _("This message stays in the memory: it was pinned, or is the system message."),
        is_sent=True,
    ),
    Reason.SUMMARY: ReasonWords(
        _("summary"),
        _("It summarizes messages that have left the memory, and is sent to the model after the system message."),
        is_sent=True,
    ),
    Reason.REFILLED: ReasonWords(
        _("in the memory again"),
        _("It had left the memory, and came back: the window grew, or the conversation went on from an earlier place."),
        is_sent=True,
    ),
    Reason.CLEARED: ReasonWords(
        _("cleared"),
        _("It is an old result of a tool: the model is sent a short note in its place, and may call the tool again."),
        is_sent=True,
    ),
    Reason.DOES_NOT_FIT: ReasonWords(
        _("does not fit the window"),
        _("It is in the memory, but the current window is too small for it, so it is not sent to the model."),
    ),
    Reason.BEFORE_FIRST_USER: ReasonWords(
        _("before the first user message"),
        _("It is in the memory, but the settings require that the messages sent start with a user message."),
    ),
    Reason.UNPAIRED_TOOL: ReasonWords(
        _("unpaired tool call"),
        _("A tool call without its result, or a result without its call: the settings exclude these."),
    ),
    Reason.EVICTED: ReasonWords(
        _("evicted"), _("It has left the memory: later messages needed the space, or the memory was cleared.")
    ),
    Reason.SUMMARIZED: ReasonWords(
        _("evicted, in the summary"),
        _("It has left the memory: later messages needed the space. The summary in the memory covers it."),
    ),
    Reason.OFF_PATH: ReasonWords(
        _("on another branch"),
        _("The conversation continued from an earlier message. Other branches are not sent to the model."),
    ),
    Reason.SUPERSEDED: ReasonWords(
        _("superseded"),
        _(
            "It has left the memory: another system message replaced it, the memory was replaced, or the model did not "
            "accept it."
        ),
    ),
}

IN_PART = ReasonWords(
    _("in the memory, in part"),
    _("This message is sent to the model without its tool calls that have no result, as the settings require."),
    is_sent=True,
)

_OF_STATUS = {
    MemoryStatus.IN_MEMORY: Reason.IN_WINDOW,
    MemoryStatus.PINNED: Reason.PINNED,
    MemoryStatus.EVICTED: Reason.EVICTED,
    MemoryStatus.SUPERSEDED: Reason.SUPERSEDED,
    MemoryStatus.OFF_PATH: Reason.OFF_PATH,
}


def words_of(status: MemoryStatus) -> ReasonWords:
    """Return the explanation for the status of a row."""
    return WORDS[_OF_STATUS[status]]


def read_reasons(conversation: Conversation, reader: Reader) -> dict[int, ReasonWords]:
    """
    Return the explanation for each message that *reader* finds in the memory of *conversation*, by sequence.

    Takes two queries. The result is empty if this would cost too much or fail: if the memory is too large, if its
    tokens were not counted by the estimator in the settings, or if a message is invalid.
    """
    if conversation.memory_messages > MAX_EXPLAINED:
        return {}
    try:
        window = reader.window()
        if not (conversation.memory_messages or window.outgrows(conversation)):
            return {}
        if window.estimator is not None and not conversation.counted_by == window.counter != "":
            return {}  # every text would have to be counted
        if conversation.memory().total_size() > MAX_EXPLAINED_SIZE:
            return {}
        explained = conversation.read(reader).explain()
        changes = [of(conversation, explained) for of in _registered]
        return {each.sequence: _words(each, changes) for each in explained}
    except (TypeError, ValueError):
        return {}


def explains_others(conversation: Conversation, reader: Reader) -> bool:
    """Return whether *reader* may find messages in the memory of *conversation* that are not stored as such."""
    try:
        return reader.window().outgrows(conversation)
    except (TypeError, ValueError):
        return False


def _words(explained: Explained, changes: Sequence[Mapping[int, Sequence[str | Promise]]]) -> ReasonWords:
    is_part = explained.reason != Reason.CLEARED and explained.is_sent and explained.sent is not explained.message
    sentences = [each for of in changes for each in of.get(explained.sequence, ())]
    return (IN_PART if is_part else WORDS[explained.reason])._replace(changes=sentences)
