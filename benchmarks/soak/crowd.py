"""The workers of a soak, and their disturbances."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.soak.records import FILES, encode
from benchmarks.soak.servers import stop
from benchmarks.soak.worker import DRAIN_SECONDS, Orders

if TYPE_CHECKING:
    from benchmarks.soak.servers import Server

RESTART_SECONDS = 40
"""How many times a server is killed; in a shorter soak once."""

CALM_SECONDS = 3
"""The undisturbed seconds at the end."""


def environment(databases: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the environment of a process that works in *databases*, with the files of the soak in *folder*."""
    return {**os.environ, "SOAK_DATABASES": json.dumps(databases), "SOAK_FILES": str(folder / FILES)}


class Crowd:
    """*processes* workers on *server*, which log to *folder*."""

    def __init__(self, server: Server, folder: Path, *, processes: int, seconds: float, seed: int) -> None:
        self.server, self.folder, self.seed = server, folder, seed
        self.random = random.Random(f"{seed}-{server.name}")
        self.seconds = seconds
        self.workers: list[subprocess.Popen[bytes]] = []
        self.generations = [0] * processes
        self.done = {"workers killed": 0, "connections cut": 0, "servers killed": 0}
        self.crashes: list[str] = []
        """The output of workers that ended by themselves."""

    def work(self, *, disturbed: bool) -> None:
        """Let the workers run until the time is over, *disturbed* or not."""
        self.workers = [self._start(number) for number in range(len(self.generations))]
        numbers = range(len(self.workers))
        while not all(self._has_begun(number) or self.workers[number].poll() is not None for number in numbers):
            time.sleep(0.1)
        until = time.time() + self.seconds
        restart_at = time.time() + min(RESTART_SECONDS, self.seconds / 2)
        while (left := until - time.time()) > 0:
            time.sleep(min(left, self.random.uniform(0.3, 2.0)))
            if not disturbed or until - time.time() < CALM_SECONDS:
                continue
            if time.time() > restart_at:
                restart_at += RESTART_SECONDS
                self.server.restart()
                self.done["servers killed"] += self.server.name != "sqlite"
            elif self.random.random() < 0.5:
                number = self.random.randrange(len(self.workers))
                if self._has_begun(number):
                    self._replace(number)
            else:
                self.server.cut()
                self.done["connections cut"] += self.server.name != "sqlite"
        for worker in self.workers:
            worker.terminate()
        deadline = time.time() + 2 * DRAIN_SECONDS
        for number, worker in enumerate(self.workers):
            try:
                worker.wait(max(0, deadline - time.time()))
            except subprocess.TimeoutExpired:
                self.crashes.append(f"worker {number} did not end")
            else:
                self._note(number)

    def end(self) -> None:
        """Kill the remaining workers."""
        for worker in self.workers:
            worker.kill()
            stop(worker)

    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        generation = self.generations[number]
        name = f"{number}.{generation}"
        orders = Orders(
            name=name,
            seed=f"{self.seed}-{self.server.name}-{name}",
            log=str(self.folder / f"{name}.jsonl"),
            seconds=2 * self.seconds + 60,
            is_dirty=self.server.is_dirty(number),
            predecessor=str(self.folder / f"{number}.{generation - 1}.jsonl") if generation else "",
        )
        Path(orders.log).touch()
        databases = {"default": self.server.of_worker(number), "clean": self.server.plain()}
        with (self.folder / f"{name}.stderr").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak", "--orders", encode(orders)],
                env=environment(databases, self.folder),
                stderr=errors,
                start_new_session=True,  # so that Ctrl-C reaches only the process that cleans up
            )

    def _has_begun(self, number: int) -> bool:
        return (self.folder / f"{number}.{self.generations[number]}.jsonl").stat().st_size > 0

    def _replace(self, number: int) -> None:
        """Kill a worker, and start another that continues its log."""
        if self.workers[number].poll() is not None:
            self._note(number)
        self.workers[number].kill()
        stop(self.workers[number])
        self.generations[number] += 1
        self.workers[number] = self._start(number)
        self.done["workers killed"] += 1

    def _note(self, number: int) -> None:
        """Record a worker that ended by itself with an error."""
        if self.workers[number].returncode > 0:
            output = (self.folder / f"{number}.{self.generations[number]}.stderr").read_text()
            self.crashes.append(f"worker {number} ended: {output[-2000:]}")
