"""Several writers to one conversation, and writers that die."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection, connections

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.stores import django as store_module
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


# The add reads the conversation and its system messages, and writes; SQLite's BEGIN counts, too. PostgreSQL writes a
# few messages by one statement, with which all is done; with many it begins anew under the lock.
MID_ADD = {
    "postgresql": [(1, 1), (2, 1), (3, 64), (4, 64), (5, 64), (6, 64)],
    "mysql": [(1, 1), (2, 1), (3, 1), (4, 1)],
    "sqlite": [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)],
}


@pytest.mark.parametrize(("statement", "more"), MID_ADD[connection.vendor])
def test_a_writer_killed_in_mid_add_leaves_no_trace_and_nobody_waiting(worker, statement, more):
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


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others add under the lock")
@pytest.mark.django_db(transaction=True)
class TestAddingWithoutTheLock:
    """What PostgreSQL does by one statement, if nobody else has written since the conversation was read."""

    @pytest.fixture
    def memory(self) -> MessageWindowChatMemory:
        memory = MessageWindowChatMemory(max_messages=3, id=str(uuid.uuid4()), store=DjangoChatMemoryStore())
        memory.add(UserMessage("first"))
        return memory

    def add_late(self, memory: MessageWindowChatMemory, meanwhile: Callable[[], object]) -> list[str]:
        """Add "late", but *meanwhile* does something before that is written. The statements, without those of that."""
        said: list[str] = []

        def in_another_thread() -> None:
            meanwhile()
            connections.close_all()

        def wrapper(execute, sql, params, many, context):
            said.append(sql)
            if "INSERT" in sql and sum("INSERT" in each for each in said) == 1:
                thread = threading.Thread(target=in_another_thread)
                thread.start()
                thread.join()
            return execute(sql, params, many, context)

        with connection.execute_wrapper(wrapper):
            memory.add(UserMessage("late"))
        return said

    def test_it_takes_two_statements_and_neither_a_lock_nor_a_transaction(self, memory):
        said = self.add_late(memory, lambda: None)

        assert [sql.split()[0] for sql in said] == ["SELECT", "WITH"]
        assert not any("FOR UPDATE" in sql for sql in said)
        assert [message.single_text for message in memory.messages()] == ["first", "late"]

    def test_who_is_too_late_adds_behind_the_other_under_the_lock_and_takes_that_at_once_the_next_time(self, memory):
        said = self.add_late(memory, lambda: memory.add(UserMessage("faster"), UserMessage("second")))
        again = self.add_late(memory, lambda: None)

        assert ["FOR UPDATE" in sql for sql in said] == [False, False, True, False]
        assert ["FOR UPDATE" in sql for sql in again] == [True, False]
        assert [message.single_text for message in memory.messages()] == ["second", "late", "late"]
        history = Conversation.objects.get(memory_id=memory.id).history()
        assert [row.text for row in history] == ["first", "faster", "second", "late", "late"]

    def test_what_was_cleared_meanwhile_does_not_come_back(self, memory):
        self.add_late(memory, memory.clear)

        conversation = Conversation.objects.get(memory_id=memory.id)
        assert [message.single_text for message in memory.messages()] == ["late"]
        assert (conversation.memory_messages, conversation.said_messages) == (1, 2)

    def test_after_a_while_a_conversation_is_tried_without_the_lock_again(self, memory, monkeypatch):
        self.add_late(memory, lambda: memory.add(UserMessage("faster")))
        monkeypatch.setattr(store_module, "_contended", {memory.id: time.monotonic() - 0.001})

        said = self.add_late(memory, lambda: None)

        assert not any("FOR UPDATE" in sql for sql in said)

    def test_no_more_conversations_are_remembered_than_a_thousand(self, memory, monkeypatch):
        remembered = dict.fromkeys(map(str, range(store_module.MAX_CONTENDED)), 0.0)
        monkeypatch.setattr(store_module, "_contended", remembered)

        self.add_late(memory, lambda: memory.add(UserMessage("faster")))

        assert list(remembered) == [memory.id]
