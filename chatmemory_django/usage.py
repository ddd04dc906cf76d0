"""How much was said: messages and tokens, by day, conversation or model."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from django.db.models import Count, F, QuerySet, Sum
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KT
from django.db.models.functions import TruncDate

from chatmemory_django.models import Conversation, Message
from chatmemory_django.rows import to_moment

By: TypeAlias = Literal["day", "conversation", "model"]

_KEYS: dict[By, Combinable] = {
    "day": TruncDate("created_at", tzinfo=datetime.UTC),
    "conversation": F("conversation__memory_id"),
    "model": KT("metadata__model"),
}


class Usage(NamedTuple):
    """
    What was said on a day, in a conversation or by a model. *key* is None where no model was noted.

    Days are those of UTC; with ``USE_TZ`` off, those of the site.
    """

    key: str | None
    messages: int
    tokens: int
    """Those of the messages whose tokens were counted."""


def usage(
    conversations: QuerySet[Conversation], by: By, *, since: datetime.datetime, until: datetime.datetime, limit: int
) -> Iterator[Usage]:
    """
    What was said in *conversations* from *since* until before *until* (aware), the first *limit* of it.

    It was paid for on all branches, so it counts on all of them. The latest days come first; of conversations and
    models those with the most tokens. It reads every message of that time.
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
