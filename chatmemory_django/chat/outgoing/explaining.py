"""What is changed of a memory, before anything is asked."""

from __future__ import annotations

from collections.abc import Sequence

from chatmemory_django.chat.outgoing.fitting import for_vendor
from chatmemory_django.chat.outgoing.rules import Rules
from chatmemory_django.core.reasons import Explained
from chatmemory_django.messages import UserMessage


def with_changes(explained: Sequence[Explained], rules: Rules | None) -> list[Explained]:
    """Return *explained*, a memory, with the ``changes`` by *rules* for the next question, a text."""
    if rules is None:
        return list(explained)
    sent = [(each.sequence, each.sent) for each in explained if each.sent is not None]
    asked = max((each.sequence for each in explained), default=0) + 1, UserMessage("?")
    changes: dict[int, list[str]] = {}
    for changed in for_vendor([*sent, asked], rules).changes:
        changes.setdefault(changed.sequence, []).append(changed.change)
    return [each._replace(changes=tuple(changes.get(each.sequence, ()))) for each in explained]
