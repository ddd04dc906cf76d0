"""What is stored of conversations, and with which keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from django.apps import apps
from django.db.models import Count, Model, QuerySet
from django.db.models.functions import Left

from chatmemory_django.contrib.encryption.keys import OWNER_ID_LENGTH, OWNER_PREFIX, OwnerKeys
from chatmemory_django.contrib.encryption.values import PREFIX, UNPLACED, key_id_of
from chatmemory_django.db.row_codec import KEY_ID, is_of_owner
from chatmemory_django.models import (
    Conversation,
    ConversationQuerySet,
    Message,
    MessageQuerySet,
    message_codec,
)
from chatmemory_django.models.fields import as_stored, names_of_texts

_HEAD = len(PREFIX) + 40 + 1
"""How much of a value is read to see its key: an id has at most 40 characters, see ``row_codec.KEY_ID``."""

_OWNER_HEAD = len(PREFIX) + OWNER_ID_LENGTH + 1
"""The same of a value that the key of an owner has encrypted."""

MANY_VALUES = 2**28
"""
How many values with one key are too many: a sixteenth of those that a key may encrypt with random nonces, 2**32 by NIST
SP 800-38D, section 8.3. What was removed or written again counts there, and is no longer stored; so do the pieces of
streams.
"""


def keys_in_use(conversations: ConversationQuerySet, owner_keys: OwnerKeys) -> Counter[str]:
    """
    Return how many values need each key, by its id: those of *conversations*, all that belong to none, and all
    *owner_keys*.

    ``""`` counts plain texts, ``"@"`` what is encrypted with keys of owners, and ``UNPLACED`` what is bound to no row,
    whatever its key.
    """
    found = owner_keys.wrapped_by(conversations.db)
    for rows, columns in _all(conversations.values("pk"), conversations.db):
        for column in columns:
            heads = rows.annotate(_head=Left(as_stored(column), _HEAD)).values_list("_head", flat=True)
            found.update(_key_id(head) for head in heads.order_by().iterator() if head)
    if message_codec.installed is not None:
        keys = message_codec.installed.keys(conversations)
        found.update(_key_id(f"{'' if key_id.startswith(PREFIX) else UNPLACED}{key_id}:") for key_id in keys)
    return found


def worn(found: Counter[str], conversations: ConversationQuerySet) -> Iterator[str]:
    """
    Yield the ids of the keys with ``MANY_VALUES`` of *conversations*, of which *found* are ``keys_in_use``.

    Those of an owner are looked for in each column alone, and only if those of all owners together are as many.
    """
    no_keys = {"", UNPLACED, OWNER_PREFIX}
    yield from (key_id for key_id, count in found.items() if count >= MANY_VALUES and key_id not in no_keys)
    if found[OWNER_PREFIX] < MANY_VALUES:
        return
    owners: set[str] = set()
    for rows, column in _columns(conversations.values("pk"), conversations.db):
        heads = rows.annotate(_head=Left(as_stored(column), _OWNER_HEAD)).order_by().values("_head")
        own = heads.filter(_head__startswith=f"{PREFIX}{OWNER_PREFIX}").annotate(_count=Count("*"))
        owners |= {_id_of(row["_head"]) for row in own.filter(_count__gte=MANY_VALUES)}
    yield from owners


def needed(key_ids: Collection[str], using: str) -> set[str]:
    """Return those of *key_ids*, of owners, with which anything in the database *using* is encrypted."""
    conversations: Any = Conversation.objects.using(using)
    heads = [f"{prefix}{key_id}:" for prefix in (PREFIX, UNPLACED) for key_id in key_ids]
    found: set[str] = set()
    for rows, column in _columns(conversations.values("pk"), using) if key_ids else ():
        some = rows.annotate(_head=Left(as_stored(column), _OWNER_HEAD)).filter(_head__in=heads)
        found.update(map(_id_of, some.order_by().values_list("_head", flat=True).distinct()))
    if key_ids and message_codec.installed is not None:
        found.update(key_id.removeprefix(PREFIX) for key_id in message_codec.installed.keys(conversations))
    return found & set(key_ids)


def _all(conversations: Any, using: str) -> Iterator[tuple[QuerySet[Any], list[str]]]:
    yield from kept(conversations, using)
    yield from kept_of_owners(using)


def _columns(conversations: Any, using: str) -> Iterator[tuple[QuerySet[Any], str]]:
    for rows, columns in _all(conversations, using):
        yield from ((rows, column) for column in columns)


def _id_of(head: str) -> str:
    return key_id_of(head) or ""


def _key_id(head: str) -> str:
    key_id = key_id_of(head) or ""
    if not KEY_ID.fullmatch(key_id):
        return ""
    if head.startswith(UNPLACED):
        return UNPLACED
    return OWNER_PREFIX if key_id.startswith(OWNER_PREFIX) else key_id


def kept(conversations: Any, using: str) -> Iterator[tuple[QuerySet[Any], list[str]]]:
    """Yield the rows of every table that keeps texts of *conversations*, keys or a query of them, and their columns."""
    for model, columns in _models():
        if not is_of_owner(model):
            path = "pk__in" if model is Conversation else "conversation__in"
            yield _rows_of(model).using(using).filter(**{path: conversations}), columns


def kept_of_owners(using: str, owner: object = None) -> Iterator[tuple[QuerySet[Any], list[str]]]:
    """
    Yield the rows of every table that keeps texts of users, and of no conversation, and their columns; only those of
    *owner*, the primary key of a user, if it is given.
    """
    for model, columns in _models():
        if is_of_owner(model):
            rows = _rows_of(model).using(using)
            yield rows if owner is None else rows.filter(owner=owner), columns


def owners_of_others(using: str, owner: object = None) -> set[str]:
    """Return the owners of what ``kept_of_owners`` yields, as text."""
    return {
        rows.model._meta.get_field("owner").to_key(each)
        for rows, _ in kept_of_owners(using, owner)
        for each in rows.order_by().values_list("owner", flat=True).distinct()
    }


def models_of_owners() -> list[type[Model]]:
    """Return the models of ``kept_of_owners``."""
    return [model for model, _ in _models() if is_of_owner(model)]


def _models() -> Iterator[tuple[type[Model], list[str]]]:
    for model in apps.get_models():
        if columns := names_of_texts(model):
            yield model, columns


def _rows_of(model: type[Model]) -> QuerySet[Any]:
    return MessageQuerySet(model) if model is Message else QuerySet(model)
