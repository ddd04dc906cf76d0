"""Downloads from the pages of a conversation: messages as JSON, and the files in them."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from chatmemory_django.codec import message_to_json
from chatmemory_django.core.media import File, served_as
from chatmemory_django.core.shown import shown_message
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.formats.openai_chat import message_to_openai
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.message_codec import complete, file_in
from chatmemory_django.provider import known_reader

MAX_MEMORY_SIZE = 16 * 1024 * 1024
"""Maximum number of characters of a memory that can be downloaded in OpenAI's format."""


class NotPossibleError(Exception):
    """The request cannot be fulfilled; the text explains why to the user."""


def json_file(content: str, name: str) -> HttpResponse:
    """Return a response that browsers save as a file called *name*."""
    return HttpResponse(content.encode(), content_type="application/json", headers=served_as(name))


def message_json(row: Message) -> str:
    """Return the JSON of *row*; if it cannot be decoded, the payload as it is stored."""
    try:
        return message_to_json(shown_message(_complete(row, row.chat_message)))
    except ValueError:
        return row.payload or ""


def message_as_openai(row: Message) -> str:
    """
    Return *row* as JSON in OpenAI's format.

    Raises:
        NotPossibleError: The format cannot represent the message.

    """
    return _json(_as_openai(row, _complete(row, _message(row))))


def memory_as_openai(conversation: Conversation) -> str:
    """
    Return the messages that the model would be sent now as JSON in OpenAI's format.

    Raises:
        NotPossibleError: The settings are invalid, or the memory is too large, unreadable or not representable.

    """
    reader = known_reader(conversation.memory_id)
    if reader is None:
        raise NotPossibleError(_("The settings of this memory are invalid; run manage.py check for details."))
    if conversation.memory().total_size() > MAX_MEMORY_SIZE:
        raise NotPossibleError(_("This memory is too large to download here; export the conversation instead."))
    try:
        sent = conversation.read(reader).sent()
    except (RuntimeError, TypeError, ValueError) as exc:  # an unreadable message, limit or encoding
        raise NotPossibleError(_("The memory cannot be read: %(reason)s") % {"reason": exc}) from exc
    messages = complete(
        [each.message for each in sent],
        [each.row.sequence for each in sent],
        address_of(conversation),
        max_bytes=MAX_MEMORY_SIZE,
    )
    return _json([_as_openai(each.row, message) for each, message in zip(sent, messages, strict=True)])


def file_of(row: Message, index: int) -> File | None:
    """Return the file in the content at *index* of *row*; None if there is none."""
    try:
        return file_in(row.chat_message, index, address_of(row.conversation))
    except ValueError:
        return None


def _complete(row: Message, message: ChatMessage) -> ChatMessage:
    return complete([message], [row.sequence], address_of(row.conversation))[0]


def _message(row: Message) -> ChatMessage:
    try:
        return row.chat_message
    except ValueError as exc:
        raise NotPossibleError(_("The stored content of this message cannot be read.")) from exc


def _as_openai(row: Message, message: ChatMessage) -> dict[str, Any]:
    try:
        return message_to_openai(message)
    except ValueError as exc:
        words = _("Message #%(number)d cannot be shown in OpenAI's format: %(reason)s")
        raise NotPossibleError(words % {"number": row.sequence, "reason": exc}) from exc


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
