"""The newest messages of a conversation, as a page shows them when it is opened: bounded in rows and in characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import dropwhile
from typing import Any, NamedTuple

from django.utils.translation import gettext

from chatmemory_django import conf
from chatmemory_django.chat.answers.exchange import GREETING
from chatmemory_django.chat.approvals.approving import May
from chatmemory_django.chat.approvals.waiting import shown_approvals
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.http.files import FileAddresses, with_addresses
from chatmemory_django.chat.ui_messages import to_ui_messages, ui_id
from chatmemory_django.chat.ui_messages.writing import OUTCOME_UNKNOWN
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.shown import author_of
from chatmemory_django.messages import AiMessage, ChatMessage, MessageType
from chatmemory_django.models import Conversation, Message

READ_CHARACTERS = 16 * 1024 * 1024
"""
How many characters are read at most, files included, which are then left out: as many as a message of 16 MB has, the
largest body by default. A chat with more or larger files begins later.
"""

PART_CHARACTERS = 1024 * 1024
"""How many characters one query reads, unless a single message has more: a file is in memory only while it is read."""


class _Shown(NamedTuple):
    """A message without its files."""

    sequence: int
    client_message_id: str | None
    metadata: Mapping[str, Any] | None
    created_at: datetime
    chat_message: ChatMessage
    is_complete: bool
    size: int
    """The number of characters of its texts and metadata."""

    @classmethod
    def of(cls, row: Message, size: int, files: FileAddresses) -> _Shown:
        message = row.chat_message
        without = with_addresses(message, row.sequence, files)
        if without is not message:
            size += len(message_to_json(without)) - len(row.payload or "")
        return cls(row.sequence, row.client_message_id, row.metadata, row.created_at, without, row.is_complete, size)


class ListedMessages(NamedTuple):
    """The *messages* for a page."""

    messages: list[dict[str, Any]]
    is_open: bool
    """Whether there is a part of an answer that has not ended, so that it may be in progress."""

    @classmethod
    def greeting(cls, text: str) -> ListedMessages:
        """Return the greeting *text* alone, as the ``UIMessage`` that it is once it is stored."""
        parts = [{"type": "step-start"}, {"type": "text", "text": text, "state": "done"}]
        return cls([{"id": GREETING, "role": "assistant", "metadata": {}, "parts": parts}], is_open=False)


def newest_messages(
    conversation: Conversation, files: FileAddresses, may: May, *, is_answering: bool
) -> ListedMessages:
    """
    Return the newest messages on the path as ``UIMessage``s, oldest first, with the addresses of their *files*.

    They begin with a question, and are those of at most ``MAX_MESSAGES`` rows and ``MAX_PAGE_CHARACTERS``. If that is
    only a part of the last answer, its question, its first row, which gives it its id, and its last ones are returned.
    *may* is whether their reader may decide on a call. If it *is_answering*, what the stream of the last answer has is
    left out.
    """
    history = conversation.history().defer("verbatim")
    most = chat_settings().MAX_MESSAGES
    sizes: Any = conversation.history().with_size().order_by("-sequence")
    found: list[tuple[int, int]] = list(sizes.values_list("sequence", "size")[: most + 1])
    shown: list[_Shown] = []
    left = conf.rest().MAX_PAGE_CHARACTERS
    for part in _parts(found[:most]):
        rows = history.filter(sequence__range=(min(part), max(part))).order_by("-sequence")
        for row in rows:
            one = _Shown.of(row, part.get(row.sequence, 0), files)
            left -= one.size
            if left < 0 and shown:
                break
            shown.append(one)
        if left < 0:
            break
    shown.reverse()
    if len(shown) < len(found):
        shown = _from_question(conversation, shown, files)
    approvals = shown_approvals(conversation, shown, may)
    last = next((index for index in range(len(shown) - 1, -1, -1) if _is_question(shown[index])), -1)
    is_open = -1 < last < len(shown) - 1 and not (shown[last].is_complete and _is_end(shown[-1].chat_message))
    if is_open and is_answering:
        shown = _before_stream(shown, last, {sequence for sequence, _ in approvals})
    messages = to_ui_messages(shown, approvals, unknown=gettext(OUTCOME_UNKNOWN))
    return ListedMessages(messages, is_open)


def newest_ids(conversation: Conversation) -> list[str]:
    """Return the ids of the newest messages on the path, oldest first, as pages know them."""
    rows = conversation.history().defer("verbatim").order_by("-sequence")
    ids: list[str] = []
    is_answer = False
    for row in reversed(rows[: chat_settings().MAX_MESSAGES]):
        if row.type == MessageType.AI and row.payload and author_of(row.chat_message) is not None:
            ids.append(ui_id(row))
            continue
        begins = row.type == MessageType.USER or (row.type == MessageType.AI and not is_answer)
        ids += [ui_id(row)] if begins else []
        is_answer = row.type != MessageType.USER and (is_answer or begins)
    return ids


def _before_stream(shown: list[_Shown], question: int, waited: set[int]) -> list[_Shown]:
    """
    Return *shown* without what the stream of the answer to the message at *question* has.

    A stream begins at the answer's beginning or, after calls that have *waited* for approvals, at their results.
    """
    end = next((index for index in range(len(shown) - 1, question, -1) if shown[index].sequence in waited), question)
    following = range(end + 1, len(shown))
    is_ended = (index for index in following if end == question or shown[index].chat_message.type == MessageType.AI)
    return shown[: next(is_ended, len(shown))]


def _parts(found: Sequence[tuple[int, int]]) -> Iterator[dict[int, int]]:
    """Yield the sizes of the messages *found*, newest first, by sequence: as many at a time as one query reads."""
    part: dict[int, int] = {}
    in_part, left = 0, READ_CHARACTERS
    for sequence, size in found:
        left -= size
        if part and in_part + size > PART_CHARACTERS:
            yield part
            part, in_part = {}, 0
        if left < 0 and sequence != found[0][0]:
            break
        part[sequence] = size
        in_part += size
    if part:
        yield part


def _from_question(conversation: Conversation, shown: list[_Shown], files: FileAddresses) -> list[_Shown]:
    """Return *shown* from its first question on; if it is only the end of an answer, with the beginning of that."""
    whole = list(dropwhile(lambda one: not _is_question(one), shown))
    if whole or not shown:
        return whole
    history = conversation.history().defer("verbatim")
    question = history.filter(type=MessageType.USER, sequence__lt=shown[0].sequence).order_by("sequence").last()
    answers = history.filter(type=MessageType.AI, sequence__gt=0 if question is None else question.sequence)
    first = answers.order_by("sequence").first()
    beginning = [row for row in (question, first) if row is not None and row.sequence < shown[0].sequence]
    return [*(_Shown.of(row, 0, files) for row in beginning), *shown]


def _is_end(message: ChatMessage) -> bool:
    return isinstance(message, AiMessage) and not message.tool_execution_requests


def _is_question(one: _Shown) -> bool:
    return one.chat_message.type == MessageType.USER
