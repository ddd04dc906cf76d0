"""Which rows of a stored conversation would be sent to the LLM now, and why the others would not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from chatmemory_django.core import reasons
from chatmemory_django.core.reasons import Reader, Reason, StoredMessage
from chatmemory_django.core.windows import Window
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation, Message


class Reading(NamedTuple):
    """A row and its explanation; see ``core.reasons.Explained``."""

    row: Message
    reason: Reason
    sent: ChatMessage | None
    tokens: int | None


def read(conversation: Conversation, memory: Reader) -> list[Reading]:
    """
    Return a reading of each message in the memory of *conversation*, in its order, as *memory* reads it.

    The messages of those with ``sent`` are those that ``memory.messages()`` returns. Takes one query; nothing is
    written. Messages that have left the memory and returned to it are not marked as such; see ``read_recent``.
    """
    return _readings(conversation, conversation.memory(), (), memory)


def read_recent(conversation: Conversation, memory: Reader, count: int) -> list[Reading]:
    """
    Return a reading of each of the last *count* messages of *conversation*, on all branches, and of its whole memory.

    The memory comes last, in its order. Takes two queries.
    """
    recent = conversation.history(all_branches=True).order_by("-sequence")[:count]
    return _readings(conversation, conversation.memory(), reversed(recent), memory)


def _readings(
    conversation: Conversation, remembered: Iterable[Message], recent: Iterable[Message], memory: Reader
) -> list[Reading]:
    window = memory.window()
    rows: dict[int, Message] = {}
    explained = reasons.explain(
        [_stored_message(row, rows, window) for row in remembered],
        [_stored_message(row, rows, window) for row in recent],
        memory,
        pinned=conversation.pinned_sequence,
        summary=conversation.summary_sequence,
        forgotten_through=conversation.forgotten_through,
    )
    return [Reading(rows[each.sequence], each.reason, each.sent, each.tokens) for each in explained]


def _stored_message(row: Message, rows: dict[int, Message], window: Window) -> StoredMessage:
    """Return *row* as a message to explain, and add the row to *rows*."""
    rows[row.sequence] = row
    message = row.chat_message
    is_counted = window.estimator is None or (window.counter and row.counted_by == window.counter)
    tokens = row.token_count if is_counted else window.cost(message)
    return StoredMessage(row.sequence, message, tokens, row.parent_sequence, row.on_path, row.superseded)
