"""What calls of models used and cost, by day, model, conversation, user, purpose, outcome or label."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import F, Lookup
from django.db.models.expressions import Combinable
from django.db.models.functions import TruncDate
from django.db.models.lookups import Exact

from chatmemory_django.chat.conf import COST_PLACES
from chatmemory_django.chat.costs.labels import label_in
from chatmemory_django.chat.costs.summing import DAY, midnight
from chatmemory_django.chat.costs.tables import (
    MEASURES,
    CallSum,
    CallSumQuerySet,
    LabelValue,
    ModelCall,
    ModelCallQuerySet,
    Span,
)
from chatmemory_django.db.moments import to_moment
from chatmemory_django.models import Conversation

By: TypeAlias = Literal["day", "model", "conversation", "user", "purpose", "outcome"] | str
"""What calls are grouped by: one of ``BY``, or a label of the site, for example ``"label:tenant"``."""

BY: tuple[By, ...] = ("day", "model", "conversation", "user", "purpose", "outcome")

_KEYS: dict[By, Combinable] = {
    "day": TruncDate("created_at", tzinfo=datetime.UTC),
    "model": F("model"),
    "conversation": F("conversation"),
    "user": F("owner"),
    "purpose": F("purpose"),
    "outcome": F("outcome"),
}

_KEYS_OF_SUMS: dict[By, Combinable] = {**_KEYS, "day": F("begin")}


class Usage(NamedTuple):
    """
    What the calls of a day, a model, a conversation, a user, a purpose, an outcome or a label used.

    *key* is a day, in UTC or, without ``USE_TZ``, in the time zone of the site; the name of a model; a memory id; the
    primary key of a user as text; a purpose; an outcome; or the value of the label. It is None for calls whose
    conversation or owner was erased, or that had none, and for those without the label.
    """

    key: str | None
    calls: int
    """How many there were, failed and cancelled ones included."""
    failed: int
    uncounted: int
    """How many of them have no counts: they were refused, or nothing is known of what was sent."""
    unpriced: int
    """How many of them have no cost."""
    input: int
    cached_input: int
    """The part of the input that was read from the vendor's cache."""
    cache_write: int
    """The part of the input that was written to it."""
    cache_write_1h: int
    """The part of what was written that is kept for an hour."""
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
    labels: Mapping[str, str] | None = None,
) -> Iterator[Usage]:
    """
    Yield what *calls* used that began at *since* or later, and before *until*, aware datetimes.

    With *labels*, these are the calls that have all of them.

    These are at most *limit* entries after the first *offset*. Days come latest first, all others with the most tokens
    first. A call of a model has one record, so answers that were generated again, failed or removed count as well.

    Of all calls, and of those that are filtered by their ``owner`` alone, past days are read from their sums, which
    outlive the calls; by conversation, or filtered in another way, each call is read.

    Raises:
        ValueError: *by* is none of these.

    """
    if by not in BY and label_in(by) is None:
        raise ValueError(f"by must be one of {', '.join(BY)}, or a label like 'label:tenant', not {by!r}.")
    tokens = "SUM(sum_of_input) + SUM(sum_of_output) DESC, SUM(sum_of_calls) DESC, key0"
    order = "key0 DESC" if by == "day" else tokens
    found = _read(calls, [by], since, until, f"ORDER BY {order} LIMIT %s OFFSET %s", [limit, offset], labels)
    keys = [key for key, *_ in found]
    names = _names(calls, by, keys)
    for key, *counts, cost in found:
        # SQLite adds floats.
        total = None if cost is None else round(Decimal(str(cost)), COST_PLACES)
        yield Usage._make([names.get(key), *map(int, counts), total])


def tokens_by_day(
    calls: ModelCallQuerySet, *, since: datetime.datetime, until: datetime.datetime
) -> Iterator[tuple[datetime.date, str, int]]:
    """Yield each day with each model, and how many tokens of input and output *calls* used then; see ``usage``."""
    for day, model, *counts in _read(calls, ["day", "model"], since, until):
        numbers = dict(zip(MEASURES, counts, strict=True))
        yield datetime.date.fromisoformat(str(day)), model, int(numbers["input"] + numbers["output"])


