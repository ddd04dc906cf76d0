"""What people and programs are shown: nothing for a model's vendor alone, and no characters that do harm unseen."""

from __future__ import annotations

import re
from collections.abc import Mapping

from chatmemory_django.messages import NO_ATTRIBUTES, AiMessage, ChatMessage

VENDOR_ATTRIBUTE = "vendor_response"
"""
The attribute of an ``AiMessage`` that holds what the vendor wants back, such as the signature of its thinking.

Stores, exports and forks keep it; nothing that shows a message does.
"""

AUTHOR = "author"
"""The attribute of an ``AiMessage`` that a person wrote instead of the model: the ``id`` and the ``name`` of a user."""

# Control characters, which are dangerous when pasted into a terminal; characters that change the direction of the text
# that follows; lone surrogates, which cannot be encoded. Line feeds and tabs are allowed.
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def shown_message(message: ChatMessage) -> ChatMessage:
    """Return *message* as people and programs see it, without the vendor's attribute."""
    if not isinstance(message, AiMessage) or VENDOR_ATTRIBUTE not in message.attributes:
        return message
    others = {name: value for name, value in message.attributes.items() if name != VENDOR_ATTRIBUTE}
    return AiMessage(message.text, message.thinking, message.tool_execution_requests, others or NO_ATTRIBUTES)


def author_of(message: ChatMessage) -> str | None:
    """Return the name of the person who wrote *message* instead of the model, perhaps empty; None if nobody did."""
    author = message.attributes.get(AUTHOR) if isinstance(message, AiMessage) and message.attributes else None
    if not isinstance(author, Mapping):
        return None
    name = author.get("name")
    return name if isinstance(name, str) else ""


def visible(text: str) -> str:
    """Return *text* with invisible characters that have effects replaced by their names: ``⟦U+202E⟧``."""
    return _UNSEEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text.replace("\r\n", "\n"))
