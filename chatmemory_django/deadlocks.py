"""Transactions that the database ended because of another: nothing of them is written, so they can be tried again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, connections

DEADLOCKS = frozenset({"40001", "40P01", 1213, 1020})
"""What PostgreSQL and MySQL call it: a deadlock, or a state that another has changed."""

MAX_ATTEMPTS = 16
"""How often a transaction is tried."""

MAX_PAUSE = 0.1
"""Seconds to wait at most before the next attempt."""

_T = TypeVar("_T")


def _is_deadlock(error: DatabaseError) -> bool:
    """Whether *error* ended a transaction because of another."""
    return getattr(error.__cause__, "sqlstate", None) in DEADLOCKS or (error.args or [None])[0] in DEADLOCKS


def _pause(attempt: int) -> None:
    """Wait before the attempt after this one, so that the same two do not meet again."""
    time.sleep(random.uniform(0, min(MAX_PAUSE, 0.001 * 2**attempt)))  # noqa: S311  # no secret


def tried_again(using: str, do: Callable[[], _T]) -> _T:
    """Return what *do*, a transaction in the database *using*, returns; do it again where a deadlock ended it."""
    for attempt in range(1, MAX_ATTEMPTS):
        try:
            return do()
        except DatabaseError as exc:
            if connections[using].in_atomic_block or not _is_deadlock(exc):
                raise
        _pause(attempt)
    return do()
