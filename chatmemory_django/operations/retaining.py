"""What is kept for how long: idle and temporary conversations, and old messages."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured
from django.db.models import F, Q

from chatmemory_django import conf, observing
from chatmemory_django.db.batches import taking_turns
from chatmemory_django.db.moments import to_moment
from chatmemory_django.db.row_codec import unreadable_as
from chatmemory_django.models import Conversation, ConversationQuerySet, Message, MessageQuerySet
from chatmemory_django.models.copies import forget_rows
from chatmemory_django.models.remains import delete_left, runs
from chatmemory_django.models.windows import Bounds, in_memory
from chatmemory_django.operations.erasing import erase_each
from chatmemory_django.operations.one_by_one import Each, Refused, for_writing, in_its_lock, keys, messages_of, write
from chatmemory_django.operations.pruning import leave_branches
from chatmemory_django.stores.django.removals import Unquoting
from chatmemory_django.stores.django.writes import Write

_HAS_OTHER_ROWS = Q(next_sequence__gt=F("memory_messages") + 1)
"""Whether a conversation may have rows that are not in its memory, removed ones included. Reads no messages."""


class Pruned(NamedTuple):
    """The result of pruning."""

    conversations: int
    """How many conversations were erased: idle ones, and temporary ones."""
    messages: int
    """How many messages were deleted from the histories of other conversations."""


def prune(
    conversations: ConversationQuerySet,
    *,
    history_older_than: datetime.timedelta | None = None,
    idle: datetime.timedelta | None = None,
    dry_run: bool = False,
    each: Each | None = None,
    refused: Refused | None = None,
) -> Pruned:
    """
    Erase those of *conversations* that have been *idle* that long, or are temporary and whose time has passed, and
    delete old messages of the others.

    Old are messages *history_older_than* that long, on any branch, that are in no memory, and what is left of removed
    ones; nothing is deleted in a *dry_run*. If other messages follow a deleted one, they then follow the nearest
    remaining message before it. *each* receives how many messages are deleted, several times for a long conversation.
    Summaries that cover a deleted message, and a title made of one, are deleted with it; the next summary is made of
    what is left. Refused as in ``erase``. Each is looked at again once it is locked: one that was written to in the
    meantime is not idle. A client message id is deleted with its message: if it is sent again, it is stored again. What
    is left of erased conversations, since a process ended before it was deleted, is deleted, too.
    """
    now = datetime.datetime.now(datetime.UTC)
    deleted = 0
    using = for_writing(conversations).db
    with nullcontext() if dry_run else observing.Operation("delete"):
        erased = erase_each(conversations.expired_at(now), each, refused, dry_run=dry_run)
        if dry_run:
            conversations = conversations.unexpired_at(now)
        if idle is not None:
            erased += erase_each(conversations.idle_since(now - idle), each, refused, dry_run=dry_run)
            if dry_run:
                conversations = conversations.active_since(now - idle)
        if history_older_than is not None:
            before = now - history_older_than
            for key in keys(for_writing(conversations.filter(_HAS_OTHER_ROWS))):
                with unreadable_as(None):  # as to erase: it takes no key
                    for around in _outlived_ranges(conversations, key, before):
                        thin = partial(_count_outlived if dry_run else _delete_outlived, before, around)
                        with taking_turns(using):
                            deleted += in_its_lock(conversations, key, thin, each, refused) or 0
        if not dry_run:
            delete_left(using)
            observing.note("counted", records=deleted)
    return Pruned(erased, deleted)


def apply_retention(
    conversations: ConversationQuerySet,
    *,
    dry_run: bool = False,
    each: Each | None = None,
    refused: Refused | None = None,
) -> Pruned:
    """
    Delete of *conversations* what ``CHATMEMORY["RETENTION"]`` does not keep: ``prune`` with its periods.

    Raises ``ImproperlyConfigured`` if it is not set. It may run twice, or at the same time as another one.
    """
    periods = conf.retention()
    if periods is None:
        raise ImproperlyConfigured("CHATMEMORY['RETENTION'] is not set, for example to {'IDLE': 365}.")
    older, idle = periods["HISTORY_OLDER_THAN"], periods["IDLE"]
    return prune(conversations, history_older_than=older, idle=idle, dry_run=dry_run, each=each, refused=refused)


def _outlived_ranges(
    conversations: ConversationQuerySet, key: int, before: datetime.datetime
) -> Iterator[tuple[int, int]]:
    """Return the runs of the conversation *key* in which messages can be pruned, each in one transaction."""
    conversation = for_writing(conversations).filter(pk=key).first()
    return iter(()) if conversation is None else runs(_outlived(before, conversation))


def _outlived(before: datetime.datetime, conversation: Conversation) -> MessageQuerySet:
    """Return the rows of *conversation* that are older than *before*, in no memory and not pinned on any branch."""
    rows = messages_of(conversation).filter(created_at__lt=to_moment(before))
    if conversation.pinned_count:
        rows = rows.filter(is_pinned=False)
    return rows.exclude(in_memory(Bounds.of(conversation)))


def _count_outlived(before: datetime.datetime, around: tuple[int, int], conversation: Conversation) -> int:
    return _outlived(before, conversation).filter(sequence__range=around).count()


def _delete_outlived(before: datetime.datetime, around: tuple[int, int], conversation: Conversation) -> int:
    # Evaluated again on the locked conversation, whose window no other writer can move now.
    outlived = _outlived(before, conversation).filter(sequence__range=around)
    if sequences := list(outlived.values_list("sequence", flat=True)):
        key, using = conversation.memory_id, outlived.db
        # What nobody can read, see ``prune``, quotes nothing that anybody can.
        Write(key, using, None, keep_history=True, create=False).run(Unquoting(sequences))
    columns = leave_branches(conversation, outlived, around)
    count = _delete(outlived)
    if count:
        write(conversation, **columns)
        forget_rows(outlived.db, {conversation.pk: conversation.memory_id})
    return count


def _delete(rows: MessageQuerySet) -> int:
    _, deleted = rows.delete()
    return deleted.get(Message._meta.label, 0)
