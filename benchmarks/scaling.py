"""
What docs/scaling.md states: the size of tables and indexes, and turns per second with each way to connect.

    python -m benchmarks.scaling sizes --on postgresql mariadb sqlite
    python -m benchmarks.scaling connections
    python -m benchmarks.scaling partitions

``sizes`` stores 5,000 conversations of 40 messages, interleaved as on a site. ``connections`` takes turns in 16 threads
on PostgreSQL, each turn as a request does it: the connection is released at its end. ``partitions`` times turns on
PostgreSQL with the table of messages whole and in partitions. The databases are those of ``benchmarks.settings``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

CONVERSATIONS = 5_000
MESSAGES = 40
THREADS = 16
ROUNDS = 3
SECONDS = 5.0
POOL = 4
"""How many connections the pools have."""

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

    from benchmarks.soak.servers import binary, free_port, give, process, wait_for

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


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("what", choices=("sizes", "connections", "partitions"))
    parser.add_argument("--on", nargs="+", default=["postgresql", "mariadb", "sqlite"], metavar="SERVER")
    options = parser.parse_args()

    import django

    django.setup()
    if options.what == "sizes":
        sizes(options.on)
    else:
        {"connections": connections, "partitions": partitions}[options.what]()


if __name__ == "__main__":
    main()
