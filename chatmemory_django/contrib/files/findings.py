"""What is wrong with files in a storage: rows without them, files without rows, and references without messages."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from chatmemory_django.contrib.files import storage
from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.deleting import delete_files, delete_left
from chatmemory_django.contrib.files.models import (
    BATCH,
    MAY_HAVE_FILES,
    MediaDeletion,
    MediaFile,
    MediaReference,
    locked,
)
from chatmemory_django.contrib.files.reading import contents_of
from chatmemory_django.contrib.files.releasing import release
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.row_codec import Address, UnreadableError
from chatmemory_django.db.tables import databases_with
from chatmemory_django.db.transactions import as_now, tried_again
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.copies import Remnant
from chatmemory_django.models.message_codec import StorageError

ORPHAN_AGE = datetime.timedelta(days=1)
"""
How old a file must be that no row names before it counts as left over.

It is written before its row, and an import, or a transaction of the caller, may go on for hours after it.
"""


_Named = TypeVar("_Named", MediaFile, MediaDeletion)


class FileFinding(NamedTuple):
    """What is wrong with a file, without any message text."""

    name: str
    detail: str
    is_repaired: bool


def check_files(
    using: str,
    report: Callable[[FileFinding], object],
    *,
    repair: bool = False,
    age: datetime.timedelta = ORPHAN_AGE,
    read: bool = False,
) -> int:
    """
    Report files without rows, rows without files, references without messages, and files that the storage has not
    deleted; return how many.

    With *repair*, files are deleted that no message has, and what refers to no message. A lost file is only reported:
    nothing can bring it back. Files younger than *age* may be of messages that are being written. With *read*, each
    file is read, one after the other, and reported if it is not what was stored.

    Databases may share the storage: only what no database of the site names is a file without a row, and *using* is the
    database whose rows are checked.
    """
    if files().MEDIA_STORAGE is None:
        unread = MediaFile.objects.using(using).count()
        if unread:
            detail = f"{unread:,} files are in a storage, but MEDIA_STORAGE is None: they are neither read nor deleted."
            report(FileFinding("", f"{detail} Name the storage there; move_media_chatmemory moves them back.", False))
        return unread
    count = 0
    before = timezone.now() - age
    for finding in (
        *_broken_references(using, repair=repair),
        *_unused(using, before, repair=repair),
        *_undeleted(using, repair=repair),
    ):
        report(finding)
        count += 1
    databases = databases_with(MediaFile)  # theirs may be in the storage, too
    for folder in storage.FOLDERS:
        # Listed first: a file whose row is read later was written before that row.
        there = set(storage.listed(folder))
        for finding in (
            *_lost(using, folder, there),
            *(_altered(using, folder, there) if read else ()),
            *_left_over(databases, folder, there, before, repair=repair),
        ):
            report(finding)
            count += 1
    return count


def left(using: str) -> Iterator[Remnant]:
    """See ``models.copies.FindRemnants``."""
    if files().MEDIA_STORAGE is None:
        return
    databases, now = databases_with(MediaFile), timezone.now()
    number: int | None
    try:
        found = (_left_over(databases, each, storage.listed(each), now, repair=False) for each in storage.FOLDERS)
        number = sum(len(list(findings)) for findings in found)
    except StorageError:
        number = None
    if number != 0:
        yield Remnant("files in the storage that no message has", number)


def _in_folder(model: type[_Named], using: str, folder: str) -> QuerySet[_Named]:
    # Not LIKE, for which SQLite and MySQL use no index. Digits come before letters in every collation.
    after = f"{folder[:-1]}{chr(ord(folder[-1]) + 1)}" if folder[-1] != "9" else f"{folder[:-1]}a"
    return model._default_manager.using(using).filter(name__gte=f"{folder}/", name__lt=f"{after}/")


def _lost(using: str, folder: str, there: Collection[str]) -> Iterator[FileFinding]:
    named = _in_folder(MediaFile, using, folder).filter(references__sequence__isnull=False)
    rows = named.order_by("name", *_MESSAGE).values_list("name", *_MESSAGE)
    missing = {name: message for name, *message in reversed(rows) if name not in there}  # its first message
    for name, (memory_id, sequence) in sorted(missing.items()):
        if storage.is_lost(name) and named.filter(name=name).exists():  # nobody has removed it since
            yield FileFinding(name, f"It is lost; message {sequence} of {memory_id!r} has it.", False)


def _altered(using: str, folder: str, there: Collection[str]) -> Iterator[FileFinding]:
    named = _in_folder(MediaFile, using, folder).filter(references__sequence__isnull=False)
    rows = named.order_by("name", *_MESSAGE).values_list("name", "sha256", "references__conversation", *_MESSAGE)
    seen: set[str] = set()
    for name, sha256, key, memory_id, sequence in rows.iterator():
        if name not in there or name in seen:
            continue
        seen.add(name)
        try:
            is_whole = sha256 in contents_of(Address(using, key, memory_id), [sha256])
        except UnreadableError as exc:
            yield FileFinding(name, f"It cannot be read: {exc} Message {sequence} of {memory_id!r} has it.", False)
            continue
        if not is_whole and not storage.is_lost(name) and named.filter(name=name).exists():
            detail = f"It is not the file that was stored; message {sequence} of {memory_id!r} has it."
            yield FileFinding(name, detail, False)


_MESSAGE = ("references__conversation__memory_id", "references__sequence")
"""A message that has a file."""


def _left_over(
    databases: Collection[str], folder: str, there: Collection[str], before: datetime.datetime, *, repair: bool
) -> Iterator[FileFinding]:
    rows: list[QuerySet[Any]] = [_in_folder(MediaFile, alias, folder) for alias in databases]
    rows += [_in_folder(MediaDeletion, alias, folder) for alias in databases]
    known = {name for each in rows for name in each.values_list("name", flat=True)}
    for name in sorted(set(there) - known):
        if storage.is_older(name, before) and not any(each.filter(name=name).exists() for each in rows):
            if repair:
                storage.delete([name])
            yield FileFinding(name, "No message has it.", repair)


def _broken_references(using: str, *, repair: bool) -> Iterator[FileFinding]:
    rows = MediaReference.objects.using(using).order_by()
    message = Message.objects.filter(conversation_id=OuterRef("conversation_id"), sequence=OuterRef("sequence"))
    broken = rows.exclude(Exists(message.filter(MAY_HAVE_FILES)))
    count = broken.count()
    if count:
        if repair:
            for key in sorted(set(broken.values_list("conversation_id", flat=True))):
                tried_again(using, partial(_release_broken, key, using))
        yield FileFinding("", f"{count} references are to messages that are gone.", repair)


def _unused(using: str, before: datetime.datetime, *, repair: bool) -> Iterator[FileFinding]:
    own = MediaReference.objects.filter(file_id=OuterRef("pk"))
    unused = MediaFile.objects.using(using).filter(~Exists(own), created_at__lt=before)
    for part in in_parts(list(unused.values_list("pk", flat=True)), BATCH):
        for name in tried_again(using, partial(_delete_unused, part, using, repair=repair)):
            yield FileFinding(name, "No message has it.", repair)


def _undeleted(using: str, *, repair: bool) -> Iterator[FileFinding]:
    # Younger ones may be in deletion now.
    old = MediaDeletion.objects.using(using).filter(
        since__lt=timezone.now() - datetime.timedelta(seconds=files().MEDIA_TIMEOUT)
    )
    if count := old.count():
        if repair:
            delete_left(using)
        left = old.count()
        words = f"{count} files of removed messages could not be deleted"
        yield FileFinding(
            "", f"{words}; {left} still cannot." if repair else f"{words}; prune_chatmemory tries again.", not left
        )


def _release_broken(key: int, using: str) -> None:
    with transaction.atomic(using=using):
        # Locked, so that no message is being added whose reference is seen before it.
        list(Conversation.objects.using(using).select_for_update().filter(pk=key).values_list("pk"))
        release(using, [key])


def _delete_unused(pks: Collection[int], using: str, *, repair: bool) -> list[str]:
    """Return the names of the files *pks* that no message has, and with *repair*, delete them."""
    with transaction.atomic(using=using):
        there = locked(MediaFile.objects.using(using).filter(pk__in=pks)).values_list("pk", "name", "owner")
        found = {key: MediaDeletion(name=name, owner=owner) for key, name, owner in there}
        # Read after the lock, for which this may have waited until somebody has added a reference.
        references = as_now(MediaReference.objects.using(using).filter(file_id__in=list(found)).order_by())
        for key in set(references.values_list("file_id", flat=True)):
            del found[key]
        if repair:
            delete_files(found, using)
    return [each.name for each in found.values()]
