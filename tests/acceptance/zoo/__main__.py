"""Make all visits to one site, in this process: ``python -m tests.acceptance.zoo NAME``; print what failed as JSON."""

import json
import sys
import tempfile
from typing import Any

import dj_database_url
import django
from django.conf import settings

from tests.acceptance.zoo.sites import SITES


def database(name: str, folder: str) -> dict[str, Any]:
    """Return a database of the site's own, on the server of ``DATABASE_URL``; without that, an SQLite file."""
    found: dict[str, Any] = dict(dj_database_url.config(default=f"sqlite:///{folder}/site.sqlite3"))
    if found["ENGINE"].endswith("sqlite3"):
        # Nothing waits for the disk: no test database outlives a crash of the machine.
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"
        found["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": pragmas}
        found["TEST"] = {"NAME": f"{folder}/test.sqlite3"}
    else:
        found["TEST"] = {"NAME": f"zoo_{name}"}
    return found


def main(name: str) -> int:
    site = SITES[name]
    with tempfile.TemporaryDirectory() as folder:
        default = {**database(name, folder), "ATOMIC_REQUESTS": site.settings.get("ATOMIC_REQUESTS", False)}
        settings.configure(**site.configured(DATABASES={"default": default}, STATIC_ROOT=f"{folder}/static"))
        django.setup()
        from django.core.management import call_command
        from django.db import connection, connections
        from django.test.utils import setup_test_environment

        from tests.acceptance.zoo.visits import failures

        setup_test_environment()
        if "STORAGES" in site.settings:  # whose names of static files are those of a manifest
            call_command("collectstatic", interactive=False, verbosity=0)
        connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            found = failures(site)
        finally:
            connections.close_all()
            connection.creation.destroy_test_db(default["NAME"], verbosity=0)
    json.dump(found, sys.stdout, indent=1)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
