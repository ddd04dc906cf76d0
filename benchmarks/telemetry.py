"""``python -m benchmarks.telemetry``: a turn with an SDK of OpenTelemetry that samples nothing; see README.md."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from unittest.mock import patch

from benchmarks.report import Report, table

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.chat_settings")

ROUNDS = 1_000
WARM_UP = 50
WITHOUT, AGAIN, WITH = SUBJECTS = ("without OpenTelemetry", "without it, again", "with an SDK that samples nothing")


def main(servers: list[str], report: Report) -> None:
    """Report for each of *servers* the medians of a turn, and of what it takes longer than the first in its round."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    from benchmarks.chat.model import Clock, look
    from benchmarks.databases import database
    from benchmarks.histories import prepare
    from chatmemory_django import observing
    from chatmemory_django.chat.assistant import Assistant
    from chatmemory_django.contrib.telemetry import observer
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    trace.set_tracer_provider(TracerProvider(sampler=ALWAYS_OFF))

    def timed(assistant: Assistant, subject: str, number: int) -> int:
        begin = time.perf_counter_ns()
        assistant.chat(subject, f"What is the time now, in turn {number}?")
        return time.perf_counter_ns() - begin

    def round_of(assistant: Assistant, number: int) -> dict[str, int]:
        taken = {}
        for subject in random.sample(SUBJECTS, len(SUBJECTS)):
            with patch.object(observing, "observers", [observer] if subject == WITH else []):
                taken[subject] = timed(assistant, subject, number)
        return taken

    rows = []
    for server in servers:
        with database(server):
            prepare(server)
            options = {"max_messages": 60, "store": DjangoChatMemoryStore(server)}
            assistant = Assistant(Clock(), memory=MessageWindowChatMemory, memory_options=options, tools=[look])
            rounds = [round_of(assistant, number) for number in range(ROUNDS + WARM_UP)][WARM_UP:]
        without = statistics.median(taken[WITHOUT] for taken in rounds) / 1000
        row = [server, f"{without:,.0f} µs"]
        for subject in (AGAIN, WITH):
            added = statistics.median(taken[subject] - taken[WITHOUT] for taken in rounds) / 1000
            row.append(f"{added:+,.0f} µs · **{added / without:+.1%}**")
        rows.append(row)
    report.section("telemetry", table(["", *SUBJECTS], rows))


if __name__ == "__main__":
    servers = ["postgresql", "sqlite", "mariadb"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--on", nargs="+", choices=servers, default=servers[:2])
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    options = parser.parse_args()

    import django

    django.setup()
    main(options.on, Report(writes=options.write))
