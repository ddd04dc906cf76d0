"""Clearing of memories."""

from __future__ import annotations

from django.db.models import QuerySet

from chatmemory_django.db.row_codec import unreadable_as
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import Each, Refused, for_each
from chatmemory_django.stores.django import DjangoChatMemoryStore


def clear(conversations: QuerySet[Conversation], *, each: Each | None = None, refused: Refused | None = None) -> int:
    """
    Clear the memories and return their number; *each* receives how many messages left the memory.

    Refused with ``ProtectedError`` if nothing of a conversation may be erased.
    """
    with unreadable_as(None):  # as to erase: it takes no key
        return for_each(conversations, _clear, each, refused)


def _clear(conversation: Conversation) -> int:
    DjangoChatMemoryStore(conversation._state.db).delete_messages(conversation.memory_id)
    return conversation.memory_messages
