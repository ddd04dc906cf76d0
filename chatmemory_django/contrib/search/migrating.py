"""Creating, dropping and repairing the index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, router
from django.db.migrations.operations.base import Operation

from chatmemory_django.contrib.search import sqlite
from chatmemory_django.contrib.search.indexes import index_of

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.migrations.state import ProjectState


class BuildIndex(Operation):
    """Build the index in each database that stores messages, including the existing ones."""

    reversible = True
    reduces_to_sql = True

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Leave the models unchanged."""

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        self._run("create", schema_editor, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: Any, to_state: Any
    ) -> None:
        self._run("drop", schema_editor, to_state)

    def describe(self) -> str:
        return "Build the index of the messages"

    def _run(self, verb: str, editor: BaseDatabaseSchemaEditor, state: Any) -> None:
        message = state.apps.get_model("chatmemory", "Message")
        index = index_of(editor.connection)
        if index is not None and router.allow_migrate_model(editor.connection.alias, message):
            getattr(index, verb)(editor, message._meta.db_table)


def mend(*, using: str, **kwargs: Any) -> None:
    """Rebuild the index in the database *using* if a migration of the messages has removed its triggers."""
    connection = connections[using]
    if index_of(connection) is sqlite and sqlite.lacks_triggers(connection):
        with connection.schema_editor(atomic=True) as editor:
            sqlite.fill(editor, apps.get_model("chatmemory", "Message")._meta.db_table)
