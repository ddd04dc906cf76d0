"""
The place of each value that a QuerySet reads: a SELECT of a column of texts has it in front of the value.

So a value is known to be of its row in whichever query it is read: only what the database computes has no place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.db.row_codec import Address, Coder, EncryptedError, RowCodec, RowKey, is_of_owner, row_of

if TYPE_CHECKING:
    from django.db import models
    from django.db.backends.base.base import BaseDatabaseWrapper

    from chatmemory_django.models import EncryptedTextField

_MARK = "\x1f"
"""What stands between a place and the value."""


def selected(field: models.Field[Any, Any], table: str, connection: BaseDatabaseWrapper) -> str:
    """See ``RowCodec.selected``."""

    def column(name: str) -> str:
        return table + connection.ops.quote_name(meta.get_field(name).column)

    model: Any = field.model
    meta: Any = model._meta
    is_mysql = dialect(connection) is Dialect.MYSQL

    def owner() -> str:
        named = column("owner")
        return f"COALESCE(CONCAT({named}), '')" if is_mysql else f"COALESCE(CAST({named} AS text), '')"

    if _is_conversation(model):
        memory_id = column("memory_id")
        length = f"CHAR_LENGTH({memory_id})" if is_mysql else f"LENGTH({memory_id})"
        parts = [column("id"), "':'", length, "':'", memory_id, owner()]
    elif is_of_owner(model):
        parts = [column(meta.pk.name), "':'", owner()]
    elif len(meta.pk_fields) > 1:
        parts = [column("conversation"), "':'", column("sequence"), "':'", column("type")]
    else:
        parts = [column("conversation") if _has_conversation(model) else "''", "':'", column(meta.pk.name)]
    parts += [f"'{_MARK}'", column(field.name)]
    return f"CONCAT({', '.join(parts)})" if is_mysql else f"({' || '.join(parts)})"


def decoder(codec: RowCodec, field: EncryptedTextField, using: str) -> Callable[..., Any]:
    """See ``RowCodec.decoder``."""
    label = field.label
    parse = _parser(field.model, using)
    coders: dict[Address, Coder] = {}

    def decoded(value: str | None, *_: Any) -> str | None:
        if not value:
            return value
        try:
            address, row, stored = parse(value)
        except ValueError:
            raise EncryptedError(
                f"{label} was read without its row: the database has computed with it, or raw SQL was used. "
                "Select the column itself."
            ) from None
        if not stored:
            return stored
        coder = coders.get(address)
        if coder is None:
            coder = coders[address] = codec.at(address)
        return coder.decode(stored, label, row)

    return decoded


def _parser(model: Any, using: str) -> Callable[[str], tuple[Address, RowKey, str]]:
    """Return what returns address, row and stored text of what is ``selected``; ``ValueError`` for others."""
    key_of = model._meta.pk.to_python

    def of_conversation(value: str) -> tuple[Address, RowKey, str]:
        key, length, rest = value.split(":", 2)
        owner, stored = rest[int(length) :].split(_MARK, 1)
        own = model._meta.get_field("owner").to_key(owner) if owner else None
        return Address(using, int(key), rest[: int(length)], own), (), stored

    def of_message(value: str) -> tuple[Address, RowKey, str]:
        place, stored = value.split(_MARK, 1)
        conversation, sequence, kind = place.split(":")
        return Address(using, int(conversation)), (int(sequence), kind), stored

    def of_an_owner(value: str) -> tuple[Address, RowKey, str]:
        place, stored = value.split(_MARK, 1)
        key, whose = place.split(":", 1)
        own = model._meta.get_field("owner").to_key(whose)
        return Address(using, owner=own), (own, *row_of(key_of(key))), stored

    def of_another(value: str) -> tuple[Address, RowKey, str]:
        place, stored = value.split(_MARK, 1)
        conversation, key = place.split(":", 1)
        return Address(using, int(conversation) if conversation else None), row_of(key_of(key)), stored

    if _is_conversation(model):
        return of_conversation
    if is_of_owner(model):
        return of_an_owner
    return of_message if len(model._meta.pk_fields) > 1 else of_another


def _is_conversation(model: Any) -> bool:
    return hasattr(model, "memory_id")


def _has_conversation(model: Any) -> bool:
    return hasattr(model, "conversation_id")
