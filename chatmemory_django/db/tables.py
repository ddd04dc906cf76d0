"""Which databases have the table of a model, whatever a router decides, and what tables lack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import connections
from django.db.models import Model


def has_table(model: type[Model], using: str) -> bool:
    """Return whether the database *using* has the table of *model*."""
    with connections[using].cursor() as cursor:
        return model._meta.db_table in connections[using].introspection.table_names(cursor)


def databases_with(model: type[Model]) -> list[str]:
    """Return the databases that have the table of *model*."""
    return [alias for alias in connections if has_table(model, alias)]


def lacking(models: Iterable[type[Model]], using: str) -> Iterator[str]:
    """Yield the tables of *models* that the database *using* lacks, and the columns that its tables lack."""
    connection = connections[using]
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor, include_views=True))
        for model in models:
            table = model._meta.db_table
            if table not in there:
                yield table
                continue
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)} WHERE 1 = 0")  # noqa: S608  # a model's
            columns = {column[0] for column in cursor.description}
            yield from (
                f"{table}.{field.column}" for field in model._meta.local_concrete_fields if field.column not in columns
            )
