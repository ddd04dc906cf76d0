"""Record what other frameworks write, for the tests: ``python tests/database/contrib/importing/record.py langchain``.

``langchain`` needs langchain-community; ``llama_index`` needs llama-index-core, aiosqlite and pydantic 2.11 (since
LlamaIndex 0.14.25 cannot write its JSON with a later one); ``pydantic_ai`` needs pydantic-ai-slim;
``django_ai_assistant`` needs django-ai-assistant, psycopg, mysqlclient, and servers on this machine. Databases are
recorded as SQL.
"""

import asyncio
import json
import re
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[3] / "data" / "importing"
HERE = {"HOST": "127.0.0.1"}
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


def django_ai_assistant(folder: Path) -> None:
    """Record the statements that create its tables on each database, and what its assistant writes."""
    import django
    from django.conf import settings

    settings.configure(
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_ai_assistant"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "assistant.db"},
            "postgresql": {"ENGINE": "django.db.backends.postgresql", "USER": "postgres", "NAME": "postgres", **HERE},
            "mysql": {"ENGINE": "django.db.backends.mysql", "USER": "root", "NAME": "mysql", **HERE},
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connections
    from django_ai_assistant.helpers.assistants import AIAssistant
    from django_ai_assistant.helpers.use_cases import create_message, create_thread
    from django_ai_assistant.langchain.tools import tool
    from django_ai_assistant.models import Message, Thread
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    @tool
    def clock(zone: str) -> str:
        """Return the time."""
        return "noon"

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools, **kwargs):
            return self

    class Assistant(AIAssistant):
        id = "clock_assistant"
        name = "Clock"
        instructions = "Be brief."
        model = "none"
        messages = (
            AIMessage("", tool_calls=[{"id": "1", "name": "clock", "args": {"zone": "JST"}}]),
            AIMessage("Noon."),
        )

        def get_llm(self):
            return Model(messages=iter(self.messages))

        def get_tools(self):
            return [clock]

    class Other(Assistant):
        id = "other_assistant"
        messages = (AIMessage("Hello."),)

    call_command("migrate", verbosity=0)
    users = [User.objects.create_user(name) for name in ("anna", "ben")]
    threads = [create_thread(name="Zeit 🕛", user=users[0], assistant_id="clock_assistant")]
    threads += [create_thread(name="", user=user, assistant_id="other_assistant") for user in (users[1], users[0])]
    create_message("clock_assistant", threads[0], users[0], TEXT)
    for thread, user in ((threads[1], users[1]), (threads[2], users[0])):
        create_message("other_assistant", thread, user, "Hi")
    users[1].delete()  # a thread without an owner
    recorded = {
        "tables": {each.vendor: tables_of(each) for each in connections.all()},
        "threads": list(Thread.objects.order_by("pk").values()),
        "messages": list(Message.objects.order_by("pk").values()),
    }
    text = json.dumps(recorded, indent=1, default=str, ensure_ascii=False)
    (DATA / "django_ai_assistant.json").write_text(text + "\n", encoding="utf-8")


def tables_of(connection: Any) -> list[str]:
    """Return the statements that create the tables of django-ai-assistant, without keys of users."""
    from django_ai_assistant.models import Message, Thread

    with connection.schema_editor(collect_sql=True) as editor:
        created = [editor.table_sql(model)[0] for model in (Thread, Message)]
    return [re.sub(r' REFERENCES "auth_user" \("id"\) DEFERRABLE INITIALLY DEFERRED', "", each) for each in created]


def dump(database: Path, file: Path) -> None:
    connection = sqlite3.connect(database)
    file.write_text("\n".join(connection.iterdump()) + "\n", encoding="utf-8")
    connection.close()


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name in sys.argv[1:]:
            globals()[name](Path(temporary))
