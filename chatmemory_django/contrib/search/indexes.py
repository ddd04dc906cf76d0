"""The index of the messages in each database, see ``models.finding``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from chatmemory_django.contrib.search import mysql, postgresql, sqlite
from chatmemory_django.models import Message

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


def forget_deleted(using: str, *, may_block: bool) -> Iterator[None]:
    """
    See ``finding.Index``.

    On MariaDB and MySQL, this is one long step in which no one can write; it is only done if it *may_block* writers.
    PostgreSQL does so itself, when it vacuums the table.
    """
    connection = connections[using]
    if connection.vendor == "sqlite":
        yield from sqlite.merge(connection)
    elif connection.vendor == "mysql" and may_block:
        mysql.rebuild(connection, Message._meta.db_table)
        yield
