"""Data of LangChain, LlamaIndex and pydantic-ai (see ``record``) is imported as conversations."""

import asyncio
import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.core.management import CommandError
from django.db import connection

from chatmemory_django.contrib.adapters.histories import History
from chatmemory_django.contrib.importing.moved import moment
from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.formats.langchain import LANGCHAIN
from chatmemory_django.formats.llama_index import LLAMA_INDEX
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from tests.database.contrib.importing.record import DATA, TEXT
from tests.database.contrib.importing.sources import messages_of, moved, refused
from tests.database.test_operations import everything_is_whole

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = {"langchain": ("message_store", "session_id", "message"), "llamaindex": ("llama_index_memory", "key", "data")}
FORMATS = {"langchain": LANGCHAIN, "llamaindex": LLAMA_INDEX}
FILES = {"langchain": "langchain", "llamaindex": "llama_index", "pydantic-ai": "pydantic_ai"}


@pytest.fixture
def database(tmp_path: Path):
    """Return a function that creates the database that a framework has written."""

    def make(framework: str) -> Path:
        file = tmp_path / f"{framework}.db"
        with sqlite3.connect(file) as connection:
            connection.executescript((DATA / f"{FILES[framework]}.sql").read_text(encoding="utf-8"))
        connection.close()
        return file

    return make


def items_in(file: Path, framework: str, memory_id: str) -> list[dict]:
    table, key, data = TABLES[framework]
    with sqlite3.connect(file) as connection:
        rows = connection.execute(f"SELECT {data} FROM {table} WHERE {key} = ? ORDER BY id", [memory_id]).fetchall()
    connection.close()
    return [json.loads(row[0]) for row in rows]


def is_the_conversation(messages: list) -> bool:
    system, question, asked, answered, answer = messages[:5]
    [request] = asked.tool_execution_requests
    return (
        (system, question) == (SystemMessage("Be brief."), UserMessage(TEXT))
        and (request.id, request.name, json.loads(request.arguments)) == ("1", "clock", {"zone": "JST"})
        and isinstance(answered, ToolExecutionResultMessage)
        and (answered.id, answered.tool_name, answered.text) == ("1", "clock", "noon")
        and isinstance(answer, AiMessage)
        and answer.text == "Noon."
    )


@pytest.mark.parametrize("framework", TABLES)
class TestTables:
    def test_are_read_as_written(self, database, framework: str):
        file = database(framework)

        assert moved(framework, file) == "Imported 2 conversations, added to 0; 0 already existed.\n"

        assert is_the_conversation(messages_of("anna"))
        for memory_id in ("anna", "ben"):
            items = items_in(file, framework, memory_id)
            assert repr(History(memory_id, FORMATS[framework]).read()) == repr(items)
        assert len(everything_is_whole()) == 2

    def test_are_imported_once(self, database, framework: str):
        file = database(framework)
        moved(framework, file)
        table, key, _ = TABLES[framework]
        with sqlite3.connect(file) as grown:
            columns = ", ".join(row[1] for row in grown.execute(f"PRAGMA table_info({table})") if row[1] != "id")
            again = f"SELECT {columns} FROM {table} WHERE {key} = 'ben'"
            grown.execute(f"INSERT INTO {table} ({columns}) {again}")
        grown.close()

        assert moved(framework, file) == "Imported 0 conversations, added to 1; 1 already existed.\n"
        assert moved(framework, file) == "Imported 0 conversations, added to 0; 2 already existed.\n"

        assert len(messages_of("ben")) == 2

    def test_with_an_invalid_message_are_refused(self, database, framework: str):
        file = database(framework)
        table, _, data = TABLES[framework]
        with sqlite3.connect(file) as broken:
            broken.execute(f"UPDATE {table} SET {data} = '[\"secret\"]' WHERE id = 2")
        broken.close()

        assert refused(framework, file) == ["'anna': row 2 must be a dict, not list."]
        assert list(everything_is_whole()) == ["ben"]

    def test_can_have_another_name(self, database, framework: str):
        file = database(framework)
        table, *_ = TABLES[framework]
        with sqlite3.connect(file) as renamed:
            renamed.execute(f"ALTER TABLE {table} RENAME TO mine")
        renamed.close()

        with pytest.raises(CommandError, match=f"There is no table '{table}'; use --table for another name."):
            moved(framework, file)
        moved(framework, file, "--table", "mine")

        assert is_the_conversation(messages_of("anna"))


