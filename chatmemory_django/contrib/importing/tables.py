"""Other frameworks' tables: in a SQLite file, in a database of the site, or in one at a URL. They are only read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import DatabaseError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler

from chatmemory_django.contrib.importing.moved import ReadResult, Source, UnreadableSourceError, moment
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.operations import ImportedConversation, ImportedMessage

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

ENGINES = {"postgresql": "postgresql", "postgres": "postgresql", "mysql": "mysql", "mariadb": "mysql"}
"""The URL schemes of the databases that Django supports."""

SQLITE = b"SQLite format 3\0"
"""The first bytes of a SQLite file."""

PAGE = 10_000
"""The maximum number of keys in one statement."""

ROWS = 500
"""The maximum number of rows in one statement."""

ReadRow: TypeAlias = Callable[[Sequence[Any], str], list[ImportedMessage]]
"""Returns the message in a row; errors name the row."""


class ThreadTable(NamedTuple):
    """A framework's table with a row for each conversation: the names of the table and of its columns."""

    name: str
    key: str
    owner: str
    """The column with the key of a user of the same database."""
    title: str
    created_at: str
    updated_at: str
    assistant: str


class Table(NamedTuple):
    """A framework's table with a row for each message: the names of the table and of its columns."""

    name: str
    key: str
    conversation: str
    columns: tuple[str, ...]
    """The columns with the message."""
    optional: tuple[str, ...] = ()
    """Optional columns; a missing one is read as None."""
    threads: ThreadTable | None = None


def is_database(source: str) -> bool:
    """Return whether *source* is an alias, a URL, or a SQLite file."""
    if source in connections or "://" in source:
        return True
    path = Path(source)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


@contextmanager
def open_table(source: str, table: Table, read: ReadRow, *, with_owners: bool = True) -> Iterator[Source]:
    """Open *source*, an alias, a URL, or the path of a SQLite file, and read the conversations in *table*."""
    # Where the users are others, their keys may be those of anybody here.
    if table.threads and with_owners and source != (alias := router.db_for_read(get_user_model())):
        raise UnreadableSourceError(
            f"Its owners are users of its own database; pass {alias!r}, which has those of this site, or --user."
        )
    connection = _connection(source)
    try:
        rows = _Rows(connection, table, with_owners=with_owners)
        yield Source("messages", rows.total, rows.steps(read))
    finally:
        connection.close()


