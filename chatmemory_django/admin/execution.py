"""Operations, done and written down in Django's admin log: what changes a conversation, in the same transaction."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.admin.operations import EXPORT, Operation
from chatmemory_django.admin.wording import visible
from chatmemory_django.models import Conversation

PAGE = 1_000
"""How many conversations are written down, or exported, at a time."""


def perform(operation: Operation, conversations: QuerySet[Conversation], user_id: Any) -> tuple[int, list[str]]:
    """Do *operation* to *conversations*. Returns how many it was done to, and what to tell of the others."""
    refusals: list[str] = []

    def log(conversation: Conversation, result: int) -> None:
        _entry(operation, conversation, result, user_id).save(force_insert=True)

    def refuse(conversation: Conversation, error: Exception) -> None:
        refusals.append(f"“{visible(conversation.memory_id)}”: {operation.refusal(error)}")

    return operation.do(conversations, log, refuse), refusals


def export(request: HttpRequest, conversations: QuerySet[Conversation]) -> StreamingHttpResponse:
    """*conversations* as a file of JSON lines. That is logged before the first line is sent."""
    keys = list(conversations.order_by("pk").values_list("pk", flat=True))
    pages = [
        Conversation.objects.using(conversations.db).filter(pk__in=keys[first : first + PAGE])
        for first in range(0, len(keys), PAGE)
    ]
    for page in pages:
        entries = [
            _entry(EXPORT, each, each.total_messages, request.user.pk) for each in page.order_by("pk").defer("metadata")
        ]
        LogEntry.objects.bulk_create(entries, batch_size=500)
    chunks = (chunk for page in pages for chunk in operations.export(page))
    name = f"conversations-{timezone.now():%Y%m%d-%H%M%S}.jsonl"
    return StreamingHttpResponse(
        operations.asynchronous(chunks) if isinstance(request, ASGIRequest) else chunks,
        content_type="application/x-ndjson; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
    )


def _entry(operation: Operation, conversation: Conversation, result: int, user_id: Any) -> LogEntry:
    """
    What to write down.

    By the memory id, never the title: the log outlives what is erased.
    """
    return LogEntry(
        user_id=user_id,
        content_type=ContentType.objects.get_for_model(Conversation),
        object_id=str(conversation.pk),
        object_repr=visible(conversation.memory_id)[:200],
        action_flag=operation.log_flag,
        change_message=operation.logged(conversation, result),
    )
