"""
How many messages one PostgreSQL stores in a second, and how many four do, behind a router by owner.

    python -m benchmarks.shards [--servers 4] [--seconds 10]

Each server has a cluster of its own on this machine; each process of writers adds to the conversations of owners who
are spread over the servers in use. Commits wait for the disk, as on a site.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

WRITERS = 8
"""The number of processes that write, whatever the number of servers."""

CONVERSATIONS = 50
"""Those of each process."""


def main() -> None:
    """Start the servers, measure with one and with all of them, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.writer is not None:
        print(json.dumps(write(options.writer, options.seconds)))
        return
    from benchmarks.soak.servers import PostgreSql

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shards-")))
        folder.chmod(0o755)
        databases = {}
        for number in range(options.servers):
            (folder / str(number)).mkdir()
            server = PostgreSql(folder / str(number))
            stack.enter_context(server.running(fsync=True))
            server.prepare()
            databases[f"shard_{number}"] = server.plain() | {"CONN_MAX_AGE": None}
        os.environ["SOAK_DATABASES"] = json.dumps({"default": {}, **databases})
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.soak.settings"
        import django

        django.setup()
        from django.core.management import call_command

        for name in databases:
            call_command("migrate", database=name, verbosity=0)
        taken: dict[int, list[list[float]]] = {1: [], options.servers: []}
        for round_ in range(options.rounds):
            for count in sorted(taken, reverse=bool(round_ % 2)):
                taken[count].append(measured(databases, count, options.seconds))
                print(f"{count} servers: {sum(taken[count][-1]):,.0f} messages/s", flush=True)
        for count, rounds in taken.items():
            sums = [sum(each) for each in rounds]
            each = ", ".join(f"{statistics.median(rates):,.0f}" for rates in zip(*rounds, strict=True))
            print(
                f"{count} servers: {statistics.median(sums):,.0f} messages/s ({min(sums):,.0f} to {max(sums):,.0f}); "
                f"of each: {each}",
                flush=True,
            )


def measured(databases: dict[str, Any], count: int, seconds: float) -> list[float]:
    """Return the messages a second of each of the first *count* servers, with the same writers for any number."""
    environment = {**os.environ, "SHARDS": str(count)}
    command = [sys.executable, "-m", "benchmarks.shards", "--seconds", str(seconds), "--writer"]
    writers = [
        subprocess.Popen([*command, str(number)], env=environment, stdout=subprocess.PIPE) for number in range(WRITERS)
    ]
    rates = [0.0] * count
    for writer in writers:
        output, _ = writer.communicate()
        shard, rate = json.loads(output)
        rates[shard] += rate
    return rates


def write(number: int, seconds: float) -> tuple[int, float]:
    """Add messages for some seconds; return on which server, and how many a second."""
    import django

    django.setup()
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import UserMessage
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    shard = number % int(os.environ["SHARDS"])
    store = DjangoChatMemoryStore(f"shard_{shard}")
    ids = [f"{time.time_ns()}-{number}-{each}" for each in range(CONVERSATIONS)]
    memories = [MessageWindowChatMemory(max_messages=20, id=each, store=store) for each in ids]
    for memory in memories:
        memory.add(UserMessage("Where is my parcel?"))
    begun, count = time.perf_counter(), 0
    while time.perf_counter() < begun + seconds:
        memories[count % CONVERSATIONS].add(UserMessage("Where is my parcel? " * 12))
        count += 1
    return shard, count / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
