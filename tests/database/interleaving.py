"""Run another writer between any two SQL statements of the code under test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection, connections

PATIENCE_SECONDS = 0.5
"""How long to wait for the other writer, which may be blocked by a lock."""


class Connected(threading.Thread):
    """A thread with its own database connections, which records its error, if any."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as exc:  # noqa: BLE001  # raised by end()
            self.error = exc
        finally:
            connections.close_all()

    def end(self) -> None:
        """Wait for the thread and raise its error, if any."""
        self.join()
        if self.error is not None:
            raise self.error


class Other:
    """Another writer, which writes once."""

    def __init__(self, write: Callable[[], object], after: int) -> None:
        self.write = write
        self.after = after
        self.statements = 0
        self.has_begun = False
        self.thread: Connected | None = None

    def __call__(self, execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        self.statements += 1
        if self.statements >= self.after and not self.has_begun:
            self.begin()
        return result

    def begin(self) -> None:
        # In tests, SQLite's database is in memory with a single connection, so another writer cannot write while that
        # connection is in a transaction.
        if connection.vendor == "sqlite" and connection.connection.in_transaction:
            return
        self.has_begun = True
        if connection.vendor == "sqlite":
            self.write()
        else:
            self.thread = Connected(self.write)
            self.thread.start()
            self.thread.join(PATIENCE_SECONDS)

    def end(self) -> None:
        if not self.has_begun:
            self.begin()
        if self.thread is not None:
            self.thread.end()


@contextmanager
def ended_at(number: int) -> Iterator[None]:
    """End what runs inside by Ctrl-C, in place of its statement with this *number*, from 1 on; not at all for 0."""
    count = 0

    def ending(execute, *statement):
        nonlocal count
        count += 1
        if count == number:
            raise KeyboardInterrupt
        return execute(*statement)

    with connection.execute_wrapper(ending):
        yield


@contextmanager
def another_writer(write: Callable[[], object], after: int) -> Iterator[None]:
    """Run *write* as another writer after *after* statements, or as soon afterwards as locks permit."""
    other = Other(write, after)
    with connection.execute_wrapper(other):
        yield
    other.end()


def after_the_first_statement(
    run: Callable[[], object], concurrently: Callable[[], object], *, statement: int = 1
) -> None:
    """Run something else after the first *statement* of the code under test: after its read, before its write."""
    count = 0

    def wrapper(execute, sql, params, many, context):
        nonlocal count
        result = execute(sql, params, many, context)
        count += 1
        if count == statement:
            concurrently()
        return result

    with connection.execute_wrapper(wrapper):
        run()
    assert count >= statement


def in_another_connection(run: Callable[[], object]) -> None:
    other = Connected(run)
    other.start()
    other.end()


def set_isolation(level: str) -> None:
    """Set the isolation *level* of the current connection, without Django's knowledge."""
    sessions = "SESSION CHARACTERISTICS AS" if connection.vendor == "postgresql" else "SESSION"
    with connection.cursor() as cursor:
        cursor.execute(f"SET {sessions} TRANSACTION ISOLATION LEVEL {level}")
