"""The errors that a soak provokes, recognized by the messages of the databases' drivers."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError
from django.db.transaction import TransactionManagementError

from chatmemory_django.models.message_codec import MissingFileError
from chatmemory_django.stores.base import ConversationErasedError, MessageNotFoundError

LOCK_TIMEOUT = "lock time-out"
DEADLOCK = "deadlock"
SERIALIZATION = "serialization failure"
CONNECTION = "connection lost"
LOST_TRANSACTION = "aborted transaction"
ERASED = "erased concurrently"
NO_MESSAGE = "no such message"
NO_FILE = "file of a removed message"

SQLSTATES = {
    "55P03": LOCK_TIMEOUT,
    "40P01": DEADLOCK,
    "40001": SERIALIZATION,
    "25P02": LOST_TRANSACTION,
    "25006": CONNECTION,  # a primary that has become a replica
    **dict.fromkeys(("57P01", "57P02", "57P03", "08000", "08001", "08003", "08006", "08P01"), CONNECTION),
}
MYSQL_ERRORS = {
    1205: LOCK_TIMEOUT,
    1213: DEADLOCK,
    1020: SERIALIZATION,
    **dict.fromkeys((1047, 1180, 1290), CONNECTION),  # a node that has no majority any more, 1180 at a commit
    **dict.fromkeys((1053, 1317, 1927, 2002, 2003, 2006, 2013, 2055), CONNECTION),
}


def kind_of(error: Exception) -> tuple[str, bool]:
    """Return the kind of an error, and whether a soak provokes it."""
    if isinstance(error, TransactionManagementError):
        return LOST_TRANSACTION, "current transaction" in str(error)
    if isinstance(error, ConversationErasedError) or str(error).startswith("Save with update_fields did not affect"):
        return ERASED, True
    if isinstance(error, MessageNotFoundError):
        return NO_MESSAGE, True
    if isinstance(error, MissingFileError):
        return NO_FILE, True
    if isinstance(error, InterfaceError):
        return CONNECTION, True
    if isinstance(error, DatabaseError):
        cause = error.__cause__ or error
        number = cause.args[0] if cause.args else None
        kind = SQLSTATES.get(getattr(cause, "sqlstate", None) or "") or MYSQL_ERRORS.get(number)
        if kind is None and number == "database is locked":
            kind = LOCK_TIMEOUT
        # psycopg has no code for errors that the server did not report. It raises InternalError for a surplus response,
        # which PgBouncer sends when one of its servers ends.
        if isinstance(error, (OperationalError, InternalError)) and getattr(cause, "sqlstate", "") is None:
            kind = CONNECTION
        if kind is not None:
            return kind, True
    return type(error).__name__, False
