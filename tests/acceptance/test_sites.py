"""The tests in ``tests.acceptance.sites`` hold on every site there, each in its own process."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.db import connection

ROOT = Path(__file__).parents[2]

SITES = ["uuid_user", "atomic_requests", "separate_database", "search", "encryption", "owner_keys"]
if connection.vendor == "sqlite":  # Databases make no difference to these.
    SITES += ["text_user", "naive_time"]
if connection.vendor == "postgresql":
    SITES += ["elsewhere", "unknown"]

OF_ENGINES = [f"tests/database/test_{name}.py" for name in ("erasing", "operations", "search_any")]

ALSO = {
    "elsewhere": ["tests/database/test_metadata.py", "tests/database/chat/runs/test_streams.py", *OF_ENGINES],
    "unknown": OF_ENGINES,  # the ORM takes a key of digits for the index of an array
    "search": [
        "tests/database/contrib/search",
        *(f"tests/database/test_{name}.py" for name in ("search", "recall", "recall_of_questions")),
    ],
    "encryption": [
        "tests/database/encryption",
        "tests/database/contrib/notes/test_sealed_notes.py",
        "tests/database/test_state_machine.py",
        "tests/database/chat/runs/test_streams.py",
    ],
}
if connection.vendor == "sqlite":  # An encrypted value is text: what else keeps it, keeps it on all databases alike.
    ALSO["encryption"] += [
        "tests/faces/contrib/adapters",
        *(f"tests/database/test_{name}.py" for name in ("branches", "django_store", "fork", "jsonl", "turns")),
    ]

SLOW = "tests/acceptance/sites/test_nothing_is_left.py"
"""It also runs with the settings of the other tests; of the sites, these keep texts elsewhere."""

WITH_SLOW = {"search", "separate_database", "owner_keys"}


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("site", SITES)
def test_the_tests_of_the_sites_pass(site):
    if site in {"encryption", "owner_keys"}:
        pytest.importorskip("cryptography")
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": f"tests.acceptance.sites.{site}"}
    url = urlsplit(os.environ.get("DATABASE_URL", ""))
    if url.scheme not in {"", "sqlite"}:  # Their test databases are files of each process.
        environment["DATABASE_URL"] = url._replace(path=f"{url.path}_{site}").geturl()

    options = [] if site in WITH_SLOW else [f"--ignore={SLOW}"]
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-m",
            "",
            "tests/acceptance/sites",
            *ALSO.get(site, []),
            *options,
        ],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
