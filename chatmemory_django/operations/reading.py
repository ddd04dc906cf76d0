"""Who reads what of others: every face reports it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

from chatmemory_django import conf
from chatmemory_django.models import Conversation
from chatmemory_django.signals import conversations_read

Way: TypeAlias = Literal["read", "listed", "searched", "exported", "changed"]
"""How: a change is a read, too, as its response has what there is now."""


def note_read(
    reader: Any, conversations: Iterable[Conversation], way: Way, is_own: Callable[[Conversation], bool] | None = None
) -> None:
    """
    Send ``conversations_read`` for those of *conversations* that are not the *reader*'s, if ``LOG_READS`` is on.

    Call it once for a request. *is_own* decides where others' may count as one's own; by default, the owner does.
    """
    if not conf.general().LOG_READS:
        return
    others = [each for each in conversations if not (each.owner_id == reader.pk or (is_own and is_own(each)))]
    if others:
        conversations_read.send_robust(Conversation, reader=reader, conversations=others, way=way)
