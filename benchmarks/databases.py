"""The databases for the measurements: created for a run, dropped after it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management import call_command
from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = ("postgresql", "sqlite", "mariadb")


@contextmanager
def database(server: str, *, durable: bool = False, keep: bool = False) -> Iterator[None]:
    """Create an empty database with Django's tables on *server*, and drop it at the end unless it is to *keep*.

    Unless *durable*, PostgreSQL's commits do not wait for the disk, as SQLite's do not in WAL: the disk costs
    each subject the same, makes all ratios small, and may be busy with something else.
    """
    _drop(server)
    if server != "sqlite":
        _administrate(server, f"CREATE DATABASE {settings.DATABASE}")
    if server == "postgresql" and not durable:
        _administrate(server, f"ALTER DATABASE {settings.DATABASE} SET synchronous_commit = off")
    call_command("migrate", database=server, verbosity=0)
    try:
        yield
    finally:
        connections.close_all()
        if not keep:
            _drop(server)


def connect(server: str) -> Any:
    """Return a connection of the bare driver, in autocommit."""
    given = settings.DATABASES[server]
    if server == "sqlite":
        import sqlite3

        connection = sqlite3.connect(given["NAME"], timeout=20, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection
    return _connect(server, settings.DATABASE)


def server_version(server: str) -> str:
    """Return the version that *server* reports."""
    question = "SELECT sqlite_version()" if server == "sqlite" else "SELECT version()"
    connection = connect(server) if server == "sqlite" else _connect(server, _first_database(server))
    cursor = connection.cursor()
    cursor.execute(question)
    version = cursor.fetchone()[0]
    connection.close()
    return f"SQLite {version}" if server == "sqlite" else version.split(" on ")[0]


def settle(server: str) -> None:
    """Do now what the server would do some time after many inserts, so that it does not do it during measurements."""
    with connections[server].cursor() as cursor:
        if server == "postgresql":
            cursor.execute("VACUUM ANALYZE")
            cursor.execute("CHECKPOINT")
        elif server == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        elif server == "mariadb":
            cursor.execute("ANALYZE TABLE chatmemory_message, chatmemory_conversation")
            cursor.fetchall()
    os.sync()


def _drop(server: str) -> None:
    if server == "sqlite":
        path = Path(settings.DATABASES[server]["NAME"])
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    else:
        force = " WITH (FORCE)" if server == "postgresql" else ""
        _administrate(server, f"DROP DATABASE IF EXISTS {settings.DATABASE}{force}")


def _administrate(server: str, statement: str) -> None:
    connection = _connect(server, _first_database(server))
    connection.cursor().execute(statement)
    connection.close()


def _first_database(server: str) -> str:
    return "postgres" if server == "postgresql" else "mysql"


def _connect(server: str, name: str) -> Any:
    given = settings.DATABASES[server]
    parameters = {"host": given["HOST"], "port": int(given["PORT"]), "user": given["USER"]}
    parameters |= {"password": given["PASSWORD"]} if given["PASSWORD"] else {}
    if server == "postgresql":
        import psycopg

        return psycopg.connect(**parameters, dbname=name, autocommit=True)
    import MySQLdb

    return MySQLdb.connect(**parameters, database=name, autocommit=True, charset="utf8mb4")
