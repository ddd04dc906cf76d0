"""Messages that have left a memory and are not yet covered by a summary, and how many of them one summary takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chatmemory_django.core.windows import Entry, Window
from chatmemory_django.messages import ChatMessage, MessageType

MAX_MESSAGES = 256
"""The maximum number of messages that one summary covers."""


class Pending(NamedTuple):
    """What one summary covers, and the state it is based on: the summary is stored only if that is unchanged."""

    entries: Sequence[Entry]
    """Messages with their costs, oldest first; at least one."""
    has_more: bool
    """Whether there are more messages than one summary covers."""
    previous: str | None
    """The text of the current summary, ..."""
    summary: int | None
    """... and its key."""
    forgotten_through: int
    behind: int
    """Everything up to this message is covered by that summary, or was cleared."""
    conversation: object = None
    """Identifies this conversation among later ones with the same memory id."""

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages to be summarized."""
        return [entry.message for entry in self.entries if entry.message is not None]

    @property
    def keys(self) -> list[int]:
        """The keys of these messages."""
        return [entry.key for entry in self.entries]

    @property
    def tokens(self) -> int:
        """The total number of their tokens."""
        return sum(entry.cost or 0 for entry in self.entries)


def take(entries: Iterable[Entry], window: Window, max_tokens: int) -> tuple[list[Entry], bool]:
    """
    Return the first of *entries* that one summary covers, counted by *window*, and whether there are more.

    There are at least one and at most ``MAX_MESSAGES``, with at most *max_tokens* together; the results of a call are
    included with it, whatever they cost.
    """
    taken: list[Entry] = []
    tokens = 0
    for entry in entries:
        if entry.cost is None and entry.message is not None:
            entry.cost = window.cost(entry.message)
        tokens += entry.cost or 0
        is_too_much = tokens > max_tokens and entry.type != MessageType.TOOL_EXECUTION_RESULT
        if taken and (is_too_much or len(taken) == MAX_MESSAGES):
            return taken, True
        taken.append(entry)
    return taken, False
