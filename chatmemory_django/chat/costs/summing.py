"""
Sums the calls of models up, so that what months used is known without reading each call.

A call is added to the sums of its day once that day is over, or before it moves to another database, and then names the
run that did so: all that no run has are those that the sums do not have, whenever they were recorded. Each run adds
rows, and those of the same month, or of all owners' same day, are merged. Each step is one transaction that begins by
marking what it sums, so several may run at once, beside writers.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

from django.db import connections, router, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from chatmemory_django.chat.costs.tables import MEASURES, CallSum, ModelCall, ModelCallQuerySet, Span
from chatmemory_django.db.moments import to_moment
from chatmemory_django.db.transactions import tried_again

SUMMED_AT_ONCE = 50_000
"""How many calls one transaction adds to the sums."""

DAY = datetime.timedelta(days=1)

_DIMENSIONS: Mapping[Span, tuple[str, ...]] = {
    Span.DAY: ("owner", "purpose", "model", "outcome", "labels"),
    Span.TOTAL: ("purpose", "model", "outcome", "labels"),
    Span.MONTH: ("owner", "labels"),
}
"""What the rows of each span distinguish."""


def sum_calls(*, using: str | None = None, owner: Any = None) -> int:
    """
    Add the calls of past days to the sums, and return their number.

    Days are those of UTC or, without ``USE_TZ``, of the time zone of the site. With *owner*, the key of a user, these
    are the calls of that user alone, and those of today, too, which can then move to another database with their sums.
    Until the day is over, what is asked for a period that has ended earlier today counts all of them.
    """
    using = using or router.db_for_write(ModelCall)
    calls = ModelCall.objects.using(using)
    if owner is None:
        calls = calls.filter(created_at__lt=midnight(datetime.datetime.now(datetime.UTC)))
    else:
        calls = calls.filter(owner=owner)
    moments = calls.filter(summed=None).order_by("created_at").values_list("created_at", flat=True)
    waiting, count, days = moments, 0, set()
    while (first := waiting.first()) is not None:
        begin = midnight(first)
        following = waiting[SUMMED_AT_ONCE : SUMMED_AT_ONCE + 1]
        end = min([begin + DAY, *(max(each, first + datetime.timedelta.resolution) for each in following)])
        part = calls.filter(created_at__gte=first, created_at__lt=end)
        count += tried_again(using, partial(_add, part, begin.date()))
        days.add(begin.date())
        waiting = moments.filter(created_at__gte=end)
    for day in days:
        tried_again(using, partial(_merge, using, Span.TOTAL, day))
    for month in {day.replace(day=1) for day in days}:
        tried_again(using, partial(_merge, using, Span.MONTH, month))
    return count


def midnight(moment: datetime.datetime) -> datetime.datetime:
    """Return the beginning of the day of *moment*, as columns hold it: in UTC or, without ``USE_TZ``, naive."""
    moment = to_moment(moment)
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC)
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _add(calls: ModelCallQuerySet, day: datetime.date) -> int:
    """Add those of *calls* that no run has to the sums; they are all of *day*."""
    run = _new_run()
    with transaction.atomic(using=calls.db):
        count = calls.filter(summed=None).update(summed=run)
        if count:
            for span in Span:
                _insert(span, day.replace(day=1) if span == Span.MONTH else day, run, calls.filter(summed=run))
    return count


def _merge(using: str, span: Span, begin: datetime.date) -> None:
    """Replace the rows of several runs by their sums."""
    rows = CallSum.objects.using(using).filter(span=span, begin=begin)
    if rows.order_by().values("run").distinct().count() < 2:
        return
    old, new = _new_run(), _new_run()
    with transaction.atomic(using=using):
        rows.update(run=old)
        _insert(span, begin, new, rows.filter(run=old))
        rows.filter(run=old).delete()


def add_sum(span: Span, columns: Mapping[str, Any], using: str) -> None:
    """Add the *columns* of a sum of a day, moved from another site, to that of the same *span* and dimensions."""
    begin = columns["begin"].replace(day=1) if span == Span.MONTH else columns["begin"]
    dimensions = {name: columns[name] for name in _DIMENSIONS[span]}
    rows = CallSum.objects.using(using)
    same = rows.filter(span=span, begin=begin, **{name: dimensions[name] for name in dimensions if name != "labels"})
    # A day's own sum has a row for each run, by which it is known.
    keys = [row.pk for row in same.order_by("pk") if row.labels == dimensions["labels"] and span != Span.DAY]
    added = {name: Coalesce(F(name), 0) + columns[name] for name in MEASURES if columns[name] is not None}
    if not keys or not rows.filter(pk=keys[0]).update(**added):  # a run may have replaced it in the meantime
        measures = {name: columns[name] for name in MEASURES}
        owner = {"owner_id": dimensions.pop("owner")} if "owner" in dimensions else {}
        rows.create(span=span, begin=begin, run=columns["run"], **owner, **dimensions, **measures)


def _insert(span: Span, begin: datetime.date, run: int, rows: Any) -> None:
    """Store the sums of *rows*, calls or sums, as SQL: the ORM has no INSERT … SELECT."""
    dimensions = _DIMENSIONS[span]
    summed: QuerySet[Any] = rows.sums(**{f"by_{each}": F(each) for each in dimensions})
    connection = connections[rows.db]
    sql, parameters = summed.query.get_compiler(rows.db).as_sql()
    name = connection.ops.quote_name
    given: dict[str, Any] = {"span": span.value, "begin": begin, "run": run}
    given |= {each: "" for each in ("purpose", "model", "outcome") if each not in dimensions}
    fields: list[Any] = [CallSum._meta.get_field(each) for each in (*given, *dimensions, *MEASURES)]
    columns = ", ".join(name(field.column) for field in fields)
    values = ", ".join(["%s"] * len(given))
    table = name(CallSum._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({columns}) SELECT {values}, summed.* FROM ({sql}) summed",  # noqa: S608  # names of models
            [*given.values(), *parameters],
        )


def _new_run() -> int:
    return secrets.randbits(62)
