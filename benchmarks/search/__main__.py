"""``python -m benchmarks.search``: see README.md."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.search.settings")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    servers = ("postgresql", "sqlite", "mariadb")
    parser.add_argument("--on", nargs="+", choices=servers, default=servers, metavar="SERVER")
    parser.add_argument("--messages", type=int, default=1_000_000, help="the number of messages to search")
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    options = parser.parse_args()

    import django

    django.setup()

    # needs django.setup()
    from benchmarks.report import Report
    from benchmarks.search import measure

    report = Report(writes=options.write)
    for server in options.on:
        measure.main(server, options.messages, report)
