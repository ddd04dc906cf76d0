"""Encrypts what was stored before encryption was on, or with another key than the one that encrypts now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.apps import apps
from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast, Left

from chatmemory_django.encryption.ciphers import Cipher, cipher, for_owner
from chatmemory_django.encryption.keys import OWNER_PREFIX
from chatmemory_django.encryption.values import KEY_ID, PREFIX, EncryptionError, key_id_of
from chatmemory_django.models import Conversation, ConversationQuerySet, EncryptedTextField
from chatmemory_django.operations.whole import for_writing, in_lock, keys

ROWS = 100
"""How many rows are encrypted while a conversation is locked."""

_HEAD = len(PREFIX) + 40 + 1
"""How much of a value is read to see its key: an id has at most 40 characters, see ``values.KEY_ID``."""


def encrypt(
    conversations: QuerySet[Conversation],
    *,
    dry_run: bool = False,
    each: Callable[[Conversation, int], object] | None = None,
) -> int:
    """
    Encrypt the texts of *conversations* with the key that encrypts now, and return how many rows were not; nothing is
    written in a *dry_run*.

    It goes beside writers, who wait for a hundred rows at most, and goes on where it was interrupted. *each* receives
    each conversation, and how many of its rows were not encrypted with that key.

    Raises:
        EncryptionError: Conversations have values that cannot be decrypted. The others are encrypted by then.

    """
    encrypts = cipher()
    if encrypts is None:
        raise RuntimeError("'chatmemory_django.encryption' is not in INSTALLED_APPS.")
    total = 0
    failed: dict[int, EncryptionError] = {}
    conversations = for_writing(conversations)
    for key in keys(conversations):
        count = 0
        try:
            while (found := in_lock(conversations, key, partial(_encrypt_some, encrypts, dry_run=dry_run))) is not None:
                conversation, done = found
                count += done
                if dry_run or not done:
                    break
        except EncryptionError as exc:
            failed[key] = exc
            continue
        if found is not None and each is not None:
            each(conversation, count)
        total += count
    if failed:
        first, error = next(iter(failed.items()))
        name = conversations.filter(pk=first).values_list("memory_id", flat=True).get()
        raise EncryptionError(f"{len(failed):,} of the conversations cannot be decrypted, first {name!r}: {error}")
    return total


def wrap_keys(using: str) -> int:
    """Wrap the owners' keys of the database *using* with the key of the site that encrypts now; return how many."""
    encrypts = cipher()
    return 0 if encrypts is None else encrypts.owner_keys.wrap_all(using)


def renew(conversation: Conversation) -> None:
    """Encrypt the texts of *conversation*, which is locked, with the key that encrypts now, if that is needed."""
    encrypts = cipher()
    if encrypts is not None:
        while _encrypt_some(encrypts, conversation, dry_run=False)[1]:
            pass


def keys_in_use(conversations: ConversationQuerySet) -> Counter[str]:
    """
    Return how many values need each key, by its id: those of *conversations*, and all keys of owners.

    ``""`` counts plain texts, and ``"@"`` what is encrypted with keys of owners.
    """
    encrypts = cipher()
    found: Counter[str] = Counter() if encrypts is None else encrypts.owner_keys.wrapped_by(conversations.db)
    for rows, columns in _kept(conversations.values("pk"), conversations.db):
        for column in columns:
            heads = rows.annotate(_head=Left(_stored(column), _HEAD)).values_list("_head", flat=True)
            found.update(_key_id(head) for head in heads.order_by().iterator() if head)
    return found


def _key_id(head: str) -> str:
    key_id = key_id_of(head) or ""
    if not KEY_ID.fullmatch(key_id):
        return ""
    return OWNER_PREFIX if key_id.startswith(OWNER_PREFIX) else key_id


def _kept(conversations: Any, using: str) -> Iterator[tuple[QuerySet[Any], list[str]]]:
    """Yield the rows of every table that keeps texts of *conversations*, keys or a query of them, and their columns."""
    for model in apps.get_models():
        columns = [field.name for field in model._meta.concrete_fields if isinstance(field, EncryptedTextField)]
        if columns:
            rows = _rows_of(model).using(using)
            path = "pk__in" if model is Conversation else "conversation__in"
            yield rows.filter(**{path: conversations}), columns


def _rows_of(model: type[Model]) -> QuerySet[Any]:
    return QuerySet(model)


def _stored(column: str) -> Cast:
    """Return *column* as it is stored: a plain text field is not decrypted when it is read."""
    return Cast(column, TextField())


def _encrypt_some(encrypts: Cipher, conversation: Conversation, *, dry_run: bool) -> tuple[Conversation, int]:
    """Encrypt some rows of *conversation*, or count all in a *dry_run*; return how many."""
    owner = Conversation._meta.get_field("owner").to_key(conversation.owner_id)
    using: Any = conversation._state.db
    with for_owner(owner, conversation.pk):
        current = f"{PREFIX}{encrypts.current_id(using)}:"
    count = 0
    for rows, columns in _kept([conversation.pk], using):
        stored = {f"stored_{column}": _stored(column) for column in columns}
        old = Q()
        for name in stored:
            is_old = Q(**{f"{name}__isnull": False}) & ~Q(**{name: ""}) & ~Q(**{f"{name}__startswith": current})
            old |= is_old
        outdated = rows.annotate(**stored).filter(old).order_by("pk")
        if dry_run:
            count += outdated.count()
            continue
        for pk, *texts in outdated.values_list("pk", *columns)[: ROWS - count]:
            with for_owner(owner, conversation.pk):
                rows.filter(pk=pk).update(**dict(zip(columns, texts, strict=True)))
            count += 1
    return conversation, count
