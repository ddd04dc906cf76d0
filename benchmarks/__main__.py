"""``python -m benchmarks QUESTION…``: see README.md."""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

QUESTIONS = ("disk", "leanest", "turn", "flat", "add", "read", "window", "threads", "memory", "startup")


def main() -> None:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("questions", nargs="+", choices=(*QUESTIONS, "all"), metavar="QUESTION", help=str(QUESTIONS))
    parser.add_argument("--on", nargs="+", choices=("postgresql", "sqlite", "mariadb"), metavar="SERVER")
    parser.add_argument("--sizes", nargs="+", type=int, default=(), help="lengths of history, for turn, add and read")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: for debugging, not for figures")
    parser.add_argument("--without-peers", action="store_true", help="only this package and the limit")
    parser.add_argument("--write", action="store_true", help="write tables and plots to this folder")
    parser.add_argument("--durable", action="store_true", help="have PostgreSQL wait for the disk at each commit")
    parser.add_argument("--keep", action="store_true", help="do not drop the databases at the end")
    options = parser.parse_args()
    asked = QUESTIONS if "all" in options.questions else options.questions

    import django
    from django.conf import settings

    os.environ["TIKTOKEN_CACHE_DIR"] = str(settings.ENCODINGS)  # for the peers, which have no other option
    django.setup()

    # needs django.setup()
    from benchmarks import footprint, leanest, questions, threads
    from benchmarks.databases import SERVERS, database
    from benchmarks.histories import prepare
    from benchmarks.report import Report
    from chatmemory_django.tokens.encodings import write_cache

    settings.ENCODINGS.mkdir(parents=True, exist_ok=True)
    if not any(settings.ENCODINGS.iterdir()):
        write_cache(settings.ENCODINGS)
    report = Report(writes=options.write)
    servers = options.on or SERVERS
    report.machine(servers)
    modules = {"threads": threads, "disk": footprint, "leanest": leanest}
    for server in servers:
        wanted = [name for name in QUESTIONS if name in asked and name != "startup"]
        if not wanted:
            break
        with database(server, durable=options.durable, keep=options.keep):
            prepare(server)
            bench = questions.Bench(server, report, options.quick, not options.without_peers, options.sizes)
            for name in wanted:
                begun = time.perf_counter()
                getattr(modules.get(name, questions), name)(bench)
                print(f"({name} on {server}: {time.perf_counter() - begun:.0f} s)", flush=True)
            bench.close()
    if "startup" in asked:
        footprint.startup(report, quick=options.quick)


if __name__ == "__main__":
    main()