def selects(
    calls: ModelCallQuerySet,
    by: Sequence[By],
    since: datetime.datetime,
    until: datetime.datetime,
    labels: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield SQL, and its parameters, that together select the sums of the ``MEASURES`` of *calls*; see ``usage``."""
    having: Any = [Exact(LabelValue(name), value) for name, value in (labels or {}).items()]
    for part in _parts(calls, by, since, until):
        keys = {f"key{number}": _key(each, part) for number, each in enumerate(by)}
        with suppress(EmptyResultSet):
            yield part.filter(*having).sums(**keys).query.get_compiler(calls.db).as_sql()


def _key(by: By, rows: ModelCallQuerySet | CallSumQuerySet) -> Combinable:
    name = label_in(by)
    if name is not None:
        return LabelValue(name)
    return (_KEYS if rows.model is ModelCall else _KEYS_OF_SUMS)[by]


def _read(
    calls: ModelCallQuerySet,
    by: Sequence[By],
    since: datetime.datetime,
    until: datetime.datetime,
    order: str = "",
    parameters: Sequence[Any] = (),
    labels: Mapping[str, str] | None = None,
) -> list[tuple[Any, ...]]:
    """Return the keys and the measures of *calls*, as one statement reads them; the ORM does not sum up a union."""
    found = list(selects(calls, by, since, until, labels))
    if not found:
        return []
    keys_read = ", ".join(f"key{number}" for number in range(len(by)))
    measures = ", ".join(f"SUM(sum_of_{each})" for each in MEASURES)
    # For MariaDB, as the ORM orders each.
    union = " UNION ALL ".join(f"SELECT part.* FROM ({select}) part" for select, _ in found)  # noqa: S608  # the ORM's
    values = [value for _, of_select in found for value in of_select]
    with connections[calls.db].cursor() as cursor:
        cursor.execute(
            f"SELECT {keys_read}, {measures} FROM ({union}) parts GROUP BY {keys_read} {order}",  # noqa: S608  # names
            [*values, *parameters],
        )
        return list(cursor.fetchall())


def _parts(
    calls: ModelCallQuerySet, by: Sequence[By], since: datetime.datetime, until: datetime.datetime
) -> Iterator[ModelCallQuerySet | CallSumQuerySet]:
    """Yield calls and sums of calls that together are *calls* of the period, each of them once."""
    owners, today = _owners(calls), midnight(datetime.datetime.now(datetime.UTC))
    begin, until_moment = to_moment(since), to_moment(until)
    first, end = midnight(since), midnight(until)
    first += DAY if first < begin else datetime.timedelta()
    if owners is None or "conversation" in by or first >= min(end, today):
        yield calls.between(since, until)
        return
    last = end.date()
    if begin < first:
        yield calls.filter(created_at__gte=begin, created_at__lt=first)
    if end < today and end < until_moment:
        yield calls.filter(created_at__gte=end, created_at__lt=until_moment)
    elif end >= today:  # all sums after the first day count: there are none of what began later
        last, end = datetime.date.max, until_moment
    # With an owner, SQLite would take the index of the calls that are not summed, which may be all of everybody's.
    waiting = calls.exclude(summed__isnull=False) if owners else calls.filter(summed=None)
    yield waiting.filter(created_at__gte=first, created_at__lt=end)
    day = first.date()
    sums = CallSum.objects.using(calls.db).filter(**owners)
    if not owners and "user" not in by:
        yield sums.filter(span=Span.TOTAL).within(day, last)
        return
    month = (day.replace(day=1) + 31 * DAY).replace(day=1) if day.day > 1 else day
    after = last if last == datetime.date.max else last.replace(day=1)
    if not owners and month < after:
        yield sums.filter(span=Span.DAY).within(day, month)
        yield sums.filter(span=Span.MONTH).within(month, after)
        day = after
    if day < last:
        yield sums.filter(span=Span.DAY).within(day, last)


def _owners(calls: ModelCallQuerySet) -> dict[str, Any] | None:
    """Return the conditions on the owner that *calls* meet; None if there are others."""
    field = ModelCall._meta.get_field("owner")
    found: dict[str, Any] = {}
    conditions: Any = calls.query.where.children
    for condition in conditions:
        is_about_owner = isinstance(condition, Lookup) and getattr(condition.lhs, "target", None) is field
        if not is_about_owner or (name := f"owner__{condition.lookup_name}") in found:
            return None
        found[name] = condition.rhs
    return None if calls.query.where.negated or calls.query.where.connector != "AND" else found


def _names(calls: ModelCallQuerySet, by: By, keys: list[Any]) -> dict[Any, str | None]:
    """Return the names of *keys*; the memory ids are looked up for these alone, not for all that are summed."""
    if by == "conversation":
        rows = Conversation.objects.using(calls.db).filter(pk__in=[key for key in keys if key is not None])
        return dict(rows.values_list("pk", "memory_id"))
    if by == "user":
        owner: Any = ModelCall._meta.get_field("owner")
        return {key: owner.to_key(key) for key in keys}
    return {key: None if key is None else str(key) for key in keys}
