"""Selection of the messages that the transcript of a conversation with branches shows."""

from __future__ import annotations

from django.db.models import Q

from chatmemory_django.models import Conversation, MessageQuerySet


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
