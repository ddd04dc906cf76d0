"""The index of the messages in each database, see ``models.finding``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections

from chatmemory_django.contrib.search import mysql, postgresql, sqlite
from chatmemory_django.db.engines import TRIED, Dialect, dialect
from chatmemory_django.models import Message
from chatmemory_django.models.copies import Pruning, Remnant
from chatmemory_django.models.finding import has, is_among_newest

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import Q, QuerySet

    from chatmemory_django.models.finding import IsAmong


def index_of(connection: BaseDatabaseWrapper) -> Any:
    """
    Return the module with ``create``, ``drop`` and ``candidates`` for the database of *connection*.

    None if it is another engine, in whose SQL it may be but whose indexes were not tried: it has none, and searches
    read the messages.
    """
    spoken = dialect(connection)
    if spoken is Dialect.MYSQL:
        return mysql if connection.display_name in {"MariaDB", "MySQL"} else None
    if spoken is None or connection.display_name not in TRIED:
        return None
    return postgresql if spoken is Dialect.POSTGRESQL else sqlite


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """See ``finding.Index``."""
    index = index_of(connections[scope.db])
    found: IsAmong = is_among_newest(scope.filter(has(terms))) if index is None else index.candidates(scope, terms)
    return found


def looks_up(scope: QuerySet[Any], terms: Sequence[str], condition: Q) -> bool:
    """See ``finding.Index``."""
    return index_of(connections[scope.db]) is postgresql and postgresql.looks_up(scope, terms, condition)


def forget_deleted(using: str, asked: bool, dry_run: bool) -> Iterator[None]:
    """
    Remove from the index in the database *using* what it still holds of deleted messages, in steps.

    On MariaDB and MySQL, this is one long step in which no one can write; it is only done if it is *asked* for.
    PostgreSQL does so itself, when it vacuums the table.
    """
    connection = connections[using]
    index = index_of(connection)
    if index is sqlite and not dry_run:
        yield from sqlite.merge(connection)
    elif index is mysql and asked and not dry_run:
        mysql.rebuild(connection, Message._meta.db_table)
        yield


def left(using: str) -> Iterator[Remnant]:
    """See ``models.copies.FindRemnants``: what ``forget_deleted`` would remove. PostgreSQL does not show it."""
    connection = connections[using]
    index = index_of(connection)
    if index is sqlite:
        found: int | None = sqlite.unmerged(connection)
    elif index is mysql:
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
