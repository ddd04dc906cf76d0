"""
The models. The history is the table of messages; a memory is a window on it.

Every message is a row, written once. A conversation's memory begins at ``window_start``; a protected system message may
be pinned in front of it. Evicting moves the start of the window, so it costs the same at any length of history.
"""

from chatmemory_django.models.conversations import (
    Conversation,
    ConversationQuerySet,
    new_expiry,
    new_memory_id,
    stored_size,
)
from chatmemory_django.models.fields import EncryptedTextField, ExactCharField, Hour, OwnerField, SparseIndex, UtcNow
from chatmemory_django.models.messages import Message, MessageQuerySet
from chatmemory_django.models.remains import ErasedConversation
from chatmemory_django.models.windows import MemoryStatus

__all__ = [
    "Conversation",
    "ConversationQuerySet",
    "EncryptedTextField",
    "ErasedConversation",
    "ExactCharField",
    "Hour",
    "MemoryStatus",
    "Message",
    "MessageQuerySet",
    "OwnerField",
    "SparseIndex",
    "UtcNow",
    "new_expiry",
    "new_memory_id",
    "stored_size",
]
