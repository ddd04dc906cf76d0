"""Several writers to one conversation, and writers that die."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection, connections

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore

IS_SQLITE = settings.DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3"


@pytest.fixture
def worker(transactional_db, tmp_path) -> Callable[..., subprocess.Popen]:
    """Starts ``tests.worker`` on a database that it shares with the others: an SQLite file, or the test database."""
    if IS_SQLITE:
        url = f"sqlite:///{tmp_path / 'db.sqlite3'}"
    else:
        database = connection.settings_dict
        scheme = {"postgresql": "postgres"}.get(connection.vendor, connection.vendor)
        url = (
            f"{scheme}://{quote(database['USER'])}:{quote(database['PASSWORD'])}"
            f"@{quote(database['HOST'])}:{database['PORT']}/{database['NAME']}"
        )

    def start(*arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.worker", *map(str, arguments)],
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
    """The conversation before and after *count* messages more."""
    return [json.loads(line) for line in worker("state", count).communicate()[0].splitlines()]


def assert_whole(found: dict) -> None:
    """Assert that the counters and the rows tell the same story."""
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
        said = [text for text in texts if text.startswith(f"{thread} ")]
        assert said == [f"{thread} {number}" for number in range(25)]


@pytest.mark.skipif(IS_SQLITE, reason="SQLite in memory is one connection")
@pytest.mark.django_db(transaction=True)
def test_of_8_racing_retries_of_the_same_messages_one_stores_them_and_all_say_where():
    client_ids = [uuid.uuid4(), uuid.uuid4()]
    answers: list[list[int]] = []

    def add(number: int) -> None:
        memory = MessageWindowChatMemory(max_messages=10, id="c", store=DjangoChatMemoryStore())
        messages = [UserMessage("one"), UserMessage("two")]
        answers.append(memory.append(messages, client_ids=client_ids))
        connections.close_all()

    in_threads(add)

    assert [row.text for row in Conversation.objects.get(memory_id="c").history()] == ["one", "two"]
    assert answers == [[1, 2]] * 8


def test_4_processes_adding_25_messages_each_keep_all_100_in_order(worker):
    processes = [worker("add", 25) for _ in range(4)]
    for process in processes:
        process.communicate()

    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    found, _ = states(worker)
    assert_whole(found)
    assert len(found["sequences"]) == 100
    for process in processes:
        said = [text for text in found["texts"] if text.startswith(f"{process.pid} ")]
        assert said == [f"{process.pid} {number}" for number in range(25)]


# The add reads the conversation and its system messages, and writes; SQLite's BEGIN counts, too.
@pytest.mark.parametrize("statement", range(1, {"postgresql": 4, "mysql": 5, "sqlite": 6}[connection.vendor]))
def test_a_writer_killed_in_mid_add_leaves_no_trace_and_nobody_waiting(worker, statement):
    dying = worker("pause", 8, statement)
    assert dying.stdout.readline() == "paused\n"

    dying.kill()
    dying.communicate()

    found, after_one_more = states(worker, 1)
    assert dying.returncode == -signal.SIGKILL
    for state in (found, after_one_more):
        assert_whole(state)
    assert found["texts"] == [f"{dying.pid} {number}" for number in range(8)]
    assert len(after_one_more["texts"]) == 9
