"""The calls of models: what each used and cost, without any text."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Self

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.core.usage import COST_DIGITS, COST_PLACES
from chatmemory_django.db.moments import to_moment
from chatmemory_django.models.conversations import Conversation
from chatmemory_django.models.fields import ExactCharField, OwnerField

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser

MAX_NAME_LENGTH = 100
"""How many characters of the name of a model, or of the class of an error, are stored."""


class Purpose(models.TextChoices):
    """What a model was called for."""

    ANSWER = "answer", _("Answer")
    SUMMARY = "summary", _("Summary")
    TITLE = "title", _("Title")
    RECALL = "recall", _("Recall")
    OTHER = "other", _("Other")


class Outcome(models.TextChoices):
    """How a call of a model ended."""

    COMPLETED = "completed", _("Completed")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")


class ModelCallQuerySet(models.QuerySet["ModelCall"]):
    """Queries on calls of models."""

    def owned_by(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """Return the calls that were made for *user*; none for an anonymous user."""
        return self.filter(owner=user.pk) if user.is_authenticated else self.none()

    def between(self, since: datetime.datetime, until: datetime.datetime) -> Self:
        """Return the calls that began at *since* or later, and before *until*, aware datetimes."""
        return self.filter(created_at__gte=to_moment(since), created_at__lt=to_moment(until))


class ModelCall(models.Model):
    """
    One call of a model. It outlives its conversation and its owner, and then names neither.

    Counts are null if the model reported none, as after most failures, and in a stream that was cancelled.
    """

    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        on_delete=models.SET_NULL,
        related_name="chat_model_calls",
        null=True,
        blank=True,
        db_index=False,  # an index below starts with it
    )
    # Without a constraint, since recording a call must neither wait for other writers of the conversation nor fail.
    conversation = models.ForeignKey(
        Conversation,
        verbose_name=_("conversation"),
        on_delete=models.SET_NULL,
        related_name="model_calls",
        null=True,
        blank=True,
        db_constraint=False,
    )
    purpose = models.CharField(_("purpose"), max_length=16, choices=Purpose.choices)
    model = ExactCharField(_("model"), max_length=MAX_NAME_LENGTH, blank=True)
    input_tokens = models.PositiveIntegerField(_("input tokens"), null=True)
    cached_input_tokens = models.PositiveIntegerField(_("cached input tokens"), null=True)
    output_tokens = models.PositiveIntegerField(_("output tokens"), null=True)
    reasoning_tokens = models.PositiveIntegerField(_("reasoning tokens"), null=True)
    cost = models.DecimalField(_("cost"), max_digits=COST_DIGITS, decimal_places=COST_PLACES, null=True)
    outcome = models.CharField(_("outcome"), max_length=16, choices=Outcome.choices)
    # The name of its class: the text of an error may quote a message.
    error = models.CharField(_("error"), max_length=MAX_NAME_LENGTH, blank=True)
    created_at = models.DateTimeField(_("time"), default=timezone.now)

    objects = ModelCallQuerySet.as_manager()

    class Meta:
        verbose_name = _("model call")
        verbose_name_plural = _("model calls")
        indexes = (
            models.Index(fields=["owner", "created_at"], name="chatmemory_calls_of_owner"),
            models.Index(fields=["created_at"], name="chatmemory_calls_by_time"),
        )
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.purpose}: {self.model}"
