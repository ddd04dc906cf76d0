"""
What SQL an engine understands, as its backend declares it.

The name of a backend only decides what saves time and was measured, so that one of another package works, too: what the
ORM cannot express is in the SQL that the backend declares, and in the ORM's, or in several statements, if it declares
none that is known here.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

TRIED = frozenset({"PostgreSQL", "MariaDB", "SQLite"})
"""What the tests run on, as Django displays it. Backends that extend Django's display a name of their own."""


class Dialect(Enum):
    """An SQL that something here is written in."""

    POSTGRESQL = "PostgreSQL"
    MYSQL = "MySQL"
    SQLITE = "SQLite"


_BY_JSON = {"jsonb": Dialect.POSTGRESQL, "text": Dialect.SQLITE}
"""The dialects, by the type in which they store JSON."""


def dialect(connection: BaseDatabaseWrapper) -> Dialect | None:
    """Return the SQL of *connection*; None if nothing here is written in it."""
    if hasattr(connection, "isolation_levels"):  # MySQL's types depend on the server, which would be asked
        return Dialect.MYSQL
    return _BY_JSON.get(connection.data_types.get("JSONField", ""))


def combines(connection: BaseDatabaseWrapper) -> bool:
    """
    Return whether one statement does what takes several elsewhere: LATERAL, arrays of rows, an INSERT after an UPDATE.

    It only saves time, so it is done where that was measured: on PostgreSQL itself.
    """
    return connection.display_name == "PostgreSQL"


def queues(connection: BaseDatabaseWrapper) -> bool:
    """Return whether writers of a row wait for each other by a lock on it; on SQLite, one writer locks everything."""
    return connection.features.has_select_for_update
