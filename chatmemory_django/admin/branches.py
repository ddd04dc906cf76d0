"""Which messages of a conversation with branches its transcript shows."""

from __future__ import annotations

from django.db.models import Q

from chatmemory_django.models import Conversation, MessageQuerySet


def has_branches(conversation: Conversation) -> bool:
    """Whether *conversation* may have other branches: it ever went on from another message than its newest."""
    # As the index of parents has it, which few messages are in: a flag of every message would be read to the end.
    named = conversation.history(all_branches=True).filter(parent_sequence__isnull=False)
    return conversation.parent_sequence is not None or named.exists()


def shown(conversation: Conversation, *, all_branches: bool) -> MessageQuerySet:
    """
    The rows of *conversation* that its transcript shows: the path in use, and what its memory was made of beside it.

    With *all_branches*, the other branches and earlier summaries, too. What was removed is in neither.
    """
    front = [each for each in (conversation.pinned_sequence, conversation.summary_sequence) if each is not None]
    also = Q(in_history=False, superseded=False) | Q(sequence__in=front)
    if all_branches:
        return conversation.messages.filter(Q(in_history=True) | Q(parent_sequence__isnull=False) | also)
    return conversation.messages.filter(Q(on_path=True) | also)
