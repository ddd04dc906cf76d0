"""
Questions: as the AI SDK's clients post them, and in a conversation.

There, a question is at the end, where it was asked before, or a new version of one that was.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal, NamedTuple

import msgspec

from chatmemory_django import conf
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.limits import EDIT, checked_client_message_id
from chatmemory_django.formats.ui_messages import from_ui_message, message_sequence
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import DetailLevel, MessageType, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore

MAX_STEPS = 256
"""How many messages are searched backwards for the question of an answer that is to be regenerated."""


class Question(NamedTuple):
    """A question for a turn; without a *message*, it is stored already and only has to be answered."""

    message: UserMessage | None
    after: int | None = None
    """The message to continue from, if it is not the newest."""
    client_message_id: str | None = None


class Posted(msgspec.Struct, rename="camel"):
    """The fields that are used of what the AI SDK posts: all messages of the chat, or only the last one."""

    id: str
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    """The id of the message to regenerate, if the client sent one."""
    messages: list[dict[str, Any]] | None = None
    message: dict[str, Any] | None = None

    @property
    def is_regenerate(self) -> bool:
        """Whether an answer is to be generated again."""
        return self.trigger == "regenerate-message"

    def question(self) -> Question:
        """
        Return the user's last message: nothing else that the client sends is trusted.

        It is None if there is none to regenerate. Raises ``ValueError`` with the path of what is invalid.
        """
        messages = [self.message] if self.messages is None and self.message else self.messages or []
        last = len(messages) - 1
        while self.is_regenerate and last >= 0 and messages[last].get("role") == "assistant":
            last -= 1
        found = messages[last] if last >= 0 else {}
        path = "$.message" if self.messages is None else f"$.messages[{max(last, 0)}]"
        if found.get("role") != "user":
            if self.is_regenerate:
                return Question(None)
            raise ValueError(f"{path}.role must be 'user': the tools of this chat run on the server.")
        name: object = found.get("id")
        settings = conf.chat()
        try:
            message = from_ui_message(
                found,
                max_text_length=settings["MAX_TEXT_LENGTH"],
                max_parts=settings["MAX_PARTS"],
                image_detail=DetailLevel[settings["IMAGE_DETAIL"]],
            )
            name = checked_client_message_id(name, "$.id") if isinstance(name, str) and name else None
            _check_size(message)
        except ValueError as exc:
            raise ValueError(str(exc).replace("$", path, 1)) from None
        return Question(message, None, name)


def read_body(content: bytes) -> Posted:
    """Parse *content*, the JSON of the AI SDK; raise ``ValueError`` with the path of what is invalid."""
    try:
        return msgspec.json.decode(content, type=Posted)
    except msgspec.ValidationError as exc:
        raise ValueError(str(exc)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("The body must be JSON.") from None


def positioned(question: Question, memory: ChatMemory) -> Question:
    """
    Return *question* with its position in the conversation of *memory*.

    If a message with the same client id and the same content is stored, it is answered again; with other content, the
    new message replaces it. Without an id, the question is answered again if it is the newest message and has no
    answer.
    """
    message, _, name = question
    conversation = conversation_of(memory)
    if conversation is None:
        return question
    if name is None:
        newest = conversation.history().order_by("sequence").last()
        is_asked = newest is not None and not newest.is_complete and newest.chat_message == message
        return Question(None, newest.sequence) if newest is not None and is_asked else question
    is_taken = conversation.messages.filter(client_message_id=name).exists()
    if not is_taken and message_sequence(name) is None:  # as nearly every question, it is new
        return question
    versions = versions_of(conversation, name)
    for row in versions:
        if row.chat_message == message:
            return Question(None, row.sequence)
    if not versions and not is_taken:
        return question
    # Ids are unique, and the first version keeps its own, even if it was taken out of the history.
    after = conversation.parent_of(versions[0].sequence) if versions else None
    return Question(message, after, f"{name}{EDIT}{secrets.token_hex(4)}")


def question_of(conversation: Conversation, ui_id: str | None) -> int | None:
    """
    Return the sequence of the question to answer again, or None if there is none.

    It is the message *ui_id* or, if that is an answer's id, the question before the answer; without an id, it is the
    newest question.
    """
    row = _newest_question(conversation) if ui_id is None else _message_of(conversation, ui_id)
    for _ in range(MAX_STEPS):
        if row is None or row.type == MessageType.USER:
            break
        parent = conversation.parent_of(row.sequence)
        row = conversation.history(all_branches=True).filter(sequence=parent or 0).first()
    return None if row is None or row.type != MessageType.USER else row.sequence


def versions_of(conversation: Conversation, client_message_id: str) -> list[Message]:
    """Return the rows of all versions of the message with that id: the one on the path first, then the newest."""
    history = conversation.history(all_branches=True)
    first = history.filter(client_message_id=client_message_id).first()
    if first is None and (sequence := message_sequence(client_message_id)):  # a page's id of a row without one
        first = history.filter(sequence=sequence, client_message_id=None, type=MessageType.USER).first()
    if first is None:
        return []
    prefix = client_message_id + EDIT
    # SQL's LIKE is case-insensitive on SQLite.
    edits = conversation.alternatives(first.sequence).filter(client_message_id__startswith=prefix)
    versions = [first, *(row for row in edits if str(row.client_message_id).startswith(prefix))]
    return sorted(versions, key=lambda row: (not row.on_path, -row.sequence))


def conversation_of(memory: ChatMemory) -> Conversation | None:
    """Return the conversation of *memory*; None if it is not in the database, or not the owner's."""
    store = memory.store
    return store.named(memory.id).first() if isinstance(store, DjangoChatMemoryStore) else None


def _message_of(conversation: Conversation, ui_id: str) -> Message | None:
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
