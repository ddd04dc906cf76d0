"""The calls of models: what each used and cost, without any text."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import models, router
from django.db.models import Count, Q, Sum
from django.db.models.fields.json import KeyTextTransform
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.chat.conf import COST_DIGITS, COST_PLACES
from chatmemory_django.db.moments import to_moment
from chatmemory_django.models import Conversation
from chatmemory_django.models.fields import ExactCharField, OwnerField, SparseIndex

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models.expressions import Combinable

if not apps.is_installed("chatmemory_django.chat"):
    raise ImproperlyConfigured(
        "Assistants, and records of calls of models, need their tables: add 'chatmemory_django.chat' to INSTALLED_APPS."
    )

MEASURES = (
    "calls",
    "failed",
    "uncounted",
    "unpriced",
    "input",
    "cached_input",
    "cache_write",
    "cache_write_1h",
    "output",
    "reasoning",
    "cost",
)
"""What is summed of calls, in this order."""

MAX_NAME_LENGTH = 100
"""How many characters of the name of a model, or of the class of an error, are stored."""


BUDGET_LOCKS = 256
"""How many rows strict budgets lock: those of two users, or of two labels, seldom have the same."""


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


class LabelValue(KeyTextTransform):
    """The value of the label *name*, compared exactly on every database; null without such a label."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "labels")

    def as_mysql(self, compiler: Any, connection: Any) -> Any:
        sql, parameters = super().as_mysql(compiler, connection)
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        return f"CONVERT({sql} USING utf8mb4) COLLATE {collation}", parameters


class ModelCallQuerySet(models.QuerySet["ModelCall"]):
    """Queries on calls of models."""

    def owned_by(self, user: AbstractBaseUser | AnonymousUser) -> Self:
        """Return the calls that were made for *user*; none for an anonymous user."""
        return self.filter(owner=user.pk) if user.is_authenticated else self.none()

    def between(self, since: datetime.datetime, until: datetime.datetime) -> Self:
        """Return the calls that began at *since* or later, and before *until*, aware datetimes."""
        return self.filter(created_at__gte=to_moment(since), created_at__lt=to_moment(until))

    def sums(self, **by: Combinable) -> models.QuerySet[ModelCall, dict[str, Any]]:
        """Return a row for each value of *by*: that, and what its calls used together, ``sum_of_…`` the measures."""
        return self.order_by().values(**by).annotate(
            sum_of_calls=Count("pk"),
            sum_of_failed=Count("pk", filter=Q(outcome=Outcome.FAILED)),
            sum_of_uncounted=Count("pk", filter=Q(input_tokens=None)),
            sum_of_unpriced=Count("pk", filter=Q(cost=None)),
            sum_of_input=Sum("input_tokens", default=0),
            sum_of_cached_input=Sum("cached_input_tokens", default=0),
            sum_of_cache_write=Sum("cache_write_tokens", default=0),
            sum_of_cache_write_1h=Sum("cache_write_1h_tokens", default=0),
            sum_of_output=Sum("output_tokens", default=0),
            sum_of_reasoning=Sum("reasoning_tokens", default=0),
            sum_of_cost=Sum("cost"),
        )  # fmt: skip


