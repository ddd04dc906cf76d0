"""Runs, and the pieces of their streams, which are deleted soon after their end."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Self

from django.db import models

from chatmemory_django.core.limits import MAX_CLIENT_MESSAGE_ID_LENGTH, MAX_MEMORY_ID_LENGTH
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.models import ExactCharField
from chatmemory_django.models.conversations import Conversation

DEAD_AFTER = 5.0
"""Seconds without a renewal after which another process may take the place of a run: ten were missed."""


class RunQuerySet(models.QuerySet["Run"]):
    """Runs, by what has become of them."""

    def alive(self) -> Self:
        """Return those in progress."""
        return self.filter(active__isnull=False, lease__gte=before(DEAD_AFTER))


def before(seconds: float) -> Any:
    """Return the moment so many *seconds* ago, by the database's clock."""
    return DatabaseNow() - timedelta(seconds=seconds)


class Run(models.Model):
    """
    One run of an assistant in a conversation, from the question to the end of the answer. It holds no text.

    Its moments are those of the database's clock, in UTC even without ``USE_TZ``: compare them with ``DatabaseNow``.
    """

    class State(models.TextChoices):
        """How far the run has come."""

        ASKED = "asked"
        """No process generates the answer yet."""
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
        """The process has died, or was taken for dead."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="runs")
    state = models.CharField(max_length=11, choices=State.choices, default=State.RUNNING)
    # The conversation's key while the run is asked or running, else null: it is unique, so there is one at a time.
    active = models.BigIntegerField(null=True, unique=True)
    # The message that it answers.
    question = models.PositiveIntegerField(null=True)
    # That of the conversation since this run was taken: with another one, a write of this run writes nothing.
    fence = models.PositiveBigIntegerField()
    # When its process last renewed it. No index: PostgreSQL then renews a row without touching any.
    lease = models.DateTimeField()
    is_stopping = models.BooleanField(default=False)
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
    position = models.PositiveIntegerField()
    data = models.TextField()
    written_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=["written_at"], name="chatmemory_chat_chunk_age"),)

    def __str__(self) -> str:
        return f"{self.answer_id} {self.position}"
