"""Django's settings for the benchmarks: the same tables on every database, and a connection for each subject."""

import os
import tempfile
from pathlib import Path

import dj_database_url

DATABASE = os.environ.get("BENCHMARK_DATABASE", "benchmarks")
FOLDER = Path(os.environ.get("BENCHMARK_FOLDER", Path(tempfile.gettempdir()) / "chatmemory-benchmarks"))
ENCODINGS = FOLDER / "encodings"
POSTGRESQL_URL = os.environ.get("BENCHMARK_POSTGRESQL", "postgres://postgres@127.0.0.1:5432")
MARIADB_URL = os.environ.get("BENCHMARK_MARIADB", "mysql://root@127.0.0.1:3306")

SECRET_KEY = "nothing here is secret"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory_django"]
USE_TZ = True
SERVERS = {
    "postgresql": dj_database_url.parse(f"{POSTGRESQL_URL}/{DATABASE}"),
    "mariadb": dj_database_url.parse(f"{MARIADB_URL}/{DATABASE}"),
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / f"{DATABASE}.sqlite3",
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    },
}
# The names of the subjects that use Django's connections. Each has its own: a server process that has just worked
# for one is warm for the next.
SUBJECTS = ("limit_django", "ours", "ours_turn", "original")
DATABASES = {
    "default": {},  # so that code which does not name its database fails
    **SERVERS,
    **{f"{server}_{subject}": SERVERS[server] for server in SERVERS for subject in SUBJECTS},
    # Parameters apart from the statement, and statements prepared at their sixth use, psycopg's own default.
    **dict.fromkeys(
        ("postgresql_ours_binding", "postgresql_ours_turn_binding"),
        SERVERS["postgresql"] | {"OPTIONS": {"server_side_binding": True, "prepare_threshold": 5}},
    ),
}
