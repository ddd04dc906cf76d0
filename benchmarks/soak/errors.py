"""Which errors a soak brings with it, by what the databases' drivers say."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError
from django.db.transaction import TransactionManagementError

from chatmemory_django.stores.base import ConversationErasedError, MessageNotFoundError

LOCK_TIMEOUT = "lock time-out"
DEADLOCK = "deadlock"
SERIALIZATION = "serialization failure"
CONNECTION = "connection lost"
LOST_TRANSACTION = "in a transaction that is lost"
ERASED = "erased meanwhile"
NO_MESSAGE = "no such message"

SQLSTATES = {
    "55P03": LOCK_TIMEOUT,
    "40P01": DEADLOCK,
    "40001": SERIALIZATION,
    "25P02": LOST_TRANSACTION,
    **dict.fromkeys(("57P01", "57P02", "57P03", "08000", "08001", "08003", "08006", "08P01"), CONNECTION),
}
MYSQL_ERRORS = {
    1205: LOCK_TIMEOUT,
    1213: DEADLOCK,
    1020: SERIALIZATION,
    **dict.fromkeys((1053, 1317, 1927, 2002, 2003, 2006, 2013, 2055), CONNECTION),
}


def kind_of(error: Exception) -> tuple[str, bool]:
    """What kind of error it is, and whether it is one of those that a soak brings with it."""
    if isinstance(error, TransactionManagementError):
        return LOST_TRANSACTION, "current transaction" in str(error)
    if isinstance(error, ConversationErasedError) or str(error).startswith("Save with update_fields did not affect"):
        return ERASED, True
    if isinstance(error, MessageNotFoundError):
        return NO_MESSAGE, True
    if isinstance(error, InterfaceError):
        return CONNECTION, True
    if isinstance(error, DatabaseError):
        cause = error.__cause__ or error
        number = cause.args[0] if cause.args else None
        kind = SQLSTATES.get(getattr(cause, "sqlstate", None) or "") or MYSQL_ERRORS.get(number)
        if kind is None and number == "database is locked":
            kind = LOCK_TIMEOUT
        # psycopg has no code for what the server did not say. InternalError is its word for an answer too many,
        # which PgBouncer gives when a server of its ends.
        if isinstance(error, (OperationalError, InternalError)) and getattr(cause, "sqlstate", "") is None:
            kind = CONNECTION
        if kind is not None:
            return kind, True
    return type(error).__name__, False
