"""The search in the messages of a user, as the REST API, MCP and recall offer it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Q

from chatmemory_django import observing
from chatmemory_django.core.excerpts import ELLIPSIS, MAX_SNIPPET, Snippet
from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.core.weighing import Key, beginning_of, only_asks, words_of
from chatmemory_django.db import row_codec
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message, MessageQuerySet
from chatmemory_django.models.fields import without_texts
from chatmemory_django.models.messages import Match, beginning_of_text

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet


BESIDE = 5
"""How many messages before a hit, and after it, are read to find what was written there: some are calls of tools."""


ACCEPTED = ~Q(metadata__has_key=REJECTED)
"""The condition for messages that no server of a model has rejected: it would do so again."""


class Nearby(NamedTuple):
    """What was written just before a message that was found, or just after it."""

    sequence: int
    type: str
    beginning: str


class Hit(NamedTuple):
    """A message that was found, without its content: only an excerpt is read."""

    memory_id: str
    title: str
    is_archived: bool
    sequence: int
    type: str
    created_at: datetime
    snippet: Snippet


class Passage(NamedTuple):
    """A message that was found, and what was written beside it."""

    hit: Hit
    before: Nearby | None
    after: Nearby | None


def find_messages(
    conversations: QuerySet[Conversation],
    text: str,
    *,
    owner: AbstractBaseUser | AnonymousUser,
    types: Collection[MessageType],
    match: Match = "all",
    start: int = 0,
    stop: int,
) -> list[Hit]:
    """
    Return the messages that ``Message.objects.search`` finds, best first, from *start* up to *stop*.

    Only messages of *types* are found, in those of *conversations* that belong to *owner*. To find those with all words
    takes up to three queries, however long the messages are. Raises ``EncryptedError`` where texts are encrypted,
    unless *match* is "any".
    """
    with observing.Operation("search"):
        hits = _found(Message.objects.all(), conversations, text, owner, types, match, slice(start, stop))
        observing.note("counted", records=len(hits))
    return [*hits.values()]


def find_answers(
    conversations: QuerySet[Conversation],
    question: str,
    *,
    owner: AbstractBaseUser | AnonymousUser,
    types: Collection[MessageType],
    stop: int,
    within: Q = Q(),  # noqa: B008  # it is never changed
) -> list[Passage]:
    """
    Return up to *stop* messages that answer *question*, best first, for a model: it asks in sentences.

    First come those with all words, then those with any; where texts are encrypted, all are weighed alike, and one that
    cannot be decrypted is not found. A message that only asks comes after what answers it, or with its answer, if that
    is the next message: each hit has those beside it. All of them are *within* that condition, and none was rejected by
    the server of a model, which would reject it again. See ``find_messages`` for the rest.
    """
    conversations = conversations.using(conversations.db)  # a router may name another database each time
    messages = Message.objects.filter(within)
    with observing.Operation("search"), row_codec.unreadable_as(""):
        is_plain = row_codec.installed is None
        every = _found(messages, conversations, question, owner, types, "all", slice(stop)) if is_plain else {}
        first = {key: hit for key, hit in every.items() if not only_asks(str(hit.snippet))}
        is_enough = len(first) == stop
        more = {} if is_enough else _found(messages, conversations, question, owner, types, "any", slice(2 * stop))
        named = messages.using(conversations.db).filter(conversation__in=conversations.order_by().values("pk"))
        accepted = named.filter(ACCEPTED, conversation__owner=owner.pk, type__in=types)
        answers = _with_beside(accepted, {**first, **more, **every})[:stop]
        observing.note("counted", records=len(answers))
    return answers


def _found(
    messages: MessageQuerySet,
    conversations: QuerySet[Conversation],
    text: str,
    owner: AbstractBaseUser | AnonymousUser,
    types: Collection[MessageType],
    match: Match,
    part: slice,
) -> dict[Key, Hit]:
    using = conversations.db
    found = messages.using(using).search(text, owner=owner, types=types, match=match, conversations=conversations)
    rows = list(without_texts(found.select_related("conversation")).defer("metadata")[part])
    if not rows:
        return {}
    shown = text if match == "all" else " ".join(map(beginning_of, words_of(text)))
    snippets = Message.objects.using(using).with_keys(row.pk for row in rows).snippets(shown)
    return {
        row.pk: Hit(
            row.conversation.memory_id,
            row.conversation.title,
            row.conversation.is_archived,
            row.sequence,
            row.type,
            row.created_at,
            snippet,
        )
        for row in rows
        if (snippet := snippets.get(row.pk)) and snippet.parts  # the others were removed after they were found
    }


def _with_beside(messages: MessageQuerySet, hits: dict[Key, Hit]) -> list[Passage]:
    """
    Return *hits* with what was written beside them, in one query, without those that are not among *messages*, and
    without questions whose answer is a better hit.
    """
    near = [Q(conversation=pk, sequence__range=(at - BESIDE, at + BESIDE)) for pk, at in hits]
    if not near:
        return []
    rows = messages.filter(reduce(or_, near)).history().exclude(text="").order_by("sequence")
    written: defaultdict[int, list[Nearby]] = defaultdict(list)
    beginnings = rows.values_list("conversation_id", "sequence", "type", beginning_of_text(MAX_SNIPPET + 1))
    for pk, at, kind, text in beginnings:
        written[pk].append(Nearby(at, kind, ELLIPSIS if text is None else text))  # as in ``Recall.read_conversation``
    answers: dict[Key, Passage] = {}
    for (pk, at), hit in hits.items():
        near_it = [each for each in written[pk] if abs(each.sequence - at) <= BESIDE]
        before = [each for each in near_it if each.sequence < at]
        after = [each for each in near_it if each.sequence > at]
        is_removed = len(before) + len(after) == len(near_it)
        is_answered = after and (pk, after[0].sequence) in answers and only_asks(str(hit.snippet))
        if not is_removed and not is_answered:
            answers[pk, at] = Passage(hit, before[-1] if before else None, after[0] if after else None)
    return [*answers.values()]
