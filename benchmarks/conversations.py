"""A turn of an agent through a conversation store of pydantic-ai, in one run.

A turn is what a view does around ``agent.run``: it loads the last messages, and saves the new ones. pydantic-ai
has no store for a database; its own store in memory is measured for comparison.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationStore, InMemoryConversationStore
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.agents import Measured, main
from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore

LIMIT = 100
"""The number of messages that a turn loads."""

TURN = [
    ModelRequest.user_text_prompt("Where is my parcel? " * 12),
    ModelResponse(parts=[ToolCallPart("track", {"parcel": 7}, "call_1")]),
    ModelRequest(parts=[ToolReturnPart("track", "It left Hamburg this morning.", "call_1")]),
    ModelResponse(parts=[TextPart("It left Hamburg. " * 12)]),
]


class Stored(NamedTuple):
    """A conversation in a store."""

    store: ConversationStore
    id: str


def conversations(size: int, engine: AsyncEngine) -> dict[str, Stored]:
    """Return a conversation of *size* in a store of each kind; pydantic-ai has none for an *engine*."""
    stores: tuple[ConversationStore, ...] = (DjangoConversationStore(), InMemoryConversationStore())
    return {type(store).__name__: Stored(store, f"of-{size}") for store in stores}


async def fill(stored: Stored, size: int) -> None:
    """Fill the conversation with this many messages."""
    conversation = Conversation(conversation_id=stored.id)
    for first in range(0, size, 1_000):
        conversation.messages = (TURN * 250)[: min(1_000, size - first)]
        conversation.new_message_index = 0
        await stored.store.save(conversation)


async def turn(stored: Stored) -> None:
    """Take a turn."""
    conversation = await stored.store.load(stored.id, limit=LIMIT)
    assert conversation is not None
    conversation.messages.extend(TURN)
    await stored.store.save(conversation)


if __name__ == "__main__":
    main(__doc__, conversations=Measured(conversations, fill, turn, ("pydantic-ai-slim",)))
