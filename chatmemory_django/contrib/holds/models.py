"""The table of legal holds, and what they forbid."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import Q
from django.db.models.functions import Length
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.models import Conversation
from chatmemory_django.models.fields import OwnerField, WhoField

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MAX_REASON_LENGTH = 200


def protect_while_active(collector: Any, field: Any, sub_objs: Any, using: str) -> None:
    """Refuse to delete what an active hold refers to, as ``PROTECT`` does; delete the holds that have ended with it."""
    if active := {hold for hold in sub_objs if hold.is_active}:
        raise models.ProtectedError("A legal hold forbids it.", active)
    models.CASCADE(collector, field, sub_objs, using)


class LegalHoldQuerySet(models.QuerySet["LegalHold"]):
    """Holds, active ones and those that have ended."""

    def active(self) -> Self:
        """Return those that forbid to erase now."""
        return self.filter(Q(until=None) | Q(until__gt=timezone.now()))

    def with_size(self) -> Self:
        """Annotate holds with the ``size`` of what a page shows of them."""
        return self.annotate(size=Length("reason"))


class LegalHold(models.Model):
    """
    That nothing of a conversation, or of all conversations of an owner, is erased, as long as the hold is active.

    Everything that would erase it raises ``ProtectedError``. What would be deleted as it leaves a memory without a
    history stays in the history.
    """

    conversation = models.ForeignKey(
        Conversation,
        verbose_name=_("conversation"),
        on_delete=protect_while_active,
        related_name="legal_holds",
        null=True,
        blank=True,
    )
    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=protect_while_active,
        related_name="+",
        null=True,
        blank=True,
        help_text=_("All conversations of this user are held, later ones included."),
    )
    reason = models.CharField(
        _("reason"),
        max_length=MAX_REASON_LENGTH,
        help_text=_("The number of the case, for example. It is stored as it is: quote no message."),
    )
    created_at = models.DateTimeField(_("placed at"), default=timezone.now, editable=False)
    # Names of users as they were then: who placed a hold may be deleted before it ends.
    placed_by = WhoField(_("placed by"), by="name", editable=False)
    until = models.DateTimeField(
        _("until"), null=True, blank=True, help_text=_("Without it, until somebody ends the hold.")
    )
    ended_by = WhoField(_("ended by"), by="name", blank=True, default="", editable=False)

    # Explicit, for type checkers that do not have the app installed.
    owner_id: Any
    objects: ClassVar[models.Manager[LegalHold]] = LegalHoldQuerySet.as_manager()

    class Meta:
        app_label = "chatmemory_holds"
        verbose_name = _("legal hold")
        verbose_name_plural = _("legal holds")
        constraints = (
            models.CheckConstraint(
                condition=Q(conversation=None, owner__isnull=False) | Q(conversation__isnull=False, owner=None),
                name="chatmemory_hold_of_one",
            ),
        )

    def __str__(self) -> str:
        return self.reason

    def save(self, *args: Any, using: str | None = None, **options: Any) -> None:
        """See ``Model.save``. A hold on an owner comes to the database that has the owner's conversations."""
        if using is None and self.owner_id is not None and self._state.adding:
            using = router.db_for_write(type(self), owner_key=str(self.owner_id))
        super().save(*args, using=using, **options)

    @property
    def is_active(self) -> bool:
        """Whether it forbids to erase now."""
        return self.until is None or self.until > timezone.now()

    def clean(self) -> None:
        """See ``Model.clean``. A hold is on one thing."""
        if (self.conversation is None) == (self.owner is None):
            raise ValidationError(_("A hold is on a conversation or on an owner, and not on both."))

    def end(self, user: AbstractBaseUser) -> None:
        """End the hold now, as *user* wants; does nothing if it has ended."""
        if self.is_active:
            self.until, self.ended_by = timezone.now(), user.get_username()
            self.save(update_fields=["until", "ended_by"])


def holds_on(using: str, keys: Collection[int], owner: Any = None) -> list[LegalHold]:
    """Return the active holds on the conversations *keys* and their owners, or on *owner*; see ``copies.Hold``."""
    holds = LegalHoldQuerySet(LegalHold, using=using).active()
    if owner is not None:
        return list(holds.filter(owner=owner))
    owners = Conversation.objects.using(using).filter(pk__in=list(keys), owner__isnull=False).values("owner")
    return list(holds.filter(Q(conversation__in=list(keys)) | Q(owner__in=owners)))
