"""What users think of answers: one rating with a reason each, and all of them as lines for evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from django.db.models import QuerySet

from chatmemory_django.access import FEEDBACK
from chatmemory_django.core.limits import texts_of
from chatmemory_django.db.moments import aware
from chatmemory_django.messages import AiMessage, ChatMessage, MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations.annotating import annotate
from chatmemory_django.operations.one_by_one import Refused, at_one_moment, going_on, keys, messages_of, own_row

RATINGS = range(1, 6)
"""What a rating may be: 1 is bad, 5 is good."""

CONTEXT = 50
"""How many messages before a question a line has at most."""

MAX_RATED = 1_000
"""Of how many answers of a conversation there is a line: the newest."""


def rate(conversation: Conversation, sequence: int, rating: int | None, reason: str = "") -> Message | None:
    """
    Store what a user thinks of the answer with message *sequence*: a *rating* from 1 to 5, or None for none any more.

    It is the ``feedback`` in the metadata of the message; the *reason*, a text of people, is its ``rating_reason``.
    Return the message, or None if the history has no such message of the model.

    Raises:
        ValueError: The rating is none, or the reason is too long or cannot be stored.

    """
    if rating is not None and (type(rating) is not int or rating not in RATINGS):
        raise ValueError(f"A rating is a whole number from {RATINGS[0]} to {RATINGS[-1]}, or None, not {rating!r}.")
    feedback = None if rating is None else {"rating": rating, "reason": reason}
    own, changes = own_row(conversation), {FEEDBACK: feedback}
    return annotate(own, conversation.memory_id, sequence, changes, types={MessageType.AI})


def export_ratings(conversations: QuerySet[Conversation], *, refused: Refused | None = None) -> Iterator[str]:
    """
    Yield the rated answers of *conversations*, each as a line of JSON that ends with a newline.

    A line has ``memory_id``, ``sequence``, ``created_at``, ``rating`` and ``reason``, the texts of the ``question`` and
    the ``answer``, and as ``context`` up to ``CONTEXT`` messages before the question, each with ``type``, ``text`` and
    perhaps ``calls``. Files are left out. *refused* is that of ``export_lines``.
    """
    for key in keys(conversations):
        lines: list[bytes] | None = None
        with going_on(conversations, key, refused):
            lines = at_one_moment(conversations, key, _lines)
        for line in lines or ():
            yield f"{line.decode()}\n"


def _lines(conversation: Conversation) -> list[bytes]:
    history = messages_of(conversation).history(all_branches=True).defer("verbatim")
    rated = history.filter(type=MessageType.AI, metadata__has_key=FEEDBACK).order_by("-sequence")[:MAX_RATED]
    return [msgspec.json.encode(_line(conversation, row)) for row in reversed(rated)]


def _line(conversation: Conversation, row: Message) -> dict[str, Any]:
    own = Message.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    before = [each for part in own.path_to(row.sequence) for each in part.defer("verbatim")[: 2 * CONTEXT]]
    path = sorted(before, key=lambda each: each.sequence)
    asked = next((index for index in reversed(range(len(path))) if path[index].type == MessageType.USER), None)
    earlier = path[:asked][-CONTEXT:] if asked is not None else []
    feedback = (row.metadata or {}).get(FEEDBACK)
    given = feedback if isinstance(feedback, Mapping) else {"rating": feedback}
    return {
        "memory_id": conversation.memory_id,
        "sequence": row.sequence,
        "created_at": aware(row.created_at),
        "rating": given.get("rating"),
        "reason": row.rating_reason or given.get("reason", ""),
        "question": "" if asked is None else _text(path[asked].chat_message),
        "answer": _text(row.chat_message),
        "context": [_shown(each.type, each.chat_message) for each in earlier],
    }


def _shown(kind: str, message: ChatMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": kind, "text": _text(message)}
    if isinstance(message, AiMessage) and message.tool_execution_requests:
        shown["calls"] = [{"name": each.name, "arguments": each.arguments} for each in message.tool_execution_requests]
    return shown


def _text(message: ChatMessage) -> str:
    if isinstance(message, AiMessage):
        return message.text or ""
    return "\n".join(texts_of(message))
