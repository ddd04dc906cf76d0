"""The loop that measures turns of agents: through stores of several kinds, in the same database, in one run.

Each round takes a turn through each kind, in a new random order. ``DATABASE_URL`` names the server; the tables are
created in a test database, which is dropped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import dj_database_url
import django
from django.conf import settings

URL = os.environ.get("DATABASE_URL", "sqlite:///benchmark.sqlite3")

database = {**dj_database_url.parse(URL), "TEST": {"NAME": os.environ.get("TEST_NAME", "benchmark_sessions")}}
if database["ENGINE"].endswith("sqlite3"):  # as the README recommends for production, and as SQLiteSession does
    database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "chatmemory_django",
        "chatmemory_django.integrations.records",
    ],
    DATABASES={"default": database},
    CHATMEMORY={
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 100}}
    },
    USE_TZ=True,
)
django.setup()

from django.db import connection  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine  # noqa: E402

from chatmemory_django.db.threads import close_thread_sensitive, in_thread  # noqa: E402


def analyze() -> None:
    """Update the database's statistics on its tables, as autovacuum does sooner or later."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE chatmemory_message" if connection.vendor == "mysql" else "ANALYZE")


class Measured(NamedTuple):
    """What is measured: the *kinds* for a history of a size, how to fill each, and a turn through it."""

    kinds: Callable[[int, AsyncEngine], dict[str, Any]]
    fill: Callable[[Any, int], Awaitable[None]]
    turn: Callable[[Any], Awaitable[None]]


def _url_of_peers() -> str:
    """Return the URL of the peers' tables: on PostgreSQL the same database, else an SQLite file of their own."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "postgresql":
        return f"postgresql+asyncpg://{URL.partition('://')[2].rpartition('/')[0]}/{name}"
    return f"sqlite+aiosqlite:///{name}.sqlalchemy"


async def measure(measured: Measured, sizes: list[int], rounds: int) -> None:
    """Print the median of a turn through each kind, for each of *sizes*."""
    engine = create_async_engine(_url_of_peers())
    for size in sizes:
        made = measured.kinds(size, engine)
        for each in made.values():
            await measured.fill(each, size)
        await in_thread(analyze)
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name in random.sample(list(made), len(made)):
                begun = time.perf_counter()
                await measured.turn(made[name])
                times[name].append(time.perf_counter() - begun)
        medians = {name: 1_000 * statistics.median(found) for name, found in times.items()}
        cells = " | ".join(f"{name} {median:.1f} ms" for name, median in medians.items())
        print(f"| {connection.vendor} | {size:,} | {cells} |")
    await engine.dispose()
    await close_thread_sensitive()


def main(description: str | None, **choices: Measured) -> None:
    """Measure one of *choices*, in a test database."""
    parser = argparse.ArgumentParser(description=description)
    if len(choices) > 1:
        parser.add_argument("measured", choices=choices)
    else:
        parser.set_defaults(measured=next(iter(choices)))
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    made = setup_databases(verbosity=0, interactive=False)
    try:
        asyncio.run(measure(choices[options.measured], options.sizes, options.rounds))
    finally:
        teardown_databases(made, verbosity=0)
