"""Record what other frameworks write, for the tests: ``python tests/database/contrib/importing/record.py langchain``.

``langchain`` needs langchain-community; ``llama_index`` needs llama-index-core, aiosqlite and pydantic 2.11 (since
LlamaIndex 0.14.25 cannot write its JSON with a later one); ``pydantic_ai`` needs pydantic-ai-slim. Databases are
recorded as SQL.
"""

import asyncio
import sqlite3
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).parents[3] / "data" / "importing"
TEXT = "Wie spät ist es? 🕛"


def langchain(folder: Path) -> None:
    from langchain_community.chat_message_histories import FileChatMessageHistory, SQLChatMessageHistory
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from sqlalchemy import create_engine

    call = {"id": "1", "name": "clock", "args": {"zone": "JST"}}
    messages = [
        SystemMessage("Be brief."),
        HumanMessage(TEXT, id="h1"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("noon", tool_call_id="1", name="clock"),
        AIMessage([{"type": "text", "text": "Noon."}], response_metadata={"n": 1.0, "exact": 2**53 + 1}),
    ]
    engine = create_engine(f"sqlite:///{folder / 'langchain.db'}")
    for session_id, added in (("anna", messages), ("ben", [HumanMessage("Hi")]), ("anna", [HumanMessage("Thanks")])):
        SQLChatMessageHistory(session_id, connection=engine).add_messages(added)
    engine.dispose()
    dump(folder / "langchain.db", DATA / "langchain.sql")
    history = FileChatMessageHistory(str(DATA / "langchain.json"))
    history.clear()
    history.add_messages(messages)


def llama_index(folder: Path) -> None:
    from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
    from llama_index.core.storage.chat_store import SimpleChatStore
    from llama_index.core.storage.chat_store.base_db import MessageStatus
    from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

    call = ToolCallBlock(tool_call_id="1", tool_name="clock", tool_kwargs={"zone": "JST"})
    messages = [
        ChatMessage("Be brief.", role="system"),
        ChatMessage(TEXT),
        ChatMessage(role="assistant", blocks=[TextBlock(text="Let me see."), call]),
        ChatMessage("noon", role="tool", additional_kwargs={"tool_call_id": "1", "name": "clock"}),
        ChatMessage("Noon.", role="assistant", additional_kwargs={"n": 1.0}),
    ]

    async def write() -> None:
        store = SQLAlchemyChatStore("llama_index_memory", f"sqlite+aiosqlite:///{folder / 'llama_index.db'}")
        await store.add_messages("anna", messages[:2], MessageStatus.ARCHIVED)
        await store.add_messages("ben", messages[1:2])
        await store.add_messages("anna", messages[2:])
        await store._async_engine.dispose()

    asyncio.run(write())
    dump(folder / "llama_index.db", DATA / "llama_index.sql")
    simple = SimpleChatStore()
    simple.set_messages("anna", messages)
    simple.set_messages("ben", messages[1:2])
    simple.persist(str(DATA / "llama_index.json"))


def pydantic_ai(folder: Path) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("clock", {"zone": "JST"}, tool_call_id="1")])
        return ModelResponse([TextPart("Noon.")])

    agent = Agent(FunctionModel(model), system_prompt="Be brief.")

    @agent.tool_plain
    def clock(zone: str) -> str:
        return "noon"

    (DATA / "pydantic_ai.json").write_bytes(agent.run_sync(TEXT).all_messages_json())


def dump(database: Path, file: Path) -> None:
    connection = sqlite3.connect(database)
    file.write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8")
    connection.close()


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in sys.argv[1:]:
            {"langchain": langchain, "llama_index": llama_index, "pydantic_ai": pydantic_ai}[name](Path(temporary))
