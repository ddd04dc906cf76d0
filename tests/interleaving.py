"""Another writer between any two of our statements."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.db import connection, connections

PATIENCE_SECONDS = 0.5
"""How long the other writer is waited for: whoever has the lock does not let them go on."""


class Other:
    """Somebody else, who writes once."""

    def __init__(self, write: Callable[[], object], after: int) -> None:
        self.write = write
        self.after = after
        self.statements = 0
        self.has_begun = False
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None

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
            self.thread = threading.Thread(target=self._run)
            self.thread.start()
            self.thread.join(PATIENCE_SECONDS)

    def end(self) -> None:
        if not self.has_begun:
            self.begin()
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self.write()
        except Exception as exc:  # noqa: BLE001  # the test is told
            self.error = exc
        finally:
            connections.close_all()


@contextmanager
def another_writer(write: Callable[[], object], after: int) -> Iterator[None]:
    """Have somebody else *write* once *after* of our statements have run, or as soon after as our locks let them."""
    other = Other(write, after)
    with connection.execute_wrapper(other):
        yield
    other.end()
