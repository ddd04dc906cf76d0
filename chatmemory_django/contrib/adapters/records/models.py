"""The table of pydantic-ai's records of conversations."""

from __future__ import annotations

from django.db import models

from chatmemory_django.models import Conversation, EncryptedTextField, ExactCharField

MAX_SCOPE_LENGTH = 255


class Record(models.Model):
    """
    The record of a conversation, as it was last saved.

    It is not part of the conversation's metadata, because the owner can edit those but must not edit the record.
    """

    conversation = models.OneToOneField(Conversation, on_delete=models.CASCADE, primary_key=True)
    scope = ExactCharField(max_length=MAX_SCOPE_LENGTH, null=True)
    updated_at = models.DateTimeField()
    # The whole record as JSON: where the history ends, the usage, the pending tool calls, the revision.
    text = EncryptedTextField()

    class Meta:
        # Explicit, so that the adapter can be imported where the app is not installed.
        app_label = "chatmemory_records"
        indexes = (
            models.Index(fields=["scope", "-updated_at"], name="chatmemory_record_of_scope"),
            models.Index(fields=["-updated_at"], name="chatmemory_record_by_age"),
        )

    def __str__(self) -> str:
        return f"{self.conversation_id}"
