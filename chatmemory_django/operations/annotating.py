"""Titles of conversations, and metadata of messages."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from django.db.models import QuerySet

from chatmemory_django.access import FEEDBACK
from chatmemory_django.core.limits import MAX_RATING_REASON
from chatmemory_django.db.row_codec import Placed
from chatmemory_django.db.transactions import as_now
from chatmemory_django.messages import MessageType, NewMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.columns import to_metadata
from chatmemory_django.operations.one_by_one import for_writing, in_lock, messages_of, write
from chatmemory_django.stores.django.changes import new_row


def entitle(conversations: QuerySet[Conversation], memory_id: str, title: str) -> bool:
    """
    Give a conversation the *title*, and return whether it has it now.

    It has not if it had another one, or if no question is left in its history of which a title could be made. The
    conversation gets a new ``version``; its ``updated_at`` stays.
    """
    conversations = for_writing(conversations)
    found = conversations.filter(memory_id=memory_id, title="").order_by().values_list("pk", flat=True).first()
    return found is not None and in_lock(conversations, found, partial(_entitle, title)) is True


def annotate(
    conversations: QuerySet[Conversation],
    memory_id: str,
    sequence: int,
    changes: Mapping[str, Any],
    *,
    types: Collection[MessageType] | None = None,
    max_bytes: int | None = None,
) -> Message | None:
    """
    Merge *changes* into the metadata of a message of the history, and return the message; None removes a key.

    The message may be on any branch. Returns None if *conversations* have no such message, or if it is of none of
    *types*. The conversation gets a new ``version``, unless nothing changes; its ``updated_at`` stays, since feedback
    is not activity. *max_bytes* limits the resulting metadata. Inside a transaction of the caller, the conversation
    stays locked until that transaction ends.

    The text ``reason`` of a user's ``feedback`` is stored in the column ``rating_reason``, which is encrypted like
    other texts, and not in the metadata.

    Raises:
        TypeError: *changes* is not a mapping with keys of type str, or holds what JSON cannot represent.
        ValueError: The result is too large, or a reason too long, or a database could not store it.

    """
    to_metadata(changes)
    conversations = for_writing(conversations)
    found = conversations.filter(memory_id=memory_id).order_by("pk").values_list("pk", flat=True).first()
    return (
        None
        if found is None
        else in_lock(conversations, found, partial(_annotate, sequence, changes, types, max_bytes))
    )


def _annotate(
    sequence: int,
    changes: Mapping[str, Any],
    types: Collection[MessageType] | None,
    max_bytes: int | None,
    conversation: Conversation,
) -> Message | None:
    rows = as_now(messages_of(conversation).history(all_branches=True).filter(sequence=sequence))
    message = (rows if types is None else rows.filter(type__in=types)).first()
    if message is None:
        return None
    before = message.metadata or {}
    feedback, reason = before.get(FEEDBACK), message.rating_reason
    if FEEDBACK in changes:
        feedback, reason = without_reason(changes[FEEDBACK])
    after = {key: value for key, value in {**before, **changes, FEEDBACK: feedback}.items() if value is not None}
    # As text, since in Python 1 == True.
    if json.dumps(after) != json.dumps(before) or reason != message.rating_reason:
        new = NewMessage(message.chat_message, to_metadata(after, max_bytes))
        message.metadata, message.rating_reason = new_row(new, is_stored=True).metadata, reason
        rows.update(metadata=message.metadata, rating_reason=reason)
        write(conversation)
        conversation.version += 1
    message.conversation = conversation
    return message


def without_reason(feedback: Any) -> tuple[Any, str | None]:
    """Return *feedback* without its reason, and the reason; ``ValueError`` if that is too long."""
    reason = feedback.get("reason") if isinstance(feedback, Mapping) else None
    if not isinstance(reason, str):
        return feedback, None
    if len(reason) > MAX_RATING_REASON:
        raise ValueError(f"The reason has {len(reason)} characters; at most {MAX_RATING_REASON} are allowed.")
    return {key: value for key, value in feedback.items() if key != "reason"}, reason or None


def _entitle(title: str, conversation: Conversation) -> bool:
    history = messages_of(conversation).history(all_branches=True)
    if conversation.title or not as_now(history.filter(type=MessageType.USER)).exists():
        return False
    write(conversation, title=Placed.of(title, conversation))
    return True
