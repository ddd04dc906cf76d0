"""
Messages that have left a memory and are not yet covered by a summary, and how many of them one summary takes.

A function that fails is not called with the same messages for ever: it is called less and less often, with fewer
messages each time, and in the end without the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from chatmemory_django.core.shortening import shortened
from chatmemory_django.core.windows import Entry, Window
from chatmemory_django.messages import ChatMessage, MessageType

MAX_MESSAGES = 256
"""The maximum number of messages that one summary covers."""

WHOLE_TRIES = 2
"""How often in a row the function may fail before it gets fewer messages."""

HALVINGS = 3
"""How often these are halved, after one more failure each, before the first of them are left out."""

MAX_PAUSE = 256
"""How many more messages must be stored, at most, before the function is called again after a failure."""


class Failure(NamedTuple):
    """That the messages after *behind* could not be summarized."""

    behind: int
    times: int
    """How often in a row."""
    until: int
    """The next sequence at which they are tried again."""

    def lasts(self, next_key: int) -> bool:
        """Return whether the pause is not over yet."""
        return next_key < self.until


class Pending(NamedTuple):
    """What one summary covers, and the state it is based on: the summary is stored only if that is unchanged."""

    entries: Sequence[Entry]
    """Messages with their costs, oldest first; at least one."""
    messages: list[ChatMessage]
    """What is summarized of them: all, or less after failures; what is too large is shortened."""
    has_more: bool
    """Whether there are more messages than one summary covers."""
    previous: str | None
    """The text of the current summary, ..."""
    summary: int | None
    """... and its key."""
    forgotten_through: int
    behind: int
    """Everything up to this message is covered by that summary, or was cleared."""
    next_key: int
    failure: Failure | None = None
    """What is known of earlier failures with these messages, or those that they begin with."""
    conversation: object = None
    """Identifies this conversation among later ones with the same memory id."""

    @property
    def keys(self) -> list[int]:
        """The keys of these messages."""
        return [entry.key for entry in self.entries]

    @property
    def tokens(self) -> int:
        """The total number of their tokens."""
        return sum(entry.cost or 0 for entry in self.entries)

    def failed(self) -> Failure:
        """Return what is to be noted if they could not be summarized: the pauses are 0, 4, 8, 16 and so on."""
        if self.failure is None:
            return Failure(self.behind, 1, self.next_key)
        if self.failure.lasts(self.next_key):  # failures are not counted more often than the pauses allow
            return self.failure
        pause = min(2 << min(self.failure.times, MAX_PAUSE.bit_length()), MAX_PAUSE)
        return Failure(self.behind, self.failure.times + 1, self.next_key + pause)


def take(
    entries: Iterable[Entry], window: Window, max_tokens: int, failures: int = 0
) -> tuple[list[Entry], list[ChatMessage], bool]:
    """
    Return the first of *entries* that one summary covers, their messages to be summarized, and whether there are more.

    There are at least one and at most ``MAX_MESSAGES``, with at most *max_tokens* together, counted by *window*. A call
    and its results are included together. If these alone, or the first message alone, are too much, they are
    ``shortened``.

    After ``WHOLE_TRIES`` *failures*, the tokens are halved with each, ``HALVINGS`` times. After that, as many of such
    small parts as there are further failures are covered, but left out of what is summarized.
    """
    max_tokens = max(1, max_tokens >> min(max(0, failures - WHOLE_TRIES + 1), HALVINGS))
    left_out = max(0, failures - WHOLE_TRIES - HALVINGS + 1)
    taken: list[Entry] = []
    part: list[Entry] = []
    last = 0  # where the last message of the part is that is no result: its results stay with it
    tokens, has_more = 0, False
    for entry in entries:
        if entry.cost is None and entry.message is not None:
            entry.cost = window.cost(entry.message)
        if entry.type != MessageType.TOOL_EXECUTION_RESULT:
            last = len(part)
        tokens += entry.cost or 0
        is_full = len(taken) == MAX_MESSAGES
        if is_full or (last and tokens > max_tokens):
            call = part[last:] if last else []
            if is_full or not left_out:
                taken, part = taken[: len(taken) - len(call)], part[: len(part) - len(call)]
                has_more = True
                break
            left_out -= 1
            part, last, tokens = call, 0, _cost([*call, entry])
        taken.append(entry)
        part.append(entry)
    messages = [entry.message for entry in part if entry.message is not None]
    return taken, shortened(messages, window.cost, max_tokens) if _cost(part) > max_tokens else messages, has_more


def _cost(entries: Iterable[Entry]) -> int:
    return sum(entry.cost or 0 for entry in entries)
