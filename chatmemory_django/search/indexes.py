"""The index implementation of each database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from chatmemory_django.search import mysql, postgresql, sqlite

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from chatmemory_django.search.ranking import IsAmong

INDEXES: dict[str, Any] = {"mysql": mysql, "postgresql": postgresql, "sqlite": sqlite}
"""The modules with ``create``, ``drop`` and ``candidates``, by Django's name of the database vendor."""


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""
    found: IsAmong = INDEXES[connections[scope.db].vendor].candidates(scope, terms)
    return found


def forget_deleted(using: str, table: str, *, may_block: bool) -> Iterator[None]:
    """
    Remove from the index of *table* in the database *using* what it still holds of deleted messages, in steps.

    On MariaDB and MySQL, this is one long step in which no one can write; it is only done if it *may_block* writers.
    PostgreSQL does so itself, when it vacuums the table.
    """
    connection = connections[using]
    if connection.vendor == "sqlite":
        yield from sqlite.merge(connection)
    elif connection.vendor == "mysql" and may_block:
        mysql.rebuild(connection, table)
        yield
