"""Views to import conversations from JSON Lines, and to sum up what calls of models used."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from django.db import router
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django import conf
from chatmemory_django.db.retries import tried_again
from chatmemory_django.models import Conversation
from chatmemory_django.operations import (
    ConversationExistsError,
    ImportLimits,
    JsonLinesError,
    check_lines,
    import_lines,
)
from chatmemory_django.operations.usage import usage
from chatmemory_django.rest.filters import EVERYBODY, owned_by_key
from chatmemory_django.rest.parsers import LinesParser, bounded
from chatmemory_django.rest.problems import Problem, invalid
from chatmemory_django.rest.queries import ImportQuery, UsageQuery
from chatmemory_django.rest.serializers import ImportsSerializer, UsageSerializer
from chatmemory_django.rest.views import ChatMemoryView

MAX_CONVERSATIONS = 1_000
"""Maximum number of conversations in an import, which is one transaction."""

MAX_MEMORY_MESSAGES = 1_000
"""Maximum number of messages in the memory of an imported conversation: every read loads all of them."""


class ImportView(ChatMemoryView):
    """The import of conversations from JSON Lines."""

    parser_classes = (LinesParser,)
    serializer_class = ImportsSerializer
    query_serializers = {"post": ImportQuery}  # noqa: RUF012
    throttle_scope = "import"

    @extend_schema(request={LinesParser.media_type: OpenApiTypes.BINARY}, responses={201: ImportsSerializer})
    def post(self, request: Request) -> Response:
        """
        Import exported conversations, which will belong to the user.

        Either all of them are stored or, if a line is invalid or a memory id is taken, none.
        """
        if not self.policy.may_import(request):
            raise exceptions.PermissionDenied
        rename = self.query.get("rename", False)
        owner = self.policy.owner_of_new(request)
        stream: Any = request.data
        imported: list[dict[str, Any]] = []

        def note(conversation: Conversation, original: str) -> None:
            imported.append(
                {
                    "memory_id": conversation.memory_id,
                    "original_memory_id": original,
                    "total_messages": conversation.total_messages,
                }
            )

        using = router.db_for_write(Conversation)

        def store() -> None:
            spooled.seek(0)
            imported.clear()
            options: dict[str, Any] = {"rename": rename, "limits": limits, "using": using, "each": note}
            import_lines(spooled, owner, trusted=False, all_or_none=True, **options)

        settings = conf.rest()
        limits = ImportLimits(
            max_conversations=MAX_CONVERSATIONS,
            max_messages=settings["MAX_IMPORT_MESSAGES"],
            max_memory_messages=MAX_MEMORY_MESSAGES,
            max_text_length=settings["MAX_TEXT_LENGTH"],
            max_depth=settings["MAX_JSON_DEPTH"],
            max_metadata_bytes=settings["MAX_METADATA_BYTES"],
            uuids_only=not self.policy.may_name(request),
            remote_files=self.policy.may_link_files(request),
            max_file_bytes=self.policy.max_file_bytes(request),
        )
        with tempfile.SpooledTemporaryFile(max_size=1024 * 1024) as spooled:
            # A slow client blocks no one: the database is not used before the whole body has arrived.
            for chunk in bounded(stream, settings["MAX_IMPORT_BYTES"]) if stream else ():
                spooled.write(chunk)
            if not spooled.tell():
                raise invalid("$", "The request has no body.", "required")
            try:
                spooled.seek(0)
                check_lines(spooled, limits, rename=rename)
                tried_again(using, store)
            except ConversationExistsError as exc:
                raise Problem(HTTPStatus.CONFLICT, "exists", exc.reason, f"line {exc.line}") from None
            except JsonLinesError as exc:
                # A frame of its traceback holds the error itself, and another one the line, which may be very long.
                exc.__traceback__ = None
                raise invalid(f"line {exc.line}", exc.reason) from None
        return Response({"conversations": imported}, HTTPStatus.CREATED)


class UsageView(ChatMemoryView):
    """What calls of models used and cost."""

    tag = "usage"
    serializer_class = UsageSerializer
    query_serializers = {"get": UsageQuery}  # noqa: RUF012
    throttle_scope = "usage"  # it reads every call of the requested time

    def get(self, request: Request) -> Response:
        """
        Sum up tokens and costs by day, model, conversation, user, purpose or outcome.

        Days are those of UTC; by default, the last 30 days count. At most `limit` rows are returned; `next` is the URL
        of the following ones, or null.
        """
        asked, limits = self.query, conf.rest()
        limit = min(asked.get("limit", limits["PAGE_SIZE"]), limits["MAX_PAGE_SIZE"])
        offset = asked.get("offset", 0)
        by = asked.get("by", "day")
        until = asked.get("until", datetime.now(UTC))
        since = asked.get("since", until - timedelta(days=30))
        calls = self.policy.calls(request)
        if (owner := asked.get("owner")) is None:
            calls = calls.owned_by(request.user)  # even if staff could see those of others
        elif owner != EVERYBODY:
            calls = owned_by_key(calls, owner)
        rows = list(usage(calls, by, since=since, until=until, limit=limit + 1, offset=offset))
        url = None
        if len(rows) > limit:
            # The period is fixed, so that new calls move no row from one page to another.
            moments = {"since": since.isoformat(), "until": until.isoformat()}
            query = {**request.query_params.dict(), **moments, "limit": limit, "offset": offset + limit}
            url = f"{request.build_absolute_uri(request.path)}?{urlencode(query)}"
        results = [{**row._asdict(), "cost": None if row.cost is None else f"{row.cost:f}"} for row in rows[:limit]]
        return Response({"by": by, "since": since, "until": until, "limit": limit, "next": url, "results": results})
