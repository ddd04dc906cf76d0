"""The table of pydantic-ai's records of conversations, and what of it goes when messages are removed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import models

from chatmemory_django.db.row_codec import Placed
from chatmemory_django.messages import AiMessage, MessageType
from chatmemory_django.models import Conversation, EncryptedTextField, ExactCharField, Message

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
    text = EncryptedTextField(is_json=True)

    class Meta:
        # Explicit, so that the adapter can be imported where the app is not installed.
        app_label = "chatmemory_records"
        indexes = (
            models.Index(fields=["scope", "updated_at"], name="chatmemory_record_of_scope"),
            models.Index(fields=["updated_at"], name="chatmemory_record_by_age"),
        )

    def __str__(self) -> str:
        return f"{self.conversation_id}"


def forget_calls(using: str, conversations: Mapping[int, str], *, erased: bool) -> None:
    """Delete from the records of *conversations* the pending tool calls of a message that is no longer there."""
    if erased:
        return  # a record is deleted with its conversation
    records = Record.objects.using(using).select_related("conversation")
    for record in records.filter(conversation__in=list(conversations)):
        # The text is a list of one record. All else in it is ids and counters.
        [stored] = json.loads(record.text)
        pending = stored["deferred_tool_requests"]
        if pending is not None and not _ids(pending) <= _newest_calls(record.pk, using):
            stored["deferred_tool_requests"] = None
            text = Placed.of(json.dumps([stored]), record)
            Record.objects.using(using).filter(pk=record.pk).update(text=text)


def _ids(pending: dict[str, Any]) -> set[str]:
    return {call["tool_call_id"] for call in [*pending["calls"], *pending["approvals"]]}


def _newest_calls(conversation_id: int, using: str) -> set[str | None]:
    """Return the ids of the tool calls of the newest response: pending calls are among them."""
    responses = Message.objects.using(using).history().filter(conversation=conversation_id, type=MessageType.AI)
    row = responses.order_by("sequence").last()
    message = None if row is None else row.chat_message
    return {call.id for call in message.tool_execution_requests} if isinstance(message, AiMessage) else set()
