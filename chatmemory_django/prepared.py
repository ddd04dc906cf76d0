"""
Prepared querysets: compiled once for each database, then run again and again with other values.

To build and compile a queryset takes longer than most statements here take to run. The ORM still writes them all: a
``Prepared`` is given a function that makes the query, in which ``Parameter`` stands for what is not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import BooleanField, CharField, Field, IntegerField, Model, QuerySet, TextField, Value
from django.db.models.sql import InsertQuery, Query, UpdateQuery

AS_THEY_ARE = (BooleanField, CharField, IntegerField, TextField)
"""Fields whose values every driver takes as they are."""


class Parameter(Value):
    """
    A value for a column like *field*, given under *name* when the statement is run.

    One that *is_adapted* is given as the database's driver takes it.
    """

    def __init__(self, name: str, field: Field, *, is_adapted: bool = False) -> None:
        super().__init__(name, output_field=field)
        self.is_adapted = is_adapted

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", (self,)


class _Slot(NamedTuple):
    """What is to be put for one ``%s``: a constant if it has no name. *field* prepares values that need it."""

    name: str | None
    field: Field | None
    constant: Any


class Prepared:
    """
    A statement, compiled when a database is first asked for it. *build* makes the query.

    With another statement *within* it, which writes something else, both are one: only PostgreSQL can say that.
    """

    def __init__(self, build: Callable[[], Query], *, within: Prepared | None = None) -> None:
        self._build = build
        self._within = within
        self._compiled: dict[str, tuple[str, list[_Slot]]] = {}

    def rows(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
        """Run a SELECT: its rows as the driver gives them, right for numbers and text."""
        cursor.execute(*self.sql(cursor.db, values))
        rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows

    def run(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> None:
        """Run a statement that has no rows to give."""
        cursor.execute(*self.sql(cursor.db, values))

    def sql(self, connection: BaseDatabaseWrapper, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The SQL for the database of *connection*, and what to put for each ``%s`` in it."""
        sql, slots = self._compiled_for(connection.alias)
        return sql, [
            slot.constant
            if slot.name is None
            else values[slot.name]
            if slot.field is None or values[slot.name] is None
            else slot.field.get_db_prep_save(values[slot.name], connection)
            for slot in slots
        ]

    def _compiled_for(self, using: str) -> tuple[str, list[_Slot]]:
        if using not in self._compiled:
            compiled = self._build().get_compiler(using).as_sql()
            sql, parameters = compiled[0] if isinstance(compiled, list) else compiled
            slots = list(map(_slot, parameters))
            if self._within is not None:
                first_sql, first_slots = self._within._compiled_for(using)
                sql, slots = f"WITH first AS ({first_sql}) {sql}", first_slots + slots
            self._compiled[using] = sql, slots
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


def _slot(parameter: Any) -> _Slot:
    if not isinstance(parameter, Parameter):
        return _Slot(None, None, parameter)
    field = parameter.output_field
    field = getattr(field, "target_field", field)  # a foreign key is what it points to
    is_ready = parameter.is_adapted or isinstance(field, AS_THEY_ARE)
    return _Slot(parameter.value, None if is_ready else field, None)
