"""Moments as database columns hold them, and whether a database can convert them to a time zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models.functions import Now
from django.utils import timezone

from chatmemory_django.db.engines import Dialect, dialect

EARLIEST = datetime(1000, 1, 2, tzinfo=UTC)
"""Earlier than any stored moment: every database supports moments from here on, in any time zone."""

LATEST = datetime(9999, 12, 30, tzinfo=UTC)
"""Databases and time zones support moments from ``EARLIEST`` to this one; others are replaced by the nearest."""


class DatabaseNow(Now):
    """
    The current moment by the database's clock, to be compared with such moments only.

    It is in UTC even without ``USE_TZ``, so that it does not jump with daylight saving time.
    """

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **extra: Any) -> Any:  # as Django's
        spoken = dialect(connection)
        if spoken is Dialect.POSTGRESQL:
            zone = "" if settings.USE_TZ else " AT TIME ZONE 'UTC'"
            extra["template"] = f"(STATEMENT_TIMESTAMP(){zone})"
        elif spoken is Dialect.MYSQL:
            extra["template"] = "UTC_TIMESTAMP(6)"
        return super().as_sql(compiler, connection, *args, **extra)


def to_moment(moment: datetime) -> datetime:
    """Return the aware *moment* as this site's database columns take it: without ``USE_TZ``, naive in its time zone."""
    if settings.USE_TZ or timezone.is_naive(moment):
        return moment
    return timezone.make_naive(moment, timezone.get_default_timezone())


def aware(moment: datetime) -> datetime:
    """Return the *moment* of a database column as an aware one: naive moments are in the site's default time zone."""
    return timezone.make_aware(moment, timezone.get_default_timezone()) if timezone.is_naive(moment) else moment
