"""The soak of one database, from its first table to the verdict, and the table of all results."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

from django.core.management import call_command
from django.db import connections

from benchmarks.report import table
from benchmarks.soak.crowd import Crowd
from benchmarks.soak.files import left_over, wrong_files
from benchmarks.soak.judge import NEVER, Judge
from benchmarks.soak.records import read_log
from benchmarks.soak.triggers import create_triggers, written
from chatmemory_django import operations
from chatmemory_django.contrib.files.models import MediaReference
from chatmemory_django.models import Conversation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.report import Report
    from benchmarks.soak.servers import Server
    from chatmemory_django.operations import Finding


class Soaking:
    """A soak of the database on *server*."""

    def __init__(
        self, server: Server, seconds: float, processes: int, seed: int, *, disturbed: bool, logs: Path | None
    ) -> None:
        self.server, self.seconds, self.processes, self.seed = server, seconds, processes, seed
        self.disturbed = disturbed
        self.logs = logs
        self.figures: dict[str, object] = {}
        self.judge: Judge

    def run(self) -> None:
        """Let the workers run, and judge."""
        print(f"{self.server.label}: {self.processes} processes, {self.seconds:.0f} s", flush=True)
        try:
            with self.server.running():
                self.server.prepare()
                call_command("migrate", database=self.server.name, verbosity=0)
                create_triggers(self.server.name)
                connections[self.server.name].close()  # else it is among those that are cut
                crowd = Crowd(
                    self.server, self.server.folder, processes=self.processes, seconds=self.seconds, seed=self.seed
                )
                try:
                    crowd.work(disturbed=self.disturbed)
                finally:
                    crowd.end()
                self._judge(crowd)
                connections[self.server.name].close()
        finally:
            if self.logs is not None:
                ignored = shutil.ignore_patterns("data", "socket", ".s.*")
                shutil.copytree(self.server.folder, self.logs / self.server.name, ignore=ignored, dirs_exist_ok=True)

    def _judge(self, crowd: Crowd) -> None:
        begun = time.perf_counter()
        for name in ("soak_state", "soak_row", "soak_change", "soak_erased"):
            lines = map(repr, written(self.server.name, name))
            (self.server.folder / f"{name}.txt").write_text("\n".join(lines))
        records = [record for path in crowd.logs() for record in read_log(path)]
        self.judge = judge = Judge(self.server.name, records, disturbed=self.disturbed)
        judge.judge()
        if not judge.acknowledged:
            judge.find("crash", "Nothing was done.")
        for crash in crowd.crashes:
            judge.find("crash", crash)
        for finding in check(self.server.name):
            judge.find("finding of check_chatmemory", finding)
        left = left_over(self.server)
        for wrong in wrong_files(self.server):
            judge.find("wrong files", wrong)
        states = Counter(outcome.states[-1] if outcome.states else "undone" for outcome in judge.outcomes.values())
        self.figures = {
            "verbs": len(judge.intents),
            "… acknowledged": states["acknowledged"],
            "… rolled back": states["undone"],
            "… unknown": len(judge.intents) - states["acknowledged"] - states["undone"],
            "states replayed": sum(len(story.states) for story in judge.stories.values()),
            "messages acknowledged": judge.acknowledged,
            "reads": len(judge.seen),
            "files in messages": MediaReference.objects.using(self.server.name).count(),
            "files left by what was killed or rolled back": left,
            **crowd.done,
            **{f"errors: {kind}": count for kind, count in sorted(judge.errors().items())},
            "dirty reads (READ UNCOMMITTED)": judge.dirty_reads,
        }
        print(f"(judged in {time.perf_counter() - begun:.0f} s)", flush=True)


def conclude(soakings: Sequence[Soaking], report: Report) -> int:
    """Print the results, to README.md if *report* writes; return 1 if there were findings."""
    names = dict.fromkeys(name for soaking in soakings for name in soaking.figures)
    rows = [
        *([name, *(f"{soaking.figures.get(name, 0):,}" for soaking in soakings)] for name in names),
        *([f"**{name}**", *(f"**{soaking.judge.findings[name]}**" for soaking in soakings)] for name in NEVER),
    ]
    first = soakings[0]
    head = [f"{first.processes} processes, {first.seconds:.0f} s", *(soaking.server.label for soaking in soakings)]
    report.section("soak", table(head, rows))
    for soaking in soakings:
        for name, examples in soaking.judge.examples.items():
            for example in examples:
                print(f"\n{soaking.server.label}, {name}: {example}")
    return int(any(soaking.judge.findings.total() for soaking in soakings))


def check(using: str) -> list[Finding]:
    """Return findings of ``check_chatmemory`` in the database *using*, without a window, since writers differ."""
    found: list[Finding] = []
    operations.check(Conversation.objects.using(using), lambda memory_id: None, found.append)
    return found
