"""
What docs/scaling.md states: the size of tables and indexes, and turns per second with each way to connect.

    python -m benchmarks.scaling sizes --on postgresql mariadb sqlite
    python -m benchmarks.scaling connections
    python -m benchmarks.scaling partitions
    python -m benchmarks.scaling holds --on postgresql mariadb sqlite

``sizes`` stores 5,000 conversations of 40 messages, interleaved as on a site. ``connections`` takes turns in 16 threads
on PostgreSQL, each turn as a request does it: the connection is released at its end. ``partitions`` times turns on
PostgreSQL with the table of messages whole and in partitions. ``holds`` prunes and erases long conversations while two
other processes write, one to the same conversation and one to another of its owner: how long they wait. The databases
are those of ``benchmarks.settings``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.chat_settings")

CONVERSATIONS = 5_000
MESSAGES = 40
THREADS = 16
ROUNDS = 3
SECONDS = 5.0
POOL = 4
"""How many connections the pools have."""

LONG = 50_000
"""How many messages a long conversation has."""

PREPARED = {"server_side_binding": True, "prepare_threshold": 5}


def sizes(servers: list[str]) -> None:
    """Print the bytes of each table and index for each message."""
    from benchmarks.databases import database, settle
    from benchmarks.histories import COST, estimator, prepare, texts

    plain = statistics.mean(len(text.encode()) for text in texts())
    print(f"{CONVERSATIONS:,} conversations of {MESSAGES} messages; a text has {plain:.0f} bytes.")
    for server in servers:
        with database(server):
            prepare(server)
            fill(server, COST, estimator.name)
            settle(server)
            for name, size in relations(server):
                print(f"{server:12} {name:45} {size / CONVERSATIONS / MESSAGES:8.1f} bytes a message")


def fill(server: str, cost: int, counter: str) -> None:
    """Store the conversations, one message of each at a time."""
    from django.db import connections
    from django.utils import timezone

    from chatmemory_django.models import Conversation

    Conversation.objects.using(server).bulk_create(
        (
            Conversation(
                next_sequence=MESSAGES + 1,
                total_messages=MESSAGES,
                memory_messages=MESSAGES,
                memory_tokens=MESSAGES * cost,
                counted_by=counter,
            )
            for _ in range(CONVERSATIONS)
        ),
        batch_size=500,
    )
    moment = connections[server].ops.adapt_datetimefield_value(timezone.now())
    for sequence in range(1, MESSAGES + 1):
        with connections[server].cursor() as cursor:
            cursor.execute(
                "INSERT INTO chatmemory_message (conversation_id, sequence, type, text, token_count, counted_by, "
                "superseded, in_history, on_path, is_complete, created_at) "
                "SELECT c.id, %s, texts.type, texts.body, %s, %s, %s, %s, %s, %s, %s "
                "FROM chatmemory_conversation AS c JOIN bench_texts AS texts ON texts.n = (c.id + %s) %% 1000 "
                "WHERE texts.format = 'text'",
                [sequence, cost, counter, False, True, True, True, moment, 37 * sequence],
            )


def relations(server: str) -> Iterator[tuple[str, int]]:
    """Yield the tables and indexes, and the bytes of each."""
    from django.db import connections

    with connections[server].cursor() as cursor:
        if server == "postgresql":
            cursor.execute(
                "SELECT relname, pg_table_size(oid) FROM pg_class WHERE relname IN "
                "('chatmemory_message', 'chatmemory_conversation') UNION ALL "
                "SELECT indexrelid::regclass::text, pg_relation_size(indexrelid) FROM pg_index WHERE indrelid IN "
                "('chatmemory_message'::regclass, 'chatmemory_conversation'::regclass) ORDER BY 1"
            )
        elif server == "mariadb":
            cursor.execute("ANALYZE TABLE chatmemory_message, chatmemory_conversation")
            cursor.fetchall()
            cursor.execute(
                "SELECT CONCAT(table_name, ' ', index_name), stat_value * @@innodb_page_size "
                "FROM mysql.innodb_index_stats WHERE stat_name = 'size' AND database_name = DATABASE() "
                "AND table_name IN ('chatmemory_message', 'chatmemory_conversation') ORDER BY 1"
            )
        else:
            cursor.execute(
                "SELECT name, SUM(pgsize) FROM dbstat WHERE name LIKE '%%chatmemory%%' GROUP BY name ORDER BY name", []
            )
        yield from cursor.fetchall()


def partitions() -> None:
    """Print the milliseconds of a turn, with and without partitions made as docs/scaling.md shows."""
    from django.db import connections as django_connections

    from benchmarks.databases import database, settle
    from benchmarks.histories import COST, estimator, prepare
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import AiMessage, UserMessage
    from chatmemory_django.models import Conversation
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    for number in (0, 4, 16, 64):
        with database("postgresql"):
            prepare("postgresql")
            fill("postgresql", COST, estimator.name)
            if number:
                with django_connections["postgresql"].cursor() as cursor:
                    cursor.execute(partitioning(number))
            settle("postgresql")
            names = list(Conversation.objects.using("postgresql").values_list("memory_id", flat=True)[:300])
            times = []
            for name in names:
                memory = MessageWindowChatMemory(max_messages=20, id=name, store=DjangoChatMemoryStore("postgresql"))
                begun = time.perf_counter()
                with memory.turn() as turn:
                    turn.add(UserMessage("Where is my parcel?"), AiMessage("It left Hamburg."))
                times.append(time.perf_counter() - begun)
            print(f"{number or 'no':>3} partitions: {statistics.median(times[20:]) * 1000:6.2f} ms a turn")


def partitioning(number: int) -> str:
    """Return the statements of docs/scaling.md, for *number* partitions instead of 4."""
    page = (Path(__file__).parent.parent / "docs" / "scaling.md").read_text()
    statements = page.partition("```sql\n")[2].partition("```")[0]
    lines = statements.splitlines()
    [first] = [line for line in lines if "REMAINDER 0" in line]
    made = [
        first.replace("message_0", f"message_{each}").replace("4, REMAINDER 0", f"{number}, REMAINDER {each}")
        for each in range(number)
    ]
    place = lines.index(first)
    return "\n".join([*lines[:place], *made, *(line for line in lines[place:] if "REMAINDER" not in line)])


def connections() -> None:
    """Print the turns per second of each way to connect, in an order that rotates."""
    from django.db import connections as django_connections

    from benchmarks.databases import database

    with database("postgresql"), bouncing() as port:
        ways = {
            "a new connection for each request (CONN_MAX_AGE=0)": {},
            "persistent connections (CONN_MAX_AGE=None)": {"CONN_MAX_AGE": None},
            "persistent, server-side binding, prepared": {"CONN_MAX_AGE": None, "OPTIONS": PREPARED},
            f"psycopg's pool of {POOL}": {"OPTIONS": {"pool": {"min_size": POOL, "max_size": POOL}}},
            f"psycopg's pool of {POOL}, server-side binding, prepared": {
                "OPTIONS": {"pool": {"min_size": POOL, "max_size": POOL}, **PREPARED}
            },
            f"PgBouncer, transactions, pool of {POOL}, CONN_MAX_AGE=0": {
                "PORT": port, "DISABLE_SERVER_SIDE_CURSORS": True
            },
            f"PgBouncer, transactions, pool of {POOL}, CONN_MAX_AGE=None": {
                "PORT": port, "DISABLE_SERVER_SIDE_CURSORS": True, "CONN_MAX_AGE": None
            },
        }  # fmt: skip
        taken: dict[str, list[float]] = {name: [] for name in ways}
        base = django_connections["postgresql"].settings_dict
        for number in range(ROUNDS):
            names = list(ways)
            for name in names[number:] + names[:number]:
                alias = f"way_{names.index(name)}"
                django_connections.settings[alias] = {**base, **ways[name]}
                taken[name].append(turns_per_second(alias))
        for name, each in taken.items():
            print(f"{name:60} {statistics.median(each):6.0f} turns/s  ({', '.join(f'{one:.0f}' for one in each)})")


def turns_per_second(alias: str) -> float:
    """Take turns in threads for some seconds, each as a request does it."""
    from django.db import connections as django_connections

    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import AiMessage, UserMessage
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    store = DjangoChatMemoryStore(alias)
    counts = [0] * THREADS
    errors: list[BaseException] = []
    until = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        try:
            while time.perf_counter() < until:
                memory = MessageWindowChatMemory(max_messages=20, id=f"{alias}-{number}", store=store)
                with memory.turn() as turn:
                    turn.add(UserMessage("Where is my parcel? " * 12))
                    turn.add(AiMessage("It left Hamburg. " * 12))
                django_connections[alias].close_if_unusable_or_obsolete()  # as at the end of a request
                counts[number] += 1
        except Exception as exc:  # noqa: BLE001  # reported below
            errors.append(exc)
        finally:
            django_connections[alias].close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection: Any = django_connections[alias]
    if getattr(connection, "pool", None):
        connection.close_pool()
    if errors:
        raise errors[0]
    return sum(counts) / SECONDS


@contextmanager
def bouncing() -> Iterator[int]:
    """Yield the port of a PgBouncer in front of PostgreSQL."""
    from django.conf import settings

    from benchmarks.soak.servers import binary, give, process, wait_for
    from tests.ports import free_port

    given = settings.DATABASES["postgresql"]
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        folder = Path(name)
        users = folder / "users"
        users.write_text(f'"{given["USER"]}" "{given["PASSWORD"]}"\n')
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n{settings.DATABASE} = host={given['HOST']} port={given['PORT']}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {users}\npool_mode = transaction\ndefault_pool_size = {POOL}\n"
        )
        give(folder, "postgres")
        with process([binary("pgbouncer"), configuration], "postgres", folder / "log"):
            wait_for(port)
            yield port


def holds(servers: list[str]) -> None:
    """Print how long writers wait for who prunes or erases, and how long the longest transaction takes."""
    from django.db.models import Q

    from benchmarks.databases import database, settle
    from benchmarks.histories import COST, estimator, prepare
    from chatmemory_django.models import Conversation

    for server in servers:
        with database(server):
            prepare(server)
            fill(server, COST, estimator.name)
            for name, (load, do) in _cases(server).items():
                Conversation.objects.using(server).filter(Q(owner=1) | Q(memory_id="held")).delete()
                load()
                settle(server)
                taken, longest, waits = _held(server, do)
                who = "; ".join(
                    f"{memory_id} waited {wait * 1000:4.0f} ms, {idle * 1000:3.0f} before"
                    for memory_id, (wait, idle) in waits.items()
                )
                spans = f"{taken * 1000:6.0f} ms, longest transaction {longest * 1000:4.0f} ms"
                print(f"{server:11} {name:40} {spans}; {who}", flush=True)


def _cases(server: str) -> dict[str, tuple[Callable[[], None], Callable[[], object]]]:
    """Return what is measured: how it is stored, and what is done then."""
    from chatmemory_django import operations
    from chatmemory_django.models import Conversation

    every = Conversation.objects.using(server)
    held, others = every.filter(memory_id="held"), every.filter(owner=1).exclude(memory_id="other")
    prune = partial(operations.prune, held, history_older_than=timedelta(days=1))
    long, large = partial(_fill_long, server), partial(_fill_long, server, count=100, size=4_000_000)
    return {
        f"prune of {LONG:,} messages": (long, prune),
        f"prune of {LONG:,}, with {LONG // 10:,} branches": (partial(long, branches=True), prune),
        f"erase of {LONG:,} messages": (long, partial(operations.erase, held)),
        f"delete() of {LONG:,} messages": (long, held.delete),
        "erase of 100 messages of 4 MB": (large, partial(operations.erase, held)),
        "delete() of 500 conversations of 200": (partial(_fill_many, server), others.delete),
    }


def _held(server: str, do: Callable[[], object]) -> tuple[float, float, dict[str, tuple[float, float]]]:
    """Return the seconds of *do*, of its longest transaction, and of the longest waits, each beside one before."""
    from django.db import connections as django_connections

    context = multiprocessing.get_context("spawn")
    writers: dict[str, tuple[Any, Connection]] = {}
    for memory_id in ("held", "other"):
        here, there = context.Pipe()
        writers[memory_id] = context.Process(target=_write_to, args=(server, memory_id, there)), here
        writers[memory_id][0].start()
    connection = django_connections[server]
    set_autocommit, begun, longest = connection.set_autocommit, 0.0, 0.0

    def timed(autocommit: bool, *args: Any, **options: Any) -> None:  # as Django calls it
        nonlocal begun, longest
        if autocommit:
            set_autocommit(autocommit, *args, **options)
            longest = max(longest, time.perf_counter() - begun)
        else:
            begun = time.perf_counter()
            set_autocommit(autocommit, *args, **options)

    for _, pipe in writers.values():
        pipe.recv()  # it has begun
    time.sleep(1)
    idle = {name: _longest(pipe) for name, (_, pipe) in writers.items()}
    connection.set_autocommit = timed
    start = time.perf_counter()
    try:
        do()
    finally:
        taken = time.perf_counter() - start
        del connection.set_autocommit
    waits = {name: (_longest(pipe), idle[name]) for name, (_, pipe) in writers.items()}
    for process, pipe in writers.values():
        pipe.send(None)
        process.join()
    return taken, longest, waits


def _longest(pipe: Connection) -> float:
    pipe.send("longest")
    return pipe.recv()


def _write_to(server: str, memory_id: str, pipe: Connection) -> None:
    """Add messages to *memory_id* until asked to stop; report the longest time that one took since the last time."""
    import django

    django.setup()
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import UserMessage
    from chatmemory_django.models import Conversation
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    memory = MessageWindowChatMemory(max_messages=20, id=memory_id, store=DjangoChatMemoryStore(server))
    memory.add(UserMessage("Where is my parcel?"))
    if memory_id == "other":
        Conversation.objects.using(server).filter(memory_id=memory_id).update(owner=1)
    pipe.send("begun")
    longest = 0.0
    while True:
        begun = time.perf_counter()
        memory.add(UserMessage("Where is my parcel?"))
        longest = max(longest, time.perf_counter() - begun)
        if pipe.poll(0.001):
            if pipe.recv() is None:
                return
            pipe.send(longest)
            longest = 0.0


def _fill_long(server: str, *, count: int = LONG, size: int = 0, branches: bool = False) -> None:
    """
    Store the conversation "held" of *count* messages of a month ago, of *size* characters each if it is given, and a
    call of a model for every other one.
    """
    from django.db import connections as django_connections
    from django.db.models import F
    from django.db.models.functions import Mod
    from django.utils import timezone

    from chatmemory_django.chat.models import ModelCall
    from chatmemory_django.models import Conversation

    _owner(server)
    held = Conversation.objects.using(server).create(
        memory_id="held",
        owner_id=1,
        next_sequence=count + 1,
        total_messages=count,
        window_start=count - 19,
        memory_messages=20,
    )
    operations = django_connections[server].ops
    moment = operations.adapt_datetimefield_value(timezone.now() - timedelta(days=30))
    body, values = ("texts.body", []) if not size else ("%s", [os.urandom(size // 2).hex()])
    block = min(count, 1000)
    with django_connections[server].cursor() as cursor:
        for first in range(0, count, block):
            cursor.execute(
                "INSERT INTO chatmemory_message (conversation_id, sequence, type, text, superseded, in_history, "
                f"on_path, is_complete, created_at) SELECT %s, %s + texts.n + 1, texts.type, {body}, %s, %s, %s, %s, "
                "%s FROM bench_texts AS texts WHERE texts.format = 'text' AND texts.n < %s",
                [held.pk, first, *values, False, True, True, True, moment, block],
            )
    if branches:
        named = held.messages.using(server).filter(sequence__lte=count - 20)
        named.annotate(rest=Mod("sequence", 10)).filter(rest=5).update(parent_sequence=F("sequence") - 3)
    calls = (
        ModelCall(conversation=held, owner_id=1, purpose="answer", model="m", outcome="completed")
        for _ in range(count // 2)
    )
    ModelCall.objects.using(server).bulk_create(calls, batch_size=1000)


def _fill_many(server: str) -> None:
    """Store 500 conversations of 200 messages of the owner."""
    from django.db import connections as django_connections
    from django.utils import timezone

    from chatmemory_django.models import Conversation

    _owner(server)
    Conversation.objects.using(server).bulk_create(
        Conversation(owner_id=1, next_sequence=201, total_messages=200, memory_messages=200) for _ in range(500)
    )
    moment = django_connections[server].ops.adapt_datetimefield_value(timezone.now())
    with django_connections[server].cursor() as cursor:
        cursor.execute(
            "INSERT INTO chatmemory_message (conversation_id, sequence, type, text, superseded, in_history, on_path, "
            "is_complete, created_at) SELECT c.id, texts.n + 1, texts.type, texts.body, %s, %s, %s, %s, %s "
            "FROM chatmemory_conversation AS c JOIN bench_texts AS texts ON texts.format = 'text' AND texts.n < 200 "
            "WHERE c.owner_id = 1",
            [False, True, True, True, moment],
        )
    first = Conversation.objects.using(server).filter(owner=1).order_by("pk").first()
    Conversation.objects.using(server).filter(pk=first.pk).update(memory_id="held")


def _owner(server: str) -> None:
    from django.contrib.auth.models import User

    User.objects.using(server).get_or_create(pk=1, defaults={"username": "owner"})


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("what", choices=("sizes", "connections", "partitions", "holds"))
    parser.add_argument("--on", nargs="+", default=["postgresql", "mariadb", "sqlite"], metavar="SERVER")
    options = parser.parse_args()

    import django

    django.setup()
    if options.what in {"sizes", "holds"}:
        {"sizes": sizes, "holds": holds}[options.what](options.on)
    else:
        {"connections": connections, "partitions": partitions}[options.what]()


if __name__ == "__main__":
    main()
