import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from chatmemory_django.codec import messages_from_json
from chatmemory_django.messages import (
    AiMessage,
    ImageContent,
    PdfFileContent,
    SystemMessage,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from example_project import corpus
from example_project.corpus import Transcript
from example_project.management.commands import demo as command
from tests.quick import mostly_slow

SHIPPED = {"demo-parcel": 11, "demo-night-train": 16, "demo-basil": 7, "demo-kyoto": 11, "demo-bread": 169}


def demo(**options):
    out = io.StringIO()
    call_command("demo", stdout=out, **options)
    return out.getvalue()


def rows():
    """Return everything that a second run could change."""
    return (
        list(Conversation.objects.order_by("pk").values()),
        list(Message.objects.order_by("conversation", "sequence").values()),
        list(User.objects.values()),
    )


def message_counts():
    return {conversation.memory_id: conversation.history().count() for conversation in Conversation.objects.all()}


@pytest.fixture
def no_corpus_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "chitchat_dataset", None)


@pytest.fixture
def small_corpus(monkeypatch):
    """Replace the 7,168 conversations by three, for machines without the package."""
    pytest.importorskip("tqdm")
    transcripts = [
        Transcript(f"chitchat-{number}", f"Number {number}", [UserMessage("Hi"), AiMessage("Hello"), UserMessage("")])
        for number in range(3)
    ]
    monkeypatch.setattr(corpus, "chitchat", lambda: iter(transcripts))
    monkeypatch.setattr(command, "find_spec", lambda name: name)
    return transcripts


@pytest.fixture
def interrupt(monkeypatch):
    """Return a function that simulates Ctrl-C within the *number*th add from then on."""

    def interrupt(number):
        adds = iter(range(1, number))

        def get(memory_id, owner):
            memory = get_chat_memory(memory_id, owner=owner)
            add = memory.add

            def add_until_then(*messages):
                add(*messages)
                if next(adds, None) is None:
                    raise KeyboardInterrupt

            memory.add = add_until_then
            return memory

        monkeypatch.setattr(command, "get_chat_memory", get)

    return interrupt


class TestShippedConversations:
    def test_every_file_is_readable_and_has_a_title(self):
        names = {path.stem for path in corpus.FOLDER.glob("*.json")}

        assert names == set(corpus.TITLES)
        assert {t.memory_id: len(t.messages) for t in corpus.shipped()} == SHIPPED

    def test_the_files_match_their_description(self):
        parcel, train, basil, kyoto, bread = (transcript.messages for transcript in corpus.shipped())
        contents = [type(c) for m in basil if isinstance(m, UserMessage) for c in m.contents]

        assert all(isinstance(messages[0], SystemMessage) for messages in (parcel, train, basil, kyoto, bread))
        assert max(len(m.tool_execution_requests) for m in train if isinstance(m, AiMessage)) == 3
        assert {ImageContent, PdfFileContent} <= set(contents)
        assert "京都" in kyoto[0].text

    def test_every_tool_call_is_directly_followed_by_its_result(self):
        train = messages_from_json((corpus.FOLDER / "night-train.json").read_bytes())

        open_calls = []
        for message in train:
            if isinstance(message, ToolExecutionResultMessage):
                assert (message.id, message.tool_name) == open_calls.pop(0)
            else:
                assert open_calls == []
            if isinstance(message, AiMessage):
                open_calls = [(request.id, request.name) for request in message.tool_execution_requests]
        assert open_calls == []