class ModelCall(models.Model):
    """
    One call of a model. It outlives its conversation and its owner, and then names neither.

    If its model reported nothing, its counts are estimates. They are null if nothing is known of what was sent either,
    and if the vendor refused the call.
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
        on_delete=models.DO_NOTHING,  # set to null with the conversation's messages, see ``models.remains``
        related_name="model_calls",
        null=True,
        blank=True,
        db_constraint=False,
    )
    purpose = models.CharField(_("purpose"), max_length=16, choices=Purpose.choices)
    model = ExactCharField(_("model"), max_length=MAX_NAME_LENGTH, blank=True)
    input_tokens = models.PositiveIntegerField(_("input tokens"), null=True)
    cached_input_tokens = models.PositiveIntegerField(_("cached input tokens"), null=True)
    cache_write_tokens = models.PositiveIntegerField(_("tokens written to the cache"), null=True)
    cache_write_1h_tokens = models.PositiveIntegerField(_("tokens written to the cache for an hour"), null=True)
    output_tokens = models.PositiveIntegerField(_("output tokens"), null=True)
    reasoning_tokens = models.PositiveIntegerField(_("reasoning tokens"), null=True)
    is_estimate = models.BooleanField(_("estimated"), default=False)
    cost = models.DecimalField(_("cost"), max_digits=COST_DIGITS, decimal_places=COST_PLACES, null=True)
    outcome = models.CharField(_("outcome"), max_length=16, choices=Outcome.choices)
    # The name of its class: the text of an error may quote a message.
    error = models.CharField(_("error"), max_length=MAX_NAME_LENGTH, blank=True)
    # The site's own, by which calls are summed up: see ``costs.labels``.
    labels = models.JSONField(_("labels"), default=dict, blank=True)
    created_at = models.DateTimeField(_("time"), default=timezone.now)
    seconds = models.FloatField(_("seconds"), null=True)
    # The run that added it to the sums; null until then.
    summed = models.BigIntegerField(null=True, editable=False)

    objects = ModelCallQuerySet.as_manager()

    class Meta:
        verbose_name = _("model call")
        verbose_name_plural = _("model calls")
        indexes = (
            models.Index(fields=["owner", "created_at"], name="chatmemory_calls_of_owner"),
            models.Index(fields=["created_at"], name="chatmemory_calls_by_time"),
            SparseIndex(fields=["summed", "created_at"], rows=Q(summed=None), name="chatmemory_calls_not_summed"),
        )
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.purpose}: {self.model}"


class Span(models.TextChoices):
    """Of which calls a row of ``CallSum`` is the sum."""

    DAY = "day"
    """Those of a day with the same owner, purpose, model, outcome and labels."""
    TOTAL = "total"
    """Those of a day with the same purpose, model, outcome and labels, of all owners together."""
    MONTH = "month"
    """Those of a month with the same owner and labels."""


class CallSumQuerySet(models.QuerySet["CallSum"]):
    """Queries on sums of calls."""

    def within(self, first: datetime.date, end: datetime.date) -> Self:
        """Return the sums of days or months that begin on the day *first* or later, and before the day *end*."""
        return self.filter(begin__gte=first, begin__lt=end)

    def sums(self, **by: Combinable) -> models.QuerySet[CallSum, dict[str, Any]]:
        """See ``ModelCallQuerySet.sums``."""
        sums: Any = {f"sum_of_{name}": Sum(name) for name in MEASURES}
        return self.order_by().values(**by).annotate(**sums)  # type: ignore[no-any-return]


class CallSum(models.Model):
    """
    What calls of past days used together, so that sums over months need not read each call.

    ``chat.costs.summing`` alone writes them. Several rows may be about the same calls: they add up. An erased owner
    is no longer named, and a sum outlives its calls.
    """

    span = models.CharField(max_length=8, choices=Span.choices)
    begin = models.DateField()
    owner = OwnerField(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        related_name="+",
        null=True,
        db_index=False,  # an index below starts with it
    )
    purpose = models.CharField(max_length=16, blank=True)
    model = ExactCharField(max_length=MAX_NAME_LENGTH, blank=True)
    outcome = models.CharField(max_length=16, blank=True)
    labels = models.JSONField(default=dict)
    calls = models.BigIntegerField()
    failed = models.BigIntegerField(default=0)
    uncounted = models.BigIntegerField()
    unpriced = models.BigIntegerField()
    input = models.BigIntegerField()
    cached_input = models.BigIntegerField()
    cache_write = models.BigIntegerField()
    cache_write_1h = models.BigIntegerField()
    output = models.BigIntegerField()
    reasoning = models.BigIntegerField()
    cost = models.DecimalField(max_digits=COST_DIGITS + 10, decimal_places=COST_PLACES, null=True)
    run = models.BigIntegerField()

    objects = CallSumQuerySet.as_manager()

    class Meta:
        indexes = (
            models.Index(fields=["span", "begin"], name="chatmemory_sums_by_time"),
            models.Index(fields=["owner", "span", "begin"], name="chatmemory_sums_of_owner"),
        )
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.span} {self.begin}"


class BudgetLock(models.Model):
    """
    What answers lock that ask at the same moment what is left of the same strict budget.

    Which row it is depends on whose budget it is. There are at most ``BUDGET_LOCKS``, made on demand.
    """

    id = models.PositiveSmallIntegerField(primary_key=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.pk)


def forget_payer(sender: type[models.Model], instance: models.Model, **kwargs: Any) -> None:
    """Leave no call of a model, and no sum of calls, that names the user *instance*, which is about to be deleted."""
    hint = {"owner_key": str(instance.pk)}
    for model in (ModelCall, CallSum):
        rows = model._default_manager.using(router.db_for_write(model, **hint)).filter(owner=instance.pk)
        while rows.update(owner=None):  # again for sums that were merged in the meantime
            pass
