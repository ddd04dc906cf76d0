"""The kinds of columns and indexes that Django does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import models, router
from django.db.backends.ddl_references import Statement
from django.db.models import Func, Q

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.sql.compiler import SQLCompiler


class SparseIndex(models.Index):
    """
    An index of the rows that meet *rows*.

    If the database does not support partial indexes, it has all rows, or is left out if it *must_be_partial*. Django
    does the former with an index that has a condition, but warns at each migration.
    """

    def __init__(self, *, rows: Q, must_be_partial: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows
        self.must_be_partial = must_be_partial

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        is_partial = schema_editor.connection.features.supports_partial_indexes
        if self.must_be_partial and not is_partial:
            return Statement("DO 0")  # Django executes what this returns
        index = models.Index(fields=self.fields, name=self.name, condition=self.rows if is_partial else None)
        return index.create_sql(model, schema_editor, using, **options)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, args, options = super().deconstruct()
        if self.must_be_partial:
            options["must_be_partial"] = True
        return path, args, {**options, "rows": self.rows}


class Hour(Func):
    """
    The number of the hour of a moment, counted from a moment that depends on the database.

    Generated columns require expressions that depend on nothing else, such as the time zone of the connection.
    """

    arity = 1
    output_field = models.IntegerField()

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="TIMESTAMPDIFF(HOUR, '1970-01-01', %(expressions)s)")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        hours = "FLOOR(EXTRACT(EPOCH FROM %(expressions)s::timestamptz AT TIME ZONE 'UTC') / 3600)::integer"
        return self.as_sql(compiler, connection, template=hours)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="CAST(JULIANDAY(%(expressions)s) * 24 AS INTEGER)")


class ExactCharField(models.CharField):
    """A string that is compared exactly on every database: by default, MySQL considers "a" and "A" equal."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            # Binary, and without the padding that makes "a" and "a " equal.
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class OwnerField(models.ForeignKey):
    """
    A foreign key to a user, with a constraint and a cascade.

    If a site has its users in another database, neither is possible: then ``erase_conversations`` takes their place.
    """

    @property
    def db_constraint(self) -> bool:
        """Whether the users are in the same database as the conversations."""
        if not hasattr(self, "model"):
            return True
        return router.db_for_write(self.model) == router.db_for_write(self.remote_field.model)

    @db_constraint.setter
    def db_constraint(self, value: bool) -> None:
        """Ignore *value*: the router decides."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """See ``Field.deconstruct``. The migration is the same for all sites."""
        name, path, args, options = super().deconstruct()
        options.pop("db_constraint", None)
        return name, path, args, {**options, "on_delete": models.CASCADE}
