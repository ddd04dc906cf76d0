"""``python -m benchmarks.encryption``: a turn and a read with and without encryption; see README.md."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.report import TIMES, Report, table

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.encryption_settings")

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 85
"""The number of messages in the memory and in the history."""

ROUNDS = 40
REPEATS = 10
"""How often each is done in a round."""

SITES = {
    "plain": {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"},
    "a key of the site": {},
    "a key for each owner": {"BENCHMARK_OWNER_KEYS": "1"},
}


class Site:
    """A process with settings of its own, which does a part of a round when it is asked to."""

    def __init__(self, server: str, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.encryption", "--work", server, name],
            env=os.environ | SITES[name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def time(self, what: str) -> float:
        """Return the seconds that one of *what*, a turn or a read, takes in this round."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main(servers: list[str], report: Report) -> None:
    """Report, for each of *servers*, a turn and a read by each site."""
    from benchmarks.databases import database

    for server in servers:
        with database(server):
            sites = {name: Site(server, name) for name in SITES}
            taken: dict[tuple[str, str], list[float]] = {}
            for _ in range(ROUNDS):
                for what in ("turn", "read"):
                    for name, site in random.sample(list(sites.items()), len(sites)):
                        taken.setdefault((what, name), []).append(site.time(what))
            for site in sites.values():
                site.close()
        rows = []
        for what, shown in (("turn", "a turn"), ("read", f"a read of {MESSAGES} messages")):
            medians = {name: statistics.median(taken[what, name]) * 1e6 for name in SITES}
            plain = medians.pop("plain")
            cells = [f"{each:,.0f} µs · **{each / plain:.2f} {TIMES}**" for each in medians.values()]
            rows.append([shown, f"{plain:,.0f} µs", *cells])
        report.section(f"encryption-{server}", table(["", *SITES], rows))


def work(server: str, name: str) -> None:
    """Do what standard input asks for, and print how long it took each time."""
    from django.contrib.auth.models import User

    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import AiMessage, UserMessage
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    owner, _ = User.objects.using(server).get_or_create(username=name)
    store = DjangoChatMemoryStore(server, owner=owner)
    memory = MessageWindowChatMemory(max_messages=MESSAGES, id=name, store=store)
    question = UserMessage("Where is my parcel? I ordered it two weeks ago, and it was to arrive on Monday. " * 3)
    answer = AiMessage("It is on its way: it left the warehouse this morning and arrives tomorrow. " * 4)
    memory.add(*[question, answer] * MESSAGES)

    def turn() -> None:
        with memory.turn() as going_on:
            going_on.add(question)
            _ = going_on.messages
            going_on.add(answer)

    verbs: dict[str, Callable[[], object]] = {"turn": turn, "read": memory.messages}
    for line in sys.stdin:
        verb = verbs[line.strip()]
        verb()
        begin = time.perf_counter()
        for _ in range(REPEATS):
            verb()
        print((time.perf_counter() - begin) / REPEATS, flush=True)


if __name__ == "__main__":
    servers = ["postgresql", "sqlite", "mariadb"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encryption", description=__doc__)
    parser.add_argument("--on", nargs="+", choices=servers, default=servers)
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()

    import django

    django.setup()
    if options.work:
        work(*options.work)
    else:
        main(options.on, Report(writes=options.write))
