"""What calls of models used and cost, by day, model, conversation, user or purpose."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from django.db.models import Count, F, Q, Sum
from django.db.models.expressions import Combinable
from django.db.models.functions import TruncDate

from chatmemory_django.core.usage import COST_PLACES
from chatmemory_django.models import Conversation, ModelCallQuerySet

By: TypeAlias = Literal["day", "model", "conversation", "user", "purpose"]

BY: tuple[By, ...] = ("day", "model", "conversation", "user", "purpose")

_KEYS: dict[By, Combinable] = {
    "day": TruncDate("created_at", tzinfo=datetime.UTC),
    "model": F("model"),
    "conversation": F("conversation"),
    "user": F("owner"),
    "purpose": F("purpose"),
}


class Usage(NamedTuple):
    """
    What the calls of a day, a model, a conversation, a user or a purpose used.

    *key* is a day, in UTC or, without ``USE_TZ``, in the time zone of the site; the name of a model; a memory id; the
    primary key of a user as text; or a purpose. It is None for calls whose conversation or owner was erased, or that
    had none.
    """

    key: str | None
    calls: int
    """How many there were, failed and cancelled ones included."""
    uncounted: int
    """How many of them have no counts, because the model reported none."""
    input: int
    cached_input: int
    """The part of the input that was cached."""
    output: int
    reasoning: int
    """The part of the output that was thinking."""
    cost: Decimal | None
    """The total of the calls that have a cost; None if none has."""


def usage(
    calls: ModelCallQuerySet,
    by: By,
    *,
    since: datetime.datetime,
    until: datetime.datetime,
    limit: int,
    offset: int = 0,
) -> Iterator[Usage]:
    """
    Yield what *calls* used that began at *since* or later, and before *until*, aware datetimes.

    These are at most *limit* entries after the first *offset*. Days come latest first, all others with the most tokens
    first. A call of a model has one record, so answers that were generated again, failed or removed count as well.
    """
    rows = calls.between(since, until).order_by().values(key=_KEYS[by])
    summed = rows.annotate(
        calls=Count("pk"),
        uncounted=Count("pk", filter=Q(input_tokens=None)),
        input=Sum("input_tokens", default=0),
        cached_input=Sum("cached_input_tokens", default=0),
        output=Sum("output_tokens", default=0),
        reasoning=Sum("reasoning_tokens", default=0),
        total_cost=Sum("cost"),
    )
    order = ["-key"] if by == "day" else [(F("input") + F("output")).desc(), "-calls", "key"]
    fields = ("key", "calls", "uncounted", "input", "cached_input", "output", "reasoning", "total_cost")
    found = list(summed.order_by(*order).values_list(*fields)[offset : offset + limit])
    names = _memory_ids(calls, [key for key, *_ in found]) if by == "conversation" else None
    for key, *counts, cost in found:
        name = key if names is None else names.get(key)
        # SQLite adds floats.
        sums = (*counts, None if cost is None else round(cost, COST_PLACES))
        yield Usage(None if name is None else str(name), *sums)


def _memory_ids(calls: ModelCallQuerySet, keys: list[int | None]) -> dict[int | None, str]:
    """Return the memory ids of the conversations *keys*: looked up for these alone, not for all that are summed."""
    rows = Conversation.objects.using(calls.db).filter(pk__in=[key for key in keys if key is not None])
    return dict(rows.values_list("pk", "memory_id"))
