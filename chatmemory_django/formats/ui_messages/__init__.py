"""
Messages to the ``UIMessage``s of the Vercel AI SDK and back: what ``useChat`` of its versions 5, 6 and 7 holds.

``to_ui_messages`` returns the messages that a page begins with, from rows. ``from_ui_message`` reads what a page says
that its user said; nothing else that a page says is ever read. What a ``UIMessage`` has and a ``UserMessage`` has no
place for is kept in the attributes of that, and comes back as it was.
"""

from chatmemory_django.formats.ui_messages.reading import from_ui_message, message_sequence
from chatmemory_django.formats.ui_messages.writing import Row, to_ui_messages, ui_id

__all__ = ["Row", "from_ui_message", "message_sequence", "to_ui_messages", "ui_id"]
