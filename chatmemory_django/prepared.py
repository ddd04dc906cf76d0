"""
Prepared querysets: compiled once for each database, then run again and again with other values.

To build and compile a queryset takes longer than most statements here take to run. The ORM still writes them all: a
``Prepared`` is given a function that makes the query, in which ``Parameter`` stands for what is not known yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import BooleanField, CharField, Field, IntegerField, Model, QuerySet, TextField, Value
from django.db.models.sql import InsertQuery, Query, UpdateQuery

PLACEHOLDER = re.compile("(?<!%)%s")
"""What compilers write for a value; a percent sign of the SQL's own is doubled."""

AS_THEY_ARE = (BooleanField, CharField, IntegerField, TextField)
"""Fields whose values every driver takes as they are."""


class Parameter(Value):
    """
    A value for a column like *field*, given under *name*, an identifier, when the statement is run.

    One that *is_adapted* is given as the database's driver takes it.
    """

    def __init__(self, name: str, field: Field, *, is_adapted: bool = False) -> None:
        super().__init__(name, output_field=field)
        self.is_adapted = is_adapted

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", (self,)

    @property
    def field_to_prepare(self) -> Field | None:
        """The field that makes of a value what the driver takes; None where there is nothing to make."""
        field: Any = self.output_field
        field = getattr(field, "target_field", field)  # a foreign key is what it points to
        return None if self.is_adapted or isinstance(field, AS_THEY_ARE) else field


class _Compiled(NamedTuple):
    """A statement, with the name of the value for each placeholder."""

    sql: str
    names: list[str]
    constants: dict[str, Any]
    """The values that are the same each time, by the names made up for them."""
    fields: dict[str, Field]
    """What makes of a value what the driver takes, by the names of those that it cannot take as they are."""


class Prepared:
    """
    A statement, compiled when a database is first asked for it. *build* makes the query.

    An INSERT *after* an UPDATE is one statement with it, and writes its rows only if that changes one: PostgreSQL alone
    can say that.
    """

    def __init__(self, build: Callable[[], Query], *, after: Prepared | None = None) -> None:
        self._build = build
        self._after = after
        self._compiled: dict[str, _Compiled] = {}

    def rows(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Run a SELECT: its rows as the driver gives them, right for numbers and text."""
        cursor.execute(*self.sql(cursor.db, values))
        rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def run(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> int:
        """Run a statement that has no rows to give: how many it wrote."""
        cursor.execute(*self.sql(cursor.db, values))
        count: int = cursor.rowcount
        return count

    def sql(self, connection: BaseDatabaseWrapper, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The SQL for the database of *connection*, and the values for its placeholders."""
        compiled = self._compiled.get(connection.alias) or self._compile(connection.alias)
        named = {**compiled.constants, **values}
        for name, field in compiled.fields.items():
            if named[name] is not None:
                named[name] = field.get_db_prep_save(named[name], connection)
        return compiled.sql, list(map(named.__getitem__, compiled.names))

    def _compile(self, using: str) -> _Compiled:
        query: Any = self._build()
        compiled = query.get_compiler(using).as_sql()
        sql, values = compiled[0] if isinstance(compiled, list) else compiled
        whole = _Compiled(sql, [], {}, {})
        if self._after:
            update = deepcopy(self._after._compile(using))
            whole = update._replace(sql=_insert_after(update.sql, sql, query.fields, connections[using]))
        for value in values:
            if isinstance(value, Parameter):
                whole.names.append(value.value)
                if value.field_to_prepare:
                    whole.fields[value.value] = value.field_to_prepare
            else:
                whole.names.append(f"constant_{len(whole.constants)}")
                whole.constants[whole.names[-1]] = value
        self._compiled[using] = whole
        return whole


def _insert_after(update: str, insert: str, fields: Iterable[Field], connection: BaseDatabaseWrapper) -> str:
    into, rows = insert.split(" VALUES ")
    if rows.count("(") == 1:
        chosen = f"SELECT {rows[1:-1]} FROM moved"  # noqa: S608
    else:
        # Apart from the table that they are for, PostgreSQL cannot tell the types of values. (A type with a length
        # would cut off what is too long.)
        types = cycle("text" if isinstance(field, CharField) else field.cast_db_type(connection) for field in fields)
        typed = PLACEHOLDER.sub(lambda _: f"%s::{next(types)}", rows)
        chosen = f"SELECT added.* FROM moved, (VALUES {typed}) AS added"  # noqa: S608
    return f"WITH moved AS ({update} RETURNING 1) {into} {chosen}"


def prepared_cursor(connection: BaseDatabaseWrapper) -> CursorWrapper:
    """
    A cursor of *connection* for prepared statements and no others.

    Django's for SQLite looks for the placeholders each time, which takes longer than SQLite takes to run a statement.
    """
    cursor = connection.cursor()
    if connection.vendor == "sqlite":
        cursor.cursor.convert_query = _to_qmarks
    return cursor


@cache
def _to_qmarks(sql: str, *, param_names: None = None) -> str:
    return PLACEHOLDER.sub("?", sql).replace("%%", "%")


def update_query(rows: QuerySet, **values: Any) -> Query:
    """What ``rows.update(**values)`` would run."""
    query: UpdateQuery = rows.query.chain(UpdateQuery)  # type: ignore[assignment]  # the stubs know only of Query
    query.add_update_values(values)
    return query


def insert_query(model: type[Model], rows: Iterable[Model]) -> Query:
    """What would write *rows*, all of whose fields are set, in one statement."""
    query = InsertQuery(model)
    query.insert_values([field for field in model._meta.concrete_fields if field.column], list(rows))
    return query
