"""The search in the messages of a user, as the REST API, MCP and recall offer it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from chatmemory_django import observing
from chatmemory_django.core.excerpts import Snippet
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet


class Hit(NamedTuple):
    """A message that was found, without its content: only an excerpt is read."""

    memory_id: str
    title: str
    sequence: int
    type: str
    created_at: datetime
    snippet: Snippet


def find_messages(
    conversations: QuerySet[Conversation],
    text: str,
    *,
    owner: AbstractBaseUser | AnonymousUser,
    types: Collection[MessageType],
    start: int = 0,
    stop: int,
) -> list[Hit]:
    """
    Return the messages that ``Message.objects.search`` finds, best first, from *start* up to *stop*.

    Only messages of *types* are found, in those of *conversations* that belong to *owner*. This takes up to three
    queries, however long the messages are. Raises ``EncryptedError`` where texts are encrypted.
    """
    with observing.Operation("search"):
        hits = _found(conversations, text, owner, types, slice(start, stop))
        observing.note("counted", records=len(hits))
    return hits


def _found(
    conversations: QuerySet[Conversation],
    text: str,
    owner: AbstractBaseUser | AnonymousUser,
    types: Collection[MessageType],
    part: slice,
) -> list[Hit]:
    messages = Message.objects.using(conversations.db)
    scope = messages.filter(conversation__in=conversations.order_by().values("pk"))
    found = scope.search(text, owner=owner, types=types).select_related("conversation")
    rows = list(found.defer("text", "payload", "verbatim", "metadata")[part])
    if not rows:
        return []
    snippets = messages.with_keys(row.pk for row in rows).snippets(text)
    return [
        Hit(row.conversation.memory_id, row.conversation.title, row.sequence, row.type, row.created_at, snippet)
        for row in rows
        if (snippet := snippets.get(row.pk)) and snippet.parts  # the others were removed after they were found
    ]
