"""The tables: the notes about users, and a notebook for each user who has had one."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.conf import settings
from django.db import models
from django.db.models import Exists, OuterRef
from django.db.models.functions import Length
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.models.fields import EncryptedTextField, OwnerField, as_stored, cascade_without_texts

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser


class Notebook(models.Model):
    """
    Where the notes about a user are: whether any are kept, and the number of the newest one.

    It is locked by who adds a note, so that no two exceed the limit together. A user without one has no notes yet.
    """

    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,  # the constraint has one
    )
    is_on = models.BooleanField(_("on"), default=True)
    # A number is not used again, so that what the model has read of a note never names another one.
    last_number = models.PositiveIntegerField(_("last number"), default=0)

    # Explicit, for type checkers that do not have the app installed.
    owner_id: Any
    objects: ClassVar[models.Manager[Notebook]] = models.Manager()

    class Meta:
        app_label = "chatmemory_notes"
        verbose_name = _("notebook")
        verbose_name_plural = _("notebooks")
        default_permissions = ()
        constraints = (models.UniqueConstraint(fields=["owner"], name="chatmemory_notebook_of_owner"),)

    def __str__(self) -> str:
        return f"{self.owner_id}"


class NoteQuerySet(models.QuerySet["Note"]):
    """Notes, in the order in which they were written."""

    def owned_by(self, user: AbstractBaseUser | AnonymousUser | None) -> Self:
        """Return the notes about *user*; none for nobody."""
        return self.filter(owner=user.pk) if user is not None and user.is_authenticated else self.none()

    def in_use(self) -> Self:
        """Return the notes of those users who have not switched them off."""
        switched_off: Any = Notebook.objects.filter(owner=OuterRef("owner"), is_on=False)
        return self.exclude(Exists(switched_off))

    def with_size(self) -> Self:
        """Annotate each with its ``size``: the number of characters of its text, as it is stored."""
        return self.annotate(size=Length(as_stored("text")))


class Note(models.Model):
    """Something that assistants keep in mind about a user, in every conversation."""

    # Known before the note is stored: its text is encrypted for it.
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=cascade_without_texts,
        related_name="+",
        db_index=False,  # as above
    )
    # What the model and the user call it.
    number = models.PositiveIntegerField(_("number"))
    text = EncryptedTextField(_("text"))
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    updated_at = models.DateTimeField(_("updated at"), default=timezone.now, editable=False)

    # As above.
    owner_id: Any
    objects: ClassVar[models.Manager[Note]] = NoteQuerySet.as_manager()

    class Meta:
        app_label = "chatmemory_notes"
        verbose_name = _("note")
        verbose_name_plural = _("notes")
        default_permissions = ("view", "delete")
        ordering = ("number",)
        constraints = (models.UniqueConstraint(fields=["owner", "number"], name="chatmemory_note_of_owner"),)

    def __str__(self) -> str:
        return f"{self.owner_id}/{self.number}"  # never the text, which would be in logs
