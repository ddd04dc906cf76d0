"""Whether a database knows a time zone: MariaDB and MySQL only know UTC until their time zone tables are loaded."""

from __future__ import annotations

from django.conf import settings
from django.db import connections


def knows_time_zone(alias: str, name: str) -> bool:
    """Return whether the database *alias* can convert to the time zone *name*, if it has to."""
    connection = connections[alias]
    if connection.vendor != "mysql" or not settings.USE_TZ or name == connection.timezone_name:
        return True
    sql, params = connection.ops.datetime_cast_date_sql("%s", ("2000-01-01",), name)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {sql} IS NOT NULL", params)  # Django's own SQL, with parameters
        return bool(cursor.fetchone()[0])
