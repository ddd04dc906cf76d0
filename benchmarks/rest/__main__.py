"""``python -m benchmarks.rest``: requests per second for a memory of 85 messages, compared with other views.

``DATABASE_URL`` names the server, by default SQLite in a new folder; the rows are in a test database.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
os.environ.setdefault("DATABASE_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'rest.sqlite3'}")
os.environ["DEBUG"] = "0"
os.environ.setdefault("SECRET_KEY", "of a site that no one else can reach")

if __name__ == "__main__":
    import django

    django.setup()

    from benchmarks.rest.measure import main  # needs django.setup()

    main()
