"""The position of a question in a conversation: at its end, where it was asked before, or as a new version."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from chatmemory_django.core.limits import EDIT
from chatmemory_django.formats.ui_messages import message_sequence
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import MessageType, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore


class Question(NamedTuple):
    """A question for a turn; without a *message*, it is stored already and only has to be answered."""

    message: UserMessage | None
    after: int | None = None
    """The message to continue from, if it is not the newest."""
    client_message_id: str | None = None


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
    versions = versions_of(conversation, name)
    for row in versions:
        if row.chat_message == message:
            return Question(None, row.sequence)
    if not versions and not conversation.messages.filter(client_message_id=name).exists():
        return question
    # Ids are unique, and the first version keeps its own, even if it was taken out of the history.
    after = conversation.parent_of(versions[0].sequence) if versions else None
    return Question(message, after, f"{name}{EDIT}{secrets.token_hex(4)}")


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
