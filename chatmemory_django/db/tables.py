"""Which databases have the table of a model, whatever a router decides."""

from __future__ import annotations

from django.db import connections
from django.db.models import Model


def has_table(model: type[Model], using: str) -> bool:
    """Return whether the database *using* has the table of *model*."""
    with connections[using].cursor() as cursor:
        return model._meta.db_table in connections[using].introspection.table_names(cursor)


def databases_with(model: type[Model]) -> list[str]:
    """Return the databases that have the table of *model*."""
    return [alias for alias in connections if has_table(model, alias)]
