"""Adds with and without the index, and searches: real messages, repeated as needed, in a database of their own."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import chitchat_dataset
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections

from benchmarks.databases import database, settle
from benchmarks.report import TIMES, Report, table
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore

BASE = 100_000
"""The maximum number of different messages; further conversations repeat them."""

LENGTH = 100
"""The number of messages in a conversation."""

OWNED = 50
"""The number of conversations of the user who searches only those."""

FEW = 20_000
"""The number of messages in the table for adds: the index is rebuilt in each round."""

ADDS = 300
ROUNDS = 4


def main(server: str, count: int, report: Report) -> None:
    """Measure on *server*, with *count* messages."""
    with database(server):
        _load(server, FEW)
        report.section(f"search-adds-{server}", _adds(server))
    with database(server):
        _index(server, "zero")
        user = _load(server, count)
        taken = _timed(lambda: _index(server))
        settle(server)
        rows = []
        for name, wanted in (
            ("in 10 messages", "zyxomatic"),
            ("in one of a thousand messages", "weather"),
            ("in every tenth message", "what"),
            ("two words", "favorite movie"),
            ("a part of a word", "avorit"),
            ("no match", "qxqxqx"),
        ):
            search = Message.objects.using(server).search
            cells: list[str] = []
            for owner in (None, user):
                times = [_timed(lambda: list(search(wanted, owner=owner)[:20])) * 1000 for _ in range(5)]  # noqa: B023
                cells += [f"{times[0]:,.1f}", f"{statistics.median(times[1:]):,.1f}"]
            rows.append([name, *cells])
        head = [f"ms, in {count:,} messages", "all conversations, first", "then", "own conversations, first", "then"]
        report.section(f"search-{server}", f"{table(head, rows)}\n\nIndexed in {taken:,.0f} s, {_size(server)}.")


def _adds(server: str) -> str:
    """Return a table of an add, of one sentence and of 4 kB, alternately with and without the index."""
    taken: dict[tuple[str, str], list[float]] = {}
    sentences = list(itertools.islice(_texts(), 2 * ADDS))
    long = " ".join(sentences)[:4_000]
    for _round, index in itertools.product(range(ROUNDS), ("without", "with")):
        _index(server, *(["zero"] if index == "without" else []))
        for size in ("a sentence", "4 kB"):
            memory = MessageWindowChatMemory(max_messages=20, id=size, store=DjangoChatMemoryStore(using=server))
            for number in range(ADDS):
                start = (number * 37) % 2_000
                text = sentences[number] if size == "a sentence" else long[start:] + long[:start]
                message = UserMessage(text)
                taken.setdefault((size, index), []).append(_timed(lambda: memory.add(message)))  # noqa: B023
    rows = []
    for size in ("a sentence", "4 kB"):
        without, with_index = (statistics.median(taken[size, index]) * 1e6 for index in ("without", "with"))
        ratio = f"**{with_index / without:.2f} {TIMES}**"
        rows.append([size, f"{without:,.0f} µs", f"{with_index:,.0f} µs", ratio])
    return table(["add", "without", "with", "ratio"], rows)


def _load(server: str, count: int) -> User:
    """Store *count* messages, and return the owner of some of the conversations."""
    user = User.objects.db_manager(server).create_user("ann")
    conversations = Conversation.objects.using(server).bulk_create(
        [
            Conversation(memory_id=f"c{number}", owner=user if number < OWNED else None, next_sequence=LENGTH + 1)
            for number in range(count // LENGTH)
        ],
        batch_size=1_000,
    )
    first = conversations[0].pk or Conversation.objects.using(server).order_by("pk")[0].pk
    base = min(BASE, count)
    Message.objects.using(server).bulk_create(
        [
            Message(conversation_id=first + number // LENGTH, sequence=number % LENGTH + 1, type="USER", text=text)
            for number, text in enumerate(itertools.islice(itertools.cycle(_texts()), base))
        ],
        batch_size=1_000,
    )
    columns = "created_at, sequence, superseded, in_history, on_path, is_complete, type, counted_by, text"
    with connections[server].cursor() as cursor:
        for copy in range(1, count // base):
            cursor.execute(
                f"INSERT INTO chatmemory_message (conversation_id, {columns}) "
                f"SELECT conversation_id + {copy * base // LENGTH}, {columns} FROM chatmemory_message "
                f"WHERE conversation_id < {first + base // LENGTH}"
            )
    rare = Message.objects.using(server).filter(sequence=7, conversation_id__gte=first + count // LENGTH - 10)
    for row in rare:
        rare.filter(conversation=row.conversation_id).update(text=f"{row.text} zyxomatic")
    return user


def _texts() -> Any:
    for conversation in chitchat_dataset.Dataset().values():
        yield from (message["text"] for part in conversation["messages"] for message in part)


def _index(server: str, *to: str) -> None:
    call_command("migrate", "chatmemory_search", *to, database=server, verbosity=0)


def _size(server: str) -> str:
    """Return the tables' size on disk, and the index's part of it."""
    question = {
        "postgresql": "SELECT pg_total_relation_size('chatmemory_message'), SUM(pg_relation_size(indexname::regclass)) "
        "FROM pg_indexes WHERE indexname LIKE 'chatmemory_search%%'",
        "sqlite": "SELECT (SELECT SUM(pgsize) FROM dbstat), "
        "(SELECT SUM(pgsize) FROM dbstat WHERE name LIKE 'chatmemory_search%%')",
        "mariadb": "SELECT SUM(file_size), SUM(IF(name LIKE '%%FTS%%', file_size, 0)) "
        "FROM information_schema.innodb_sys_tablespaces WHERE name LIKE CONCAT(DATABASE(), '/%%')",
    }[server]
    try:
        with connections[server].cursor() as cursor:
            cursor.execute(question)
            every, index = cursor.fetchone()
    except Exception as exc:  # noqa: BLE001  # SQLite may be built without dbstat
        return json.dumps(str(exc))
    return f"{int(every) / 2**20:,.0f} MiB on disk, of which {int(index) / 2**20:,.0f} are the index"


def _timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
