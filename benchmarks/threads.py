"""Concurrent writers: their throughput, whether anything is lost, and what a reader sees while they write."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

from django.db import connections

from benchmarks.by_hand import ByHand, ByHandOnDjango
from benchmarks.databases import settle
from benchmarks.histories import Bound, texts
from benchmarks.report import TIMES, table
from benchmarks.subjects import Ours, OursWithBinding, Subject
from chatmemory_django.models import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.questions import Bench

THREADS = 32
PROCESSES = (1, 4, 8)
"""The numbers of processes that the threads are divided among."""

HISTORY = 100
"""The number of messages in a conversation at the start."""

PAUSE = 0.005
"""Seconds between two reads, so that the machine is left to the writers."""


class Writers:
    """``THREADS`` writers in *processes* and a reader here, each with a connection of its own, for some seconds."""

    def __init__(self, kind: type[Subject], server: str, keys: list[str], seconds: float, processes: int) -> None:
        self.kind, self.server, self.keys, self.seconds, self.processes = kind, server, keys, seconds, processes
        forking = multiprocessing.get_context("fork")
        self.added = forking.Array("l", THREADS, lock=False)
        self.errors: list[str] = []
        self.disorder = 0
        """How often a message appeared before one that the reader had already read."""
        self.reads = 0
        self._forking = forking
        self._start = forking.Barrier(THREADS + 2)
        self._failed = forking.SimpleQueue()

    def run(self) -> float:
        """Run the threads, and return the adds per second."""
        connections.close_all()  # a process must not share one with another
        workers: list[Any] = [
            self._forking.Process(target=self._work, args=(range(first, THREADS, self.processes),))
            for first in range(self.processes)
        ]
        for worker in workers:
            worker.start()
        workers.append(threading.Thread(target=self._guarded, args=(self._read, 0)))
        workers[-1].start()
        self._start.wait()
        begun = time.perf_counter()
        for worker in workers:
            worker.join()
        taken = time.perf_counter() - begun
        while not self._failed.empty():
            self.errors.append(self._failed.get())
        return sum(self.added) / taken

    def _work(self, numbers: range) -> None:
        threads = [threading.Thread(target=self._guarded, args=(self._write, number)) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def lost(self) -> int:
        """Return how many of the added messages are missing in the database or out of order."""
        rows = Message.objects.using(self.server).filter(conversation__memory_id__in=self.keys)
        found = list(rows.order_by("conversation", "sequence").values_list("conversation", "sequence"))
        missing = HISTORY * len(self.keys) + sum(self.added) - len(found)
        last: dict[int, int] = {}
        gaps = 0
        for conversation, sequence in found:
            gaps += sequence != last.get(conversation, 0) + 1
            last[conversation] = sequence
        return missing + gaps

    def _guarded(self, work: Callable[[Subject, int], None], number: int) -> None:
        subject = self.kind(self.server, Bound())
        try:
            subject.read(self.keys[number % len(self.keys)])  # connects
            self._start.wait()
            work(subject, number)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is counted
            self._failed.put(repr(exc))
            self._start.abort()
        finally:
            subject.close()

    def _write(self, subject: Subject, number: int) -> None:
        key, until = self.keys[number % len(self.keys)], time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            text = f"{number}-{self.added[number]} {texts()[number]}"
            subject.add(key, text, is_user=True)
            self.added[number] += 1

    def _read(self, subject: Subject, number: int) -> None:
        seen: set[str] = set()
        until = time.perf_counter() + self.seconds
        while time.perf_counter() < until:
            places = [getattr(message, "text", None) or message.single_text for message in subject.read(self.keys[0])]
            fresh = [place for place in places if place not in seen]
            if fresh != places[len(places) - len(fresh) :]:
                self.disorder += 1
            seen.update(fresh)
            self.reads += 1
            time.sleep(PAUSE)


def threads(bench: Bench) -> None:
    """Measure 32 threads that add, to one conversation and to 32, in one process and in several, with a reader."""
    kinds: list[type[Subject]] = [ByHand, ByHandOnDjango, Ours]
    kinds += [OursWithBinding] if bench.server == "postgresql" else []
    repeats, seconds = (1, 1.5) if bench.quick else (3, 3.0)
    rows = []
    for conversations, processes in itertools.product((1, THREADS), PROCESSES):
        rates: dict[str, list[float]] = {kind.name: [] for kind in kinds}
        notes: dict[str, list[int]] = {kind.name: [0, 0, 0, 0] for kind in kinds}
        for repeat in range(repeats):
            for kind in kinds:
                run = f"threads-{conversations}-{processes}-{kind.name}-{repeat}"
                keys = [f"{run}-{n}" for n in range(conversations)]
                loader = kind(bench.server, Bound())
                for key in keys:
                    loader.load(key, HISTORY)
                loader.close()
                settle(bench.server)
                writers = Writers(kind, bench.server, keys, seconds, processes)
                rates[kind.name].append(writers.run())
                facts = (writers.lost(), writers.disorder, writers.reads, len(writers.errors))
                notes[kind.name] = [sum(pair) for pair in zip(notes[kind.name], facts, strict=True)]
                for error in writers.errors[:1]:
                    print(f"{kind.name}: {error}")
        limit = statistics.median(rates["limit"])
        for kind in kinds:
            rate = statistics.median(rates[kind.name])
            lost, disorder, reads, errors = notes[kind.name]
            figures = [f"{rate:,.0f}", f"**{rate / limit:.2f} {TIMES}**", lost, f"{disorder} of {reads:,}", errors]
            rows.append([f"{conversations} conversation{'s' * (conversations > 1)}", processes, kind.label, *figures])
    head = [
        f"{THREADS} threads",
        "processes",
        "",
        "adds per second",
        "of the limit",
        "lost",
        "reads out of order",
        "errors",
    ]
    bench.report.section(f"threads-{bench.server}", table(head, rows))
