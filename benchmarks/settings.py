"""Django's settings for the benchmarks: the same tables on every database, each under its own alias."""

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
DATABASES = {
    "default": {},  # so that what forgets to name its database fails
    "postgresql": dj_database_url.parse(f"{POSTGRESQL_URL}/{DATABASE}"),
    # Parameters apart from the statement, and statements prepared at their sixth use, psycopg's own default.
    "postgresql_binding": dj_database_url.parse(f"{POSTGRESQL_URL}/{DATABASE}")
    | {"OPTIONS": {"server_side_binding": True, "prepare_threshold": 5}},
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
