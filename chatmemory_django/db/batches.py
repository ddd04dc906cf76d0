"""Long work in batches: the parts of statements and reads, and short transactions between which others write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from django.db import connections

from chatmemory_django.db.engines import queues

_T = TypeVar("_T")


def in_batches(items: Iterable[_T], size_of: Callable[[_T], int], max_size: int, max_count: int) -> Iterator[list[_T]]:
    """
    Yield *items* in lists of at most *max_count* items and *max_size* in total; an item that is larger is yielded
    alone.
    """
    batch: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) == max_count or total + size > max_size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def in_parts(items: Sequence[_T], count: int) -> Iterator[Sequence[_T]]:
    """Yield *items* in parts of at most *count* items."""
    for first in range(0, len(items), count):
        yield items[first : first + count]


@contextmanager
def taking_turns(using: str) -> Iterator[None]:
    """
    Run one of many transactions in the database *using*, so that others can write before the next one.

    SQLite has no queue: who waits asks again after a pause, and would miss the moment between two transactions. There,
    others are left twice as much time as this one took.
    """
    begun = time.monotonic()
    yield
    if not queues(connections[using]) and not connections[using].in_atomic_block:
        time.sleep(2 * (time.monotonic() - begun))