@pytest.mark.django_db
class TestDemo:
    def test_a_first_run_loads_every_conversation_and_prints_the_memories(self):
        out = demo()

        assert message_counts() == SHIPPED
        assert {c.title for c in Conversation.objects.all()} == set(corpus.TITLES.values())
        assert {c.owner.username for c in Conversation.objects.all()} == {"demo"}
        header, *table = [line for line in out.splitlines() if "  " in line]
        assert header.split("  ")[0] == "conversation"
        assert [line.split()[-4] for line in table] == ["11", "16", "7", "11", "169"]

    def test_columns_stay_aligned_below_japanese_titles(self):
        out = demo()

        assert len({command.display_width(line) for line in out.splitlines() if "  " in line}) == 1

    def test_the_histories_hold_the_messages_of_the_files(self):
        demo()

        for transcript in corpus.shipped():
            rows = Conversation.objects.get(memory_id=transcript.memory_id).history()
            assert [row.chat_message for row in rows] == transcript.messages

    def test_the_long_conversation_has_outgrown_its_memory(self):
        out = demo()

        bread = Conversation.objects.get(memory_id="demo-bread")
        assert bread.memory_tokens <= 4000
        assert bread.evicted().count() == 169 - bread.memory_messages > 50
        *_, in_memory, tokens, evicted = next(line for line in out.splitlines() if "bread" in line).split()
        assert in_memory == str(bread.memory_messages)
        assert tokens == f"{bread.memory_tokens:,}"
        assert evicted == str(bread.evicted().count())

    def test_a_second_run_changes_nothing(self):
        demo()
        before = rows()

        demo()

        assert rows() == before

    def test_the_table_takes_two_queries_for_any_number_of_conversations(self, django_assert_num_queries):
        demo()

        for memory_ids in (["demo-basil"], list(SHIPPED)):
            with django_assert_num_queries(2):
                command.Command(stdout=io.StringIO()).print_table(memory_ids)

    def test_a_continued_conversation_is_left_unchanged(self):
        demo()
        get_chat_memory("demo-kyoto").add(UserMessage("お土産は何がよいですか。"))

        demo()

        assert message_counts() == {**SHIPPED, "demo-kyoto": 12}

    @pytest.mark.parametrize("number", mostly_slow([12, 1, 11, 20, 150]))
    def test_an_interrupted_run_is_completed_by_the_next(self, interrupt, number, monkeypatch):
        interrupt(number)
        with pytest.raises(CommandError, match="Stopped") as stopped:
            demo()
        monkeypatch.undo()
        interrupted_at = sum(message_counts().values())

        demo()

        assert stopped.value.returncode == 130
        assert interrupted_at == number
        assert message_counts() == SHIPPED
        for transcript in corpus.shipped():
            rows = Conversation.objects.get(memory_id=transcript.memory_id).history()
            assert [row.chat_message for row in rows] == transcript.messages

    def test_ctrl_c_before_anything_is_loaded_exits_with_130(self, monkeypatch):
        def interrupt(*arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(command, "call_command", interrupt)

        with pytest.raises(CommandError, match=r"^Stopped\. 0 conversations are loaded") as stopped:
            demo()

        assert stopped.value.returncode == 130

    def test_the_site_has_no_warnings(self):
        call_command("check", fail_level="WARNING")


@pytest.mark.django_db
class TestDemoUser:
    def test_with_debug_on_the_user_can_use_the_admin(self, settings, client):
        settings.DEBUG = True

        out = demo()

        assert "Created the user demo with the password demo." in out
        assert client.login(username="demo", password="demo")
        assert client.get("/admin/").status_code == 200

    def test_with_debug_off_no_one_can_log_in(self, settings, client):
        settings.DEBUG = False

        demo()

        user = User.objects.get(username="demo")
        assert [user.is_staff, user.is_superuser, user.has_usable_password()] == [False] * 3

    def test_with_debug_off_the_known_password_is_none_however_the_user_was_made(self, settings, client):
        settings.DEBUG = True
        demo()
        token = {"path": "/api/token/", "data": {"username": "demo", "password": "demo"}}
        assert client.post(**token).status_code == 200

        settings.DEBUG = False

        assert not client.login(username="demo", password="demo")
        assert not client.login(username="DEMO", password="demo")
        assert client.post(**token).status_code == 400
        user = User.objects.get(username="demo")
        user.set_password("my own")
        user.save()
        assert client.login(username="demo", password="my own")

    def test_every_run_prints_the_address_of_the_chat_and_the_credentials(self, settings):
        settings.DEBUG = True

        for out in (demo(), demo()):
            *_, chat, password = out.splitlines()
            assert chat.startswith("Chat, and see what the model remembers: ")
            assert chat.endswith("http://127.0.0.1:8000/")
            assert password == "Sign in as demo with the password demo."

    def test_with_debug_off_no_credentials_are_printed(self, settings):
        settings.DEBUG = False

        assert "Sign in" not in demo()

    def test_a_changed_password_is_not_printed(self, settings):
        settings.DEBUG = True
        demo()
        user = User.objects.get(username="demo")
        user.set_password("my own")
        user.save()

        assert demo().endswith("Sign in as demo with the password that you set.\n")

    def test_a_second_run_keeps_the_password(self, settings, client):
        settings.DEBUG = True
        demo()
        user = User.objects.get(username="demo")
        user.set_password("my own")
        user.save()

        demo()

        assert client.login(username="demo", password="my own")


class Terminal(io.StringIO):
    """An output that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.django_db
class TestServing:
    @pytest.fixture
    def served(self, monkeypatch, settings):
        """Record the calls of ``runserver`` instead of running it, since it would not return."""
        settings.DEBUG = True
        calls = []

        def call(name, *arguments, **options):
            if name == "runserver":
                calls.append((*arguments, options))
            else:
                call_command(name, *arguments, **options)

        monkeypatch.setattr(command, "call_command", call)
        return calls

    @pytest.mark.parametrize(
        ("out", "options", "is_served"),
        [
            (io.StringIO, {}, False),
            (io.StringIO, {"serve": True}, True),
            (Terminal, {}, True),
            (Terminal, {"serve": False}, False),
        ],
    )
    def test_the_site_is_served_on_a_terminal_or_on_request(self, served, out, options, is_served):
        shown = out()

        call_command("demo", stdout=shown, **options)

        assert served == ([("8000", {"use_reloader": False})] if is_served else [])
        assert ("run python manage.py runserver and open" in shown.getvalue()) is not is_served

    def test_serving_has_command_line_options(self, served):
        call_command("demo", "--serve", stdout=io.StringIO())
        call_command("demo", "--no-serve", stdout=Terminal())

        assert len(served) == 1

    def test_another_port_is_served_and_printed(self, served):
        for option in ("--serve", "--no-serve"):
            shown = io.StringIO()
            call_command("demo", "8500", option, stdout=shown)

            assert "http://127.0.0.1:8500/" in shown.getvalue()
            assert ("run python manage.py runserver 8500 and open" in shown.getvalue()) is (option == "--no-serve")
        assert served == [("8500", {"use_reloader": False})]

    @pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "127.0.0.1:8000"])
    def test_what_is_no_port_is_refused(self, served, port):
        with pytest.raises(CommandError, match="port"):
            call_command("demo", port, "--serve")

        assert served == []

    def test_with_debug_off_a_terminal_does_not_start_the_server(self, served, settings):
        settings.DEBUG = False

        call_command("demo", stdout=Terminal())

        assert served == []


@pytest.mark.django_db(transaction=True)
class TestCorpus:
    """In real transactions, since MariaDB's ANALYZE TABLE commits the transaction it runs in."""

    def test_the_corpus_is_loaded_after_the_shipped_conversations(self, small_corpus):
        out = demo(corpus=True)

        assert message_counts() == {**SHIPPED, "chitchat-0": 3, "chitchat-1": 3, "chitchat-2": 3}
        assert Conversation.objects.get(memory_id="chitchat-1").title == "Number 1"
        assert "3 conversations, 9 messages, at most 3 each." in out
        assert "Loaded now: 9 messages" in out

    def test_a_second_run_changes_nothing(self, small_corpus):
        demo(corpus=True)
        before = rows()

        out = demo(corpus=True)

        assert rows() == before
        assert "Loaded now: 0 messages" in out

    def test_the_first_conversations_of_the_corpus_are_loaded_unchanged(self, monkeypatch):
        pytest.importorskip("chitchat_dataset")
        pytest.importorskip("tqdm")
        transcripts = list(islice(corpus.chitchat(), 3))
        monkeypatch.setattr(corpus, "chitchat", lambda: iter(transcripts))

        demo(corpus=True)

        for transcript in transcripts:
            rows = Conversation.objects.get(memory_id=transcript.memory_id).history()
            assert [row.chat_message for row in rows] == transcript.messages

    def test_without_the_packages_an_error_names_what_to_install(self, no_corpus_package):
        groups = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["dependency-groups"]
        with pytest.raises(CommandError) as raised:
            demo(corpus=True)

        assert str(raised.value).endswith(f"pip install {' '.join(map(repr, groups['corpus']))}")

        assert not User.objects.exists()


@pytest.mark.django_db(transaction=True)
class TestInterruptedCorpus:
    def test_conversations_stay_complete_and_the_next_run_loads_the_rest(self, small_corpus, interrupt, monkeypatch):
        demo()
        interrupt(2)
        with pytest.raises(CommandError, match=r"Stopped\. 6 conversations are loaded"):
            demo(corpus=True)
        monkeypatch.setattr(command, "get_chat_memory", get_chat_memory)
        after_interruption = message_counts()

        demo(corpus=True)

        assert after_interruption == {**SHIPPED, "chitchat-0": 3}
        assert message_counts() == {**SHIPPED, "chitchat-0": 3, "chitchat-1": 3, "chitchat-2": 3}


class TestChitchat:
    def test_it_has_the_number_of_conversations_and_messages_in_the_readme(self):
        pytest.importorskip("chitchat_dataset")

        lengths = [len(transcript.messages) for transcript in corpus.chitchat()]

        assert (len(lengths), sum(lengths), max(lengths)) == (7_168, 258_145, 2_895)

    def test_the_first_speaker_is_the_user_and_the_other_the_ai(self):
        pytest.importorskip("chitchat_dataset")

        first = next(corpus.chitchat())

        assert [type(message) for message in first.messages[:5]] == [UserMessage] * 2 + [AiMessage] * 3
        assert first.title == "What's one thing your best friend doesn't know about you?"


def loaded(path):
    """Return the number of messages of each conversation in the SQLite file; none before there are tables."""
    query = (
        "SELECT c.memory_id, count(*) FROM chatmemory_conversation c JOIN chatmemory_message m "
        "ON m.conversation_id = c.id WHERE c.memory_id LIKE 'chitchat-%' GROUP BY c.id"
    )
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):
        return dict(connection.execute(query).fetchall())
    return {}


