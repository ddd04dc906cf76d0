"""Run operations and record them in Django's admin log, in the same transaction as the change."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib.admin.models import LogEntry
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.db.models import ProtectedError, QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from chatmemory_django import operations
from chatmemory_django.admin.downloads import NotPossibleError
from chatmemory_django.admin.message_operations import Done, MessageOperation
from chatmemory_django.admin.operations import EXPORT, AdminOperation, protection
from chatmemory_django.core.shown import visible
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.row_codec import UNREADABLE, UnreadableError, unreadable_as
from chatmemory_django.models import Conversation
from chatmemory_django.operations import admin_log
from chatmemory_django.operations.one_by_one import in_lock
from chatmemory_django.operations.reading import note_read
from chatmemory_django.stores.base import MessageNotFoundError

EXPORTED = {
    "html": ("html", "text/html"),
    "text": ("txt", "text/plain"),
    "jsonl": ("jsonl", "application/x-ndjson"),
}
"""The suffixes and the media types of files by their form."""

PAGE = 1_000
"""Number of conversations that are logged or exported at a time."""


def perform(operation: AdminOperation, conversations: QuerySet[Conversation], user_id: Any) -> tuple[int, list[str]]:
    """
    Run *operation* on *conversations*. Return the number of successes, and error messages: one for each refusal, and
    one for what is left to do.
    """
    errors: list[str] = []
    keys: list[int] = []

    def log(conversation: Conversation, result: int) -> None:
        admin_log.log(conversation, user_id, operation.logged(conversation, result), operation.log_flag)
        keys.append(conversation.pk)

    def refuse(conversation: Conversation, error: Exception) -> None:
        errors.append(f"“{visible(conversation.memory_id)}”: {operation.refusal(error)}")

    done = operation.do(conversations, log, refuse)
    if left := operation.left(keys, conversations.db):
        errors.append(left)
    return done, errors


def perform_at(
    operation: MessageOperation,
    conversations: QuerySet[Conversation],
    key: int,
    sequence: int,
    user_id: Any,
    *,
    with_counterparts: bool,
) -> Done | None:
    """
    Run *operation* on the message *sequence* of the conversation *key* among *conversations*; None if it is missing.

    Raises:
        NotPossibleError: The operation is not possible; the text explains why to the user.

    """

    def do(conversation: Conversation) -> Done:
        done = operation.do(conversation, sequence, with_counterparts=with_counterparts)
        admin_log.log(conversation, user_id, done.words)
        return done

    try:
        return in_lock(conversations, key, do)
    except MessageNotFoundError as exc:
        raise NotPossibleError(_("Message #%(number)d no longer exists.") % {"number": sequence}) from exc
    except ProtectedError as exc:
        raise NotPossibleError(protection(exc)) from exc
    except (RuntimeError, TypeError, ValueError) as exc:  # an unreadable message, limit or encoding
        raise NotPossibleError(_("The memory cannot be read: %(reason)s") % {"reason": exc}) from exc


def export(request: HttpRequest, conversations: QuerySet[Conversation]) -> StreamingHttpResponse:
    """
    Return *conversations* as a file of the requested form. The export is logged before the first byte is sent.

    Conversations that cannot be exported are left out, and the log has why.
    """
    form: Any = request.POST.get("form", "jsonl")
    if form not in EXPORTED:
        raise BadRequest(f"The form must be one of {', '.join(EXPORTED)}.")
    keys = list(conversations.order_by("pk").values_list("pk", flat=True))
    pages = [Conversation.objects.using(conversations.db).filter(pk__in=part) for part in in_parts(keys, PAGE)]
    exported: list[Conversation] = []
    for page in pages:
        with unreadable_as(str(UNREADABLE)):
            there = list(page.order_by("pk").defer("metadata"))
        exported += there
        entries = [
            admin_log.entry(each, request.user.pk, EXPORT.logged(each, each.total_messages), EXPORT.log_flag)
            for each in there
        ]
        LogEntry.objects.bulk_create(entries, batch_size=500)
    note_read(request.user, exported, "exported")
    # A document has one beginning and one end; lines can be joined, and queries with fewer keys are simpler.
    parts = pages if form == "jsonl" else [Conversation.objects.using(conversations.db).filter(pk__in=keys)]
    refused = partial(_log_left_out, request.user.pk)
    chunks = (chunk for part in parts for chunk in operations.export(part, form=form, refused=refused))
    suffix, content_type = EXPORTED[form]
    name = f"conversations-{timezone.now():%Y%m%d-%H%M%S}.{suffix}"
    return StreamingHttpResponse(
        operations.asynchronous(chunks) if isinstance(request, ASGIRequest) else chunks,
        content_type=f"{content_type}; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
    )


def _log_left_out(user_id: Any, conversation: Conversation, error: Exception) -> None:
    reason = str(UNREADABLE).format(error.key_id) if isinstance(error, UnreadableError) else visible(str(error))
    admin_log.log(conversation, user_id, _("Left out of an export: %(reason)s") % {"reason": reason})
