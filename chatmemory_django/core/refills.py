"""
Memories that are filled again: what comes back when a conversation is rewound, or when the limit has grown.

A memory that was evicted down to a limit has room when a later limit is larger. Then the messages of the path that left
it because of the smaller one come back, as many as a window of the new size holds. Other messages stay away: those that
were cleared, removed, evicted by ``evict``, or not among those that were set, and those that a summary covers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from chatmemory_django.core.windows import Entry, HasType, Window, overlap, total_of
from chatmemory_django.messages import MessageType

SPARE = 8
"""How many more messages are read than seem to fit: one shows that the room ends, and results come with their call."""

USUAL_TOKENS = 32
"""How many tokens a message is assumed to have if those in the memory do not show it."""

MAX_PAGE = 4_096
"""How many messages are read at a time, at most."""


def page_size(messages: int, tokens: int, window: Window) -> int:
    """
    Return how many messages to read first, so that one statement is usually enough.

    The memory has *messages* and, as far as is known, *tokens*.
    """
    room, size = window.limit - messages, 1
    if window.measure == "tokens":
        room, size = window.limit - tokens, tokens // max(1, messages) or USUAL_TOKENS
    return min(max(0, room) // size + SPARE, MAX_PAGE)


def filled(backwards: Iterable[Entry], front: Sequence[Entry], window: Window) -> list[Entry]:
    """
    Return the entries to read for a memory that has *front* in any case: all that fit, and those that trimming needs.

    They are read *backwards*, and returned in order.
    """
    read: deque[Entry] = deque()
    total = total_of(front, window)
    for entry in backwards:
        read.appendleft(entry)
        if total is not None:
            total += entry.cost or 0
        # A call's results are evicted with it, so the call that they answer must be read, too.
        if _size(total, front, read, window) > window.limit and entry.type != MessageType.TOOL_EXECUTION_RESULT:
            break
    return list(read)


def brought_back(backwards: Iterable[Entry], memory: Sequence[Entry], window: Window) -> list[Entry]:
    """
    Return the messages that come back to *memory*, in order: those of *backwards* that fit *window* next to it.

    *backwards* are the messages before it that may come back, from the newest to the oldest. If they do not all fit,
    as many come back as the lower mark of the window allows, if it has one. The first of them is no result, since its
    call stays away.
    """
    total = total_of(memory, window)
    if _size(total, memory, (), window) > window.limit:
        return []
    back = deque(filled(backwards, memory, window))
    if total is not None:
        total += sum(entry.cost or 0 for entry in back)
    mark = window.limit
    if window.evict_to is not None and _size(total, memory, back, window) > window.limit:
        mark = window.evict_to
    while back and (_size(total, memory, back, window) > mark or back[0].type == MessageType.TOOL_EXECUTION_RESULT):
        stays_away = back.popleft()
        if total is not None:
            total -= stays_away.cost or 0
    return list(back)


def is_pinned_before(pinned: int, first: int, window: Window) -> bool:
    """Return whether the message *pinned* stays in front of a memory whose *first* message, by its key, came back."""
    return window.always_keep_system_message_first or pinned < first


def _size(total: int | None, memory: Iterable[Entry], back: Iterable[Entry], window: Window) -> int:
    """Return *total* or, if costs are not additive, how much of the limit *memory* takes together with *back*."""
    if total is not None:
        return total
    return window.total([each.message for each in (*memory, *back) if each.message is not None])


def left_out(dropped: Sequence[HasType], evicted: Sequence[HasType]) -> Sequence[HasType]:
    """
    Return which messages a ``set`` has left out on purpose.

    *dropped* are those that were in front of what stays of the memory, *evicted* those of the list that did not fit: if
    the list goes on from the memory, it began with the last of *dropped*.
    """
    return dropped[: len(dropped) - overlap(dropped, evicted)]
