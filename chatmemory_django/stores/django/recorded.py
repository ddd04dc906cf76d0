"""
Statements that the ORM compiles once for each database, and that are run repeatedly with different values.

A queryset is evaluated with ``Parameter`` in place of values, and what it would execute is recorded instead. Building
and compiling it each time would take longer than most of the statements take to run. Values are adapted by their
fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import Expression

from chatmemory_django.models import Conversation, ExactCharField, Message

PLAIN = frozenset(
    {models.BooleanField, models.CharField, models.TextField, ExactCharField, models.BigAutoField}
    | {models.PositiveIntegerField, models.PositiveBigIntegerField}
)
"""Fields whose values every driver accepts unchanged. A subclass may adapt its values, so it is not among them."""


class Slot(str):
    """The name of a value of a recorded statement, and the *field* that adapts it for the database."""

    field: Any


class Parameter(Expression):
    """A value for *column* of *model*, passed as *name* when the statement is run."""

    def __init__(self, model: type[Conversation | Message], column: str, name: str = "") -> None:
        field: Any = model._meta.get_field(column)
        super().__init__(output_field=field)
        self.slot = Slot(name or column)
        self.slot.field = getattr(field, "target_field", field)

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", [self.slot]


class _Recorded(Exception):  # noqa: N818  # not an error: it aborts a SELECT after recording it
    pass


class Statement:
    """The statement that *run*, called with a database alias, has the ORM execute there."""

    def __init__(self, run: Callable[[str], object]) -> None:
        self._run = run
        self._recorded: dict[str, tuple[str, list[Any]]] = {}

    def on(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """Return the SQL for the database of *connection*, and its parameters: slots and constants."""
        if connection.alias not in self._recorded:
            self._recorded[connection.alias] = self._record(connection)
        return self._recorded[connection.alias]

    def run(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> int:
        """Run the statement with *values* for its slots; return the number of rows written, if it writes any."""
        sql, parameters = self.on(cursor.db)
        bound = []
        for parameter in parameters:
            if parameter.__class__ is Slot:
                field, value = parameter.field, values[parameter]
                as_is = value is None or field.__class__ in PLAIN
                bound.append(value if as_is else field.get_db_prep_save(value, cursor.db))
            else:
                bound.append(parameter)
        cursor.execute(sql, bound)
        count: int = cursor.rowcount
        return count

    def _record(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        found: list[tuple[str, list[Any]]] = []

        def instead(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if not any(isinstance(each, Slot) for each in params or ()):
                return execute(sql, params, many, context)  # a statement of the connection itself, for example BEGIN
            found.append((sql, list(params)))
            if sql.lstrip("(").startswith("SELECT"):
                raise _Recorded
            return None

        # It is not executed, so tests must not count it as a query.
        is_logged, connection.force_debug_cursor = connection.force_debug_cursor, False
        try:
            with connection.execute_wrapper(instead), suppress(_Recorded):
                self._run(connection.alias)
        finally:
            connection.force_debug_cursor = is_logged
        if len(found) != 1:  # the others would never be executed
            raise RuntimeError(f"The ORM must execute exactly one statement to record, not {len(found)}.")
        return found[0]
