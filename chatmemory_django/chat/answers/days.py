"""On which day the messages of a memory were written, for a model that is shown it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime, tzinfo

from django.utils import timezone

from chatmemory_django.core.windows import Entry
from chatmemory_django.db.moments import aware
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Message
from chatmemory_django.stores.django import DjangoChatMemoryStore


def check_dates(memory: ChatMemory) -> None:
    """Raise ``TypeError`` if the store of *memory* does not know when its messages were written."""
    if not isinstance(memory.store, DjangoChatMemoryStore):
        raise TypeError(f"dates are those of DjangoChatMemoryStore only, not of {memory.store!r}.")


class Days:
    """The days of messages in the time zone *zone*, by their keys: today, unless they are stored and were ``read``."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self._today = self._day(timezone.now())
        self._known: dict[int, date] = {}

    def __call__(self, key: int) -> date:
        return self._known.get(key, self._today)

    def read(self, memory: ChatMemory, entries: Iterable[Entry]) -> None:
        """Read when those of *entries* were written that are users' messages, in one statement."""
        keys = [each.key for each in entries if each.type == MessageType.USER]
        if keys and isinstance(memory.store, DjangoChatMemoryStore):
            named = memory.store.named(memory.id)
            rows = Message.objects.using(named.db).filter(conversation__in=named.values("pk"), sequence__in=keys)
            moments = rows.order_by().values_list("sequence", "created_at")
            self._known = {key: self._day(moment) for key, moment in moments}

    def _day(self, moment: datetime) -> date:
        return aware(moment).astimezone(self._zone).date()
