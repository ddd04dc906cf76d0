"""
Verbs on what is stored: encrypt what was there before encryption was on, or with another key than the one that encrypts
now; decrypt it; and delete the keys of owners.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections, transaction
from django.db.models import Model, QuerySet

from chatmemory_django.contrib.encryption.ciphers import APP, Cipher, installed
from chatmemory_django.contrib.encryption.kept import kept_of_owners
from chatmemory_django.contrib.encryption.renewing import (
    encrypt_files,
    encrypt_one,
    encrypt_some,
    outdated,
    outdated_of_owners,
)
from chatmemory_django.contrib.encryption.values import EncryptionError
from chatmemory_django.db.transactions import as_now, sees_otherwise, tried_again
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import Refused, for_writing, going_on, in_lock, keys


def encrypt(
    conversations: QuerySet[Conversation],
    *,
    dry_run: bool = False,
    each: Callable[[Conversation, int], object] | None = None,
    refused: Refused | None = None,
) -> int:
    """
    Encrypt the texts of *conversations* with the key that encrypts now, and return how many rows were not; nothing is
    written in a *dry_run*. Where the setting ``PLAIN`` is "write", decrypt those that are encrypted.

    It goes beside writers, who wait for a hundred rows at most, and goes on where it was interrupted. *each* receives
    each conversation, and how many of its rows were not stored so; *refused* those with a value that
    cannot be decrypted, which is raised without it.
    """
    cipher = installed()
    if cipher is None:
        raise RuntimeError(f"{APP!r} is not in INSTALLED_APPS.")
    total = 0
    conversations = for_writing(conversations)
    for key in keys(conversations):
        count = start = 0
        do = partial(_count if dry_run else encrypt_some, cipher)
        with going_on(conversations, key, refused):
            while (found := in_lock(conversations, key, partial(do, start=start))) is not None:
                conversation, done, start = found
                count += done
                if dry_run or not done:
                    break
            if not dry_run:
                count += in_lock(conversations, key, partial(encrypt_files, cipher)) or 0
            if found is not None and each is not None:
                each(conversation, count)
        total += count
    return total


def encrypt_of_owners(
    using: str,
    owner: object = None,
    *,
    dry_run: bool = False,
    refused: Callable[[str, EncryptionError], object] | None = None,
) -> int:
    """
    Do what ``encrypt`` does with the texts that belong to users and to no conversation: those of *owner*, the primary
    key of a user, or all. *refused* receives the table and the key of rows that cannot be decrypted.
    """
    cipher = installed()
    if cipher is None:
        raise RuntimeError(f"{APP!r} is not in INSTALLED_APPS.")
    count = 0
    for rows, columns in kept_of_owners(using, owner):
        for key in list(outdated_of_owners(cipher, rows, columns)):
            try:
                count += 1 if dry_run else tried_again(using, partial(encrypt_one, cipher, rows, columns, key))
            except EncryptionError as exc:
                if refused is None:
                    raise
                refused(f"{rows.model._meta.db_table} {key}", exc)
    return count


def wrap_keys(
    using: str, *, dry_run: bool = False, refused: Callable[[str, EncryptionError], object] | None = None
) -> int:
    """
    Wrap the owners' keys of the database *using* with the key of the site that encrypts now; none in a *dry_run*.

    Returns how many were not; *refused* receives those that cannot be unwrapped, see ``OwnerKeys.wrap_all``.
    """
    cipher = installed()
    return 0 if cipher is None else cipher.owner_keys.wrap_all(using, dry_run=dry_run, refused=refused)


def drop_key_of_owner(sender: type[Model], instance: Any, using: str, **kwargs: Any) -> None:
    """Delete the key of the owner of *instance*, which was deleted, if nothing else of the owner is left."""
    cipher = installed()
    if cipher is not None and instance.owner_id is not None:
        own: Any = Conversation.objects.using(using).filter(owner=instance.owner_id)
        others = [own, *(rows for rows, _ in kept_of_owners(using, instance.owner_id))]
        others = list(map(as_now, others)) if sees_otherwise(connections[using]) else others
        cipher.owner_keys.drop(str(instance.owner_id), using, lambda: any(rows.exists() for rows in others))


def _count(cipher: Cipher, conversation: Conversation, *, start: int) -> tuple[Conversation, int, int]:
    """Return what ``encrypt_some`` does, if it encrypted all rows at once; this changes nothing."""
    count = sum(some.count() for _, some, _ in outdated(cipher, conversation, start))
    transaction.set_rollback(True, using=conversation._state.db)  # an owner without a key was given one
    return conversation, count, start
