"""What a backup has of a table, and how it is restored: rows as they are stored."""

import json
from typing import Any

from django.apps import apps
from django.db import connection


def dump(table: str) -> tuple[str, list[str], list[tuple[Any, ...]]]:
    """Return what a backup of *table* has, without the columns that the database generates."""
    (model,) = (model for model in apps.get_models() if model._meta.db_table == table)
    columns = [field.column for field in model._meta.concrete_fields if not field.generated]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(map(connection.ops.quote_name, columns))} FROM {table}")
        return table, [column[0] for column in cursor.description], cursor.fetchall()


def restore(table: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    """Store the *rows* that are no longer in *table*."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns[0]}, {columns[1]} FROM {table}")
        kept = set(cursor.fetchall())
        marks = ", ".join(["%s"] * len(columns))
        names = ", ".join(connection.ops.quote_name(column) for column in columns)
        for row in rows:
            if row[:2] not in kept:
                values = [json.dumps(each) if isinstance(each, dict) else each for each in row]
                cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)
