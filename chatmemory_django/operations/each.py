"""Operations on conversations one by one, each of them locked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from django.db.models import ProtectedError, QuerySet, RestrictedError

from chatmemory_django.core.windows import Window
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import for_writing, in_lock, keys

Each: TypeAlias = Callable[[Conversation, int], object]


Refused: TypeAlias = Callable[[Conversation, Exception], object]


WindowOf: TypeAlias = Callable[[str], Window | None]


def for_each(
    conversations: QuerySet[Conversation],
    do: Callable[[Conversation], int],
    each: Each | None,
    refused: Refused | None,
) -> int:
    """Call *do* with each of *conversations*, and return for how many it succeeded."""
    results = (in_its_lock(conversations, key, do, each, refused) for key in keys(for_writing(conversations)))
    return sum(result is not None for result in results)


def in_its_lock(
    conversations: QuerySet[Conversation],
    key: int,
    do: Callable[[Conversation], int],
    each: Each | None,
    refused: Refused | None,
) -> int | None:
    """Call *do* with the conversation *key*, locked, and return its result; None if it is gone or refused."""
    conversation: Conversation | None = None

    def do_and_report(found: Conversation) -> int:
        nonlocal conversation
        conversation = found
        result = do(found)
        if each is not None:
            each(found, result)
        return result

    try:
        return in_lock(conversations, key, do_and_report)
    except (ProtectedError, RestrictedError) as exc:
        if refused is None or conversation is None:
            raise
        refused(conversation, exc)
        return None
