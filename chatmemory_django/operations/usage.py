"""Usage statistics: messages and tokens by day, conversation or model."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from django.db.models import Count, F, QuerySet, Sum
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KT
from django.db.models.functions import TruncDate

from chatmemory_django.db.moments import to_moment
from chatmemory_django.models import Conversation, Message

By: TypeAlias = Literal["day", "conversation", "model"]

_KEYS: dict[By, Combinable] = {
    "day": TruncDate("created_at", tzinfo=datetime.UTC),
    "conversation": F("conversation__memory_id"),
    "model": KT("metadata__model"),
}


class Usage(NamedTuple):
    """
    The messages of a day, a conversation or a model. *key* is None if no model was recorded.

    Days are in UTC; without ``USE_TZ``, in the time zone of the site.
    """

    key: str | None
    messages: int
    tokens: int
    """The total of the messages whose tokens were counted."""


def usage(
    conversations: QuerySet[Conversation], by: By, *, since: datetime.datetime, until: datetime.datetime, limit: int
) -> Iterator[Usage]:
    """
    Yield the usage in *conversations* from *since* until before *until*, aware datetimes, at most *limit* entries.

    All branches count, since all of them were paid for. Days come latest first; conversations and models with the most
    tokens first. Reads every message of that period.
    """
    rows = Message.objects.history(all_branches=True).filter(
        conversation__in=conversations.active_since(since),  # type: ignore[attr-defined]
        created_at__gte=to_moment(since),
        created_at__lt=to_moment(until),
    )
    counted = rows.values(key=_KEYS[by]).annotate(messages=Count("sequence"), tokens=Sum("token_count", default=0))
    order = ["-key"] if by == "day" else ["-tokens", "-messages", "key"]
    for key, messages, tokens in counted.order_by(*order).values_list("key", "messages", "tokens")[:limit]:
        yield Usage(None if key is None else str(key), messages, int(tokens))
