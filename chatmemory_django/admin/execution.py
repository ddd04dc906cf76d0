"""
Operations, done: conversation by conversation, each in a transaction of its own that holds the lock of its writers, so
that it is done and logged, or neither.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.utils import timezone

from chatmemory_django.admin.operations import EXPORT, Operation, Refusal
from chatmemory_django.admin.wording import visible
from chatmemory_django.jsonl import export_lines
from chatmemory_django.models import Conversation, ConversationQuerySet


def perform(operation: Operation, conversations: QuerySet[Conversation], user_id: Any) -> tuple[int, list[str]]:
    """Do *operation* to *conversations*. Returns how many it was done to, and what to tell of the others."""
    using = router.db_for_write(Conversation)
    done, refusals = 0, []
    for pk in list(conversations.order_by("pk").values_list("pk", flat=True)):
        try:
            with transaction.atomic(using=using):
                conversation = Conversation.objects.using(using).select_for_update().filter(pk=pk).first()
                if conversation is None:
                    continue  # somebody was faster
                memory_id = conversation.memory_id
                _entry(operation, pk, memory_id, operation.do(conversation, using), user_id).save(force_insert=True)
                done += 1
        except Refusal as refusal:
            refusals.append(f"“{visible(memory_id)}”: {refusal}")
    return done, refusals


def export(conversations: ConversationQuerySet, user_id: Any) -> StreamingHttpResponse:
    """*conversations* as a file of JSON lines."""
    columns = conversations.select_related(None).only("memory_id", "said_messages").iterator(chunk_size=1000)
    entries = (_entry(EXPORT, row.pk, row.memory_id, EXPORT.do(row, ""), user_id) for row in columns)
    LogEntry.objects.bulk_create(entries, batch_size=500)
    name = f"conversations-{timezone.now():%Y%m%d-%H%M%S}.jsonl"
    return StreamingHttpResponse(
        export_lines(conversations),
        content_type="application/x-ndjson; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
    )


def _entry(operation: Operation, pk: int, memory_id: str, message: str, user_id: Any) -> LogEntry:
    """
    What to write into Django's admin log.

    By the memory id, never the title: the log outlives what is erased.
    """
    return LogEntry(
        user_id=user_id,
        content_type=ContentType.objects.get_for_model(Conversation),
        object_id=str(pk),
        object_repr=visible(memory_id)[:200],
        action_flag=operation.log_flag,
        change_message=message,
    )
