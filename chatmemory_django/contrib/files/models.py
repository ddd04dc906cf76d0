"""
Which files are in the storage, and which messages have them.

A file belongs to one owner, and is stored once for all of the owner's messages. A message has a row in
``MediaReference`` for each of its files; a file without such a row is deleted in the same transaction, in which a row
in ``MediaDeletion`` takes its place until the storage has deleted it, too. A row in ``MediaFile`` is locked by who adds
or removes a reference to it, so no reference is ever added to a file that is being deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from django.db import connections, models
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.models import ExactCharField

MAY_HAVE_FILES = Q(payload__isnull=False) | Q(verbatim__isnull=False)
"""Which messages may have files: more than a text, and not removed."""

BATCH = 200
"""How many rows one statement names at most."""


class MediaFile(models.Model):
    """A file in the storage."""

    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    size = models.PositiveBigIntegerField(_("size"))
    # The primary key of a user as text; empty for the files of conversations without an owner.
    owner = ExactCharField(_("owner"), max_length=255, blank=True, default="")
    sha256 = models.CharField("SHA-256", max_length=64)
    # Where it is in the storage; never used again for another content.
    name = models.CharField(_("name"), max_length=128, unique=True)
    # What it is encrypted with; empty if it is not.
    key_id = models.CharField(_("key"), max_length=64, blank=True, default="")

    # Explicit, for type checkers that do not have the app installed.
    objects: ClassVar[models.Manager[MediaFile]] = models.Manager()

    class Meta:
        app_label = "chatmemory_files"
        verbose_name = _("file")
        verbose_name_plural = _("files")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["owner", "sha256"], name="chatmemory_file_of_owner"),)

    def __str__(self) -> str:
        return self.name


class MediaReference(models.Model):
    """That a message has a file."""

    pk = models.CompositePrimaryKey("conversation_id", "sequence", "file_id")
    # Removed by ``releasing.release`` in the transaction that removes the message.
    conversation = models.ForeignKey(
        "chatmemory.Conversation", on_delete=models.DO_NOTHING, related_name="+", db_index=False, db_constraint=False
    )
    file = models.ForeignKey(MediaFile, on_delete=models.DO_NOTHING, related_name="references")
    sequence = models.PositiveIntegerField(_("sequence"))

    objects: ClassVar[models.Manager[MediaReference]] = models.Manager()

    class Meta:
        app_label = "chatmemory_files"
        verbose_name = _("reference to a file")
        verbose_name_plural = _("references to files")
        default_permissions = ()

    def __str__(self) -> str:
        conversation, sequence, _file = self.pk
        return f"{conversation}/{sequence}"


class MediaDeletion(models.Model):
    """A file that no message has, and that the storage has still to delete; see ``deleting``."""

    name = models.CharField(_("name"), max_length=128, primary_key=True)
    since = models.DateTimeField(_("since"), default=timezone.now, editable=False)
    # Whose file it was, see ``MediaFile``, and the key of the conversation that was the last one with it, if there is
    # one: what receipts count. Both go with the file.
    owner = ExactCharField(_("owner"), max_length=255, blank=True, default="")
    conversation = models.BigIntegerField(_("conversation"), null=True)

    objects: ClassVar[models.Manager[MediaDeletion]] = models.Manager()

    class Meta:
        app_label = "chatmemory_files"
        verbose_name = _("file to delete")
        verbose_name_plural = _("files to delete")
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


def locked(files: QuerySet[MediaFile]) -> QuerySet[MediaFile]:
    """Return *files*, to be read as they are now, locked until the end of the transaction."""
    return files.order_by("pk").select_for_update()


def keep_files(keys: Collection[int], using: str) -> None:
    """
    Let others know that messages will refer to the files *keys*, which are locked, and were there before.

    On PostgreSQL at REPEATABLE READ, and on what may be like it, who has just removed the last other message with one
    of them waits for the lock, but does not see the reference. That the row has changed is an error there, which is
    tried again.
    """
    if keys and dialect(connections[using]) not in {Dialect.MYSQL, Dialect.SQLITE}:
        MediaFile.objects.using(using).filter(pk__in=list(keys)).update(size=F("size"))
