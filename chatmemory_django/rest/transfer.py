"""Whole conversations out and in, as JSON lines, and how much was said in them."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import IO

from django.core.handlers.asgi import ASGIRequest
from django.db import router, transaction
from django.http import StreamingHttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django import conf
from chatmemory_django.models import Conversation
from chatmemory_django.operations import ConversationExistsError, JsonLinesError, asynchronous, export, import_lines
from chatmemory_django.rest.base import ChatMemoryView, page_size
from chatmemory_django.rest.conversations import moment
from chatmemory_django.rest.problems import Refusal, bad_request
from chatmemory_django.rest.schema import describe
from chatmemory_django.rest.shapes import (
    Imported,
    ImportedConversation,
    NoQuery,
    UsageQuery,
    UsageRow,
    UsageView,
)
from chatmemory_django.rest.wire import LinesParser, query
from chatmemory_django.usage import usage

MAX_MEMORY = 1_000
"""How many messages may be in the memory of a conversation that is imported: every read reads them all."""


class Export(ChatMemoryView):
    """A conversation as JSON lines."""

    scope = "export"

    @describe("export_conversation", lines=True)
    def get(self, request: Request, memory_id: str) -> StreamingHttpResponse:
        """Send a conversation as JSON lines, from which it can be imported with its history and its memory."""
        query(request, NoQuery)
        conversation = self.conversation(memory_id)
        chunks = export(Conversation.objects.filter(pk=conversation.pk))
        is_async = isinstance(request._request, ASGIRequest)
        return StreamingHttpResponse(
            asynchronous(chunks) if is_async else chunks,
            content_type=LinesParser.media_type,
            headers={"Content-Disposition": 'attachment; filename="conversation.jsonl"'},
        )


class Import(ChatMemoryView):
    """Conversations from JSON lines."""

    parser_classes = (LinesParser,)
    scope = "export"

    @describe("import_conversations", lines=True, answer=Imported, status=HTTPStatus.CREATED)
    def post(self, request: Request) -> Response:
        """Import what was exported, all of it or nothing. The conversations are then those of who asks."""
        query(request, NoQuery)
        stream: object = request.data
        owner = self.policy.owner_of_new(request)
        imported: list[ImportedConversation] = []

        def note(conversation: Conversation) -> None:
            if conversation.memory_messages > MAX_MEMORY:
                raise Refusal(
                    HTTPStatus.BAD_REQUEST,
                    f"A memory of {conversation.memory_messages} messages is too large; at most {MAX_MEMORY} will do.",
                    "window_start",
                )
            imported.append(ImportedConversation(conversation.memory_id, conversation.total_messages))

        with tempfile.SpooledTemporaryFile(max_size=1024 * 1024) as spooled:
            if not stream:  # DRF's word for no body
                raise bad_request("$", "There is no body.")
            _copy(stream, spooled, conf.rest()["MAX_IMPORT_BYTES"])  # type: ignore[arg-type]
            spooled.seek(0)
            try:
                # Only now, when no slow client can hold up others.
                with transaction.atomic(using=router.db_for_write(Conversation)):
                    import_lines(spooled, owner, trusted=False, each=note)
            except ConversationExistsError as exc:
                raise Refusal(HTTPStatus.CONFLICT, exc.reason, f"line {exc.line}") from None
            except JsonLinesError as exc:
                raise Refusal(HTTPStatus.BAD_REQUEST, exc.reason, f"line {exc.line}") from None
        return Response(Imported(imported), HTTPStatus.CREATED)


class Usage(ChatMemoryView):
    """How much was said."""

    scope = "export"  # it reads every message of the time asked for

    @describe("read_usage", query=UsageQuery, answer=UsageView)
    def get(self, request: Request) -> Response:
        """Count messages and tokens by day (UTC), conversation or model."""
        asked = query(request, UsageQuery)
        now = datetime.now(UTC)
        until = now if asked.until is None else moment("until", asked.until)
        since = now - timedelta(days=30) if asked.since is None else moment("since", asked.since)
        rows = usage(
            self.policy.conversations(request, "view"),
            asked.by,
            since=since,
            until=until,
            limit=page_size(asked.limit),
        )
        return Response(UsageView(asked.by, since, until, [UsageRow(*row) for row in rows]))


def _copy(stream: IO[bytes], target: IO[bytes], limit: int) -> None:
    size = 0
    while chunk := stream.read(64 * 1024):
        size += len(chunk)
        if size > limit:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body has more than {limit} bytes.", "$")
        target.write(chunk)
