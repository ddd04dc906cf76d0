"""
The place of each text of people: where a ``RowCodec`` is installed, a SELECT of the column has that of its row, too.

So a value is known to be of its row in whichever query it is read: only what the database computes has no place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models
from django.db.models import F, Func

from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address, Coder, EncryptedError, RowKey, row_of

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_Model = TypeVar("_Model", bound=models.Model)

_MARK = "\x1f"
"""What stands between a place and the value."""


def with_place(model: type[models.Model], table: str, value: str, connection: BaseDatabaseWrapper) -> str:
    """Return the SQL for *value*, a column of *model*, behind its place; *table* is what its columns begin with."""

    def column(name: str) -> str:
        return table + connection.ops.quote_name(meta.get_field(name).column)

    meta: Any = model._meta
    is_mysql = connection.vendor == "mysql"
    if _is_conversation(model):
        memory_id, owner = column("memory_id"), column("owner")
        length = f"LENGTH({memory_id})" if connection.vendor == "sqlite" else f"CHAR_LENGTH({memory_id})"
        owner = f"COALESCE(CONCAT({owner}), '')" if is_mysql else f"COALESCE(CAST({owner} AS text), '')"
        parts = [column("id"), "':'", length, "':'", memory_id, owner]
    elif len(meta.pk_fields) > 1:
        parts = [column("conversation"), "':'", column("sequence"), "':'", column("type")]
    else:
        parts = [column("conversation") if _has_conversation(model) else "''", "':'", column(meta.pk.name)]
    parts += [f"'{_MARK}'", value]
    return f"CONCAT({', '.join(parts)})" if is_mysql else f"({' || '.join(parts)})"


def decoder(field: models.Field[Any, Any], label: str, using: str) -> Callable[..., Any]:
    """Return what decodes the values of *field* that one query reads in the database *using*, each with its place."""
    codec: Any = row_codec.installed
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
    """Return what returns address, row and stored text of what ``with_place`` selects; ``ValueError`` for others."""
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

    def of_another(value: str) -> tuple[Address, RowKey, str]:
        place, stored = value.split(_MARK, 1)
        conversation, key = place.split(":", 1)
        return Address(using, int(conversation) if conversation else None), row_of(key_of(key)), stored

    if _is_conversation(model):
        return of_conversation
    return of_message if len(model._meta.pk_fields) > 1 else of_another


def _is_conversation(model: Any) -> bool:
    return hasattr(model, "memory_id")


def _has_conversation(model: Any) -> bool:
    return hasattr(model, "conversation_id")


class WithPlace(Func):
    """The *column* of texts inside of another expression, such as CASE, which then has the place in its value."""

    def __init__(self, column: str) -> None:
        super().__init__(F(column))

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        sql, params = compiler.compile(self.source_expressions[0])
        return self.output_field.select_format(compiler, sql, params)


class PlacedQuerySet(models.QuerySet[_Model]):
    """A QuerySet of rows whose texts are encoded for each row, where a ``RowCodec`` is installed."""

    def update(self, **columns: Any) -> int:
        """See ``QuerySet.update``. Of texts that are encoded, it writes those of one row."""
        if row_codec.installed is None:
            return super().update(**columns)
        rows, given = row_codec.installed.updated(self, columns)
        return super(PlacedQuerySet, rows).update(**given)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[_Model], fields: Iterable[str], batch_size: int | None = None) -> int:
        """See ``QuerySet.bulk_update``."""
        objs, fields = tuple(objs), tuple(fields)
        if row_codec.installed is not None:
            row_codec.installed.place(objs, fields)
        return super().bulk_update(objs, fields, batch_size)

    bulk_update.alters_data = True  # type: ignore[attr-defined]
