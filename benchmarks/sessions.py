"""
A turn of an agent through a session: ours beside the Agents SDK's own, in the same database, in one run.

A turn is what ``Runner.run`` does: it reads the session, adds what the user said, and adds what came of it. Each round
runs each session once, in an order drawn anew. ``DATABASE_URL`` names the database; its tables are made beside it, in a
test database that is dropped in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from typing import Any

import dj_database_url
import django
from django.conf import settings

LIMIT = 100
"""How many items a session gives, so that no turn reads a whole history."""

URL = os.environ.get("DATABASE_URL", "sqlite:///benchmark.sqlite3")
TURN = [
    [{"role": "user", "content": "Where is my parcel? " * 12}],
    [
        {"type": "function_call", "call_id": "call_1", "name": "track", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output": "It left Hamburg this morning."},
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "It left Hamburg. " * 12, "annotations": []}],
        },
    ],
]

database = {**dj_database_url.parse(URL), "TEST": {"NAME": os.environ.get("TEST_NAME", "benchmark_sessions")}}
if database["ENGINE"].endswith("sqlite3"):  # as the README has it for production, and as SQLiteSession has it
    database["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "chatmemory_django"],
    DATABASES={"default": database},
    CHATMEMORY={
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 100}}
    },
    USE_TZ=True,
)
django.setup()

from agents import SQLiteSession  # noqa: E402
from agents.extensions.memory import SQLAlchemySession  # noqa: E402
from django.db import connection  # noqa: E402
from django.test.utils import setup_databases, teardown_databases  # noqa: E402
from sqlalchemy.ext.asyncio import create_async_engine  # noqa: E402

from chatmemory_django.integrations.openai_agents import DjangoSession  # noqa: E402
from chatmemory_django.threads import close_thread_sensitive, in_thread  # noqa: E402


def sessions(size: int, engine: Any) -> dict[str, Any]:
    """A session of each kind for a history of *size*."""
    options: Any = {"session_settings": {"limit": LIMIT}}
    made = {
        "DjangoSession": DjangoSession(f"of-{size}", **options),
        "SQLAlchemySession": SQLAlchemySession(f"of-{size}", engine=engine, create_tables=True, **options),
    }
    if connection.vendor == "sqlite":
        path = f"{connection.settings_dict['NAME']}.own"
        made["SQLiteSession"] = SQLiteSession(f"of-{size}", path, **options)
    return made


def _analyze() -> None:
    """Have the database know how large its tables are, as autovacuum does in a while."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


async def turn(session: Any) -> None:
    """Take a turn."""
    await session.get_items()
    for items in TURN:
        await session.add_items(items)


async def measure(sizes: list[int], rounds: int) -> None:
    """Print the median of a turn through each session, for each of *sizes*."""
    name = str(connection.settings_dict["NAME"])
    url = f"sqlite+aiosqlite:///{name}.sqlalchemy"
    if connection.vendor == "postgresql":
        url = f"postgresql+asyncpg://{URL.partition('://')[2].rpartition('/')[0]}/{name}"
    engine = create_async_engine(url)
    for size in sizes:
        made = sessions(size, engine)
        for session in made.values():
            items = [item for part in TURN for item in part]
            for first in range(0, size, 1_000):
                await session.add_items((items * 250)[: min(1_000, size - first)])
        await in_thread(_analyze)
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name in random.sample(list(made), len(made)):
                begun = time.perf_counter()
                await turn(made[name])
                times[name].append(time.perf_counter() - begun)
        medians = {name: 1_000 * statistics.median(found) for name, found in times.items()}
        told = " | ".join(f"{name} {median:.1f} ms" for name, median in medians.items())
        print(f"| {connection.vendor} | {size:,} | {told} |")
    await engine.dispose()
    await close_thread_sensitive()


def main() -> None:
    """Measure, in a test database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    made = setup_databases(verbosity=0, interactive=False)
    try:
        asyncio.run(measure(options.sizes, options.rounds))
    finally:
        teardown_databases(made, verbosity=0)


if __name__ == "__main__":
    main()
