"""Checks of what is stored, and repairs of counters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from django.db.models import QuerySet

from chatmemory_django.db.row_codec import UnreadableError
from chatmemory_django.models import Conversation
from chatmemory_django.operations.examining import Examination, Invariant
from chatmemory_django.operations.one_by_one import Each, WindowOf, at_one_moment, for_writing, in_lock, keys, write


class Finding(NamedTuple):
    """A broken rule and how it is broken; *detail* never repeats message text."""

    memory_id: str
    rule: Invariant
    detail: str
    is_repaired: bool = False


def check(
    conversations: QuerySet[Conversation],
    window_of: WindowOf,
    found: Callable[[Finding], object],
    *,
    repair: bool = False,
    each: Each | None = None,
) -> int:
    """
    Look for broken rules in *conversations*, call *found* with every finding, and return the number of findings.

    Each conversation is examined as it is at one moment; *each* receives how many findings it has. With *repair*, its
    counters are corrected to match its rows. Nothing else is ever changed.
    """
    conversations = for_writing(conversations)
    examine = partial(Examination, window_of=window_of)
    count = 0
    for key in keys(conversations):
        try:
            examination = at_one_moment(conversations, key, examine)
            if repair and examination is not None and examination.counters:
                examination = in_lock(conversations, key, partial(_repair, examine))
        except UnreadableError as exc:
            for name in conversations.filter(pk=key).values_list("memory_id", flat=True):
                found(Finding(name, Invariant.CONTENT, str(exc)))
                count += 1
            continue
        if examination is None:
            continue
        for rule, detail in examination.broken:
            is_repaired = repair and rule.value in examination.counters
            found(Finding(examination.conversation.memory_id, rule, detail, is_repaired))
        count += len(examination.broken)
        if each is not None:
            each(examination.conversation, len(examination.broken))
    return count


def _repair(examine: Callable[[Conversation], Examination], conversation: Conversation) -> Examination:
    examination = examine(conversation)
    if examination.counters:
        write(conversation, **examination.counters)
    return examination
