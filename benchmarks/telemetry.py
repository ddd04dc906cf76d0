"""``python -m benchmarks.telemetry``: a turn with an SDK of OpenTelemetry that samples nothing; see README.md."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from unittest.mock import patch

from benchmarks.report import Report, table

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

PAIRS = 1_000
WARM_UP = 50
SUBJECTS = ("without OpenTelemetry", "with an SDK that samples nothing")


def main(servers: list[str], report: Report) -> None:
    """Report for each of *servers* the medians of a turn, and of the difference in each pair."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from benchmarks.chat.model import Clock, look
    from benchmarks.databases import database
    from benchmarks.histories import prepare
    from chatmemory_django import telemetry
    from chatmemory_django.chat.assistant import Assistant
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF))

    def timed(assistant: Assistant, subject: str, number: int) -> int:
        begin = time.perf_counter_ns()
        assistant.chat(subject, f"What is the time now, in turn {number}?")
        return time.perf_counter_ns() - begin

    def pair(assistant: Assistant, number: int) -> tuple[int, int]:
        taken = {}
        for subject in random.sample(SUBJECTS, 2):
            if subject == SUBJECTS[0]:
                with patch.object(telemetry, "_loaded", lambda name: None):
                    taken[subject] = timed(assistant, subject, number)
            else:
                taken[subject] = timed(assistant, subject, number)
        return taken[SUBJECTS[0]], taken[SUBJECTS[1]]

    rows = []
    for server in servers:
        with database(server):
            prepare(server)
            options = {"max_messages": 60, "store": DjangoChatMemoryStore(server)}
            assistant = Assistant(Clock(), memory=MessageWindowChatMemory, memory_options=options, tools=[look])
            pairs = [pair(assistant, number) for number in range(PAIRS + WARM_UP)][WARM_UP:]
        without, with_sdk = (statistics.median(each) / 1000 for each in zip(*pairs, strict=True))
        added = statistics.median(second - first for first, second in pairs) / 1000
        rows.append(
            [server, f"{without:,.0f} µs", f"{with_sdk:,.0f} µs", f"{added:,.0f} µs · **{added / without:.1%}**"]
        )
    report.section("telemetry", table(["", *SUBJECTS, "median of the pairs' differences"], rows))


if __name__ == "__main__":
    servers = ["postgresql", "sqlite", "mariadb"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--on", nargs="+", choices=servers, default=servers[:2])
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    options = parser.parse_args()

    import django

    django.setup()
    main(options.on, Report(writes=options.write))
