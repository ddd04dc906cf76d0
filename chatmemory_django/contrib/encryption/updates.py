"""What is written by ``update`` and ``bulk_update`` of a QuerySet: a text is encrypted for one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Case, Value
from django.db.models.functions import Cast

from chatmemory_django.db.row_codec import EncryptedError, Placed, Stored
from chatmemory_django.models import Conversation, EncryptedTextField

_PLACE = {"memory_id", "conversation", "conversation_id", "sequence", "type"}
"""What texts of conversations and messages are encrypted for."""


def updated(rows: Any, columns: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """See ``RowCodec.updated``."""
    model = rows.model
    for name in _PLACE & set(columns):
        raise EncryptedError(f"Texts are encrypted for their {name}, so update() cannot change it: use save().")
    texts = {name: text for name, text in columns.items() if text and _is_text(model, name) and not _is_placed(text)}
    if not texts:
        return rows, columns
    for name, text in texts.items():
        if hasattr(text, "resolve_expression"):
            raise EncryptedError(f"{name} is encrypted, so the database cannot compute it: pass a text.")
    is_title = model is Conversation
    found = list(rows.order_by().only(*(("memory_id", "owner") if is_title else ("sequence", "type")))[:2])
    if len(found) > 1:
        raise EncryptedError(
            f"{', '.join(texts)}: a text is encrypted for its row, but update() found several: use bulk_update()."
        )
    if not found:
        return rows.none(), {}
    return rows.filter(pk=found[0].pk), {
        **columns,
        **{name: Placed.of(str(text), found[0]) for name, text in texts.items()},
    }


def place(instances: Iterable[Any], columns: Iterable[str]) -> None:
    """See ``RowCodec.place``."""
    names = list(columns)
    for each in instances:
        for name in names:
            text = getattr(each, name)
            if text and _is_text(type(each), name) and not hasattr(text, "resolve_expression"):
                setattr(each, name, Placed.of(str(text), each))


def _is_text(model: Any, name: str) -> bool:
    return isinstance(model._meta.get_field(name), EncryptedTextField)


def _is_placed(value: Any) -> bool:
    """Return whether *value* is encrypted for its row: what ``bulk_update`` passes is, too."""
    if isinstance(value, Placed | Stored):
        return True
    case = value.source_expressions[0] if isinstance(value, Cast) else value
    results = [each.result for each in case.cases] if isinstance(case, Case) else []
    return bool(results) and all(
        isinstance(each, Value) and (not each.value or isinstance(each.value, Placed)) for each in results
    )