@pytest.mark.parametrize("framework", FILES)
def test_json_is_read_as_written(framework: str):
    file = DATA / f"{FILES[framework]}.json"
    memory_id = "anna" if framework == "llamaindex" else file.stem

    moved(framework, file)
    before = everything_is_whole()
    assert moved(framework, file).startswith("Imported 0 conversations, added to 0;")

    assert is_the_conversation(messages_of(memory_id))
    assert everything_is_whole() == before


@pytest.mark.parametrize("framework", [*FILES, "langchain4j"])
@pytest.mark.parametrize("other", FILES)
def test_json_of_another_framework_is_refused(framework: str, other: str):
    if framework == other:
        return

    refusals = refused(framework, DATA / f"{FILES[other]}.json")

    assert refusals
    assert TEXT not in "".join(refusals)
    assert everything_is_whole() == {}


def test_times_of_llamaindex_are_kept(database):
    file = database("llamaindex")
    moved("llamaindex", file)
    with sqlite3.connect(file) as connection:
        rows = connection.execute("SELECT timestamp FROM llama_index_memory WHERE key = 'anna' ORDER BY id").fetchall()
    connection.close()

    times = Message.objects.filter(conversation__memory_id="anna").values_list("created_at", flat=True)
    assert [time.timestamp() for time in times] == pytest.approx([row[0] / 1e9 for row in rows], abs=1e-5)


def test_times_of_pydantic_ai_are_kept():
    moved("pydantic-ai", DATA / "pydantic_ai.json")

    items = json.loads((DATA / "pydantic_ai.json").read_text(encoding="utf-8"))
    times = list(Message.objects.values_list("created_at", flat=True))
    assert times[-1] == moment(items[-1]["timestamp"])
    assert times == sorted(times)
    assert Conversation.objects.get().updated_at == times[-1]


def test_the_store_of_pydantic_ai_has_the_imported_conversations():
    pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")
    from pydantic_ai.messages import ModelMessagesTypeAdapter

    from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore

    async def read() -> list:
        store = DjangoConversationStore()
        record = await store.read_record("pydantic_ai")
        return [entry.message for entry in await store.read_history(record.head_id)]

    moved("pydantic-ai", DATA / "pydantic_ai.json")
    try:
        messages = asyncio.run(read())
    finally:
        asyncio.run(close_thread_sensitive())

    assert messages == ModelMessagesTypeAdapter.validate_json((DATA / "pydantic_ai.json").read_bytes())


def test_a_conversation_of_pydantic_ai_grows_by_its_new_messages(tmp_path: Path):
    items = json.loads((DATA / "pydantic_ai.json").read_text(encoding="utf-8"))
    file = tmp_path / "anna.json"
    for count in range(1, len(items) + 1):
        file.write_text(json.dumps(items[:count]))
        moved("pydantic-ai", file)

    assert is_the_conversation(messages_of("anna"))
    assert everything_is_whole() == {"anna": 5}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="LangChain has this table on PostgreSQL alone.")
@pytest.mark.parametrize("kind", ["JSON", "JSONB"])
def test_histories_of_langchain_can_be_in_postgresql(kind: str):
    """The table of ``PostgresChatMessageHistory``."""
    session_id = "6f1c8b1e-0000-4000-8000-000000000001"
    items = json.loads((DATA / "langchain.json").read_text(encoding="utf-8"))
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE chat_history (id SERIAL PRIMARY KEY, session_id UUID NOT NULL, message {kind} NOT NULL, "
            "created_at TIMESTAMPTZ NOT NULL DEFAULT '2024-05-06 07:08:09+02')"
        )
        try:
            cursor.executemany(
                "INSERT INTO chat_history (session_id, message) VALUES (%s, %s)",
                [(session_id, json.dumps(item)) for item in items],
            )
            moved("langchain", "default", "--table", "chat_history")
        finally:
            cursor.execute("DROP TABLE chat_history")

    assert is_the_conversation(messages_of(session_id))
    assert Message.objects.first().created_at == datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)
