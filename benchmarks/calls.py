"""
How long sums over the calls of models take, before and after past days are summed up.

    python -m benchmarks.calls [--calls N] [--on SERVER …] [--write]

The calls are those of a year, by 10,000 users in runs of five; one in five is for a title, by another model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.chat_settings")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

USERS, DAYS = 10_000, 365
ROUNDS = 5
PERIODS = (1, 30, DAYS)
"""In days, until now."""


def main() -> None:
    """Load and measure on each server, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000_000, metavar="N")
    parser.add_argument("--on", nargs="+", default=["postgresql", "mariadb", "sqlite"], metavar="SERVER")
    parser.add_argument("--write", action="store_true", help="write the tables to this folder's README.md")
    options = parser.parse_args()

    import django

    django.setup()

    from django.db import connections

    from benchmarks.databases import database, settle
    from benchmarks.report import Report, table
    from chatmemory_django.chat.costs.summing import sum_calls

    for server in options.on:
        with database(server):
            load(server, options.calls)
            settle(server)
            taken = {name: [milliseconds] for name, milliseconds in measured(server)}
            begun = time.perf_counter()
            count = sum_calls(using=server)
            print(f"{count:,} calls summed in {time.perf_counter() - begun:,.0f} s", flush=True)
            if server == "postgresql":  # a site sums each night, so that the calls in it are those of a day
                connections[server].cursor().execute("REINDEX INDEX chatmemory_calls_not_summed")
            settle(server)
            for name, milliseconds in measured(server):
                taken[name].append(milliseconds)
        head = ["milliseconds", "each call read", "past days summed"]
        rows = [[name, *(f"{each:,.1f}" for each in both)] for name, both in taken.items()]
        Report(writes=options.write).section(f"calls-{server}", table(head, rows))


def load(server: str, number: int) -> None:
    """Store *number* calls."""
    from django.db import connections

    begun = time.perf_counter()
    source, moment = _SOURCES[server]
    with connections[server].cursor() as cursor:
        cursor.execute(
            "INSERT INTO auth_user (id, password, is_superuser, username, first_name, last_name, email, is_staff, "
            f"is_active, date_joined) SELECT n, '', false, n, '', '', '', false, true, CURRENT_TIMESTAMP "
            f"FROM {source % USERS}"
        )
        moment = moment % (DAYS * 86_400 / number)
        cursor.execute(
            "INSERT INTO chatmemory_chat_modelcall (owner_id, conversation_id, purpose, model, labels, input_tokens, "
            "cached_input_tokens, output_tokens, reasoning_tokens, is_estimate, cost, outcome, error, created_at) "
            f"SELECT 1 + (n - n %% 5) / 5 %% 10007 * 7919 %% {USERS}, 1 + n %% 1000003, "
            "CASE WHEN n %% 5 = 4 THEN 'title' ELSE 'answer' END, "
            "CASE WHEN n %% 5 = 4 THEN 'small' WHEN n %% 15 < 5 THEN 'large' ELSE 'medium' END, '{}', "
            "CASE WHEN n %% 50 = 7 THEN NULL ELSE 1000 + n %% 777 END, n %% 800, "
            "CASE WHEN n %% 50 = 7 THEN NULL ELSE 50 + n %% 99 END, 0, false, 0.001, "
            f"CASE WHEN n %% 50 = 7 THEN 'cancelled' ELSE 'completed' END, '', {moment} FROM {source % number}".replace(
                "%%", "%"
            )
        )
    print(f"{number:,} calls loaded in {time.perf_counter() - begun:,.0f} s", flush=True)


_SOURCES = {
    "postgresql": ("generate_series(1, %d) AS n", "now() - n * interval '%f seconds'"),
    "mariadb": ("(SELECT seq AS n FROM seq_1_to_%d) numbers", "UTC_TIMESTAMP(6) - INTERVAL n * %f SECOND"),
    "sqlite": (
        "(WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT %d) SELECT n FROM numbers)",
        "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-' || (n * %f) || ' seconds')",
    ),
}
"""Where the numbers n from 1 on come from, and the moment of the call n, the latest first."""


def measured(server: str) -> Iterator[tuple[str, float]]:
    """Yield what is summed, and the median of its milliseconds."""
    from datetime import UTC, datetime, timedelta

    from chatmemory_django.chat.costs.budgets import Limits
    from chatmemory_django.chat.costs.calls import Account, Call
    from chatmemory_django.chat.costs.conf import Budget
    from chatmemory_django.chat.costs.usage import BY, usage
    from chatmemory_django.chat.model import TokenUsage
    from chatmemory_django.chat.models import ModelCall

    calls, now = ModelCall.objects.using(server), datetime.now(UTC)

    def summed(rows: Any, by: Any, days: int) -> Callable[[], object]:
        return lambda: list(usage(rows, by, since=now - timedelta(days=days), until=now, limit=20))

    account = Account(USERS // 2, None, server)
    for days in PERIODS:
        for by in BY:
            yield _taken(f"of all, {days} days, by {by}", summed(calls, by, days))
    for by in ("day", "model"):
        yield _taken(f"of a user, {DAYS} days, by {by}", summed(calls.filter(owner=USERS // 2), by, DAYS))
    for per in ("day", "month"):
        yield _taken(f"a budget of a {per}", Limits([Budget.parse({"TOKENS": 1, "PER": per})], account, {}).spent)
    call = Call("answer", "large", TokenUsage(1000, 50))
    yield _taken("recording a call", lambda: account.write([call]), 300)


def _taken(name: str, do: Callable[[], object], rounds: int = ROUNDS) -> tuple[str, float]:
    taken = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        do()
        taken.append((time.perf_counter() - begun) * 1_000)
        if taken[-1] > 10_000:
            break
    milliseconds = statistics.median(taken[1:] or taken)
    print(f"{name:40} {milliseconds:10.1f} ms", flush=True)
    return name, milliseconds


if __name__ == "__main__":
    main()
