"""Erasure of conversations."""

from __future__ import annotations

import datetime
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import NamedTuple

from django.db import connections
from django.db.models import QuerySet

from chatmemory_django import observing
from chatmemory_django.db.row_codec import unreadable_as
from chatmemory_django.models import Conversation
from chatmemory_django.models.copies import refuse_held
from chatmemory_django.models.message_codec import files_to_delete
from chatmemory_django.models.remains import NOTHING_COUNTED, SHORT, Counted, note_own
from chatmemory_django.operations.one_by_one import (
    Each,
    Refused,
    for_writing,
    in_its_lock,
    keys_and_lengths,
    messages_of,
)


class Receipt(NamedTuple):
    """What was erased, as evidence of the erasure. It is complete when there are no ``files_to_delete``."""

    erased_at: datetime.datetime
    messages: dict[str, int]
    """The number of messages of each conversation, by memory id."""
    keys: frozenset[int]
    """The primary keys that these conversations had."""
    using: str
    """The database in which they were."""

    def files_to_delete(self) -> int:
        """
        Return how many files of these conversations are still in the storage now, since it has not deleted them yet.

        The next ``prune`` tries again. Inside a transaction, all of them are, until it is committed.
        """
        return files_to_delete(self.using, self.keys)


def erase(
    conversations: QuerySet[Conversation],
    *,
    dry_run: bool = False,
    each: Each | None = None,
    refused: Refused | None = None,
) -> Receipt:
    """
    Erase *conversations* with their history; nothing in a *dry_run*. *each* receives how many messages they had.

    A conversation that is written to in the meantime is erased only if it still is one of *conversations*. The messages
    of a long one are deleted after its transaction, in others, unless all are inside one of the caller. Refused with
    ``ProtectedError`` or ``RestrictedError`` if other objects of the site reference it.
    """
    messages: dict[str, int] = {}
    keys: set[int] = set()

    def note(conversation: Conversation, count: int) -> None:
        if each is not None:
            each(conversation, count)
        messages[conversation.memory_id] = count
        keys.add(conversation.pk)

    with nullcontext() if dry_run else observing.Operation("delete"):
        erase_each(conversations, note, refused, dry_run=dry_run)
        if not dry_run:
            observing.note("counted", records=sum(messages.values()))
    erased_at, using = datetime.datetime.now(datetime.UTC), for_writing(conversations).db
    return Receipt(erased_at, messages, frozenset() if dry_run else frozenset(keys), using)


def erase_each(
    conversations: QuerySet[Conversation], each: Each | None, refused: Refused | None, *, dry_run: bool
) -> int:
    """Erase each of *conversations*, or count its messages in a *dry_run*; return for how many that succeeded."""
    conversations = for_writing(conversations)
    is_own = not connections[conversations.db].in_atomic_block
    erased = 0
    for key, next_sequence in keys_and_lengths(conversations):
        is_counted = next_sequence > SHORT and not dry_run
        counted = Counted.of(key, next_sequence, conversations.db) if is_counted else NOTHING_COUNTED
        do = _count if dry_run else partial(_erase, counted, is_own)
        with unreadable_as(None):
            erased += in_its_lock(conversations, key, do, each, refused) is not None
    return erased


def _count(conversation: Conversation) -> int:
    rows = messages_of(conversation)
    refuse_held(rows.db, [conversation.pk])
    return rows.count()


def _erase(counted: Counted, is_own: bool, conversation: Conversation) -> int:  # bound by position
    rows = messages_of(conversation)
    if is_own:
        note_own(rows.db)
    count = counted.up_to_now(rows)
    copy(conversation).delete(using=conversation._state.db)  # a copy, since deleting an object resets its key
    return count
