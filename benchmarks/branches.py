"""``python -m benchmarks.branches``: rewinding and switching in short and long histories; see README.md."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.report import Report, table

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTHS = (100, 10_000, 100_000)
"""The number of messages in the history."""

WINDOW = 20
"""The number of messages in the memory."""

BACK = 40
"""The number of messages rewound: past the window, so that the memory is filled again."""

ROUNDS = 60


def main(servers: list[str], report: Report) -> None:
    """Report, for each of *servers*, the medians of each operation for each length."""
    from benchmarks import histories
    from benchmarks.databases import database
    from benchmarks.histories import Bound
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import UserMessage
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    for server in servers:
        with database(server):
            histories.prepare(server)
            memories = {}
            for length in LENGTHS:
                histories.load_conversation(server, f"{length}", length, Bound(WINDOW, "messages"))
                memory = MessageWindowChatMemory(
                    max_messages=WINDOW, id=f"{length}", store=DjangoChatMemoryStore(server)
                )
                memory.rewind(length - 1)
                memory.add(UserMessage("The other answer."))
                memories[length] = memory
            taken: dict[tuple[str, int], list[float]] = {}
            for _ in range(ROUNDS):
                for length, memory in memories.items():
                    newest = length + 1
                    verbs: dict[str, Callable[[], object]] = {
                        "rewind": lambda memory=memory, length=length: memory.rewind(length - BACK),
                        "switch far": lambda memory=memory, newest=newest: memory.switch(newest),
                        "switch": lambda memory=memory, length=length: memory.switch(length),
                        "switch back": lambda memory=memory, newest=newest: memory.switch(newest),
                        "read": memory.messages,
                    }
                    for name, verb in verbs.items():
                        begin = time.perf_counter()
                        verb()
                        taken.setdefault((name, length), []).append(time.perf_counter() - begin)
            rows = []
            for name in verbs:
                medians = [statistics.median(taken[name, length]) * 1e6 for length in LENGTHS]
                rows.append([name, *(f"{each:,.0f} µs" for each in medians), f"{medians[-1] / medians[0]:.2f}"])
            head = ["messages in the history", *(f"{length:,}" for length in LENGTHS), "ratio"]
            report.section(f"branches-{server}", table(head, rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.branches", description=__doc__)
    parser.add_argument(
        "--on", nargs="+", choices=("postgresql", "sqlite", "mariadb"), default=["postgresql", "sqlite", "mariadb"]
    )
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    options = parser.parse_args()

    import django

    django.setup()
    main(options.on, Report(writes=options.write))