def start(path, *options):
    """Start ``manage.py demo`` in its own process, with an SQLite file at *path*."""
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo", *options],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DATABASE_URL": f"sqlite:///{path}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Background tests ignore Ctrl-C, and their child processes would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.slow
def test_a_real_ctrl_c_before_anything_is_loaded_exits_with_130_and_a_message(tmp_path):
    path = tmp_path / "demo.sqlite3"
    deadline = time.monotonic() + 300
    with start(path) as process:
        while not path.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=300)[1]

    assert process.returncode == 130
    assert errors.startswith("Stopped.") or "CommandError: Stopped." in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_real_ctrl_c_exits_with_130_and_leaves_complete_conversations(tmp_path):
    pytest.importorskip("chitchat_dataset")
    pytest.importorskip("tqdm")
    path = tmp_path / "demo.sqlite3"
    deadline = time.monotonic() + 300
    with start(path, "--corpus") as process:
        while len(loaded(path)) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=300)[1]

    assert process.returncode == 130
    assert "Stopped." in errors
    assert "Traceback" not in errors
    expected = {transcript.memory_id: len(transcript.messages) for transcript in corpus.chitchat()}
    assert 3 <= len(loaded(path)) < len(expected)
    assert loaded(path).items() <= expected.items()


def test_the_model_can_be_another_vendors():
    pytest.importorskip("pydantic_ai")
    script = "from example_project.llm import IS_REAL, model; print(type(model).__name__, IS_REAL, model.chat('Hello'))"
    environment = {**os.environ, "MODEL": "test"}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)

    assert output.stdout == "PydanticAiChatModel True success (no tool calls)\n"
