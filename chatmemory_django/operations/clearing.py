"""Clearing of memories."""

from __future__ import annotations

from django.db.models import QuerySet

from chatmemory_django.models import Conversation
from chatmemory_django.operations.each import Each, for_each
from chatmemory_django.stores.django import DjangoChatMemoryStore


def clear(conversations: QuerySet[Conversation], *, each: Each | None = None) -> int:
    """Clear the memories and return their number; *each* receives how many messages left the memory."""
    return for_each(conversations, _clear, each, None)


def _clear(conversation: Conversation) -> int:
    DjangoChatMemoryStore(conversation._state.db).delete_messages(conversation.memory_id)
    return conversation.memory_messages
