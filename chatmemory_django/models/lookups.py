"""
A condition on metadata. Databases compare JSON in different ways, so each has SQL of its own, and others what the ORM
has for them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from django.db.models import BooleanField, Func
from django.db.models.fields.json import KeyTransform, KeyTransformExact

from chatmemory_django.db.engines import Dialect, dialect

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.mysql.base import DatabaseWrapper as MySqlWrapper
    from django.db.models.expressions import Combinable
    from django.db.models.sql.compiler import SQLCompiler

    Sql = tuple[str, tuple[Any, ...]]

MAX_NUMBER = 2**63 - 1
"""Larger numbers are not found: SQLite rounds them, and the other databases do not."""

_DASH = '"-', r'"\u002d'
"""A dash at the beginning of a string, and an escape for it: MariaDB's paths accept no key that begins with a dash."""

_LITERALS = {"true": True, "false": False}


class MetadataEntry(Func):
    """
    Whether *metadata* has at its top level a *key* whose value, as text, is *text*.

    A string is its own text, a Boolean is ``true`` or ``false``, a number is compared by value. Other values never
    match.
    """

    output_field = BooleanField()

    def __init__(self, metadata: str | Combinable, key: str, text: str) -> None:
        super().__init__(metadata)
        self.key = key
        self.values: list[str | bool | float] = [text]
        if text in _LITERALS:
            self.values.append(_LITERALS[text])
        elif (number := _number(text)) is not None:
            self.values.append(number)

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        """Return the SQL for the database of *connection*."""
        own = {Dialect.MYSQL: self._of_mysql, Dialect.POSTGRESQL: self._of_postgresql, Dialect.SQLITE: self._of_sqlite}
        spoken = dialect(connection)
        return self._of_orm(compiler) if spoken is None else own[spoken](compiler, connection)

    def _of_orm(self, compiler: SQLCompiler) -> Sql:
        entry = KeyTransform(self.key, self.source_expressions[0])
        equal = [compiler.compile(KeyTransformExact(entry, value)) for value in self.values]
        sql = " OR ".join(f"({each})" for each, _ in equal)
        return f"({sql})", tuple(param for _, params in equal for param in params)

    def _of_mysql(self, compiler: SQLCompiler, connection: MySqlWrapper) -> Sql:
        """Return the SQL for MySQL, which compares JSON by value, and for MariaDB, which stores it as text."""
        column, params = compiler.compile(self.source_expressions[0])
        forms = [form for value in self.values for form in _forms(value)]
        path = f"$.{json.dumps(self.key)}"
        if connection.mysql_is_mariadb:
            # Without BINARY, MariaDB removes the quotes of what it extracts, so that "5" would equal 5.
            condition = f"BINARY JSON_EXTRACT(REPLACE({column}, %s, %s), %s) = %s"
            params = (*params, *_DASH)
            path, *forms = (text.replace(*_DASH) for text in (path, *forms))
        else:
            condition = f"JSON_EXTRACT({column}, %s) = CAST(%s AS JSON)"
        every = [param for form in forms for param in (*params, path, form)]
        return f"({' OR '.join([condition] * len(forms))})", tuple(every)

    def _of_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:
        """Return the SQL for PostgreSQL; the cast makes digits a key, not an index, however the driver passes them."""
        column, params = compiler.compile(self.source_expressions[0])
        candidates = ", ".join(["%s::jsonb"] * len(self.values))
        return f"({column} -> %s::text) IN ({candidates})", (*params, self.key, *map(json.dumps, self.values))

    def _of_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:
        """Return the SQL for SQLite, without a path, since SQLite supports no escapes in paths."""
        column, params = compiler.compile(self.source_expressions[0])
        pairs = [pair for value in self.values for pair in _typed(value)]
        rows = ", ".join(["(%s, %s)"] * len(pairs))
        sql = f"EXISTS (SELECT 1 FROM JSON_EACH({column}) WHERE key = %s AND (type, atom) IN (VALUES {rows}))"  # noqa: S608  # only placeholders are inserted
        return sql, (*params, self.key, *(part for pair in pairs for part in pair))


def _number(text: str) -> float | None:
    """Return *text* as a JSON number; None if it is not one, or if not every database can represent it."""
    if text != text.strip():
        return None
    try:
        number = msgspec.json.decode(text, type=int | float)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return number if abs(number) <= MAX_NUMBER else None


def _forms(value: str | bool | float) -> set[str]:
    """Return the ways in which JSON may spell *value*: a number with or without a fraction."""
    forms = {json.dumps(value)}
    if not isinstance(value, (str, bool)) and value == int(value) == float(value):
        forms |= {json.dumps(int(value)), json.dumps(float(value)), json.dumps(-float(value) if value == 0 else value)}
    return forms


def _typed(value: str | bool | float) -> list[tuple[str, str | float]]:
    """Return the pairs of type and value with which SQLite represents *value*."""
    if isinstance(value, str):
        return [("text", value)]
    if isinstance(value, bool):
        return [(json.dumps(value), int(value))]
    return [("integer", value), ("real", value)]
