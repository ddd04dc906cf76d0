"""The kinds of columns and indexes that Django does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import models, router
from django.db.models import Q

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class SparseIndex(models.Index):
    """
    An index of the rows that meet *rows*, or of all rows if the database does not support partial indexes.

    Django does the same with an index that has a condition, but warns at each migration.
    """

    def __init__(self, *, rows: Q, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        is_partial = schema_editor.connection.features.supports_partial_indexes
        index = models.Index(fields=self.fields, name=self.name, condition=self.rows if is_partial else None)
        return index.create_sql(model, schema_editor, using, **options)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, args, options = super().deconstruct()
        return path, args, {**options, "rows": self.rows}


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
