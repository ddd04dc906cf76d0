"""System checks of whether the databases support the index, and have the texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.db import DatabaseError, connections, router

from chatmemory_django.contrib.search import mysql, sqlite
from chatmemory_django.contrib.search.indexes import index_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


def check_index(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that those *databases* that store messages support an index of them."""
    message = apps.get_model("chatmemory", "Message")
    return [
        found
        for alias in databases or ()
        if router.allow_migrate_model(alias, message)
        for found in _of(connections[alias])
    ]


def check_texts(**kwargs: Any) -> list[CheckMessage]:
    """Check that the database has the texts of messages as they are."""
    if apps.get_model("chatmemory", "Message")._meta.get_field("text").is_plain:
        return []
    return [
        Error(
            "'chatmemory_django.contrib.search' needs plain texts, and the database has none of the messages here.",
            hint="Remove it from INSTALLED_APPS, or the app that keeps texts from the database.",
            id="chatmemory.E055",
        )
    ]


def _of(connection: BaseDatabaseWrapper) -> Iterator[CheckMessage]:
    where = f"DATABASES[{connection.alias!r}]"
    index = index_of(connection)
    if index is None:
        yield Warning(
            f"chatmemory_django.contrib.search has no index for {where}, which is {connection.display_name}: searches "
            "read the messages themselves there.",
            hint="Remove it from INSTALLED_APPS, unless another database has its index.",
            id="chatmemory.W042",
        )
    elif index is sqlite:
        try:
            with connection.cursor() as cursor:
                cursor.execute("CREATE VIRTUAL TABLE temp.chatmemory_trigrams USING fts5(text, tokenize='trigram')")
                cursor.execute("DROP TABLE temp.chatmemory_trigrams")
        except DatabaseError as exc:
            yield Error(
                f"chatmemory_django.contrib.search needs FTS5 with trigrams, which the SQLite of {where} does not "
                f"have: {exc}.",
                hint="Use SQLite 3.34 or newer, built with FTS5, or remove chatmemory_django.contrib.search from "
                "INSTALLED_APPS: searches then read the messages themselves.",
                id="chatmemory.E042",
            )
    elif index is mysql:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@innodb_ft_min_token_size")
            (shortest,) = cursor.fetchone()
        if shortest > mysql.SHORTEST:
            yield Warning(
                f"The index of {where} omits words of fewer than {shortest} characters, so searches do not find "
                f"words of {mysql.SHORTEST}.",
                hint=f"Set innodb_ft_min_token_size to {mysql.SHORTEST} in the server's configuration, then migrate "
                "chatmemory_search to zero and back.",
                id="chatmemory.W041",
            )
