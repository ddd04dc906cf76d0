"""Navigation between messages: to a date, and to the previous and the next message."""

from __future__ import annotations

import datetime
from bisect import bisect_left
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from chatmemory_django.admin.branches import shown
from chatmemory_django.models import Conversation, Message


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
