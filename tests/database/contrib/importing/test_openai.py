"""Data of the OpenAI Agents SDK and ChatGPT is imported as conversations, each once."""

import asyncio
import io
import json
import sqlite3
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.contrib.importing import chatgpt, documents
from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.management import base
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import ImportResult
from chatmemory_django.provider import get_chat_memory
from tests.database.contrib.importing.sources import (
    TREE,
    branching,
    imported,
    messages_of,
    moved,
    refused,
    single_message,
)
from tests.database.test_operations import everything_is_whole
from tests.faces.test_commands import Terminal
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = Path(__file__).parents[4]
HI, HELLO = {"role": "user", "content": "Grüß dich 🙂"}, {"role": "assistant", "content": "Hello", "phase": None}
CALL = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "They greet."}]}


@pytest.fixture(autouse=True)
def a_small_memory(settings):
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}}
    }


@pytest.fixture(autouse=True)
def _no_connection_is_left():
    yield
    asyncio.run(close_thread_sensitive())


def url_of(connection) -> str:
    """Return the URL in SQLAlchemy's form."""
    where = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite+aiosqlite:///{where['NAME']}"
    driver = {"postgresql": "asyncpg", "mysql": "aiomysql"}[connection.vendor]
    user = f"{quote(where['USER'])}:{quote(where['PASSWORD'])}"
    return f"{connection.vendor}+{driver}://{user}@{where['HOST']}:{where['PORT']}/{where['NAME']}?connect_timeout=5"


