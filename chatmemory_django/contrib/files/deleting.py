"""
The deletion of files from the storage: what is to be deleted is a row until it is.

The row is written in the transaction that removes the last reference to the file, so whatever happens after the commit,
the file is not forgotten. It is deleted at once, and where that fails, by what next calls ``delete_left``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from django.db import connections, transaction

from chatmemory_django.contrib.files import storage
from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.models import BATCH, MediaDeletion, MediaFile
from chatmemory_django.db.batches import in_parts


def delete_files(gone: Mapping[int, MediaDeletion], using: str) -> None:
    """Delete the files *gone*, which no message has, by their keys; called in a transaction."""
    if gone:
        MediaFile.objects.using(using).filter(pk__in=list(gone)).delete()
        delete_later(gone.values(), using)


def delete_later(gone: Iterable[MediaDeletion], using: str) -> None:
    """Delete the files *gone* from the storage after the commit of the transaction."""
    rows = MediaDeletion.objects.using(using).bulk_create(gone)
    transaction.on_commit(partial(_delete, [row.name for row in rows], using), using=using, robust=True)


def delete_spare(spare: Collection[MediaDeletion], using: str) -> None:
    """Delete the files *spare*, which were stored but have no rows; what fails is not forgotten, either."""
    gone = set(storage.delete([each.name for each in spare]))
    left = [each for each in spare if each.name not in gone]
    if left and not connections[using].in_atomic_block:  # the transaction has failed, and keeps nothing
        MediaDeletion.objects.using(using).bulk_create(left)


def delete_left(using: str) -> None:
    """
    Delete from the storage what it did not delete at first. What fails again stays for the next time.

    A storage that does not answer is waited for once.
    """
    settings = files()
    if settings.MEDIA_STORAGE is None:
        return
    deadline = time.monotonic() + settings.MEDIA_TIMEOUT
    names = MediaDeletion.objects.using(using).order_by("since").values_list("name", flat=True)
    for part in in_parts(list(names), BATCH):
        if not _delete(part, using) and time.monotonic() >= deadline:
            break


def to_delete(using: str, conversations: Collection[int] | None = None, owner: str | None = None) -> int:
    """See ``message_codec.files_to_delete``."""
    rows = MediaDeletion.objects.using(using)
    if conversations is None and owner is None:
        return rows.count()
    found = set(rows.filter(owner=owner).values_list("pk", flat=True)) if owner else set()
    for part in in_parts(list(conversations or ()), BATCH):
        found |= set(rows.filter(conversation__in=part).values_list("pk", flat=True))
        if files().MEDIA_STORAGE is None:  # without which nothing was released
            kept = MediaFile.objects.using(using).filter(references__conversation__in=part)
            found |= set(kept.values_list("name", flat=True))
    return len(found)


def _delete(names: Collection[str], using: str) -> int:
    """Delete the files *names*, and the rows of those that are gone then; return how many are."""
    gone = storage.delete(names)
    MediaDeletion.objects.using(using).filter(pk__in=gone).delete()
    return len(gone)
