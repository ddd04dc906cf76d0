"""
Conversion from and to the ``UIMessage``s of the Vercel AI SDK, which ``useChat`` of its versions 5, 6 and 7 holds.

``to_ui_messages`` converts rows to the messages that a page starts with. ``from_ui_message`` reads a user's message
that a page sends; other messages from a page are never read. Fields of a ``UIMessage`` that a ``UserMessage`` does not
have are kept in its attributes, and returned unchanged.
"""

from chatmemory_django.chat.ui_messages.reading import from_ui_message, message_sequence
from chatmemory_django.chat.ui_messages.writing import Approval, MessageRow, to_ui_messages, ui_id

__all__ = ["Approval", "MessageRow", "from_ui_message", "message_sequence", "to_ui_messages", "ui_id"]