class TestSessionsOfTheAgentsSdk:
    @pytest.fixture
    def session(self, tmp_path: Path):
        """Return a function that adds items to a session in a file, as the SDK itself does."""
        agents = pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")

        def add(session_id: str, *items) -> Path:
            session = agents.SQLiteSession(session_id, tmp_path / "sessions.db")
            asyncio.run(session.add_items(list(items)))
            session.close()
            return tmp_path / "sessions.db"

        return add

    def test_equal_the_sites_own_sessions(self, session):
        from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

        items = [{"role": "system", "content": "Be brief."}, HI, REASONING, CALL, RESULT, HELLO]
        file = session("anna", *items)
        session("ben", HI)

        assert moved("openai", file) == "Imported 2 conversations, added to 0; 0 already existed.\n"

        assert repr(asyncio.run(DjangoSession("anna").get_items())) == repr(items)
        assert messages_of("ben") == [UserMessage("Grüß dich 🙂")]
        assert get_chat_memory("anna").messages() == [SystemMessage("Be brief."), AiMessage("Hello")]
        assert everything_is_whole() == {"anna": 6, "ben": 1}

    def test_that_have_grown_are_extended(self, session):
        file = session("anna", HI)
        session("ben", HI)
        moved("openai", file)
        session("anna", HELLO, HI)

        assert moved("openai", file) == "Imported 0 conversations, added to 1; 1 already existed.\n"
        assert moved("openai", file) == "Imported 0 conversations, added to 0; 2 already existed.\n"

        assert messages_of("anna") == [UserMessage("Grüß dich 🙂"), AiMessage("Hello"), UserMessage("Grüß dich 🙂")]

    def test_that_the_site_has_continued_are_left_alone(self, session):
        file = session("anna", HI)
        moved("openai", file)
        get_chat_memory("anna").add(AiMessage("Hello here"))

        assert moved("openai", file) == "Imported 0 conversations, added to 0; 1 already existed.\n"

        session("anna", HELLO)
        assert refused("openai", file) == ["'anna': Its message 2 differs from the stored one."]
        assert messages_of("anna") == [UserMessage("Grüß dich 🙂"), AiMessage("Hello here")]

    def test_that_the_site_has_rewound_continue_from_their_end(self, session):
        file = session("anna", HI, HELLO)
        moved("openai", file)
        get_chat_memory("anna").rewind(1)
        session("anna", HI)

        moved("openai", file)

        assert messages_of("anna") == [UserMessage("Grüß dich 🙂"), AiMessage("Hello"), UserMessage("Grüß dich 🙂")]

    def test_get_the_owner_given_to_the_command(self, session):
        anna, _ = (get_user_model().objects.create_user(name) for name in ("anna", "ben"))
        file = session("s", HI)

        moved("openai", file, "--user", "anna", "--prefix", "agents:")
        assert refused("openai", file, "--user", "ben", "--prefix", "agents:") == ["'s': It belongs to another user."]

        assert Conversation.objects.get(memory_id="agents:s").owner == anna

    def test_keep_their_times(self, session):
        file = session("s", HI, HELLO)
        with sqlite3.connect(file) as database:
            database.execute("UPDATE agent_messages SET created_at = '2024-05-06 07:08:09' WHERE id = 1")
            database.execute("UPDATE agent_messages SET created_at = 'soon' WHERE id = 2")
        database.close()

        moved("openai", file)

        then = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
        assert list(Message.objects.values_list("created_at", flat=True)) == [then, then]
        conversation = Conversation.objects.get()
        assert (conversation.created_at, conversation.updated_at) == (then, then)

    def test_with_characters_no_database_stores_are_imported(self, session):
        from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

        odd = {"role": "user", "content": "a\0b\ud800c"}

        moved("openai", session("s", odd))

        assert messages_of("s") == [UserMessage("a\ufffdb\ufffdc")]
        assert asyncio.run(DjangoSession("s").get_items()) == [odd]

    def test_are_refused_one_by_one_without_their_text(self, session):
        for name in ("no-json", "no-object", "good", "no-utf-8"):
            file = session(name, HI, HELLO)
        with sqlite3.connect(file) as database:
            database.execute("UPDATE agent_messages SET message_data = '{\"secret' WHERE id = 2")
            database.execute("UPDATE agent_messages SET message_data = '\"secret\"' WHERE id = 3")
            database.execute("UPDATE agent_messages SET message_data = CAST(x'22ff22' AS TEXT) WHERE id = 7")
        database.close()

        assert refused("openai", file) == [
            "'no-json': row 2 is not JSON.",
            "'no-object': row 3 must be a dict, not str.",
            "'no-utf-8': row 7 is not UTF-8.",
        ]
        assert everything_is_whole() == {"good": 2}

    def test_need_an_id(self, session):
        file = session("s", HI)
        with sqlite3.connect(file) as database:
            database.execute("ALTER TABLE agent_messages RENAME TO old")
            database.execute(
                "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)"
            )
            database.execute("INSERT INTO agent_messages SELECT id, NULL, message_data, created_at FROM old")
        database.close()

        assert refused("openai", file, "--prefix", "x:") == ["'None': It has no session_id."]

    @pytest.mark.parametrize("by_url", [False, True], ids=["alias", "url"])
    def test_can_be_in_a_database_of_the_site(self, by_url: bool):
        source = url_of(connection) if by_url else "default"
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE my_messages (id INTEGER PRIMARY KEY, session_id VARCHAR(50), message_data TEXT, "
                "created_at TIMESTAMP)"
            )
            try:
                cursor.executemany(
                    "INSERT INTO my_messages VALUES (%s, %s, %s, '2024-05-06 07:08:09')",
                    [(1, "a", json.dumps(HI)), (2, "b", json.dumps(HI)), (7, "a", json.dumps(HELLO))],
                )
                moved("openai", source, "--table", "my_messages")
            finally:
                cursor.execute("DROP TABLE my_messages")

        assert everything_is_whole() == {"a": 2, "b": 1}
        assert messages_of("a") == [UserMessage("Grüß dich 🙂"), AiMessage("Hello")]

    def test_can_be_at_a_url(self, session):
        moved("openai", f"sqlite+aiosqlite:///{session('s', HI)}")

        assert everything_is_whole() == {"s": 1}

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("mongodb://localhost/x", "must begin with sqlite, postgresql, mysql or mariadb, not 'mongodb'"),
            ("postgresql://nobody:secret@127.0.0.1:1/x", "The database cannot be read: "),
            ("mysql://nobody:secret@127.0.0.1:1/x?nonsense=1", "The database cannot be read: "),
            ("sqlite:////nowhere/x.db", "is not a SQLite database"),
        ],
    )
    def test_need_a_readable_database(self, source: str, reason: str):
        with pytest.raises(CommandError, match=reason) as refusal:
            moved("openai", source)

        assert "secret" not in str(refusal.value)

    def test_are_only_read(self, session):
        file = session("s", HI)
        before = file.read_bytes()
        file.chmod(0o400)

        moved("openai", file)

        assert file.read_bytes() == before


