"""Runs, and the pieces of their streams, which are deleted soon after their end."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Self

from django.db import models
from django.db.models import Q

from chatmemory_django.chat.conf import COST_DIGITS, COST_PLACES
from chatmemory_django.core.limits import MAX_ASSISTANT_LENGTH, MAX_CLIENT_MESSAGE_ID_LENGTH, MAX_MEMORY_ID_LENGTH
from chatmemory_django.db.contexts import MAX_CAPTURED
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.models import EncryptedTextField, ExactCharField
from chatmemory_django.models.conversations import Conversation

MAX_LANGUAGE_LENGTH, MAX_TIME_ZONE_LENGTH = 35, 64
"""What RFC 5646 advises for a language tag; the longest name of a time zone has 38 characters."""

DEAD_AFTER = 5.0
"""Seconds without a renewal after which another process may take the place of a run: ten were missed."""

ASKED = "chatmemory_chat.run.asked"
"""What a ``Coder`` calls the column with what was asked."""


class RunQuerySet(models.QuerySet["Run"]):
    """Runs, by what has become of them."""

    def alive(self) -> Self:
        """Return those in progress."""
        return self.filter(active__isnull=False, lease__gte=before(DEAD_AFTER))

    def open(self) -> Self:
        """Return those in progress, and those with which any process can go on."""
        return self.filter(
            Q(assistant__isnull=False) | Q(lease__gte=before(DEAD_AFTER)),
            active__isnull=False,
        )

    def left(self) -> Self:
        """Return those on which nobody works, and with which any process can go on."""
        is_free = Q(state=Run.State.ASKED) | Q(lease__lt=before(DEAD_AFTER))
        return self.filter(is_free, active__isnull=False, assistant__isnull=False)


def before(seconds: float) -> Any:
    """Return the moment so many *seconds* ago, by the database's clock."""
    return DatabaseNow() - timedelta(seconds=seconds)


class Run(models.Model):
    """
    One run of an assistant in a conversation, from the question to the end of the answer.

    Of texts, it holds only what its request asked beside the question, and only until it ends.

    Its moments are those of the database's clock, in UTC even without ``USE_TZ``: compare them with ``DatabaseNow``.
    """

    class State(models.TextChoices):
        """How far the run has come."""

        ASKED = "asked"
        """No process generates the answer yet, or the one that did has handed it over."""
        RUNNING = "running"
        """A process generates the answer, unless it has died."""
        WAITING = "waiting"
        """The answer goes on, as another run, once somebody has decided on a call of a tool."""
        DONE = "done"
        """The answer is complete."""
        FAILED = "failed"
        """An error has ended the answer."""
        STOPPED = "stopped"
        """A person has stopped the answer."""
        INTERRUPTED = "interrupted"
        """The process has died, or was taken for dead, and another run has taken its place."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="runs")
    state = models.CharField(max_length=11, choices=State.choices, default=State.RUNNING)
    # The conversation's key while the run is asked or running, else null: it is unique, so there is one at a time.
    active = models.BigIntegerField(null=True, unique=True)
    # The assistant's name in the settings, which is empty for ASSISTANT. Null for one that is not from the settings: no
    # other process can go on with its answer.
    assistant = ExactCharField(max_length=MAX_ASSISTANT_LENGTH, blank=True, null=True)
    # The message that it answers. It is written with the end, or as the run is handed over: a process that is killed
    # has not, and then it is the first question that was stored since the run was taken.
    question = models.PositiveIntegerField(null=True)
    # That of the conversation as the run was taken: a new question has this sequence, or a later one.
    next_sequence = models.PositiveIntegerField()
    # That of the conversation since this run was taken: with another one, a write of this run writes nothing.
    fence = models.PositiveBigIntegerField()
    # When its process last renewed it. No index: PostgreSQL then renews a row without touching any.
    lease = models.DateTimeField()
    # When somebody has last listened to it, in whichever process: a question may stop what nobody waits for.
    listened_at = models.DateTimeField()
    is_stopping = models.BooleanField(default=False)
    # What THREAD_CONTEXT captured of the request: who goes on with the run enters that.
    context = models.CharField(max_length=MAX_CAPTURED, default="")
    # What a process has to know that did not see the request, as JSON: see ``Asked``. Empty once the run has ended.
    asked = EncryptedTextField(default="", is_json=True)
    language = models.CharField(max_length=MAX_LANGUAGE_LENGTH, default="")
    time_zone = models.CharField(max_length=MAX_TIME_ZONE_LENGTH, default="")
    # What a call of its model may use, in tokens and at which cost, and for which labels: see ``chat.costs.budgets``.
    reserved = models.BigIntegerField(null=True)
    reserved_cost = models.DecimalField(max_digits=COST_DIGITS, decimal_places=COST_PLACES, null=True)
    labels = models.JSONField(null=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        indexes = (models.Index(fields=["ended_at"], name="chatmemory_chat_run_end"),)

    def __str__(self) -> str:
        return f"{self.id} {self.state}"


class AnswerChunk(models.Model):
    """A piece of an answer's stream: one or more events."""

    # The conversation first, so that its pieces are found when it is erased.
    pk = models.CompositePrimaryKey("memory_id", "answer_id", "position")
    memory_id = ExactCharField(max_length=MAX_MEMORY_ID_LENGTH)
    answer_id = ExactCharField(max_length=MAX_CLIENT_MESSAGE_ID_LENGTH)
    position = models.PositiveBigIntegerField()
    data = models.TextField()
    written_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=["written_at"], name="chatmemory_chat_chunk_age"),)

    def __str__(self) -> str:
        return f"{self.answer_id} {self.position}"
