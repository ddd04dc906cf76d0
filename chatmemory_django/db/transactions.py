"""
What a transaction has to know of others: that it is tried again if one has aborted it, and what it sees of them.

On MySQL, a connection does not always see what is there, and at times what never was.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from chatmemory_django.db.engines import Dialect, dialect

DEADLOCKS = frozenset({"40001", "40P01", 1213, 1020})
"""Error codes of PostgreSQL and MySQL for a deadlock, or for a row that another transaction has changed."""

DUPLICATES = frozenset({"23505", 1062, "SQLITE_CONSTRAINT_UNIQUE"})
"""Error codes of PostgreSQL, MySQL and SQLite for a row that is there already."""

MAX_ATTEMPTS = 16
"""The maximum number of attempts."""

MAX_PAUSE = 0.1
"""The longest wait before the next attempt, in seconds."""

_T = TypeVar("_T")
_Q = TypeVar("_Q", bound=QuerySet[Any])


def sees_otherwise(connection: BaseDatabaseWrapper) -> bool:
    """
    Return whether a plain SELECT may see a state of a conversation that never existed.

    Of MySQL's isolation levels, REPEATABLE READ shows a transaction its own writes as they are now, and everything else
    as it was at its first read; READ UNCOMMITTED shows changes that are never committed.
    """
    if dialect(connection) is not Dialect.MYSQL:
        return False
    connection.ensure_connection()  # which sets what it asks for
    level = connection.isolation_level  # type: ignore[attr-defined]
    return level == "read uncommitted" or (connection.in_atomic_block and level != "read committed")


def sees_committed(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a SELECT sees only what is committed, and cannot be rolled back: outside of a transaction."""
    return connection.get_autocommit() and not connection.in_atomic_block and not sees_otherwise(connection)


class _Note:
    """What a transaction would call at its commit. That, or a rollback to before it, drops the only reference to it."""

    def __call__(self) -> None:
        """Do nothing."""


_notes: WeakValueDictionary[tuple[int, Hashable], _Note] = WeakValueDictionary()


def note(connection: BaseDatabaseWrapper, what: Hashable) -> None:
    """Note *what* of the transaction of *connection*, which is so until its end."""
    if not is_noted(connection, what):
        _notes[id(connection), what] = noted = _Note()
        transaction.on_commit(noted, using=connection.alias)


def is_noted(connection: BaseDatabaseWrapper, what: Hashable) -> bool:
    """Return whether *what* was noted of the transaction of *connection*."""
    return (id(connection), what) in _notes


def note_lock(connection: BaseDatabaseWrapper, key: str) -> None:
    """Note that the transaction of *connection* has locked the conversation *key*, if its reads depend on that."""
    if sees_otherwise(connection):
        note(connection, ("locked", key))


def has_locked(connection: BaseDatabaseWrapper, key: str) -> bool:
    """
    Return whether the transaction of *connection* has locked the conversation *key*, and may have written to it.

    Then a plain SELECT may mix what it has written with what others had written before its first read. One that locks
    returns all as it is now, and waits for nobody.
    """
    return is_noted(connection, ("locked", key))


def as_now(rows: _Q) -> _Q:
    """
    Return *rows*, of a conversation that the transaction has locked, to be read as they are now.

    On MySQL, a plain SELECT would return them as the transaction has seen them before; one that locks does not.
    """
    return rows.select_for_update() if dialect(connections[rows.db]) is Dialect.MYSQL else rows


def _is_deadlock(error: DatabaseError) -> bool:
    """Return whether *error* aborted a transaction because of another one."""
    return getattr(error.__cause__, "sqlstate", None) in DEADLOCKS or (error.args or [None])[0] in DEADLOCKS


def is_duplicate(error: IntegrityError) -> bool:
    """Return whether *error* refused a row because of another one with the same key."""
    cause = error.__cause__
    codes = {getattr(cause, "sqlstate", None), getattr(cause, "sqlite_errorname", None), (error.args or [None])[0]}
    return not codes.isdisjoint(DUPLICATES)


def _pause(attempt: int) -> None:
    """Wait a random time before the next attempt, so that the same two transactions do not collide again."""
    time.sleep(random.uniform(0, min(MAX_PAUSE, 0.001 * 2**attempt)))  # noqa: S311  # not a secret


def tried_again(using: str, do: Callable[[], _T]) -> _T:
    """Return what *do*, a transaction in the database *using*, returns; retry it if another transaction aborted it."""
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return do()
        except DatabaseError as exc:
            if connections[using].in_atomic_block or not _is_deadlock(exc):
                raise
        _pause(attempt)
    return do()
