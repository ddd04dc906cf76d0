"""Another writer between any two of our statements."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection, connections

PATIENCE_SECONDS = 0.5
"""How long the other writer is waited for: whoever has the lock does not let them go on."""


class Connected(threading.Thread):
    """A thread with connections of its own, and with an error, if it met one."""

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
        """Wait for the thread, and raise its error."""
        self.join()
        if self.error is not None:
            raise self.error


class Other:
    """Somebody else, who writes once."""

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
        # With SQLite, the tests' database is in memory and has one connection; to that, nobody else can write while it
        # is in a transaction.
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
def another_writer(write: Callable[[], object], after: int) -> Iterator[None]:
    """Have somebody else *write* once *after* of our statements have run, or as soon after as our locks let them."""
    other = Other(write, after)
    with connection.execute_wrapper(other):
        yield
    other.end()


def after_the_first_statement(
    run: Callable[[], object], meanwhile: Callable[[], object], *, statement: int = 1
) -> None:
    """Run something, and something else after its first *statement*: it has read then, but not written."""
    count = 0

    def wrapper(execute, sql, params, many, context):
        nonlocal count
        result = execute(sql, params, many, context)
        count += 1
        if count == statement:
            meanwhile()
        return result

    with connection.execute_wrapper(wrapper):
        run()
    assert count >= statement


def in_another_connection(run: Callable[[], object]) -> None:
    other = Connected(run)
    other.start()
    other.end()


def set_isolation(level: str) -> None:
    """Have the present connection read at the isolation *level*; Django does not know of it."""
    sessions = "SESSION CHARACTERISTICS AS" if connection.vendor == "postgresql" else "SESSION"
    with connection.cursor() as cursor:
        cursor.execute(f"SET {sessions} TRANSACTION ISOLATION LEVEL {level}")
