"""Retries of transactions that the database aborted because of another one: nothing of them was written."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, IntegrityError, connections

DEADLOCKS = frozenset({"40001", "40P01", 1213, 1020})
"""Error codes of PostgreSQL and MySQL for a deadlock, or for a row that another transaction has changed."""

DUPLICATES = frozenset({"23505", 1062, "SQLITE_CONSTRAINT_UNIQUE"})
"""Error codes of PostgreSQL, MySQL and SQLite for a row that is there already."""

MAX_ATTEMPTS = 16
"""The maximum number of attempts."""

MAX_PAUSE = 0.1
"""The longest wait before the next attempt, in seconds."""

_T = TypeVar("_T")


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
