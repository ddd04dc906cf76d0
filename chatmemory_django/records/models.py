"""The table of what pydantic-ai keeps of a conversation beside its messages."""

from __future__ import annotations

from django.db import models

from chatmemory_django.models import Conversation, ExactCharField

MAX_SCOPE_LENGTH = 255


class Record(models.Model):
    """
    The record of a conversation, as it was last saved.

    It is no part of the conversation's metadata, which belong to its owner, and nothing of it is the owner's to write.
    """

    conversation = models.OneToOneField(Conversation, on_delete=models.CASCADE, primary_key=True)
    scope = ExactCharField(max_length=MAX_SCOPE_LENGTH, null=True)
    updated_at = models.DateTimeField()
    # All of it, as JSON in text: where the history ends, the usage, the calls that wait for an answer, the revision.
    text = models.TextField()

    class Meta:
        # So that the adapter can be imported, and its messages mapped, where the app is not installed.
        app_label = "chatmemory_records"
        indexes = (
            models.Index(fields=["scope", "-updated_at"], name="chatmemory_record_of_scope"),
            models.Index(fields=["-updated_at"], name="chatmemory_record_by_age"),
        )

    def __str__(self) -> str:
        return f"{self.conversation_id}"
