"""Calls of tools that wait for a person's approval, and what was decided on them."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.model import CLIENT, MAX_APPROVER_LENGTH, OWNER
from chatmemory_django.core.shown import visible
from chatmemory_django.models.conversations import Conversation
from chatmemory_django.models.fields import EncryptedTextField, SparseIndex, WhoField
from chatmemory_django.models.messages import Message

if not apps.is_installed("chatmemory_django.chat"):
    raise ImproperlyConfigured(
        "Assistants, and records of calls of models, need their tables: add 'chatmemory_django.chat' to INSTALLED_APPS."
    )

MAX_REASON_LENGTH = 500
"""How many characters the reason for a decision has at most."""


class ToolApproval(models.Model):
    """
    The approval of one call of a tool: asked for, decided, and then used once; or that it waits for a client's output.

    The call itself is the one in the stored message: nobody can change it any more.
    """

    class State(models.TextChoices):
        """How far the call has come."""

        WAITING = "waiting"
        """It was not run, and the model does not know yet if it is denied."""
        RUNNING = "running"
        """It was handed to a process that runs it, and that may have died since. It is never run again."""
        ENDED = "ended"
        """The messages have its result, or that it was not run."""

    # Random, so that a page that was open before a conversation was erased cannot name a call of the next one.
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="tool_approvals")
    # The message of the model, and which of its calls it is.
    sequence = models.PositiveIntegerField(_("sequence"))
    position = models.PositiveSmallIntegerField()
    # "owner", or the permission of those who decide: as the tool gave it, since the faces do not know its assistant.
    # "client", if nobody decides, and the owner's client sends the output of the call, with which it is approved.
    approve_by = models.CharField(max_length=MAX_APPROVER_LENGTH, default=OWNER)
    # What the call wants to do, for people: of at most MAX_ASKS_LENGTH characters.
    asks = EncryptedTextField(blank=True, default="")
    requested_at = models.DateTimeField(default=timezone.now)
    # Null until it is decided.
    approved = models.BooleanField(null=True)
    decided_at = models.DateTimeField(null=True)
    # The user's key as text: user models may have keys of any type, and be in another database.
    decided_by = WhoField(blank=True, default="")
    reason = EncryptedTextField(blank=True, default="")
    # Who looks at it, so that no two do; others may decide on it all the same.
    person = WhoField(blank=True, default="")
    state = models.CharField(max_length=7, choices=State.choices, default=State.WAITING)
    # That of the conversation since the call runs: whatever takes the conversation knows then that its process is dead.
    fence = models.PositiveBigIntegerField(default=0, editable=False)

    objects: models.Manager[ToolApproval] = models.Manager()

    class Meta:
        verbose_name = _("tool approval")
        verbose_name_plural = _("tool approvals")
        default_permissions = ()
        ordering = ("sequence", "position")
        indexes = (SparseIndex(fields=["decided_at"], name="chatmemory_chat_decided", rows=Q(state="waiting")),)

    def __str__(self) -> str:
        return f"{self.sequence} {self.position} {self.state}"

    @property
    def sentence(self) -> str:
        """What the call wants to do, as a sentence for people; empty if its tool has no words for that."""
        return gettext("The assistant wants to {asks}.").format(asks=visible(self.asks)) if self.asks else ""

    @property
    def is_for_client(self) -> bool:
        """Whether it waits for an output, and not for a decision."""
        return self.approve_by == CLIENT

    @property
    def is_open(self) -> bool:
        """Whether the answer waits for it."""
        return self.state != self.State.ENDED

    @property
    def expires_at(self) -> datetime.datetime:
        """When it can no longer be decided or, once it was decided, when it can no longer be run."""
        return (self.decided_at or self.requested_at) + datetime.timedelta(seconds=chat_settings().APPROVAL_SECONDS)

    @property
    def is_pending(self) -> bool:
        """Whether it can still be decided, or still be given an output."""
        return self.approved is None and self.state == self.State.WAITING and not self.has_expired

    @property
    def is_decided(self) -> bool:
        """Whether the answer can go on with it: it was decided, or its time has passed."""
        return self.state == self.State.WAITING and (self.approved is not None or self.has_expired)

    @property
    def has_expired(self) -> bool:
        """Whether it was not decided in time, or approved and not run in time."""
        is_left = self.state == self.State.WAITING and self.approved is not False
        return is_left and timezone.now() >= self.expires_at


class Queue(ToolApproval):
    """What waits for people, as the admin has a page of it: approvals, and conversations that wait for a person."""

    class Meta:
        proxy = True
        verbose_name = _("queue")
        verbose_name_plural = _("queue")
        default_permissions = ()


def forget_approvals(using: str, conversations: Mapping[int, str], *, erased: bool) -> None:
    """Delete the approvals of calls in removed messages; those of erased conversations are deleted with them."""
    if not erased:
        _without_message(using).filter(conversation__in=list(conversations)).delete()


def forget_left_approvals(using: str, asked: bool, dry_run: bool) -> None:
    """Delete the approvals of calls in messages that were deleted as they left a memory; see ``Pruning``."""
    if not dry_run:
        _without_message(using).delete()


def _without_message(using: str) -> models.QuerySet[ToolApproval]:
    there: Any = Message.objects.using(using).filter(
        conversation=OuterRef("conversation"), sequence=OuterRef("sequence"), in_history=True
    )
    return ToolApproval.objects.using(using).exclude(Exists(there))
