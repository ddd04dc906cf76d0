"""
Verbs on what is stored: encrypt what was there before encryption was on, or with another key than the one that encrypts
now; and delete the keys of owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any

from django.db import connections, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce, Length

from chatmemory_django.contrib.encryption.ciphers import APP, FILE, TITLE, Cipher, installed
from chatmemory_django.contrib.encryption.kept import kept
from chatmemory_django.contrib.encryption.models import Origin
from chatmemory_django.contrib.encryption.values import PREFIX, EncryptionError
from chatmemory_django.db.batches import in_batches
from chatmemory_django.db.isolation import as_now, sees_otherwise
from chatmemory_django.db.row_codec import Coder, Stored, address_of, row_of
from chatmemory_django.models import (
    Conversation,
    Message,
    MessageQuerySet,
    message_codec,
)
from chatmemory_django.models.fields import as_stored
from chatmemory_django.models.message_codec import MessageCodec
from chatmemory_django.operations.whole import PAGE_CHARACTERS, for_writing, in_lock, keys

ROWS = 100
"""How many rows are encrypted while a conversation is locked, fewer if they are large."""


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
    cipher = installed()
    if cipher is None:
        raise RuntimeError(f"{APP!r} is not in INSTALLED_APPS.")
    total = 0
    failed: dict[int, EncryptionError] = {}
    conversations = for_writing(conversations)
    for key in keys(conversations):
        count = start = 0
        do = partial(_count if dry_run else _encrypt_some, cipher)
        try:
            while (found := in_lock(conversations, key, partial(do, start=start))) is not None:
                conversation, done, start = found
                count += done
                if dry_run or not done:
                    break
            if not dry_run and message_codec.installed is not None:
                count += in_lock(conversations, key, partial(_renew_files, cipher, message_codec.installed)) or 0
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


@contextmanager
def moving(cipher: Cipher, conversation: Conversation, using: str) -> Iterator[None]:
    """Encrypt what *conversation* has for its new memory id and owner, if the write in this block changes them."""
    with transaction.atomic(using=using, savepoint=False):
        rows = Conversation.objects.using(using).select_for_update().defer("title")
        before = rows.filter(pk=conversation.pk).first()
        yield
        if before is None or (there := address_of(before, using)) == (at := address_of(conversation, using)):
            return
        theirs, own = cipher.at(there), cipher.at(at)
        if cipher.has_owner_keys and there.owner != at.owner:
            start, count = 0, len(theirs.origin) + 1  # which is read before it is encrypted for the new owner
            while count:
                _, count, start = _encrypt_some(cipher, conversation, start=start, theirs=theirs)
            if message_codec.installed is not None:
                _renew_files(cipher, message_codec.installed, conversation)
            return
        title = Conversation.objects.using(using).filter(pk=conversation.pk)
        for stored in title.values_list(as_stored("title"), flat=True):
            if stored and not stored.startswith(own.head(TITLE)):
                title.update(title=Stored(own.encode(theirs.decode(stored, TITLE), TITLE)))


def wrap_keys(using: str, *, dry_run: bool = False) -> int:
    """
    Wrap the owners' keys of the database *using* with the key of the site that encrypts now; none in a *dry_run*.

    Returns how many were not.
    """
    cipher = installed()
    return 0 if cipher is None else cipher.owner_keys.wrap_all(using, dry_run=dry_run)


def drop_key_of_owner(sender: type[Conversation], instance: Conversation, using: str, **kwargs: Any) -> None:
    """Delete the key of the owner of *instance*, which was deleted, if it was the owner's last conversation."""
    cipher = installed()
    if cipher is not None and instance.owner_id is not None:
        others = Conversation.objects.using(using).filter(owner=instance.owner_id)
        others = as_now(others) if sees_otherwise(connections[using]) else others
        cipher.owner_keys.drop(str(instance.owner_id), using, others.exists)


def _renew_files(cipher: Cipher, codec: MessageCodec, conversation: Conversation) -> int:
    coder = cipher.at(address_of(conversation))
    return codec.encode_again(conversation, coder, f"{PREFIX}{coder.current(FILE).id}")


def _count(cipher: Cipher, conversation: Conversation, *, start: int) -> tuple[Conversation, int, int]:
    """Return what ``_encrypt_some`` does, if it encrypted all rows at once; this changes nothing."""
    count = sum(outdated.count() for _, outdated, _ in _outdated(cipher, conversation, start))
    transaction.set_rollback(True, using=conversation._state.db)  # an owner without a key was given one
    return conversation, count, start


def _encrypt_some(
    cipher: Cipher, conversation: Conversation, *, start: int, theirs: Coder | None = None
) -> tuple[Conversation, int, int]:
    """
    Encrypt some rows of *conversation*, of its messages those from sequence *start* on; *theirs* decrypts them.

    Returns the conversation, how many rows, and where to go on: each row is looked at once.
    """
    count = 0
    coder = cipher.at(address_of(conversation))
    theirs = theirs or coder
    for rows, outdated, columns in _outdated(cipher, conversation, start):
        size: Any = sum(Coalesce(Length(as_stored(column)), 0) for column in columns)
        sizes = outdated.values_list("pk", size)
        batch = next(in_batches(sizes[: ROWS - count], itemgetter(1), PAGE_CHARACTERS, ROWS), [])
        keys = [pk for pk, _ in batch]
        some = rows.with_keys(keys) if isinstance(rows, MessageQuerySet) else rows.filter(pk__in=keys)
        is_message, label = rows.model is Message, rows.model._meta.label_lower
        for pk, kind, *texts in some.values_list("pk", "type" if is_message else "pk", *map(as_stored, columns)):
            row = (pk[-1], kind) if is_message else () if rows.model is Conversation else row_of(pk)
            new = {}
            for column, text in zip(columns, texts, strict=True):
                name = f"{label}.{column}"
                new[column] = text and Stored(coder.encode(theirs.decode(text, name, row), name, row))
            rows.filter(pk=pk).update(**new)
            count += 1
            if is_message:
                start = pk[-1]
    if not count and not start:  # all rows were at their own places before, so nobody reads others now
        Origin.objects.using(conversation._state.db).filter(pk=conversation.pk).delete()
    return conversation, count, start


def _outdated(
    cipher: Cipher, conversation: Conversation, start: int
) -> Iterator[tuple[QuerySet[Any], QuerySet[Any], list[str]]]:
    """Yield the rows of every table, those that are not encrypted with the key that encrypts now, and the columns."""
    using: Any = conversation._state.db
    coder = cipher.at(address_of(conversation))
    for rows, columns in kept([conversation.pk], using):
        stored = {f"stored_{column}": as_stored(column) for column in columns}
        old = Q()
        for name, column in zip(stored, columns, strict=True):
            current = coder.head(f"{rows.model._meta.label_lower}.{column}")
            old |= Q(**{f"{name}__isnull": False}) & ~Q(**{name: ""}) & ~Q(**{f"{name}__startswith": current})
        later = rows.filter(sequence__gte=start) if rows.model is Message else rows
        yield rows, later.annotate(**stored).filter(old).order_by("pk"), columns
