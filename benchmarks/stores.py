"""A turn through a message store of LangChain or LlamaIndex: ours and their own, in the same database, in one run.

``python -m benchmarks.stores langchain`` or ``llama_index``. A turn of LangChain is what
``RunnableWithMessageHistory`` does: it reads the whole history, and adds the question and the answer. One of
LlamaIndex is what an agent does with its ``Memory``: it puts the user's message, gets the active messages, and
puts the answer; of its history, all but the last 20 messages are archived.
"""

from __future__ import annotations

from typing import Any

from langchain_community.chat_message_histories import SQLChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.agents import Measured, main
from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory
from chatmemory_django.contrib.adapters.llama_index import DjangoChatStore

QUESTION, ANSWER = "Where is my parcel? " * 12, "It left Hamburg this morning. " * 12
ACTIVE = 20
"""The number of active messages of a ``Memory``."""


def histories(size: int, engine: AsyncEngine) -> dict[str, Any]:
    """Return a history of each kind."""
    return {
        "DjangoChatMessageHistory": DjangoChatMessageHistory(f"of-{size}"),
        "SQLChatMessageHistory": SQLChatMessageHistory(f"of-{size}", connection=engine, async_mode=True),
    }


async def fill_history(history: Any, size: int) -> None:
    """Fill *history* with this many messages."""
    for first in range(0, size, 1_000):
        exchange = [HumanMessage(QUESTION), AIMessage(ANSWER, id="run-1", response_metadata={"model_name": "m"})]
        await history.aadd_messages((exchange * 500)[: min(1_000, size - first)])


async def take_turn(history: Any) -> None:
    """Take a turn."""
    await history.aget_messages()
    answer = AIMessage(ANSWER, id="run-1", response_metadata={"model_name": "m"})
    await history.aadd_messages([HumanMessage(QUESTION), answer])


def memories(size: int, engine: AsyncEngine) -> dict[str, Any]:
    """Return a memory over a store of each kind."""
    stores = {
        "DjangoChatStore": DjangoChatStore(),
        "SQLAlchemyChatStore": SQLAlchemyChatStore("messages", async_engine=engine),
    }
    tokens = len(QUESTION.split()) * ACTIVE
    return {
        name: Memory.from_defaults(
            session_id=f"of-{size}",
            chat_store=store,
            token_limit=tokens,
            token_flush_size=tokens // 4,
            chat_history_token_ratio=1.0,
            tokenizer_fn=str.split,
        )
        for name, store in stores.items()
    }


async def fill_memory(memory: Memory, size: int) -> None:
    """Fill the store of *memory* with this many messages."""
    exchange = [ChatMessage(QUESTION), ChatMessage(ANSWER, role="assistant")]
    for first in range(0, size - ACTIVE, 1_000):
        archived = (exchange * 500)[: min(1_000, size - ACTIVE - first)]
        await memory.sql_store.add_messages(memory.session_id, archived, MessageStatus.ARCHIVED)
    await memory.sql_store.add_messages(memory.session_id, (exchange * (ACTIVE // 2))[: min(ACTIVE, size)])


async def converse(memory: Memory) -> None:
    """Take a turn."""
    await memory.aput(ChatMessage(QUESTION))
    await memory.aget()
    await memory.aput(ChatMessage(ANSWER, role="assistant"))


if __name__ == "__main__":
    main(
        __doc__,
        langchain=Measured(histories, fill_history, take_turn, ("langchain-core", "langchain-community", "sqlalchemy")),
        llama_index=Measured(memories, fill_memory, converse, ("llama-index-core", "sqlalchemy")),
    )
