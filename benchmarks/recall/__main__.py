"""``python -m benchmarks.recall``: see README.md."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.search.settings")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description=__doc__)
    servers = ("postgresql", "sqlite", "mariadb")
    parser.add_argument("--data", type=Path, help="a file of LoCoMo or LongMemEval; by default, a set of our own")
    parser.add_argument("--on", nargs="+", choices=servers, default=servers, metavar="SERVER")
    parser.add_argument("--every", type=int, default=1, help="ask every Nth question of a person")
    parser.add_argument("--conversations", type=int, help="so many conversations of one person")
    parser.add_argument("--embed", metavar="FUNCTION", help="the path of a function that returns vectors of texts")
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    options = parser.parse_args()

    import django

    django.setup()

    # needs django.setup()
    from django.core.management import call_command
    from django.utils.module_loading import import_string

    from benchmarks.databases import database, settle
    from benchmarks.recall import measure
    from benchmarks.recall.people import OWN, as_one, people
    from benchmarks.report import Report
    from chatmemory_django.models import finding

    report = Report(writes=options.write)
    index = finding.index
    asking = [*people(options.data or OWN)]
    of = "own" if options.data is None else "locomo" if len(asking[0].questions) > 1 else "longmemeval"
    for person in asking:
        person.questions = person.questions[:: options.every]
    if options.conversations is not None:
        asking, of = [as_one(asking, options.conversations)], "large"
    for server in options.on:
        with database(server):
            stored = measure.store(asking, server)
            settle(server)
            ways = measure.ways(server)
            if options.embed:
                ways |= measure.by_meaning(stored, import_string(options.embed), ways["any of the words"])
            found = [f"With the index:\n\n{measure.measured(stored, ways)}"]
            call_command("migrate", "chatmemory_search", "zero", database=server, verbosity=0)
            finding.index = None
            found.append(f"Without it:\n\n{measure.measured(stored, ways)}")
            finding.index = index
        report.section(f"recall-{of}-{server}", "\n\n".join(found))
