"""What ``prune_chatmemory`` does with calls of models."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from chatmemory_django.chat.costs.calls import prune_calls
from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.models.copies import Pruning


def _sum(using: str, asked: bool, *, dry_run: bool) -> Iterator[str]:
    if not dry_run:
        count = sum_calls(using=using)
        if asked:
            yield f"Summed up {count:,} calls."


def _delete(using: str, asked: timedelta | None, *, dry_run: bool) -> Iterator[str]:
    if asked is not None:
        count = prune_calls(asked, using=using, dry_run=dry_run)
        yield f"{'Would have deleted' if dry_run else 'Deleted'} the records of {count:,} calls."


PRUNINGS = (
    Pruning(
        _sum,
        "--sum-calls",
        "Sum up the calls of past days, so that what months used is read quickly. This is always done; with this "
        "option alone, nothing else is.",
    ),
    Pruning(
        _delete,
        "--calls-older-than",
        "Delete the records of what models used in calls more than this many days ago.",
        takes_days=True,
    ),
)
