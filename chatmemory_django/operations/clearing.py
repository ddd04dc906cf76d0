"""Clearing of memories."""

from __future__ import annotations

from django.db.models import QuerySet

from chatmemory_django.models import Conversation
from chatmemory_django.operations.each import Each, Refused, for_each
from chatmemory_django.stores.django import DjangoChatMemoryStore


def clear(conversations: QuerySet[Conversation], *, each: Each | None = None, refused: Refused | None = None) -> int:
    """
    Clear the memories and return their number; *each* receives how many messages left the memory.

    Refused with ``ProtectedError`` if nothing of a conversation may be erased.
    """
    return for_each(conversations, _clear, each, refused)


def _clear(conversation: Conversation) -> int:
    DjangoChatMemoryStore(conversation._state.db).delete_messages(conversation.memory_id)
    return conversation.memory_messages