class TestConversationsOfChatGpt:
    @pytest.fixture
    def export(self, tmp_path: Path):
        def write(*conversations, name: str = "conversations.json") -> Path:
            file = tmp_path / name
            file.write_text(json.dumps(conversations, ensure_ascii=False), encoding="utf-8")
            return file

        return write

    def test_become_conversations(self, export):
        moved("openai", export(TREE))

        conversation = Conversation.objects.get()
        assert (conversation.memory_id, conversation.title) == ("6f1c8b1e-0000-4000-8000-000000000001", "Zeitfragen 🕛")
        assert conversation.is_archived
        assert conversation.created_at == datetime.fromtimestamp(1_700_000_000.5, UTC)
        assert conversation.updated_at == datetime.fromtimestamp(1_700_000_900, UTC)
        call = {"input": "import time; print(time.time())"}
        question, asked, answered, answer, thanks = [
            message for message in messages_of(conversation.memory_id) if not isinstance(message, SystemMessage)
        ]
        picture = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-abc"}
        assert question == UserMessage("Wie spät ist es?", attributes={"chatgpt": [picture]})
        [request] = asked.tool_execution_requests
        assert (request.name, json.loads(request.arguments)) == ("python", call)
        assert asked.thinking == "A clock would help."
        assert answered == ToolExecutionResultMessage(request.id, "python", "1700000000")
        assert answer == AiMessage("Kurz nach zehn.")
        assert thanks == UserMessage("Danke!")

    def test_include_the_users_instructions(self, export):
        moved("openai", export(TREE))

        [instructions] = Message.objects.filter(type="SYSTEM")
        assert instructions.text == "I live in Rome.\nBe brief."

    @pytest.mark.parametrize(
        ("role", "content", "message"),
        [
            ("user", {"content_type": "text", "parts": []}, None),
            ("user", {"content_type": "text", "parts": ["", None, 1]}, None),
            ("assistant", {"content_type": "text", "parts": [" \n"]}, None),
            ("assistant", {"content_type": "reasoning_recap", "content": "Thought for 3 s"}, None),
            ("assistant", {"content_type": "thoughts", "thoughts": [{"summary": "Hm"}]}, None),
            (
                "user",
                {
                    "content_type": "multimodal_text",
                    "parts": [{"content_type": "audio_transcription", "text": "Hi", "direction": "in"}],
                },
                UserMessage("Hi"),
            ),
            (
                "tool",
                {"content_type": "system_error", "name": "Timeout", "text": "It took too long."},
                ToolExecutionResultMessage("n", "container_exec", "It took too long.", is_error=True),
            ),
            (
                "tool",
                {"content_type": "unheard of", "n": 1},
                ToolExecutionResultMessage(
                    "n", "container_exec", "", attributes={"chatgpt": [{"content_type": "unheard of", "n": 1}]}
                ),
            ),
        ],
    )
    def test_have_only_the_visible_messages(self, role: str, content: dict, message):
        conversation = chatgpt.read_conversation(single_message(role, content, name="container.exec"))

        assert [each.message.message for each in conversation.messages] == ([] if message is None else [message])

    def test_that_are_nested_deeply_are_refused(self, export):
        deep: list = []
        for _ in range(600):
            deep = [deep]

        assert (
            len(refused("openai", export(single_message("user", {"content_type": "x", "parts": [{"deep": deep}]}))))
            == 1
        )

    def test_keep_their_times(self, export):
        moved("openai", export(TREE))

        times = list(Message.objects.filter(in_history=True).values_list("created_at", flat=True))
        assert times == sorted(times)
        assert times[1] == datetime.fromtimestamp(1_700_000_100, UTC)

    def test_keep_their_branches(self, export):
        file = export(branching(current="answer-1"))

        moved("openai", file)

        conversation = Conversation.objects.get()
        assert messages_of(conversation.memory_id) == [UserMessage("Hi"), AiMessage("First")]
        [other] = conversation.alternatives(2)
        assert other.text == "Second"
        assert {row.client_message_id for row in conversation.history(all_branches=True)} == {
            "question", "answer-1", "answer-2", "more"
        }  # fmt: skip
        get_chat_memory(conversation.memory_id).switch(other.sequence)
        assert messages_of(conversation.memory_id) == [UserMessage("Hi"), AiMessage("Second"), UserMessage("More")]
        assert everything_is_whole()

    def test_grow_by_new_messages_on_any_branch(self, export):
        file = export(branching(current="more"))
        moved("openai", file)
        grown = branching(current="answer-3")
        grown["mapping"]["answer-3"] = {
            "id": "answer-3",
            "parent": "question",
            "children": [],
            "message": {
                "id": "answer-3",
                "author": {"role": "assistant"},
                "create_time": 1_800_000_000.0,
                "content": {"content_type": "text", "parts": ["Third"]},
            },
        }
        file = export(grown)

        assert moved("openai", file) == "Imported 0 conversations, added to 1; 0 already existed.\n"
        assert moved("openai", file) == "Imported 0 conversations, added to 0; 1 already existed.\n"

        assert messages_of(grown["conversation_id"]) == [UserMessage("Hi"), AiMessage("Third")]
        assert everything_is_whole() == {grown["conversation_id"]: 5}

    def test_are_read_from_the_downloaded_archive(self, export, tmp_path: Path):
        other = {**branching(), "conversation_id": "6f1c8b1e-0000-4000-8000-000000000002"}
        archive = tmp_path / "export.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("chat.html", "<html>")
            file.writestr("conversations-000.json", json.dumps([TREE]))
            file.writestr("conversations-001.json", json.dumps([other]))

        assert moved("openai", archive) == "Imported 2 conversations, added to 0; 0 already existed.\n"
        with zipfile.ZipFile(archive) as file:
            file.extractall(tmp_path / "unpacked")
        assert moved("openai", tmp_path / "unpacked").endswith("2 already existed.\n")

    def test_are_read_one_by_one(self, export, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(documents, "READ_CHARACTERS", 7)
        file = export(*({**branching(), "conversation_id": f"c{number}"} for number in range(5)))
        terminal = Terminal()

        moved("openai", file, stderr=terminal)

        assert sorted(everything_is_whole()) == [f"c{number}" for number in range(5)]
        size = f"{file.stat().st_size:,}"
        assert terminal.getvalue().endswith(f"] 100%  {size} of {size} bytes\n")

    def test_are_refused_one_by_one_without_their_text(self, export):
        circle = branching()
        circle["mapping"]["question"]["parent"] = "more"
        nothing = {**branching(), "mapping": {}, "conversation_id": "empty"}

        nameless = {**branching(), "conversation_id": None, "id": 7}

        refusals = refused("openai", export({"secret": 1}, "secret", circle, nameless, TREE, nothing))

        assert [line.partition(":")[0] for line in refusals] == [f"'conversations.json[{index}]'" for index in range(4)]
        assert "secret" not in "".join(refusals)
        assert len(everything_is_whole()) == 1

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b'{"a": 1}', "must be a list of conversations"),
            ("[".encode("utf-16"), "is not UTF-8"),
            (b'[{"a":', "is truncated or is not JSON after conversation 0"),
            (b"", "must be a list of conversations"),
            (b"[" * 100_000, "is truncated or is not JSON after conversation 0"),
        ],
        ids=["object", "utf-16", "cut", "empty", "deep"],
    )
    def test_are_not_in_other_files(self, tmp_path: Path, content: bytes, reason: str):
        file = tmp_path / "conversations.json"
        file.write_bytes(content)

        with pytest.raises(CommandError, match=reason):
            moved("openai", file)

        assert not Conversation.objects.exists()

    def test_need_their_file(self, tmp_path: Path):
        with pytest.raises(CommandError, match="No such file"):
            moved("openai", tmp_path / "missing.json")
        with pytest.raises(CommandError, match=r"no file in .* whose name matches"):
            moved("openai", tmp_path)


