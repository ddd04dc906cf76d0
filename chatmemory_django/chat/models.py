"""The chat's tables: calls of models, approvals, and the streams of answers, which are deleted soon after their end."""

from __future__ import annotations

from django.db import models

from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.costs.tables import CallSum, ModelCall, ModelCallQuerySet, Outcome, Purpose
from chatmemory_django.core.limits import MAX_CLIENT_MESSAGE_ID_LENGTH, MAX_MEMORY_ID_LENGTH
from chatmemory_django.models import ExactCharField

__all__ = [
    "AnswerChunk",
    "AnswerStream",
    "CallSum",
    "ModelCall",
    "ModelCallQuerySet",
    "Outcome",
    "Purpose",
    "ToolApproval",
]


class AnswerStream(models.Model):
    """The answer in progress of a conversation: while it exists, no other answer can begin."""

    memory_id = ExactCharField(max_length=MAX_MEMORY_ID_LENGTH, primary_key=True)
    answer_id = ExactCharField(max_length=MAX_CLIENT_MESSAGE_ID_LENGTH)
    # The user's key as text: user models may have keys of any type, and be in another database.
    owner_key = models.CharField(max_length=255)
    is_stopping = models.BooleanField(default=False)
    # When the process last wrote. A process that has not written for long is dead.
    written_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.answer_id


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