class _Rows:
    """The rows of *table*. They are first assigned to conversations, because the table may have no index for that."""

    def __init__(self, connection: BaseDatabaseWrapper, table: Table, *, with_owners: bool) -> None:
        self._connection = connection
        self._table = table
        self._with_owners = with_owners
        names = self._names(table.name, {table.key, table.conversation, *table.columns})
        if table.threads is not None:
            self._names(table.threads.name, set(table.threads[1:]))
        self._columns = [*table.columns, *(name if name in names else None for name in table.optional)]
        self._keys = self._read_keys()
        self.total = sum(map(len, self._keys.values()))

    def steps(self, read: ReadRow) -> Iterator[ReadResult]:
        """Yield the conversations, each with its rows in order."""
        for some in in_parts(list(self._keys), ROWS):
            threads, users = self._threads(some)
            for memory_id in some:
                fields = partial(self._fields, threads.get(str(memory_id)), users)
                keys = self._keys[memory_id]
                yield ReadResult(str(memory_id), self._moved(memory_id, keys, read, fields), len(keys))

    def _moved(
        self, memory_id: object, keys: array[int], read: ReadRow, fields: Callable[[], dict[str, Any]]
    ) -> ImportedConversation | ValueError:
        if memory_id is None:
            return ValueError(f"It has no {self._table.conversation}.")
        try:
            messages = [message for key, row in self._rows(keys) for message in read(row, f"row {key}")]
            return ImportedConversation(str(memory_id), messages, **fields())
        except UnreadableSourceError:
            raise
        except (RecursionError, TypeError, ValueError) as exc:
            return ValueError(str(exc))

    def _threads(self, memory_ids: Sequence[Any]) -> tuple[dict[str, Sequence[Any]], Mapping[Any, AbstractBaseUser]]:
        """Return the rows of the conversations *memory_ids* in the table of threads, and their users, by their keys."""
        if (threads := self._table.threads) is None:
            return {}, {}
        known = [each for each in memory_ids if each is not None]
        columns = ", ".join(map(self._quote, threads[1:]))
        where = f"WHERE {self._quote(threads.key)} IN ({', '.join(['%s'] * len(known))})"
        rows = self._fetch(columns, where, *known, table=threads.name) if known else ()
        owners = {_key_of_user(row[1]) for row in rows} - {None} if self._with_owners else set()
        return {str(row[0]): row[1:] for row in rows}, get_user_model()._base_manager.in_bulk(owners)

    def _fields(self, thread: Sequence[Any] | None, users: Mapping[Any, AbstractBaseUser]) -> dict[str, Any]:
        """Return the other fields of the conversation whose row in the table of threads is *thread*."""
        if (threads := self._table.threads) is None:
            return {}
        if thread is None:
            raise ValueError(f"It is not in {threads.name}.")
        owner, title, created_at, updated_at, assistant = thread
        user = None
        if owner is not None and self._with_owners:
            user = users.get(_key_of_user(owner))
            if user is None:
                raise ValueError(f"There is no user with the key {owner}.")
        times = {"created_at": moment(created_at), "updated_at": moment(updated_at)}
        return {"owner": user, "title": title, "assistant": assistant, **times}

    def _names(self, table: str, wanted: set[str]) -> set[str]:
        """Return the names of the columns of *table*, which must have those *wanted*."""
        with _unreadable(), self._connection.cursor() as cursor:
            _tolerate_other_encodings(self._connection)
            introspection = self._connection.introspection
            if table not in introspection.table_names(cursor):
                raise UnreadableSourceError(f"There is no table {table!r}; use --table for another name.")
            names = {column.name for column in introspection.get_table_description(cursor, table)}
        if missing := wanted - names:
            raise UnreadableSourceError(f"The table {table!r} has no column {min(missing)!r}.")
        return names

    def _read_keys(self) -> dict[Any, array[int]]:
        """Return the keys of each conversation's rows, ordered by the conversation's first row: 8 bytes per message."""
        key, conversation = map(self._quote, (self._table.key, self._table.conversation))
        found: dict[Any, array[int]] = {}
        page, last = self._fetch(f"{key}, {conversation}", f"ORDER BY {key} LIMIT {PAGE}"), 0
        while page:
            for last, memory_id in page:
                found.setdefault(memory_id, array("q")).append(last)
            page = self._fetch(f"{key}, {conversation}", f"WHERE {key} > %s ORDER BY {key} LIMIT {PAGE}", last)
        return found

    def _rows(self, keys: array[int]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the columns of the rows *keys*, in order, each with its key; None for a missing optional column."""
        key = self._quote(self._table.key)
        columns = ", ".join([key, *("NULL" if name is None else self._quote(name) for name in self._columns)])
        for some in in_parts(keys, ROWS):
            where = f"WHERE {key} IN ({', '.join(['%s'] * len(some))}) ORDER BY {key}"
            for row in self._fetch(columns, where, *some):
                yield row[0], row[1:]

    def _fetch(self, columns: str, where: str, *params: Any, table: str = "") -> Sequence[Any]:
        with _unreadable(), self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {self._quote(table or self._table.name)} {where}", params)  # noqa: S608  # quoted
            rows: Sequence[Any] = cursor.fetchall()
            return rows

    def _quote(self, name: str) -> str:
        return self._connection.ops.quote_name(name)


def _key_of_user(owner: Any) -> Any:
    """Return the primary key of a user as Django has it, by the value of a column; None if it cannot be one."""
    try:
        return get_user_model()._meta.pk.to_python(owner)
    except ValidationError:
        return None


@contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    # MySQL's driver raises TypeError for an invalid option.
    except (DatabaseError, ImproperlyConfigured, TypeError) as exc:
        raise UnreadableSourceError(f"The database cannot be read: {exc}") from exc


def _tolerate_other_encodings(connection: BaseDatabaseWrapper) -> None:
    """Replace bytes that are not UTF-8 in SQLite's texts, so that only their conversation is rejected."""
    if dialect(connection) is Dialect.SQLITE:
        connection.connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")


def _connection(source: str) -> BaseDatabaseWrapper:
    """Open a separate connection, independent of writes to the same database in the meantime."""
    if source in connections:
        return connections[source].copy()
    settings = _of_url(source) if "://" in source else _of_file(Path(source))
    with _unreadable():  # a missing driver, for example
        return ConnectionHandler({"default": settings})["default"]


def _of_file(path: Path) -> dict[str, Any]:
    if not is_database(str(path)):
        raise UnreadableSourceError(f"{str(path)!r} is not a SQLite database.")
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{path.resolve().as_uri()}?mode=ro"}


def _of_url(url: str) -> dict[str, Any]:
    """Return the settings for *url*, in the notation of Django or of SQLAlchemy, which may name a driver."""
    parts = urlsplit(url)
    kind = parts.scheme.partition("+")[0]
    if kind == "sqlite":
        return _of_file(Path(unquote(parts.path).removeprefix("/")))
    if kind not in ENGINES:
        raise UnreadableSourceError(f"A URL must begin with sqlite, postgresql, mysql or mariadb, not {kind!r}.")
    return {
        "ENGINE": f"django.db.backends.{ENGINES[kind]}",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": {name: int(value) if value.isdecimal() else value for name, value in parse_qsl(parts.query)},
    }
