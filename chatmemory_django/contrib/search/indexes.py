"""The index of the messages in each database, see ``models.finding``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from chatmemory_django.contrib.search import mysql, postgresql, sqlite
from chatmemory_django.models import Message
from chatmemory_django.models.copies import Pruning, Remnant

if TYPE_CHECKING:
    from django.db.models import Q, QuerySet

    from chatmemory_django.models.finding import IsAmong

INDEXES: dict[str, Any] = {"mysql": mysql, "postgresql": postgresql, "sqlite": sqlite}
"""The modules with ``create``, ``drop`` and ``candidates``, by Django's name of the database vendor."""


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """See ``finding.Index``."""
    found: IsAmong = INDEXES[connections[scope.db].vendor].candidates(scope, terms)
    return found


def looks_up(scope: QuerySet[Any], terms: Sequence[str], condition: Q) -> bool:
    """See ``finding.Index``."""
    return connections[scope.db].vendor == "postgresql" and postgresql.looks_up(scope, terms, condition)


def forget_deleted(using: str, asked: bool, dry_run: bool) -> Iterator[None]:
    """
    Remove from the index in the database *using* what it still holds of deleted messages, in steps.

    On MariaDB and MySQL, this is one long step in which no one can write; it is only done if it is *asked* for.
    PostgreSQL does so itself, when it vacuums the table.
    """
    connection = connections[using]
    if connection.vendor == "sqlite" and not dry_run:
        yield from sqlite.merge(connection)
    elif connection.vendor == "mysql" and asked and not dry_run:
        mysql.rebuild(connection, Message._meta.db_table)
        yield


def left(using: str) -> Iterator[Remnant]:
    """See ``models.copies.FindRemnants``: what ``forget_deleted`` would remove. PostgreSQL does not show it."""
    connection = connections[using]
    if connection.vendor == "sqlite":
        found: int | None = sqlite.unmerged(connection)
    elif connection.vendor == "mysql":
        found = mysql.deleted(connection, Message._meta.db_table)
    else:
        return
    if found != 0:
        yield Remnant("parts of the search index that may have words of deleted messages", found)


PRUNING = Pruning(
    forget_deleted,
    "--search-index",
    "Remove what the search index still holds of deleted messages. On SQLite, this is always done. On MariaDB, the "
    "table of messages is rebuilt, and no one can write to it in the meantime.",
    steps="steps of the search index",
)
