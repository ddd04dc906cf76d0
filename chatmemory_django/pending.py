"""What has left a memory and no summary covers yet, and how much of it one summary takes up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chatmemory_django.messages import ChatMessage, MessageType
from chatmemory_django.windows import Entry, Window

MAX_MESSAGES = 256
"""How many messages one summary takes up at most."""


class Pending(NamedTuple):
    """What one summary takes up, and what it goes by: it is put in its place only where that is still so."""

    entries: Sequence[Entry]
    """Messages with their costs, the oldest first; at least one."""
    has_more: bool
    """Whether more messages follow that one summary would not take up."""
    previous: str | None
    """The text of the summary that stands, ..."""
    summary: int | None
    """... and its key."""
    forgotten_through: int
    behind: int
    """What is up to here is covered by that summary, or forgotten."""
    conversation: object = None
    """What tells this conversation from a later one with the same memory id."""

    @property
    def messages(self) -> list[ChatMessage]:
        """The messages to be summarized."""
        return [entry.message for entry in self.entries if entry.message is not None]

    @property
    def keys(self) -> list[int]:
        """Their keys."""
        return [entry.key for entry in self.entries]

    @property
    def tokens(self) -> int:
        """How many tokens they have."""
        return sum(entry.cost or 0 for entry in self.entries)


def take(entries: Iterable[Entry], window: Window, max_tokens: int) -> tuple[list[Entry], bool]:
    """
    Return the first of *entries* that one summary takes up, counted as *window* does, and whether there are more.

    They are as many as ``MAX_MESSAGES`` and as *max_tokens* allow for, but at least one; the results of a call come
    with it, whatever they cost.
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
