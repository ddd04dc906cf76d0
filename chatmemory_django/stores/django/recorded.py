"""
Statements that the ORM writes once for each database, and that are run again and again with other values.

A queryset is run with ``Parameter`` in the place of values, and what it would execute is recorded instead. To build and
compile it again would take longer than most statements take to run. Values are adapted by their fields each time.
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
"""Fields whose values every driver takes as they are. A subclass may adapt them, so it is asked."""


class Slot(str):
    """The name of a value that a recorded statement is run with, and the *field* that adapts it for the database."""

    field: Any


class Parameter(Expression):
    """A value for *column* of *model*, given as *name* when the statement is run."""

    def __init__(self, model: type[Conversation | Message], column: str, name: str = "") -> None:
        field: Any = model._meta.get_field(column)
        super().__init__(output_field=field)
        self.slot = Slot(name or column)
        self.slot.field = getattr(field, "target_field", field)

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", [self.slot]


class _Recorded(Exception):  # noqa: N818  # no error: it ends a SELECT once that is recorded
    pass


class Statement:
    """What *run*, given the alias of a database, has the ORM execute there."""

    def __init__(self, run: Callable[[str], object]) -> None:
        self._run = run
        self._recorded: dict[str, tuple[str, list[Any]]] = {}

    def on(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """Return the SQL for the database of *connection*, and its parameters: slots and constants."""
        if connection.alias not in self._recorded:
            self._recorded[connection.alias] = self._record(connection)
        return self._recorded[connection.alias]

    def run(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> int:
        """Run it with *values* in its slots; returns how many rows it wrote, if it writes."""
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
                return execute(sql, params, many, context)  # what a connection runs for itself, BEGIN for example
            found.append((sql, list(params)))
            if sql.lstrip("(").startswith("SELECT"):
                raise _Recorded
            return None

        # It is not executed, so it is no query to count in a test.
        is_logged, connection.force_debug_cursor = connection.force_debug_cursor, False
        try:
            with connection.execute_wrapper(instead), suppress(_Recorded):
                self._run(connection.alias)
        finally:
            connection.force_debug_cursor = is_logged
        if len(found) != 1:  # the others would never be run
            raise RuntimeError(f"One statement is to be recorded, and the ORM has made {len(found)} of it.")
        return found[0]
