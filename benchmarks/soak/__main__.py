"""``python -m benchmarks.soak``: see README.md."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.soak.servers import SERVERS

if TYPE_CHECKING:
    from types import FrameType


os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.soak.settings")


def main() -> int:
    """Soak each of the databases that the command line names; return 1 if there were findings."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="minutes for each database (default: 5)")
    length.add_argument("--seconds", type=float, help="seconds for each database")
    parser.add_argument("--databases", type=_names, default=list(SERVERS), help=f"of {','.join(SERVERS)}")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--calm", action="store_true", help="do not kill workers or servers, nor cut connections")
    parser.add_argument("--encrypted", action="store_true", help="install the app that encrypts texts")
    parser.add_argument("--logs", type=Path, help="folder for the logs of workers, servers and triggers")
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    parser.add_argument("--orders", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.orders:
        return _work(options.orders)
    seconds = options.seconds or 60 * (options.minutes or 5)
    # Whatever was started is stopped in any case.
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)  # the servers run as users of their own
        servers = []
        for name in options.databases:
            (folder / name).mkdir()
            servers.append(SERVERS[name](folder / name))
        os.environ["SOAK_DATABASES"] = json.dumps({"default": {}, **{each.name: each.plain() for each in servers}})
        if options.encrypted:
            os.environ["SOAK_ENCRYPTED"] = "1"
        import django

        django.setup()
        from benchmarks.report import Report
        from benchmarks.soak.soaking import Soaking, conclude

        report = Report(writes=options.write)
        print(f"seed {options.seed}", flush=True)
        soakings = [
            Soaking(server, seconds, options.processes, options.seed, disturbed=not options.calm, logs=options.logs)
            for server in servers
        ]
        for soaking in soakings:
            soaking.run()
    return conclude(soakings, report)


def _work(orders: str) -> int:
    import django
    import msgspec

    django.setup()
    from benchmarks.soak.worker import Orders, Worker

    Worker(msgspec.json.decode(orders, type=Orders)).run()
    return 0


def _names(value: str) -> list[str]:
    names = value.split(",")
    if wrong := set(names) - set(SERVERS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(wrong))}: choose from {', '.join(SERVERS)}.")
    return names


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Stopped, with everything that the soak had started.")
