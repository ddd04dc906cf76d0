"""What the memory asks of the app, see ``models.message_codec.MessageCodec``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from django.db import router
from django.db.models import OuterRef, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from chatmemory_django.contrib.files.conf import files
from chatmemory_django.contrib.files.deleting import delete_left, to_delete
from chatmemory_django.contrib.files.findings import FileFinding, check_files
from chatmemory_django.contrib.files.marks import without_marks
from chatmemory_django.contrib.files.models import MediaFile, MediaReference
from chatmemory_django.contrib.files.moving import encode_again, share
from chatmemory_django.contrib.files.reading import complete, complete_row, file_in
from chatmemory_django.contrib.files.releasing import release, release_originals
from chatmemory_django.contrib.files.uploads import StorageUploads, take_out
from chatmemory_django.models import Conversation
from chatmemory_django.models.conversations import lock_first

if TYPE_CHECKING:
    from django.db.models.expressions import Combinable

__all__ = [
    "check",
    "complete",
    "complete_row",
    "delete_left",
    "encode_again",
    "file_in",
    "keys",
    "quota",
    "release",
    "release_originals",
    "share",
    "stored_bytes",
    "take_out",
    "to_delete",
    "uploads",
    "with_file_sizes",
    "without_marks",
]

uploads = StorageUploads


def quota() -> int | None:
    """See ``MessageCodec.quota``."""
    return files().MEDIA_QUOTA


def stored_bytes(owner: Any, using: str | None = None) -> int:
    """See ``MessageCodec.stored_bytes``. Each file counts once, and for who has its conversations now."""
    using = using or router.db_for_write(MediaFile)
    lock_first(Conversation.objects.using(using).filter(owner=owner))
    own = MediaReference.objects.using(using).filter(conversation__owner=owner)
    stored = MediaFile.objects.using(using).filter(pk__in=own.order_by().values("file_id"))
    return stored.aggregate(total=Sum("size"))["total"] or 0


def with_file_sizes(size: Combinable) -> Combinable:
    """See ``MessageCodec.with_file_sizes``."""
    if files().MEDIA_STORAGE is None:
        return size
    rows = MediaReference.objects.filter(conversation_id=OuterRef("conversation_id"), sequence=OuterRef("sequence"))
    total = rows.order_by().values("conversation_id").annotate(total=Sum("file__size")).values("total")
    return size + Coalesce(Subquery(total), Value(0)) * Value(4) / Value(3)


def keys(conversations: Any) -> Iterable[str]:
    """See ``MessageCodec.keys``; without a storage in the settings, too: what is in one needs its key in any case."""
    stored = MediaFile.objects.using(conversations.db)
    ids = stored.filter(references__conversation__in=conversations.values("pk")).values_list("pk", "key_id")
    return (key_id for _, key_id in ids.distinct())


def check(using: str, report: Callable[[str], object], *, repair: bool, read: bool = False) -> int:
    """See ``MessageCodec.check``."""

    def line(finding: FileFinding) -> None:
        report(f"file {finding.name!r}: {finding.detail}{' Repaired.' if finding.is_repaired else ''}")

    return check_files(using, line, repair=repair, read=read)
