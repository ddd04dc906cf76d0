"""The admin of conversations, whose messages can be removed, but never edited."""

from chatmemory_django.admin.conversations import ConversationAdmin

__all__ = ["ConversationAdmin"]
