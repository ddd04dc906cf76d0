"""What users of the chat think of an answer."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec
from django.db import router

from chatmemory_django.access import NotAllowedError, access_policy
from chatmemory_django.chat.answers.stored import following, named
from chatmemory_django.chat.http.asking import body_of, entered, own_conversation
from chatmemory_django.chat.http.posted import decode_body
from chatmemory_django.core.shown import author_of
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.operations.rating import rate

if TYPE_CHECKING:
    from django.http import HttpRequest

    from chatmemory_django.models import Message


class Rating(msgspec.Struct, rename="camel"):
    """What a page posts: the id of an answer, a rating from 1 to 5 or null, and why."""

    message_id: str
    rating: int | None
    reason: str = ""


def rated(request: HttpRequest, chat_id: str) -> None:
    """Store the rating that *request* has of an answer in the user's conversation; ``NotAllowedError`` if it cannot."""
    user, memory_id = entered(request, chat_id)
    conversation = own_conversation(user, memory_id, router.db_for_write(Conversation))
    try:
        posted = decode_body(body_of(request), Rating, "$")
        row = None if conversation is None else _answer(conversation, posted.message_id)
        if conversation is None or row is None:
            raise NotAllowedError(404, "There is no such answer.")
        access_policy().check_quota(request, user, size=len(posted.reason))
        rate(conversation, row.sequence, posted.rating, posted.reason)
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None


def _answer(conversation: Conversation, name: str) -> Message | None:
    """Return the last message that the model wrote of the answer *name*, or what a person wrote; None for no answer."""
    first = named(conversation.history(all_branches=True).filter(type=MessageType.AI), name)
    if first is None or author_of(first.chat_message) is not None:
        return first
    rest = takewhile(lambda row: row.type != MessageType.USER, following(conversation, first))
    written = [row for row in rest if row.type == MessageType.AI and author_of(row.chat_message) is None]
    return written[-1] if written else first
