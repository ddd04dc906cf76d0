"""``python -m benchmarks.chat turn|streams|protocols|dropped|overload|runs``: see README.md."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.chat.settings")

QUESTIONS = {
    "turn": ("sqlite", "postgresql", "postgresql-pool", "mariadb"),
    "streams": ("postgresql-pool",),
    "protocols": ("sqlite", "postgresql-pool", "mariadb"),
    "dropped": ("sqlite", "postgresql-pool", "mariadb"),
    "overload": ("postgresql",),
    "runs": ("sqlite", "postgresql", "mariadb"),
}
"""The configurations of the settings that each question is asked of."""

QUICK_STREAMS = 20
"""How many streams a quick run has at once."""


def main() -> int:
    """Run the benchmark in the command line, each configuration in a process of its own; return 1 on findings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat", description=__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--on", nargs="+", choices=QUESTIONS["turn"], metavar="CONFIGURATION")
    parser.add_argument("--sizes", nargs="+", type=int, default=(10, 1_000, 100_000), help="lengths of history: turn")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for debugging, not for figures")
    parser.add_argument("--streams", type=int, default=200, help="the number of concurrent streams")
    parser.add_argument("--beside", nargs="*", type=int, default=(100, 400, 1_000), help="streams beside a bare view")
    parser.add_argument("--bursts", nargs="*", type=int, default=(20, 300, 500, 800, 1_000), help="questions at once")
    parser.add_argument("--clients", type=int, default=1_000, help="the number of clients")
    parser.add_argument("--seconds", type=float, default=60, help="how long processes are tormented, twice: runs")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.result is not None:
        options.result.write_text(json.dumps(_ask(options)))
        return 0

    from benchmarks.chat import tables
    from benchmarks.report import Report

    report = Report(writes=options.write)
    print(f"seed {options.seed}", flush=True)
    return tables.write(options.question, _asked_apart(options), report)


def _asked_apart(options: argparse.Namespace) -> dict[str, Any]:
    """Return the results by configuration. Disconnecting clients run on all at once, as they mostly wait."""
    started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for on in options.on or QUESTIONS[options.question]:
            result = Path(folder) / on
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.chat",
                    *sys.argv[1:],
                    "--seed",
                    str(options.seed),
                    "--result",
                    result,
                ],
                env={**os.environ, "BENCHMARK_CHAT_ON": on},
            )
            started[on] = process, result
            if options.question != "dropped":
                process.wait()
        for on, (process, _) in started.items():
            if process.wait():
                raise SystemExit(f"{options.question} on {on} ended with {process.returncode}.")
        return {on: json.loads(result.read_text()) for on, (_, result) in started.items()}


def _ask(options: argparse.Namespace) -> Any:
    import django
    from django.conf import settings

    django.setup()

    # needs django.setup()
    from benchmarks.chat import beside, dropped, overload, protocols, runs, streams, turn
    from benchmarks.databases import database

    server = settings.ON.partition("-")[0]
    with database(server):
        match options.question:
            case "turn":
                return turn.ask(server, options.sizes, quick=options.quick)
            case "streams":
                few = (QUICK_STREAMS, [QUICK_STREAMS]) if options.quick else (options.streams, options.beside)
                found = streams.ask(server, few[0])
                compared = beside.ask(server, few[1]) if few[1] else None
                return {**found, "beside": compared}
            case "protocols":
                return protocols.ask(server, quick=options.quick)
            case "dropped":
                return dropped.ask(server, options.clients, options.seed)
            case "overload":
                return overload.ask(server, options.bursts)
            case "runs":
                return runs.ask(server, options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main())
