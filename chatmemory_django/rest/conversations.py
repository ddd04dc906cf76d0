"""Conversations: to list, begin, name and erase them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus

import msgspec
from django.conf import settings
from django.db import IntegrityError, router, transaction
from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast
from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.models import Conversation
from chatmemory_django.rest.base import ChatMemoryView, etag, page_size, with_parameters
from chatmemory_django.rest.formats import metadata_in
from chatmemory_django.rest.problems import Refusal, bad_request
from chatmemory_django.rest.schema import describe
from chatmemory_django.rest.shapes import (
    ConversationChange,
    ConversationPage,
    ConversationsQuery,
    ConversationView,
    NewConversation,
    NoQuery,
)
from chatmemory_django.rest.wire import body, query
from chatmemory_django.rows import EARLIEST

MICROSECOND = timedelta(microseconds=1)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)
"""Databases and time zones know the moments from ``EARLIEST`` to this; nothing was said before or after."""


class Conversations(ChatMemoryView):
    """The conversations of who asks."""

    @describe("list_conversations", query=ConversationsQuery, answer=ConversationPage)
    def get(self, request: Request) -> Response:
        """List conversations, those with the latest activity first."""
        asked = query(request, ConversationsQuery)
        size = page_size(asked.limit)
        rows = _filtered(self.policy.conversations(request, "view"), asked)
        found = list(rows.order_by("-updated_at", "-pk")[: size + 1])
        following = None
        if len(found) > size:
            last = found[size - 1]
            cursor = f"{(last.updated_at - _epoch()) // MICROSECOND}-{last.pk}"
            following = with_parameters(request, cursor=cursor)
        return Response(ConversationPage([ConversationView.of(row) for row in found[:size]], following))

    @describe("create_conversation", body=NewConversation, answer=ConversationView, status=HTTPStatus.CREATED)
    def post(self, request: Request) -> Response:
        """Begin a conversation. One that is there already, the same in all that is said of it, is no error."""
        query(request, NoQuery)
        asked = body(request, NewConversation)
        metadata = metadata_in(asked.metadata)
        owner = self.policy.owner_of_new(request)
        conversation = Conversation(owner_id=None if owner is None else owner.pk, title=asked.title, metadata=metadata)
        if asked.memory_id is not None:
            conversation.memory_id = str(asked.memory_id)
        using = router.db_for_write(Conversation)
        try:
            with transaction.atomic(using=using):
                conversation.save(using=using, force_insert=True)
        except IntegrityError:
            conversation = self._already_there(conversation)
        headers = {
            "ETag": etag(conversation),
            "Location": request.build_absolute_uri(reverse("chatmemory:conversation", args=[conversation.memory_id])),
        }
        return Response(ConversationView.of(conversation), HTTPStatus.CREATED, headers=headers)

    def _already_there(self, wanted: Conversation) -> Conversation:
        there = self.policy.conversations(self.request, "change").filter(memory_id=wanted.memory_id).first()
        if there is None or (there.title, there.metadata) != (wanted.title, wanted.metadata):
            raise Refusal(HTTPStatus.CONFLICT, "There is another conversation with this memory id.", "$.memory_id")
        return there


class OneConversation(ChatMemoryView):
    """A conversation."""

    @describe("read_conversation", answer=ConversationView, etag=True)
    def get(self, request: Request, memory_id: str) -> Response:
        """Tell of a conversation."""
        query(request, NoQuery)
        return _told(self.conversation(memory_id))

    @describe("change_conversation", body=ConversationChange, answer=ConversationView, etag=True, match=True)
    def patch(self, request: Request, memory_id: str) -> Response:
        """Change the title or the metadata of a conversation."""
        query(request, NoQuery)
        asked = body(request, ConversationChange)
        with self.changing(memory_id) as conversation:
            if asked.title is not msgspec.UNSET:
                conversation.title = asked.title
            if asked.metadata is not msgspec.UNSET:
                conversation.metadata = metadata_in(asked.metadata)
            conversation.save(update_fields=["title", "metadata"])
            return _told(conversation)  # while nobody else can write to it

    @describe("erase_conversation", status=HTTPStatus.NO_CONTENT, match=True)
    def delete(self, request: Request, memory_id: str) -> Response:
        """Erase a conversation: the memory, the history and all."""
        query(request, NoQuery)
        with self.changing(memory_id, "delete") as conversation:
            conversation.delete()
        return Response(status=HTTPStatus.NO_CONTENT)


def _told(conversation: Conversation) -> Response:
    return Response(ConversationView.of(conversation), headers={"ETag": etag(conversation)})


def _filtered(rows: QuerySet[Conversation], asked: ConversationsQuery) -> QuerySet[Conversation]:
    if asked.title is not None:
        rows = rows.filter(title__icontains=asked.title)
    if asked.metadata is not None:
        key, _, text = asked.metadata.partition(":")
        # As text, since the databases do not agree on whether "5" is 5.
        rows = rows.alias(noted=Cast(KeyTextTransform(key, "metadata"), TextField())).filter(noted=text)
    if asked.active_since is not None:
        rows = rows.active_since(moment("active_since", asked.active_since))  # type: ignore[attr-defined]
    if asked.idle_since is not None:
        rows = rows.idle_since(moment("idle_since", asked.idle_since))  # type: ignore[attr-defined]
    if asked.search is not None:
        rows = rows.search(asked.search)  # type: ignore[attr-defined]
    if asked.cursor is not None:
        since, _, pk = asked.cursor.partition("-")
        at = _epoch() + int(since) * MICROSECOND
        rows = rows.filter(Q(updated_at__lt=at) | Q(updated_at=at, pk__lt=int(pk)))
    return rows


def moment(name: str, given: datetime) -> datetime:
    """*given* in UTC; 400 if the databases know no such moment."""
    try:
        utc = given.astimezone(UTC)
    except OverflowError:
        raise bad_request(f"?{name}", "It is out of range.") from None
    return min(max(utc, EARLIEST), LATEST)


def _epoch() -> datetime:
    """What cursors count from, as the columns have their moments: exact even where clocks are set back."""
    return datetime(1970, 1, 1, tzinfo=UTC if settings.USE_TZ else None)
