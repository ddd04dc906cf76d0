"""
``python -m benchmarks.rest``: requests a second for a memory of 85 messages, beside a plain view and a bare one.

The database is that of ``DATABASE_URL``, by default SQLite in a new folder; in it, a test database is made.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
os.environ.setdefault("DATABASE_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'rest.sqlite3'}")
os.environ["DEBUG"] = "0"

if __name__ == "__main__":
    import django

    django.setup()

    from benchmarks.rest.measure import main  # now that Django is set up

    main()
