"""What ``prune_chatmemory`` does for the chat."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import router

from chatmemory_django.chat.approvals.tables import forget_left_approvals
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.costs import pruning
from chatmemory_django.chat.models import AnswerChunk
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.streams import delete_old
from chatmemory_django.models.copies import Pruning


def delete_rest(using: str, asked: bool, *, dry_run: bool) -> Iterable[str]:
    """Delete what approvals and streams still hold of deleted messages, and runs of long ago."""
    if not dry_run:
        forget_left_approvals(using)
        leases.prune(using, chat_settings().RUN_SECONDS)
        delete_old(router.db_for_write(AnswerChunk, beside=using))  # may be another than that of conversations
    return ()


PRUNINGS = (Pruning(delete_rest), *pruning.PRUNINGS)
