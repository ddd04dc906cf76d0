"""What is stored of conversations, and with which keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.db.models import Model, QuerySet
from django.db.models.functions import Left

from chatmemory_django.contrib.encryption.keys import OWNER_PREFIX, OwnerKeys
from chatmemory_django.contrib.encryption.values import PREFIX, UNPLACED, key_id_of
from chatmemory_django.db.row_codec import KEY_ID
from chatmemory_django.models import (
    Conversation,
    ConversationQuerySet,
    EncryptedTextField,
    Message,
    MessageQuerySet,
    message_codec,
)
from chatmemory_django.models.fields import as_stored

_HEAD = len(PREFIX) + 40 + 1
"""How much of a value is read to see its key: an id has at most 40 characters, see ``row_codec.KEY_ID``."""


def keys_in_use(conversations: ConversationQuerySet, owner_keys: OwnerKeys) -> Counter[str]:
    """
    Return how many values need each key, by its id: those of *conversations*, and all *owner_keys*.

    ``""`` counts plain texts, ``"@"`` what is encrypted with keys of owners, and ``UNPLACED`` what is bound to no row,
    whatever its key.
    """
    found = owner_keys.wrapped_by(conversations.db)
    for rows, columns in kept(conversations.values("pk"), conversations.db):
        for column in columns:
            heads = rows.annotate(_head=Left(as_stored(column), _HEAD)).values_list("_head", flat=True)
            found.update(_key_id(head) for head in heads.order_by().iterator() if head)
    if message_codec.installed is not None:
        keys = message_codec.installed.keys(conversations)
        found.update(_key_id(f"{'' if key_id.startswith(PREFIX) else UNPLACED}{key_id}:") for key_id in keys)
    return found


def _key_id(head: str) -> str:
    key_id = key_id_of(head) or ""
    if not KEY_ID.fullmatch(key_id):
        return ""
    if head.startswith(UNPLACED):
        return UNPLACED
    return OWNER_PREFIX if key_id.startswith(OWNER_PREFIX) else key_id


def kept(conversations: Any, using: str) -> Iterator[tuple[QuerySet[Any], list[str]]]:
    """Yield the rows of every table that keeps texts of *conversations*, keys or a query of them, and their columns."""
    for model in apps.get_models():
        columns = [field.name for field in model._meta.concrete_fields if isinstance(field, EncryptedTextField)]
        if columns:
            rows = _rows_of(model).using(using)
            path = "pk__in" if model is Conversation else "conversation__in"
            yield rows.filter(**{path: conversations}), columns


def _rows_of(model: type[Model]) -> QuerySet[Any]:
    return MessageQuerySet(model) if model is Message else QuerySet(model)
