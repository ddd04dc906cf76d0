"""
Histories of a site that Hypothesis makes, sent to every vendor in turn, and what the vendors refused.

    python -m tests.acceptance.vendors --requests 10000 --seed 1

The database is a new one, a file.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random

import django

if __name__ == "__main__":
    os.environ.setdefault("DEBUG", "1")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()

from django.db import connection
from django.test.utils import setup_test_environment

from tests.acceptance.vendors.histories import Finding, Site, named_in_order
from tests.acceptance.vendors.server import vendors
from tests.acceptance.vendors.templates import has_templates


def report(site: Site, seconds: float, examples: int) -> str:
    """Return what was done, and what was found."""
    counts, found = site.vendors.counts, Counter((each.vendor, each.way, each.violation.rule) for each in site.findings)
    lines = [
        json.dumps({"requests by vendor": counts, "acts by outcome": site.outcomes}, indent=1),
        f"{counts.total()} requests in {seconds:.0f} s, {len(site.findings)} refused",
        f"SHA-256 of what was sent: {site.vendors.digest.hexdigest()}",
    ]
    if not has_templates():
        lines.append("Without templates: pip install --no-deps trl")
    for (vendor, way, rule), count in sorted(found.items()):
        lines.append(f"{count:6d}  {vendor}, {way}: {rule}")
        alike = [each for each in site.findings if (each.vendor, each.way, each.violation.rule) == (vendor, way, rule)]
        lines += [_example(each) for each in sorted(alike, key=lambda each: len(str(each.acts)))[:examples]]
    return "\n".join(lines) + "\n"


def _example(finding: Finding) -> str:
    acts = "".join(f"\n            {act[:600]}" for act in finding.acts)
    body = json.dumps(finding.body, ensure_ascii=False)[:4000]
    return f"        {finding.violation.detail[:500]}{acts}\n            sent: {body}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--examples", type=int, default=0, help="how many findings of each kind are shown in full")
    options = parser.parse_args()
    logging.disable()
    warnings.simplefilter("ignore")
    setup_test_environment()
    with tempfile.TemporaryDirectory() as folder, vendors() as server, named_in_order():
        connection.settings_dict["TEST"]["NAME"] = str(Path(folder) / "vendors.sqlite3")
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        site, began = Site(server, Path(folder)), time.monotonic()
        site.run(options.requests, options.seed)
        connection.close()
    sys.stdout.write(f"seed {options.seed}\n{report(site, time.monotonic() - began, options.examples)}")
    return int(bool(site.findings))


if __name__ == "__main__":
    sys.exit(main())
