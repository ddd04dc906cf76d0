"""Answers that a person of the site writes instead of the assistant, and what a page shows of who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from chatmemory_django.access import access_policy
from chatmemory_django.chat import named
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.ui_messages.writing import timestamp
from chatmemory_django.core.limits import check_text_length, checked_client_message_id
from chatmemory_django.core.shown import AUTHOR, author_of
from chatmemory_django.db.transactions import as_now
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import AiMessage, NewMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import hand_over
from chatmemory_django.operations.one_by_one import in_lock, messages_of, own_row
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import ConversationErasedError

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


def answer_as(
    conversation: Conversation,
    user: AbstractBaseUser,
    text: str,
    *,
    client_message_id: str | None = None,
    takes_over: bool = False,
) -> int:
    """
    Store *text* as what *user* answers in *conversation*, and return the sequence of the message.

    It is an ``AiMessage`` whose ``attributes["author"]`` has the ``id`` and the ``name`` of the user. The user has the
    conversation then, as by ``operations.hand_over``, and *takes_over* is passed to that; an answer of the assistant
    that is in progress is stopped. All of this is one step. The same *client_message_id* once more stores nothing.

    Raises:
        ConversationErasedError: The conversation is gone.
        OtherPersonError: Another person has it; nothing is stored.
        ValueError: The text is blank, longer than ``MAX_TEXT_LENGTH``, or cannot be stored; or another message has the
            *client_message_id*.

    """
    if not text.strip():
        raise ValueError("The answer of a person must have a text that is not blank.")
    check_text_length(AiMessage(text), chat_settings().MAX_TEXT_LENGTH)
    checked_client_message_id(client_message_id, "client_message_id")
    author = {"id": str(user.pk), "name": access_policy().author_name(user)}
    new = NewMessage(AiMessage(text, attributes={AUTHOR: author}), client_message_id=client_message_id)
    memory = memory_of(conversation)

    def store(found: Conversation) -> int:
        hand_over(found, user, takes_over=takes_over)
        # Not by ``add``: a memory that summarizes would call its model, while others wait for the conversation.
        sequence = memory.store.append_messages(memory.id, [new], memory.window()).keys[0]
        if sequence < found.next_sequence and not _has(found, sequence, text):
            raise ValueError(f"Another message has the client_message_id {client_message_id!r}: use a new one.")
        leases.stop_in(found)
        return sequence

    sequence = in_lock(own_row(conversation), conversation.pk, store)
    if sequence is None:
        raise ConversationErasedError(f"The conversation {conversation.memory_id!r} was erased.")
    return sequence


def _has(conversation: Conversation, sequence: int, text: str) -> bool:
    """Return whether message *sequence* is this *text* of a person; also if it has been removed since."""
    row = as_now(messages_of(conversation).history(all_branches=True).filter(sequence=sequence)).first()
    message = None if row is None else row.chat_message
    return message is None or (author_of(message) is not None and getattr(message, "text", None) == text)


def memory_of(conversation: Conversation) -> ChatMemory:
    """Return the memory of *conversation* as its assistant has it, unless which one that is depends on a request."""
    assistant: Any = named.configured(conversation.assistant)
    make = getattr(assistant, "chat_memory", get_chat_memory)
    memory: ChatMemory = make(conversation.memory_id, owner=conversation.owner)
    return memory


def person_of(conversation: Conversation) -> AbstractBaseUser | None:
    """Return the user who has *conversation*; None for nobody, or if that user is gone."""
    users = get_user_model()
    try:
        key = users._meta.pk.clean(conversation.person, None) if conversation.person else None
    except ValidationError:
        return None
    return None if key is None else users._default_manager.filter(pk=key).first()


def state_of(conversation: Conversation) -> dict[str, Any]:
    """Return who answers in *conversation*, as its owner's page shows it: the state, since when, and the name."""
    shown: dict[str, Any] = {"state": conversation.state}
    if conversation.state_since is not None:
        shown["since"] = timestamp(conversation.state_since)
    if (person := person_of(conversation)) is not None:
        shown["name"] = access_policy().author_name(person)
    return shown
