"""What can be taken from the pages of a conversation: the JSON of messages, and the files in them."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from django.utils.translation import gettext as _

from chatmemory_django.codec import message_to_json
from chatmemory_django.explain import read
from chatmemory_django.formats.openai_chat import message_to_openai
from chatmemory_django.media import File, file_at, served_as
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import known_memory

MAX_MEMORY_SIZE = 16 * 1024 * 1024
"""How many characters a memory may have that is downloaded as OpenAI's messages."""


class UnavailableError(Exception):
    """What was asked for is not to be had; the words for people say why."""


def json_file(content: str, name: str) -> HttpResponse:
    """A response that a browser saves as a file called *name*."""
    return HttpResponse(content.encode(), content_type="application/json", headers=served_as(name))


def message_json(row: Message) -> str:
    """The JSON of *row*; as it is stored, where that is broken."""
    try:
        return message_to_json(row.chat_message)
    except ValueError:
        return row.payload or ""


def message_as_openai(row: Message) -> str:
    """The JSON of the message of OpenAI's that *row* is; ``UnavailableError`` if it is none."""
    return _json(_as_openai(row, _message(row)))


def memory_as_openai(conversation: Conversation) -> str:
    """The JSON of OpenAI's messages that the model is sent now; ``UnavailableError`` if there is one that is none."""
    memory = known_memory(conversation.memory_id)
    if memory is None:
        raise UnavailableError(_("The settings of this memory are invalid: manage.py check says why."))
    if conversation.memory().total_size() > MAX_MEMORY_SIZE:
        raise UnavailableError(_("This memory is too large for a page; export the conversation instead."))
    try:
        readings = read(conversation, memory)
    except (RuntimeError, TypeError, ValueError) as exc:  # a message, a limit, or an encoding that is not there
        raise UnavailableError(_("The memory cannot be read: %(reason)s") % {"reason": exc}) from exc
    return _json([_as_openai(each.row, each.sent) for each in readings if each.sent is not None])


def file_of(row: Message, index: int) -> File | None:
    """The file that the content of *row* at *index* holds, if it does."""
    try:
        return file_at(row.chat_message, index)
    except ValueError:
        return None


def _message(row: Message) -> ChatMessage:
    try:
        return row.chat_message
    except ValueError as exc:
        raise UnavailableError(_("What is stored of this message cannot be read.")) from exc


def _as_openai(row: Message, message: ChatMessage) -> dict[str, Any]:
    try:
        return message_to_openai(message)
    except ValueError as exc:
        told = _("Message %(number)d cannot be one of OpenAI's: %(reason)s")
        raise UnavailableError(told % {"number": row.sequence, "reason": exc}) from exc


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
