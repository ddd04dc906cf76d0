"""What is stored with an answer for the vendor of its model alone."""

from __future__ import annotations

from chatmemory_django.messages import NO_ATTRIBUTES, AiMessage, ChatMessage

VENDOR_ATTRIBUTE = "vendor_response"
"""
The attribute of an ``AiMessage`` that holds what the vendor wants back, such as the signature of its thinking.

Stores, exports and forks keep it; nothing that shows a message does.
"""


def shown_message(message: ChatMessage) -> ChatMessage:
    """Return *message* as people and programs see it, without the vendor's attribute."""
    if not isinstance(message, AiMessage) or VENDOR_ATTRIBUTE not in message.attributes:
        return message
    others = {name: value for name, value in message.attributes.items() if name != VENDOR_ATTRIBUTE}
    return AiMessage(message.text, message.thinking, message.tool_execution_requests, others or NO_ATTRIBUTES)
