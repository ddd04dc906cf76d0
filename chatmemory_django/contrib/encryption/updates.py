"""What is written by ``update`` and ``bulk_update`` of a QuerySet: a text is encrypted for one row, where it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from chatmemory_django.db.row_codec import EncryptedError, Placed, Stored
from chatmemory_django.models import Conversation, EncryptedTextField

_PLACE = {"memory_id", "conversation", "conversation_id", "sequence", "type"}
"""What texts of conversations and messages are encrypted for."""


def update(rows: Any, columns: Mapping[str, Any]) -> int:
    """See ``RowCodec.update``."""
    for name in _PLACE & set(columns):
        raise EncryptedError(f"Texts are encrypted for their {name}, so update() cannot change it: use save().")
    texts = {
        name: text
        for name, text in columns.items()
        if _is_text(rows.model, name, text) and not isinstance(text, Placed)
    }
    if not texts:
        return QuerySet.update(rows, **columns)
    with transaction.atomic(using=rows.db, savepoint=False):
        keys = list(rows.order_by().values_list("pk", flat=True)[:2])
        if len(keys) > 1:
            raise EncryptedError(
                f"{', '.join(texts)}: a text is encrypted for its row, but update() found several: use bulk_update()."
            )
        for key, row in _locked(rows, keys).items():
            placed = {name: Placed.of(str(text), row) for name, text in texts.items()}
            return QuerySet.update(rows.filter(pk=key), **{**columns, **placed})
    return 0


def place(rows: Any, instances: Iterable[Any], columns: Iterable[str]) -> None:
    """See ``RowCodec.place``."""
    texts = [
        (each, name, text)
        for each in instances
        for name in columns
        if _is_text(rows.model, name, text := getattr(each, name))
    ]
    found = _locked(rows, [each.pk for each, _, _ in texts]) if texts else {}
    for each, name, text in texts:
        setattr(each, name, Placed.of(str(text), found.get(each.pk, each)))


def _locked(rows: Any, keys: list[Any]) -> dict[Any, Any]:
    """Return the rows with *keys*, which stay where they are until the transaction ends, by their keys."""
    place = ("memory_id", "owner") if rows.model is Conversation else ("sequence", "type")
    found: dict[Any, Any] = rows.model.objects.using(rows.db).order_by().select_for_update().only(*place).in_bulk(keys)
    return found


def _is_text(model: Any, name: str, value: Any) -> bool:
    """Return whether *value* is a text that is encrypted for column *name*; the field refuses expressions."""
    is_expression = hasattr(value, "resolve_expression")
    is_encrypted = isinstance(model._meta.get_field(name), EncryptedTextField) and not isinstance(value, Stored)
    return is_encrypted and not is_expression and bool(value)
