"""The loop that measures turns of agents: through stores of several kinds, in the same database, in one run.

``DATABASE_URL`` names the server; the tables are created in a test database, which is dropped at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from importlib.metadata import version
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
        "chatmemory_django.contrib.adapters.records",
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

from benchmarks.measure import FULL, Timing, interleaved  # noqa: E402
from benchmarks.report import TIMES, Report, table  # noqa: E402
from chatmemory_django.db.threads import close_thread_sensitive, in_thread  # noqa: E402


def analyze() -> None:
    """Update the database's statistics on its tables, as autovacuum does sooner or later."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE TABLE chatmemory_message" if connection.vendor == "mysql" else "ANALYZE")


class Measured(NamedTuple):
    """What is measured: the *kinds* for a history of a size, ours first, how to fill each, and a turn through it."""

    kinds: Callable[[int, AsyncEngine], dict[str, Any]]
    fill: Callable[[Any, int], Coroutine[Any, Any, None]]
    turn: Callable[[Any], Coroutine[Any, Any, None]]
    packages: tuple[str, ...]
    """The packages that it takes, whose versions are stated."""


def _url_of_peers() -> str:
    """Return the URL of the peers' tables: on PostgreSQL the same database, else an SQLite file of their own."""
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "postgresql":
        return f"postgresql+asyncpg://{URL.partition('://')[2].rpartition('/')[0]}/{name}"
    return f"sqlite+aiosqlite:///{name}.sqlalchemy"


def measure(measured: Measured, sizes: list[int], rounds: int) -> dict[int, dict[str, Timing]]:
    """Return what a turn takes through each kind, for each of *sizes*."""
    engine = create_async_engine(_url_of_peers())
    found = {}
    with asyncio.Runner() as runner:
        for size in sizes:
            turns = {}
            for name, each in measured.kinds(size, engine).items():
                runner.run(measured.fill(each, size))
                turns[name] = lambda _number, each=each: runner.run(measured.turn(each))
            runner.run(in_thread(analyze))
            found[size] = interleaved(turns, FULL._replace(rounds=rounds))
        runner.run(engine.dispose())
        runner.run(close_thread_sensitive())
    return found


def _markdown(found: dict[int, dict[str, Timing]], packages: tuple[str, ...]) -> str:
    """Return a row for each kind, and the ratio of ours to each of the others."""
    ours, *others = next(iter(found.values()))
    rows = [[f"`{name}`", *(_cell(timings[name]) for timings in found.values())] for name in (ours, *others)]
    for name in others:
        ratios = [timings[ours].microseconds / timings[name].microseconds for timings in found.values()]
        rows.append([f"`{ours}` / `{name}`", *(f"**{ratio:.2f} {TIMES}**" for ratio in ratios)])
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{table(['messages in the history', *(f'{size:,}' for size in found)], rows)}\n\n{versions}."


def _cell(timing: Timing) -> str:
    few = f" ({timing.runs} runs)" if timing.runs < 10 else ""
    return f"{timing.microseconds / 1000:,.1f} ms{few}"


def main(description: str | None, **choices: Measured) -> None:
    """Measure one of *choices*, in a test database."""
    parser = argparse.ArgumentParser(description=description)
    if len(choices) > 1:
        parser.add_argument("measured", choices=choices)
    else:
        parser.set_defaults(measured=next(iter(choices)))
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    options = parser.parse_args()
    report = Report(writes=options.write)
    measured = choices[options.measured]
    made = setup_databases(verbosity=0, interactive=False)
    try:
        found = measure(measured, options.sizes, options.rounds)
        server = connection.display_name.lower()
        report.section(f"{options.measured}-{server}", _markdown(found, measured.packages))
    finally:
        teardown_databases(made, verbosity=0)
