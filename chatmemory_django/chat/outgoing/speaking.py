"""Who has spoken, for a model that is sent what a person wrote in its place."""

from __future__ import annotations

from msgspec.structs import replace

from chatmemory_django.chat.outgoing.fitting import MAX_NAME
from chatmemory_django.core.shown import author_of, visible
from chatmemory_django.messages import AiMessage, ChatMessage

NAMELESS = "a colleague"
"""Who has spoken, if the author has no name."""


def with_speaker(message: ChatMessage) -> ChatMessage:
    """Return *message* with a line in front that names its author, if a person wrote it; otherwise as it is."""
    author = author_of(message)
    if author is None or not isinstance(message, AiMessage):
        return message
    name = " ".join(visible(author).replace("[", "(").replace("]", ")").split())[:MAX_NAME]
    return replace(message, text=f"[Written by {name or NAMELESS}, a person, and not by you:]\n{message.text or ''}")
