"""Files that no message has any more: deleted in the transaction that removes the last one, and then in the storage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from django.db import transaction
from django.db.models import QuerySet

from chatmemory_django.contrib.files import storage
from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.marks import references
from chatmemory_django.contrib.files.models import BATCH, MAY_HAVE_FILES, MediaFile, MediaReference, locked
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.transactions import as_now
from chatmemory_django.models import Message, MessageQuerySet
from chatmemory_django.models.columns import to_message


def forget(using: str, conversations: Mapping[int, str], *, erased: bool) -> None:
    """See ``models.copies.Forget``; those of erased conversations are released with their messages."""
    if not erased:
        release(using, conversations)


def release(
    using: str,
    conversations: Collection[int],
    around: tuple[int, int] | None = None,
    *,
    is_erased: bool = False,
) -> None:
    """See ``MessageCodec.release``."""
    if files().MEDIA_STORAGE is None:
        return
    for part in in_parts(list(conversations), BATCH):
        rows = MediaReference.objects.using(using).filter(conversation_id__in=part)
        if around is not None:
            rows = rows.filter(sequence__range=around)
        if is_erased:
            delete_references(rows, using)
            continue
        referred = list(as_now(rows.order_by()).values_list("conversation_id", "sequence", "file_id"))
        sequences: dict[int, set[int]] = {}
        for conversation, sequence, _file in referred:
            sequences.setdefault(conversation, set()).add(sequence)
        # Not a subquery: on MySQL, it would see the messages as the transaction has seen them before.
        there = {
            (conversation, sequence)
            for conversation, several in sequences.items()
            for some in in_parts(sorted(several), BATCH)
            for sequence in as_now(
                Message.objects.using(using)
                .filter(MAY_HAVE_FILES, conversation_id=conversation, sequence__in=some)
                .order_by()
            ).values_list("sequence", flat=True)
        }
        for gone in in_parts([each for each in referred if each[:2] not in there], BATCH):
            _drop(gone, using)


def release_originals(messages: MessageQuerySet) -> None:
    """See ``MessageCodec.release_originals``."""
    if files().MEDIA_STORAGE is None:
        return
    using = messages.db
    for conversation, sequence, *columns in messages.values_list("conversation_id", "sequence", *_MESSAGE):
        kept = {each.sha256 for each in references(to_message(*columns))}
        own = MediaReference.objects.using(using).filter(conversation_id=conversation, sequence=sequence)
        delete_references(own.exclude(file__sha256__in=kept), using)


_MESSAGE = ("type", "text", "payload")
"""The columns of a message."""


def delete_references(references: QuerySet[MediaReference], using: str) -> None:
    """Delete *references*, and files without any; called in a transaction."""
    gone = list(as_now(references.order_by()).values_list("conversation_id", "sequence", "file_id"))
    for part in in_parts(gone, BATCH):
        _drop(part, using)


def _drop(gone: Sequence[tuple[int, int, int]], using: str) -> None:
    """Delete the references *gone*: conversation, sequence and file, all files of these messages."""
    keys = sorted({file for *_, file in gone})
    names = dict(locked(MediaFile.objects.using(using).filter(pk__in=keys)).values_list("pk", "name"))
    rows = MediaReference.objects.using(using)
    sequences: dict[int, list[int]] = {}
    for conversation, sequence, _file in gone:
        sequences.setdefault(conversation, []).append(sequence)
    for conversation, several in sequences.items():
        rows.filter(conversation_id=conversation, sequence__in=several, file_id__in=keys).delete()
    # The lock keeps others from adding a reference; those that were committed before it count.
    used = set(as_now(rows.filter(file_id__in=keys).order_by()).values_list("file_id", flat=True))
    unused = [key for key in names if key not in used]
    delete_files(unused, [names[key] for key in unused], using)


def delete_files(keys: Collection[int], names: Collection[str], using: str) -> None:
    """Delete the files *keys*, which no message has, and after the commit *names* from the storage."""
    if keys:
        MediaFile.objects.using(using).filter(pk__in=list(keys)).delete()
        transaction.on_commit(partial(storage.delete, list(names)), using=using, robust=True)
