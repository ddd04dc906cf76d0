"""The view to import conversations from JSON Lines."""

from __future__ import annotations

import tempfile
from http import HTTPStatus
from typing import Any

from django.db import router, transaction
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django import conf
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.models import Conversation
from chatmemory_django.operations import (
    ConversationExistsError,
    ForbiddenTypeError,
    ImportLimits,
    JsonLinesError,
    check_lines,
    import_lines,
)
from chatmemory_django.rest.parsers import LinesParser, bounded
from chatmemory_django.rest.problems import Problem, invalid
from chatmemory_django.rest.queries import ImportQuery
from chatmemory_django.rest.serializers import ImportsSerializer
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
        of_owner = Conversation(owner_id=None if owner is None else owner.pk)
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
            with transaction.atomic(using=using):
                self.check_quota(of_owner, size=size)
                import_lines(spooled, owner, trusted=False, all_or_none=True, **options)

        settings = conf.rest()
        limits = ImportLimits(
            max_conversations=MAX_CONVERSATIONS,
            max_messages=settings.MAX_IMPORT_MESSAGES,
            max_memory_messages=MAX_MEMORY_MESSAGES,
            max_text_length=settings.MAX_TEXT_LENGTH,
            max_depth=settings.MAX_JSON_DEPTH,
            max_metadata_bytes=settings.MAX_METADATA_BYTES,
            uuids_only=not self.policy.may_name(request),
            remote_files=self.policy.may_link_files(request),
            types=self.policy.writable_types(request),
            max_file_bytes=self.policy.max_file_bytes(request, self.owner_of(of_owner)),
        )
        with tempfile.SpooledTemporaryFile(max_size=1024 * 1024) as spooled:
            # A slow client blocks no one: the database is not used before the whole body has arrived.
            for chunk in bounded(stream, settings.MAX_IMPORT_BYTES) if stream else ():
                spooled.write(chunk)
            if not (size := spooled.tell()):
                raise invalid("$", "The request has no body.", "required")
            try:
                spooled.seek(0)
                check_lines(spooled, limits, rename=rename)
                tried_again(using, store)
            except ConversationExistsError as exc:
                raise Problem(HTTPStatus.CONFLICT, "exists", exc.reason, f"line {exc.line}") from None
            except ForbiddenTypeError as exc:
                raise Problem(HTTPStatus.FORBIDDEN, "forbidden_type", exc.reason, f"line {exc.line}") from None
            except JsonLinesError as exc:
                # A frame of its traceback holds the error itself, and another one the line, which may be very long.
                exc.__traceback__ = None
                raise invalid(f"line {exc.line}", exc.reason) from None
        return Response({"conversations": imported}, HTTPStatus.CREATED)
