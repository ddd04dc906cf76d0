"""The admin of conversations: view, clear, erase and export them. Messages can be removed, but never edited."""

from chatmemory_django.admin.conversations import ConversationAdmin

__all__ = ["ConversationAdmin"]