class TestMany:
    @pytest.mark.slow
    def test_by_several_processes_at_once_are_imported_once(self, tmp_path: Path):
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps([{**branching(), "conversation_id": f"c{number}"} for number in range(20)]))

        def move(_: int) -> str:
            try:
                return moved("openai", file)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            lines = list(pool.map(move, range(4)))

        counts = [int(line.split()[1]) for line in lines]
        assert sum(counts) == 20
        assert everything_is_whole() == {f"c{number}": 4 for number in range(20)}

    def test_progress_is_reported_without_a_terminal_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(base, "LINE_SECONDS", 0.0)
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps([TREE]))
        progress = io.StringIO()

        moved("openai", file, stderr=progress)

        size = f"{file.stat().st_size:,}"
        assert progress.getvalue() == f"{size} of {size} bytes\n"

    def test_keep_their_history_even_if_the_site_keeps_none(self, tmp_path: Path, settings):
        settings.CHATMEMORY |= {"KEEP_HISTORY": False}
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps([branching(), {**TREE, "mapping": {}}]))

        moved("openai", file)
        assert moved("openai", file).endswith("2 already existed.\n")

        assert Message.objects.count() == 4

    def test_keep_their_times_on_a_site_without_time_zones(self, tmp_path: Path, settings):
        settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps([TREE]))

        moved("openai", file)

        local = datetime.fromtimestamp(1_700_000_106, ZoneInfo("Europe/Berlin")).replace(tzinfo=None)
        assert Message.objects.last().created_at == local
        assert Conversation.objects.get().created_at.hour == 23

    def test_a_conflict_in_the_callers_transaction_does_not_affect_the_others(self, tmp_path: Path):
        get_chat_memory("b").add(UserMessage("Other"))
        file = tmp_path / "conversations.json"
        file.write_text(json.dumps([{**branching(), "conversation_id": name} for name in "abc"]))

        with transaction.atomic():
            refusals = refused("openai", file)

        assert refusals == ["'b': Its message 1 differs from the stored one."]
        assert everything_is_whole() == {"a": 4, "b": 1, "c": 4}

    @pytest.mark.parametrize("options", [["--skip-existing"], ["--untrusted"], ["--owners", "owners.json"]])
    def test_take_no_options_of_json_lines(self, tmp_path: Path, options: list[str]):
        with pytest.raises(
            CommandError, match="--skip-existing, --untrusted and --owners cannot be used with --from"
        ) as found:
            moved("openai", tmp_path, *options)
        assert found.value.returncode == 2

    @pytest.mark.parametrize("options", [["--table", "x"], ["--prefix", "x"]])
    def test_alone_have_the_options_table_and_prefix(self, tmp_path: Path, options: list[str]):
        with pytest.raises(CommandError, match="--table and --prefix require --from") as found:
            call_command("import_chatmemory", str(tmp_path / "x.jsonl"), *options)
        assert found.value.returncode == 2


