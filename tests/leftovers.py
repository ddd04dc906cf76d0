"""
Where a text is stored: in any table of any database, in the data of full-text indexes, and in Redis.

Nothing here knows the tables of the app: they are all found in the databases themselves, so that a new one is searched,
too. Only what SQL can read is searched, not the free pages of the files.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from chatmemory_django.chat.conf import chat_settings

FOUND_TERMS = 0.5
"""The share of a text's trigrams that a full-text index must have for the text to count as being in it."""

_HEIGHT_BITS = 31  # below them, the page number; the bits above are 5 of the height, 1 of a kind, then the segment
_SEGMENT_BITS = 37


def leftovers(text: str) -> list[str]:
    """
    Return the places in which *text* is stored, each with the number of values, for example ``"default: t.c: 2"``.

    Upper and lower case are the same. *text* is best long and unusual: in the index of SQLite, it is found by its
    trigrams, in that of MariaDB by its words.
    """
    found: Counter[str] = Counter()
    pattern = _pattern(text)
    for alias in connections:
        connection = connections[alias]
        for place, value in [*_cells(connection), *_schema_free(connection)]:
            found[f"{alias}: {place}"] += bool(pattern.search(_as_text(value)))
        for place, terms in _indexed(connection):
            found[f"{alias}: {place}"] += _has_terms(text, terms)
    for key, value in _redis():
        found[f"redis: {key}"] += bool(pattern.search(_as_text(value)))
    return [f"{place}: {count}" for place, count in sorted(found.items()) if count]


def _pattern(text: str) -> re.Pattern[str]:
    """Return a pattern for *text* as it is, as JSON, as JSON in JSON, and as Base64."""
    once = json.dumps(text)[1:-1]
    forms = {text, once, json.dumps(once)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    content = text.encode()
    for before in range(3):  # its place in the groups of three bytes
        kept = content[(3 - before) % 3 :]
        forms.add(base64.b64encode(kept[: len(kept) // 3 * 3]).decode())
    return re.compile("|".join(re.escape(form) for form in forms if len(form) > 2), re.IGNORECASE)


def _as_text(value: Any) -> str:
    if isinstance(value, memoryview | bytearray):
        value = bytes(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _cells(connection: BaseDatabaseWrapper) -> Iterator[tuple[str, Any]]:
    """Yield the values of all tables."""
    for schema, table in _tables(connection):
        quoted = connection.ops.quote_name(table)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(schema) + '.' if schema else ''}{quoted}")
            names = [column[0] for column in cursor.description]
            for row in cursor.fetchall():
                for name, value in zip(names, row, strict=True):
                    yield f"{table}.{name}", value


def _tables(connection: BaseDatabaseWrapper) -> list[tuple[str, str]]:
    """Return all tables, those in which an index keeps its data included."""
    match connection.vendor:
        case "sqlite":
            query = "SELECT '', name FROM sqlite_master WHERE type = 'table'"
        case "mysql":
            query = (
                "SELECT '', table_name FROM information_schema.tables "
                "WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE'"
            )
        case _:
            query = (
                "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE' "
                "AND table_schema NOT IN ('pg_catalog', 'information_schema')"
            )
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _schema_free(connection: BaseDatabaseWrapper) -> Iterator[tuple[str, Any]]:
    """Yield what PostgreSQL keeps outside of tables: large objects."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT oid, lo_get(oid) FROM pg_largeobject_metadata")
            for oid, content in cursor.fetchall():
                yield f"large object {oid}", content


def _indexed(connection: BaseDatabaseWrapper) -> Iterator[tuple[str, set[str]]]:
    """Yield the terms of each full-text index, those of deleted rows included."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%%USING fts5%%'")
            for (name,) in cursor.fetchall():
                cursor.execute(f'SELECT id, block FROM "{name}_data"')
                yield f"{name} (FTS5)", {term for row in cursor.fetchall() for term in _terms(*row)}
    elif connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT table_schema, table_name FROM information_schema.statistics "
                "WHERE index_type = 'FULLTEXT' AND table_schema = DATABASE()"
            )
            for schema, table in cursor.fetchall():
                for source in ("INNODB_FT_INDEX_TABLE", "INNODB_FT_INDEX_CACHE"):
                    yield f"{table} ({source})", set(_words(connection, f"{schema}/{table}", source))


def _words(connection: BaseDatabaseWrapper, table: str, source: str) -> list[str]:
    """Return the words of an index in InnoDB. What it shows is set for the whole server: others may set it as well."""
    with connection.cursor() as cursor:
        while True:
            cursor.execute("SET GLOBAL innodb_ft_aux_table = %s", [table])
            cursor.execute(f"SELECT word FROM information_schema.{source}")
            words = [_as_text(word) for (word,) in cursor.fetchall()]
            cursor.execute("SELECT @@GLOBAL.innodb_ft_aux_table")
            if cursor.fetchone()[0] == table:
                return words


def _terms(rowid: int, block: bytes) -> Iterator[str]:
    """
    Yield the terms on a leaf page of an FTS5 index, as https://www.sqlite.org/fts5.html and its source describe it.

    A page has a header of four bytes: the offset of its first rowid, and where the offsets of its terms begin. Its
    first term is whole; each other one is the length of what it shares with the one before it, and the rest.
    """
    if rowid < 1 << _SEGMENT_BITS or (rowid >> _HEIGHT_BITS) & 0x3F:
        return  # counters, the list of segments, or no leaf
    end = int.from_bytes(block[2:4])
    offset, at, term = 0, end, b""
    while at < len(block):
        distance, at = _varint(block, at)
        place = offset + distance
        shared, place = _varint(block, place) if offset else (0, place)
        length, place = _varint(block, place)
        term = term[:shared] + block[place : place + length]
        offset += distance
        yield term[1:].decode(errors="replace")  # the first byte names the index


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the number at *at*, and where what follows it begins."""
    value = 0
    for count in range(9):
        byte = content[at + count]
        if count == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    raise AssertionError


def _has_terms(text: str, terms: Iterable[str]) -> bool:
    """Return whether most trigrams of *text* are among *terms*, or all of its words that an index may have."""
    folded, terms = text.casefold(), {term.casefold() for term in terms}
    trigrams = {folded[at : at + 3] for at in range(len(folded) - 2)}
    words = {word for word in re.findall(r"\w+", folded) if len(word) > 3}
    are_most = bool(trigrams) and len(trigrams & terms) >= FOUND_TERMS * len(trigrams)
    return are_most or (bool(words) and words <= terms)


def _redis() -> Iterator[tuple[str, Any]]:
    """Yield the names and the values of all keys in the Redis of the setting ``STREAMS``, if it is one."""
    settings = chat_settings()
    if "redis" not in str(settings.STREAMS).casefold():
        return
    from redis import Redis

    with Redis.from_url(settings.REDIS_URL) as client:
        for key in client.scan_iter(count=1000):
            name = _as_text(key)
            kind = re.sub(r"[0-9a-f]{32}", "…", name)
            yield f"name of {kind}", name
            match _as_text(client.type(key)):
                case "string":
                    values: Iterable[Any] = [client.get(key)]
                case "hash":
                    values = [each for pair in client.hgetall(key).items() for each in pair]
                case "list":
                    values = client.lrange(key, 0, -1)
                case "set":
                    values = client.smembers(key)
                case "zset":
                    values = client.zrange(key, 0, -1)
                case "stream":
                    values = [client.xrange(key)]
                case _:  # it has expired
                    values = []
            for value in values:
                yield kind, value
