"""The admin of conversations, whose messages can be removed, but never edited, and of what calls of models used."""

from chatmemory_django.admin.calls import ModelCallAdmin
from chatmemory_django.admin.conversations import ConversationAdmin

__all__ = ["ConversationAdmin", "ModelCallAdmin"]
