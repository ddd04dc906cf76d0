"""Ways from one message to others: to a day, to the one before and the one after."""

from __future__ import annotations

import datetime
from bisect import bisect_left
from typing import NamedTuple

from django.conf import settings
from django.utils import timezone

from chatmemory_django.admin.branches import shown
from chatmemory_django.models import Conversation, Message


class Landing(NamedTuple):
    """Where a jump to a day leads."""

    sequence: int
    created_at: datetime.datetime

    @property
    def date(self) -> datetime.date:
        """The day of the message, in the active time zone."""
        return (timezone.localtime(self.created_at) if timezone.is_aware(self.created_at) else self.created_at).date()


def on(conversation: Conversation, date: datetime.date, *, all_branches: bool = False) -> Landing | None:
    """
    The first message of *conversation* on *date*, in the active time zone, or later; else the last; None without any.

    Found by bisection, a short statement for each step: about 17 for 100,000 messages. A clock that stepped back may
    make it another message, before which one is older than *date*.
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
    """The sequences of the messages before and after *row*, on the path in use or on *all_branches*."""
    rows = shown(conversation, all_branches=all_branches).values_list("sequence", flat=True)
    return (
        rows.filter(sequence__lt=row.sequence).order_by("-sequence").first(),
        rows.filter(sequence__gt=row.sequence).order_by("sequence").first(),
    )
