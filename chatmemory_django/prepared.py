"""
Prepared querysets: compiled once for each database, then run again and again with other values.

To build and compile a queryset takes longer than most statements here take to run. The ORM still writes them all: a
``Prepared`` is given a function that makes the query, in which ``Parameter`` stands for what is not known yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    """A statement with a name for each value. Where a parameter has a field, that prepares its values."""

    sql: str
    constants: dict[str, Any]
    parameters: dict[str, Field | None]


class Prepared:
    """
    A statement, compiled when a database is first asked for it. *build* makes the query.

    With another statement *within* it, which writes something else, both are one: only PostgreSQL can say that.
    """

    def __init__(self, build: Callable[[], Query], *, within: Prepared | None = None) -> None:
        self._build = build
        self._within = within
        self._compiled: dict[str, _Compiled] = {}

    def rows(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Run a SELECT: its rows as the driver gives them, right for numbers and text."""
        cursor.execute(*self.sql(cursor.db, values))
        rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def run(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> None:
        """Run a statement that has no rows to give."""
        cursor.execute(*self.sql(cursor.db, values))

    def sql(self, connection: BaseDatabaseWrapper, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The SQL for the database of *connection*, and the values for the names in it."""
        sql, constants, parameters = self._compiled_for(connection.alias)
        named = constants.copy()
        for name, field in parameters.items():
            value = values[name]
            named[name] = value if field is None or value is None else field.get_db_prep_save(value, connection)
        return sql, named

    def _compiled_for(self, using: str) -> _Compiled:
        if using not in self._compiled:
            # By name, as Django's cursor for SQLite takes longer to find what has none than SQLite takes to run it.
            compiled = self._build().get_compiler(using).as_sql()
            sql, given = compiled[0] if isinstance(compiled, list) else compiled
            within = self._within._compiled_for(using) if self._within else _Compiled("", {}, {})
            constants, parameters = within.constants.copy(), within.parameters.copy()
            names = []
            for value in given:
                if isinstance(value, Parameter):
                    names.append(value.value)
                    parameters[value.value] = value.field_to_prepare
                else:
                    names.append(f"constant_{len(constants)}")
                    constants[names[-1]] = value
            following = iter(names)
            sql = PLACEHOLDER.sub(lambda _: f"%({next(following)})s", sql)
            if within.sql:
                sql = f"WITH first AS ({within.sql}) {sql}"
            self._compiled[using] = _Compiled(sql, constants, parameters)
        return self._compiled[using]


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
