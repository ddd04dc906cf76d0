"""The admin: see what an assistant remembers, clear it, erase it, take it along. Nobody edits what was said."""

from chatmemory_django.admin.conversations import ConversationAdmin

__all__ = ["ConversationAdmin"]
