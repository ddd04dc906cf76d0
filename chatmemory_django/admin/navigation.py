"""What the transcript of a conversation shows, and ways through it: URLs, a date, the previous and the next message."""

from __future__ import annotations

import datetime
from bisect import bisect_left
from typing import NamedTuple

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from chatmemory_django.models import Conversation, Message, MessageQuerySet

PAGE = 50
"""Number of messages on a page."""

FIRST, NEWEST = "first", "newest"
"""The fragments of the first and the newest message in URLs of the transcript."""

ALL_BRANCHES = "branches=all"
"""The query parameter of URLs that show all branches."""


def link_to(sequence: int, *, all_branches: bool = False) -> str:
    """
    Return the end of a URL of the transcript page that has the message *sequence* in its middle.

    Messages that are not on the current path are only in the transcript of *all_branches*.
    """
    branches = f"&{ALL_BRANCHES}" if all_branches else ""
    return f"?after={max(0, sequence - 1 - PAGE // 2)}{branches}#m-{sequence}"


def has_branches(conversation: Conversation) -> bool:
    """Return whether *conversation* may have branches: it once continued from a message that was not the newest."""
    # Uses the index of parents, which has few entries; filtering by on_path could scan every message.
    named = conversation.history(all_branches=True).filter(parent_sequence__isnull=False)
    return conversation.parent_sequence is not None or named.exists()


def shown(conversation: Conversation, *, all_branches: bool) -> MessageQuerySet:
    """
    Return the rows of *conversation* that its transcript shows: the current path, and other contents of its memory.

    With *all_branches*, other branches and earlier summaries are included. Removed messages never are.
    """
    front = [each for each in (conversation.pinned_sequence, conversation.summary_sequence) if each is not None]
    also = Q(in_history=False, superseded=False) | Q(sequence__in=front)
    if all_branches:
        return conversation.messages.filter(Q(in_history=True) | Q(parent_sequence__isnull=False) | also)
    return conversation.messages.filter(Q(on_path=True) | also)


class Landing(NamedTuple):
    """The message that a jump to a date leads to."""

    sequence: int
    created_at: datetime.datetime

    @property
    def date(self) -> datetime.date:
        """The day of the message, in the active time zone."""
        return (timezone.localtime(self.created_at) if timezone.is_aware(self.created_at) else self.created_at).date()


def on(conversation: Conversation, date: datetime.date, *, all_branches: bool = False) -> Landing | None:
    """
    Return the first message of *conversation* on or after *date*, in the active time zone.

    Return the last message if all are older, and None if there are no messages. The message is found by bisection,
    with one short query per step: about 17 for 100,000 messages. If the clock was ever set back, an earlier message
    may also be on or after *date*.
    """
    midnight = datetime.datetime.combine(date, datetime.time.min)
    moment = timezone.make_aware(midnight) if settings.USE_TZ else midnight
    transcript = shown(conversation, all_branches=all_branches)
    rows = transcript.order_by("sequence").values_list("sequence", "created_at")

    def is_reached(sequence: int) -> bool:
        found = rows.filter(sequence__gte=sequence).first()
        return found is None or found[1] >= moment

    first = bisect_left(range(1, conversation.next_sequence), True, key=is_reached) + 1
    found = rows.filter(sequence__gte=first).first() or rows.last()
    return None if found is None else Landing(*found)


def neighbours(conversation: Conversation, row: Message, *, all_branches: bool) -> tuple[int | None, int | None]:
    """Return the sequences of the messages before and after *row*, on the current path or on *all_branches*."""
    rows = shown(conversation, all_branches=all_branches).values_list("sequence", flat=True)
    return (
        rows.filter(sequence__lt=row.sequence).order_by("-sequence").first(),
        rows.filter(sequence__gt=row.sequence).order_by("sequence").first(),
    )