@st.composite
def trees(draw):
    """Generate nodes of a conversation in order, each with the node that it follows."""
    count = draw(st.integers(1, 8))
    parents = [draw(st.integers(-1, index - 1)) for index in range(count)]
    times = draw(st.lists(st.one_of(st.none(), st.floats(0, 2e9)), min_size=count, max_size=count))
    nodes = {
        f"n{index}": {
            "id": f"n{index}",
            "parent": None if parent < 0 else f"n{parent}",
            "message": {
                "author": {"role": draw(st.sampled_from(["user", "assistant"]))},
                "create_time": times[index],
                "content": {"content_type": "text", "parts": [draw(st.sampled_from(["a", "b", "", "\0"]))]},
            },
        }
        for index, parent in enumerate(parents)
    }
    order = draw(st.permutations(sorted(nodes)))
    current = draw(st.sampled_from(sorted(nodes)))
    return {"conversation_id": "c", "mapping": {key: nodes[key] for key in order}, "current_node": current}


@pytest.mark.slow
@given(tree=trees())
@IN_DATABASE
def test_any_tree_has_the_path_in_use(tree):
    """The path leads from the start to the current node, and a second import adds nothing."""
    expected = []
    key = tree["current_node"]
    while key is not None:
        node = tree["mapping"][key]
        text = node["message"]["content"]["parts"][0].replace("\0", "\ufffd")
        expected = ([text] if text else []) + expected
        key = node["parent"]
    Conversation.objects.all().delete()
    conversation = chatgpt.read_conversation(tree)

    first, second = imported(conversation), imported(conversation)

    spoken = [row.text for row in Message.objects.history()] if expected else []
    assert spoken == expected
    assert first is (ImportResult.STORED if conversation.messages else ImportResult.PRESENT)
    assert second is ImportResult.PRESENT
    everything_is_whole()
