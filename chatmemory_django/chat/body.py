"""Parsing of the requests of the AI SDK's clients."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from chatmemory_django import conf
from chatmemory_django.chat.questions import versions_of
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.limits import checked_client_message_id
from chatmemory_django.formats.ui_messages import from_ui_message, message_sequence
from chatmemory_django.messages import DetailLevel, MessageType, UserMessage
from chatmemory_django.models import Conversation, Message

MAX_STEPS = 256
"""How many messages are searched backwards for the question of an answer that is to be regenerated."""


class Body(NamedTuple):
    """The content of a POST request."""

    chat_id: str
    is_regenerate: bool
    message_id: str | None
    """The id of the message to regenerate, if the client sent one."""
    message: UserMessage | None
    """The user's message: nothing else that the client sends is trusted."""
    client_message_id: str | None


class _Posted(msgspec.Struct, rename="camel"):
    """The fields that are used of what the AI SDK posts: all messages of the chat, or only the last one."""

    id: str
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    messages: list[dict[str, Any]] | None = None
    message: dict[str, Any] | None = None


def read_body(content: bytes) -> Body:
    """Parse *content*, the JSON of the AI SDK; raise ``ValueError`` with the path of what is invalid."""
    try:
        posted = msgspec.json.decode(content, type=_Posted)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("The body must be JSON.") from None
    is_regenerate = posted.trigger == "regenerate-message"
    messages = [posted.message] if posted.messages is None and posted.message else posted.messages or []
    index = len(messages) - 1
    while is_regenerate and index >= 0 and messages[index].get("role") == "assistant":
        index -= 1
    posted_message = messages[index] if index >= 0 else None
    path = "$.message" if posted.messages is None else f"$.messages[{max(index, 0)}]"
    if posted_message is None or posted_message.get("role") != "user":
        if is_regenerate:
            return Body(posted.id, is_regenerate, posted.message_id, None, None)
        raise ValueError(f"{path}.role must be 'user': the tools of this chat run on the server.")
    name: object = posted_message.get("id")
    settings = conf.chat()
    try:
        message = from_ui_message(
            posted_message,
            max_text_length=settings["MAX_TEXT_LENGTH"],
            max_parts=settings["MAX_PARTS"],
            image_detail=DetailLevel[settings["IMAGE_DETAIL"]],
        )
        name = checked_client_message_id(name, "$.id") if isinstance(name, str) and name else None
        _check_size(message)
    except ValueError as exc:
        raise ValueError(str(exc).replace("$", path, 1)) from None
    return Body(posted.id, is_regenerate, posted.message_id, message, name)


def question_of(conversation: Conversation, ui_id: str | None) -> int | None:
    """
    Return the sequence of the question to answer again, or None if there is none.

    It is the message *ui_id* or, if that is an answer's id, the question before the answer; without an id, it is the
    newest question.
    """
    row = _newest_question(conversation) if ui_id is None else message_of(conversation, ui_id)
    for _ in range(MAX_STEPS):
        if row is None or row.type == MessageType.USER:
            break
        parent = conversation.parent_of(row.sequence)
        row = conversation.history(all_branches=True).filter(sequence=parent or 0).first()
    return None if row is None or row.type != MessageType.USER else row.sequence


def message_of(conversation: Conversation, ui_id: str) -> Message | None:
    """Return the row of the message with the client's id *ui_id*; of several versions, the one on the path."""
    versions = versions_of(conversation, ui_id)
    if versions:
        return versions[0]
    sequence = message_sequence(ui_id)
    return conversation.history(all_branches=True).filter(sequence=sequence or 0).first()


def _newest_question(conversation: Conversation) -> Message | None:
    return conversation.history().filter(type=MessageType.USER).order_by("sequence").last()


def _check_size(message: UserMessage) -> None:
    size, most = len(message_to_json(message).encode()), conf.max_message_bytes()
    if size > most:
        raise ValueError(f"$: the message has {size} bytes; at most {most} are allowed. Send smaller files.")
