"""Many short transactions one after another, between which others write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections


@contextmanager
def taking_turns(using: str) -> Iterator[None]:
    """
    Run one of many transactions in the database *using*, so that others can write before the next one.

    SQLite has no queue: who waits asks again after a pause, and would miss the moment between two transactions. There,
    others are left twice as much time as this one took.
    """
    begun = time.monotonic()
    yield
    if connections[using].vendor == "sqlite" and not connections[using].in_atomic_block:
        time.sleep(2 * (time.monotonic() - begun))
