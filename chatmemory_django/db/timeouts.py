"""Reads that may take only so long: a statement that takes longer is ended by the database itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def limited(seconds: float, using: str) -> Iterator[None]:
    """
    Let the reads of the block fail with ``OperationalError`` once they take more than *seconds* in all.

    The statement that runs by then is ended on SQLite, PostgreSQL, MariaDB and MySQL; elsewhere, none begins any more.
    A read that fails leaves a transaction around the block as it was.
    """
    connection = connections[using]
    connection.ensure_connection()
    end = time.monotonic() + seconds

    def in_time(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        left = end - time.monotonic()
        if left <= 0:
            raise OperationalError(f"The reads took more than {seconds} seconds.")
        is_read = sql.lstrip("(").startswith("SELECT")
        return execute(_within(left, sql, connection) if is_read else sql, *args)

    with ExitStack() as stack:
        if connection.vendor in _LIMITS:
            stack.enter_context(_LIMITS[connection.vendor](connection, seconds))
        stack.enter_context(connection.execute_wrapper(in_time))
        yield


def _within(seconds: float, sql: str, connection: BaseDatabaseWrapper) -> str:
    """Return *sql*, a SELECT, such that MariaDB or MySQL ends it after *seconds*."""
    if connection.vendor != "mysql":
        return sql
    if connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        return f"SET STATEMENT max_statement_time={max(seconds, 0.001):.3f} FOR {sql}"
    return sql.replace("SELECT", f"SELECT /*+ MAX_EXECUTION_TIME({max(round(seconds * 1000), 1)}) */", 1)


@contextmanager
def _on_postgresql(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    setting = "set_config('statement_timeout', %s, true)"  # until the end of the transaction, not of a savepoint
    with transaction.atomic(using=connection.alias):  # which an error ends as well
        with connection.cursor() as cursor:
            limit = str(max(round(seconds * 1000), 1))
            cursor.execute(f"SELECT current_setting('statement_timeout'), {setting}", [limit])
            before, _ = cursor.fetchone()
        yield
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {setting}", [before])


@contextmanager
def _on_sqlite(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    connection.connection.set_progress_handler(lambda: time.monotonic() > end, 1_000)
    try:
        yield
    finally:
        connection.connection.set_progress_handler(None, 0)


_LIMITS: Mapping[str, Callable[[BaseDatabaseWrapper, float], Any]] = {
    "postgresql": _on_postgresql,
    "sqlite": _on_sqlite,
}
