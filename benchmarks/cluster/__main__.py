"""
The soak on a cluster of three nodes on this machine: a node is killed or cut off, over and over; nothing may be lost.

    python -m benchmarks.cluster patroni [--minutes 4]
    python -m benchmarks.cluster galera
    python -m benchmarks.cluster galera-everywhere

It needs root, for network namespaces, and Debian's ``etcd-server``, ``haproxy``, ``pgbouncer``, ``python3-venv`` (for
Patroni, which it installs from PyPI), ``galera-4`` and ``rsync``. Beside the soak's workers, a probe writes a row every
tenth of a second: how long it is refused is how long writes are.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.cluster.servers import CLUSTERS, Cluster

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.soak.settings")

CONTENDED_BY = 6
CONTENDED_SECONDS = 10.0

GAP = 1.0
"""Seconds without a write that count as refused."""


class Probe(threading.Thread):
    """Writes a row every tenth of a second, the same again until it is acknowledged."""

    def __init__(self, using: str) -> None:
        super().__init__(daemon=True)
        self.using = using
        self.gaps: list[float] = []
        self.acknowledged: list[int] = []
        self.errors: Counter[str] = Counter()
        self._done = threading.Event()

    def create(self) -> None:
        """Create its table."""
        self._run("CREATE TABLE soak_probe (number integer PRIMARY KEY)")

    def run(self) -> None:
        number, last = 0, time.monotonic()
        while not self._done.wait(0.1):
            try:
                self._run("INSERT INTO soak_probe SELECT %s WHERE %s NOT IN (SELECT number FROM soak_probe)", number)
            except Exception as exc:  # noqa: BLE001  # it is counted, and the same row is sent again
                self.errors[type(exc).__name__] += 1
                continue
            self.acknowledged.append(number)
            number += 1
            now = time.monotonic()
            if now - last > GAP:
                self.gaps.append(now - last)
            last = now

    def end(self) -> set[int]:
        """Stop, and return the acknowledged rows that are lost."""
        from django.db import connections

        self._done.set()
        self.join()
        connections[self.using].close()  # that of this thread may be to a node that has failed since
        return set(self.acknowledged) - {number for (number,) in self._run("SELECT number FROM soak_probe")}

    def _run(self, statement: str, *values: int) -> list[tuple[int]]:
        from django.db import connections

        connection = connections[self.using]
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values * statement.count("%s"))
                return list(cursor.fetchall()) if cursor.description else []
        except Exception:
            connection.close()
            raise


def contended(using: str) -> str:
    """Let several threads add to one conversation for some seconds, and return what became of that."""
    from django.db import connections

    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import UserMessage
    from chatmemory_django.models import Message
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    taken: list[float] = []
    refused: list[tuple[float, str]] = []
    until = time.monotonic() + CONTENDED_SECONDS

    def write() -> None:
        memory = MessageWindowChatMemory(max_messages=10, id="contended", store=DjangoChatMemoryStore(using))
        while time.monotonic() < until:
            begun = time.monotonic()
            try:
                memory.add(UserMessage("x"))
            except Exception as exc:  # noqa: BLE001  # it is counted
                refused.append((time.monotonic() - begun, str(exc)[:60]))
                connections[using].close()
            else:
                taken.append(time.monotonic() - begun)
        connections[using].close()

    threads = [threading.Thread(target=write) for _ in range(CONTENDED_BY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = Message.objects.using(using).filter(conversation__memory_id="contended").count()
    return (
        f"{CONTENDED_BY} writers to one conversation: {len(taken)} adds acknowledged and {stored} stored, in "
        f"{max(taken, default=0):.1f} s at most; {len(refused)} refused, in {max(refused, default=(0.0,))[0]:.1f} s at "
        f"most: {dict(Counter(text for _, text in refused))}"
    )


def main() -> int:
    """Soak the clusters that the command line names; return 1 if there were findings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("cluster", choices=list(CLUSTERS))
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="folder for logs")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return soak(CLUSTERS[options.cluster](folder), options)


def soak(cluster: Cluster, options: Any) -> int:
    """Soak *cluster*, and print the results."""
    os.environ["SOAK_DATABASES"] = json.dumps({"default": {}, cluster.name: cluster.plain()})
    import django

    django.setup()
    from benchmarks.report import Report
    from benchmarks.soak import crowd
    from benchmarks.soak.soaking import Soaking, conclude

    crowd.CALM_SECONDS = 30  # the last node that fails is back before the end
    probe = Probe(cluster.name)

    class Probed(Soaking):
        def _judge(self, workers: crowd.Crowd) -> None:
            cluster.settle()
            lost = probe.end()
            super()._judge(workers)
            if lost:
                self.judge.find("lost", "rows of the probe:", lost)
            print(contended(cluster.name), flush=True)
            self.figures |= {f"node failed: {what}": count for what, count in Counter(cluster.failures).items()}
            self.figures |= {
                "verbs of unknown outcome, sent again": sum(intent.attempts > 0 for intent in self.judge.intents),
                "rows of the probe acknowledged": len(probe.acknowledged),
                "rows of the probe refused, and sent again": probe.errors.total(),
            }

    cluster.on_ready = lambda: (probe.create(), probe.start())
    soaking = Probed(cluster, 60 * options.minutes, options.processes, options.seed, disturbed=True, logs=options.logs)
    soaking.run()
    gaps = ", ".join(f"{gap:.1f}" for gap in probe.gaps)
    print(f"No write was possible for, in seconds: {gaps}. Errors of the probe: {dict(probe.errors)}")
    return conclude([soaking], Report(writes=False))


if __name__ == "__main__":
    sys.exit(main())
