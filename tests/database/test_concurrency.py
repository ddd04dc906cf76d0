"""Concurrent writers to one conversation, and writers that crash."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection, connections

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import NewMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import set_isolation
from tests.quick import mostly_slow

IS_SQLITE = settings.DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3"


def database_url(folder: Path) -> str:
    """Return the address of a database for other processes: an SQLite file in *folder*, or the test database."""
    if IS_SQLITE:
        return f"sqlite:///{folder / 'db.sqlite3'}"
    database = connection.settings_dict
    scheme = {"postgresql": "postgres"}.get(connection.vendor, connection.vendor)
    return (
        f"{scheme}://{quote(database['USER'])}:{quote(database['PASSWORD'])}"
        f"@{quote(database['HOST'])}:{database['PORT']}/{database['NAME']}"
    )


@pytest.fixture
def worker(transactional_db, tmp_path) -> Callable[..., subprocess.Popen]:
    """Start ``tests.database.worker`` on a database shared with the others: an SQLite file, or the test database."""
    url = database_url(tmp_path)

    def start(*arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.database.worker", *map(str, arguments)],
            env={**os.environ, "DATABASE_URL": url},
            stdout=subprocess.PIPE,
            text=True,
        )

    if IS_SQLITE:
        assert start("migrate").communicate() == ("", None)
    return start


def in_threads(target: Callable[[int], None]) -> None:
    """Run *target* in 8 threads at once, with 0 to 7."""
    threads = [threading.Thread(target=target, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def states(worker: Callable[..., subprocess.Popen], count: int = 0) -> list[dict]:
    """Return the conversation before and after adding *count* messages."""
    return [json.loads(line) for line in worker("state", count).communicate()[0].splitlines()]


def assert_whole(found: dict) -> None:
    """Assert that the counters match the rows."""
    assert found["sequences"] == list(range(1, len(found["sequences"]) + 1))
    assert found["next_sequence"] == len(found["sequences"]) + 1
    assert found["memory_messages"] == len(found["memory"])
    assert found["memory"] == found["texts"][-len(found["memory"]) :]


@pytest.mark.skipif(IS_SQLITE, reason="SQLite in memory is one connection; processes share a file below")
@pytest.mark.django_db(transaction=True)
def test_8_threads_adding_25_messages_each_keep_all_200_in_order():
    def add(thread: int) -> None:
        memory = MessageWindowChatMemory(max_messages=10, id="c", store=DjangoChatMemoryStore())
        for number in range(25):
            memory.add(UserMessage(f"{thread} {number}"))
        connections.close_all()

    in_threads(add)

    conversation = Conversation.objects.get(memory_id="c")
    assert list(conversation.history().values_list("sequence", flat=True)) == list(range(1, 201))
    texts = list(conversation.history().values_list("text", flat=True))
    for thread in range(8):
        own_texts = [text for text in texts if text.startswith(f"{thread} ")]
        assert own_texts == [f"{thread} {number}" for number in range(25)]


@pytest.mark.skipif(IS_SQLITE, reason="SQLite in memory is one connection")
@pytest.mark.django_db(transaction=True)
def test_of_8_concurrent_retries_one_stores_the_messages_and_all_return_their_sequences():
    messages = [NewMessage(UserMessage(text), client_message_id=str(uuid.uuid4())) for text in ("one", "two")]
    answers: list[list[int]] = []

    def add(number: int) -> None:
        memory = MessageWindowChatMemory(max_messages=10, id="c", store=DjangoChatMemoryStore())
        answers.append(memory.add(*messages))
        connections.close_all()

    in_threads(add)

    assert [row.text for row in Conversation.objects.get(memory_id="c").history()] == ["one", "two"]
    assert answers == [[1, 2]] * 8


@pytest.mark.slow
def test_4_processes_adding_25_messages_each_keep_all_100_in_order(worker):
    processes = [worker("add", 25) for _ in range(4)]
    for process in processes:
        process.communicate()

    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    found, _ = states(worker)
    assert_whole(found)
    assert len(found["sequences"]) == 100
    for process in processes:
        own_texts = [text for text in found["texts"] if text.startswith(f"{process.pid} ")]
        assert own_texts == [f"{process.pid} {number}" for number in range(25)]


# The add reads the conversation and its system messages, and writes; SQLite's BEGIN counts as well. PostgreSQL writes a
# few messages in a single statement; many messages require a transaction.
MID_ADD = {
    "postgresql": [(1, 1), (2, 1), (3, 64), (4, 64)],
    "mysql": [(1, 1), (2, 1), (3, 1), (4, 1)],
    "sqlite": [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)],
}


@pytest.mark.parametrize(("statement", "more"), mostly_slow(MID_ADD[connection.vendor]))
def test_a_writer_killed_during_an_add_leaves_no_trace_and_blocks_no_one(worker, statement, more):
    dying = worker("pause", 8, statement, more)
    assert dying.stdout.readline() == "paused\n"

    dying.kill()
    dying.communicate()

    found, after_one_more = states(worker, 1)
    assert dying.returncode == -signal.SIGKILL
    for state in (found, after_one_more):
        assert_whole(state)
    assert found["texts"] == [f"{dying.pid} {number}" for number in range(8)]
    assert len(after_one_more["texts"]) == 9


@pytest.mark.slow
@pytest.mark.parametrize("statement", [4, 11, 17, 25])
def test_an_import_that_is_killed_goes_on_and_stores_nothing_twice(worker, statement):
    dying = worker("import", 3, statement)
    lines = list(iter(dying.stdout.readline, "paused\n"))
    dying.kill()
    dying.communicate()
    assert dying.returncode == -signal.SIGKILL

    again = worker("import", 3, 0).communicate()[0].splitlines()
    assert again[: len(lines)] == [line.replace("STORED", "PRESENT").strip() for line in lines]
    assert again[len(lines) :] == [f"c{number} STORED" for number in range(len(lines), 3)]  # none was there in part

    assert worker("import", 3, 0).communicate()[0].splitlines() == [f"c{number} PRESENT" for number in range(3)]


@pytest.mark.skipif(IS_SQLITE, reason="SQLite in memory is one connection")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_of_8_simultaneous_first_adds_none_fails(isolation):
    failures: list[Exception] = []
    start = threading.Barrier(8)

    def add(thread: int) -> None:
        set_isolation(isolation)
        for number in range(10):
            start.wait(30)
            for memory_id in (f"shared {number}", f"{thread} alone {number}"):
                try:
                    MessageWindowChatMemory(max_messages=10, id=memory_id, store=DjangoChatMemoryStore()).add(
                        UserMessage(f"{thread}")
                    )
                except Exception as exc:  # noqa: BLE001  # shown below
                    failures.append(exc)
        connections.close_all()

    in_threads(add)

    assert failures == []
    assert Conversation.objects.count() == 10 + 80
    for conversation in Conversation.objects.filter(memory_id__startswith="shared"):
        assert sorted(conversation.history().values_list("text", flat=True)) == list("01234567")


@pytest.mark.skipif(IS_SQLITE, reason="SQLite in memory is one connection")
@pytest.mark.django_db(transaction=True)
def test_an_add_takes_no_lock_unless_its_optimistic_write_failed(django_assert_num_queries):
    memory = MessageWindowChatMemory(max_messages=3, id="c", store=DjangoChatMemoryStore())
    memory.add(UserMessage("first"))
    statements: list[str] = []

    def others(number: int) -> None:
        MessageWindowChatMemory(max_messages=3, id="c", store=DjangoChatMemoryStore()).add(UserMessage("faster"))
        connections.close_all()

    def wrapper(execute, sql, params, many, context):
        statements.append(sql)
        result = execute(sql, params, many, context)
        if len(statements) == 1:
            in_threads(others)
        return result

    memory.add(UserMessage("second"))
    with connection.execute_wrapper(wrapper):
        memory.add(UserMessage("late"))
    too_late = statements.copy()
    with connection.execute_wrapper(lambda execute, *given: (statements.append(given[0]), execute(*given))[1]):
        memory.add(UserMessage("in time"))

    assert sum("FOR UPDATE" in sql for sql in too_late) >= 1
    assert not any("FOR UPDATE" in sql for sql in statements[len(too_late) :])
    assert [message.single_text for message in memory.messages()] == ["faster", "late", "in time"]
    history = [row.text for row in Conversation.objects.get(memory_id="c").history()]
    assert history == ["first", "second", *["faster"] * 8, "late", "in time"]
