"""
The index on SQLite: FTS5 with trigrams, which finds parts of words, case-insensitively, in every script.

Triggers keep it up to date. It does not store the texts, but the terms of deleted ones until it is merged: with FTS5's
option ``secure-delete``, all writers would wait for 30 ms for each deleted message. Its row ids are built from the keys
of the messages, since the rowid of a table that does not declare it may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import F, Lookup

from chatmemory_django.models.finding import IsAmong, has, is_among_newest

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.backends.utils import CursorWrapper
    from django.db.models import QuerySet
    from django.db.models.sql.compiler import SQLCompiler

    from chatmemory_django.models.finding import Sql

INDEX = "chatmemory_search"

TRIGRAM = 3
"""How many characters a term needs to be looked up; for shorter ones, the messages themselves are read."""

PAGES = 250
"""How many pages one step of a merge writes, which takes less than a tenth of a second; others can write after it."""

_BITS = 31
"""How many bits of a rowid are the sequence; the others are the conversation."""

_ADD = f"INSERT INTO {INDEX} (rowid, text)"
_REMOVE = f"INSERT INTO {INDEX} ({INDEX}, rowid, text)"


def create(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Build the index of *table*, and the triggers that maintain it."""
    with transaction.atomic(editor.connection.alias):
        editor.execute(f"CREATE VIRTUAL TABLE {INDEX} USING fts5(text, content='', tokenize='trigram')", None)
        fill(editor, table)


def fill(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Rebuild the contents of the index, and the triggers."""
    table = editor.quote_name(table)
    for name in _triggers(table):
        editor.execute(f"DROP TRIGGER IF EXISTS {name}", None)
    editor.execute(f"INSERT INTO {INDEX} ({INDEX}) VALUES ('delete-all')", None)  # noqa: S608  # only names
    editor.execute(f"{_ADD} SELECT {_rowid('')}, text FROM {table}", None)  # noqa: S608  # only names
    for name, action in _triggers(table).items():
        editor.execute(f"CREATE TRIGGER {name} AFTER {action}; END", None)


def drop(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Drop the triggers and the index."""
    with transaction.atomic(editor.connection.alias):
        for name in _triggers(table):
            editor.execute(f"DROP TRIGGER IF EXISTS {name}", None)
        editor.execute(f"DROP TABLE {INDEX}", None)


def lacks_triggers(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the index exists without its triggers: a migration that recreates the table drops them."""
    names = _names(connection)
    return INDEX in names and not names.issuperset(_triggers(""))


def merge(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Merge the index in short steps, until it holds no terms of deleted messages; yield after each step."""
    if INDEX not in _names(connection):
        return
    pages = -PAGES  # negative: begin with a merge of everything
    with connection.cursor() as cursor:
        while True:
            before = _changes(cursor)
            cursor.execute(f"INSERT INTO {INDEX} ({INDEX}, rank) VALUES ('merge', %s)", [pages])  # noqa: S608  # only names
            if _changes(cursor) - before < 2:  # the command itself is one change
                return
            pages = PAGES
            yield


def unmerged(connection: BaseDatabaseWrapper) -> int:
    """Return how many parts the index has beside the first: without any, it holds no terms of deleted messages."""
    if INDEX not in _names(connection):
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(DISTINCT segid) FROM {INDEX}_idx")  # noqa: S608  # only names
        return max(0, int(cursor.fetchone()[0]) - 1)


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""
    long = [term for term in terms if len(term) >= TRIGRAM]
    hits = scope.filter(has([term for term in terms if term not in long]))
    return is_among_newest(hits.filter(_HasTerms(F("pk"), long)) if long else hits)


def _names(connection: BaseDatabaseWrapper) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM sqlite_master WHERE name LIKE %s", [f"{INDEX}%"])
        return {name for (name,) in cursor.fetchall()}


def _changes(cursor: CursorWrapper) -> int:
    cursor.execute("SELECT total_changes()")
    return int(cursor.fetchone()[0])


def _rowid(row: str) -> str:
    return f"({row}conversation_id << {_BITS} | {row}sequence)"


def _triggers(table: str) -> dict[str, str]:
    add = f"{_ADD} VALUES ({_rowid('NEW.')}, NEW.text)"
    remove = f"{_REMOVE} VALUES ('delete', {_rowid('OLD.')}, OLD.text)"
    return {
        f"{INDEX}_insert": f"INSERT ON {table} BEGIN {add}",
        f"{INDEX}_delete": f"DELETE ON {table} BEGIN {remove}",
        f"{INDEX}_update": f"UPDATE OF conversation_id, sequence, text ON {table} BEGIN {remove}; {add}",
    }


class _HasTerms(Lookup):
    """Whether the index has all of the terms on the right for the message on the left."""

    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:
        key, _ = self.process_lhs(compiler, connection)
        keys = f"rowid >> {_BITS}, rowid & {(1 << _BITS) - 1}"
        quoted = ('"{}"'.format(term.replace('"', '""')) for term in self.rhs)
        return f"({key}) IN (SELECT {keys} FROM {INDEX} WHERE {INDEX} MATCH %s)", (" AND ".join(quoted),)  # noqa: S608  # only names
