"""Recounting of the tokens in memories."""

from __future__ import annotations

from django.db.models import QuerySet

from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import Each, Refused, WindowOf, for_writing, going_on, keys
from chatmemory_django.stores.django import DjangoChatMemoryStore


class NoCounterError(ValueError):
    """The error for a memory without an estimator whose counts can be stored."""


def recount(
    conversations: QuerySet[Conversation],
    window_of: WindowOf,
    *,
    each: Each | None = None,
    refused: Refused | None = None,
) -> int:
    """
    Recount the tokens in the memories, with the windows that *window_of* returns, and return the number of memories.

    *each* receives the number of tokens, here after the transaction: messages are counted before it, so that no other
    writer has to wait. Refused with ``NoCounterError``, and with ``UnreadableError`` for what cannot be decrypted.
    """
    conversations = for_writing(conversations)
    count = 0
    for key in keys(conversations):
        with going_on(conversations, key, refused):
            conversation = conversations.filter(pk=key).first()
            if conversation is None:
                continue
            window = window_of(conversation.memory_id)
            if window is not None and window.counter:
                tokens = DjangoChatMemoryStore(conversations.db).recount(conversation.memory_id, window)
                count += 1
                if each is not None:
                    each(conversation, tokens)
                continue
            error = NoCounterError(
                f"The memory {conversation.memory_id!r} has no estimator whose counts can be stored."
            )
            if refused is None:
                raise error
            refused(conversation, error)
    return count
