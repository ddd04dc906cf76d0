"""``python -m benchmarks.rest``: requests per second for a memory of 85 messages, compared with other views.

``DATABASE_URL`` names the server, by default SQLite in a new folder; the rows are in a test database.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
os.environ.setdefault("DATABASE_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'rest.sqlite3'}")
os.environ["DEBUG"] = "0"
os.environ.setdefault("SECRET_KEY", "of a site that no one else can reach")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rest", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    options = parser.parse_args()

    import django

    django.setup()

    # needs django.setup()
    from benchmarks.report import Report
    from benchmarks.rest.measure import main

    main(Report(writes=options.write))
