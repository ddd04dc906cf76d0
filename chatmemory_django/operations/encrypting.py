"""Encrypts what was stored before encryption was on, or with another key than the one that encrypts now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast, Coalesce, Left, Length

from chatmemory_django import conf
from chatmemory_django.db.batches import in_batches
from chatmemory_django.encryption.ciphers import Cipher, cipher, for_owner
from chatmemory_django.encryption.keys import OWNER_PREFIX
from chatmemory_django.encryption.values import KEY_ID, PREFIX, EncryptionError, key_id_of
from chatmemory_django.models import (
    Conversation,
    ConversationQuerySet,
    EncryptedTextField,
    MediaFile,
    Message,
    MessageQuerySet,
)
from chatmemory_django.operations.media import renew_files
from chatmemory_django.operations.whole import PAGE_CHARACTERS, for_writing, in_lock, keys

ROWS = 100
"""How many rows are encrypted while a conversation is locked, fewer if they are large."""

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
        count = start = 0
        do = partial(_count if dry_run else _encrypt_some, encrypts)
        try:
            while (found := in_lock(conversations, key, partial(do, start=start))) is not None:
                conversation, done, start = found
                count += done
                if dry_run or not done:
                    break
            if not dry_run and conf.media_storage() is not None:
                count += in_lock(conversations, key, renew_files) or 0
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


def wrap_keys(using: str, *, dry_run: bool = False) -> int:
    """
    Wrap the owners' keys of the database *using* with the key of the site that encrypts now; none in a *dry_run*.

    Returns how many were not.
    """
    encrypts = cipher()
    return 0 if encrypts is None else encrypts.owner_keys.wrap_all(using, dry_run=dry_run)


def renew(conversation: Conversation) -> None:
    """Encrypt the texts of *conversation*, which is locked, with the key that encrypts now, if that is needed."""
    encrypts = cipher()
    if encrypts is not None:
        done, start = 1, 0
        while done:
            _, done, start = _encrypt_some(encrypts, conversation, start=start)


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
    # With or without a storage in the settings: what is in one needs its key in any case.
    files = MediaFile.objects.using(conversations.db)
    ids = files.filter(references__conversation__in=conversations.values("pk")).values_list("pk", "key_id")
    found.update(_key_id(f"{PREFIX}{key_id}:" if key_id else "") for _, key_id in ids.distinct())
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
    return MessageQuerySet(model) if model is Message else QuerySet(model)


def _stored(column: str) -> Cast:
    """Return *column* as it is stored: a plain text field is not decrypted when it is read."""
    return Cast(column, TextField())


def _count(encrypts: Cipher, conversation: Conversation, *, start: int) -> tuple[Conversation, int, int]:
    """Return what ``_encrypt_some`` does, if it encrypted all rows at once; this changes nothing."""
    count = sum(outdated.count() for _, outdated, _ in _outdated(encrypts, conversation, start))
    transaction.set_rollback(True, using=conversation._state.db)  # an owner without a key was given one
    return conversation, count, start


def _encrypt_some(encrypts: Cipher, conversation: Conversation, *, start: int) -> tuple[Conversation, int, int]:
    """
    Encrypt some rows of *conversation*, of its messages those from sequence *start* on.

    Returns the conversation, how many rows, and where to go on: each row is looked at once.
    """
    count = 0
    for rows, outdated, columns in _outdated(encrypts, conversation, start):
        size: Any = sum(Coalesce(Length(_stored(column)), 0) for column in columns)
        sizes = outdated.values_list("pk", size)
        batch = next(in_batches(sizes[: ROWS - count], itemgetter(1), PAGE_CHARACTERS, ROWS), [])
        keys = [pk for pk, _ in batch]
        some = rows.with_keys(keys) if isinstance(rows, MessageQuerySet) else rows.filter(pk__in=keys)
        for pk, *texts in some.values_list("pk", *columns):
            with for_owner(conversation.owner_id, conversation.pk):
                rows.filter(pk=pk).update(**dict(zip(columns, texts, strict=True)))
            count += 1
            if rows.model is Message:
                start = pk[-1]
    return conversation, count, start


def _outdated(
    encrypts: Cipher, conversation: Conversation, start: int
) -> Iterator[tuple[QuerySet[Any], QuerySet[Any], list[str]]]:
    """Yield the rows of every table, those that are not encrypted with the key that encrypts now, and the columns."""
    using: Any = conversation._state.db
    with for_owner(conversation.owner_id, conversation.pk):
        current = f"{PREFIX}{encrypts.current_id(using)}:"
    for rows, columns in _kept([conversation.pk], using):
        stored = {f"stored_{column}": _stored(column) for column in columns}
        old = Q()
        for name in stored:
            old |= Q(**{f"{name}__isnull": False}) & ~Q(**{name: ""}) & ~Q(**{f"{name}__startswith": current})
        later = rows.filter(sequence__gte=start) if rows.model is Message else rows
        yield rows, later.annotate(**stored).filter(old).order_by("pk"), columns
