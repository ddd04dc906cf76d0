"""The deletion of streams along with the conversations or messages that they repeat, and of runs of long ago."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django.db import router, transaction

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.streams import DatabaseStreams, Streams, delete_old, streams
from chatmemory_django.chat.runs.tables import AnswerChunk


def forget_streams(using: str, conversations: Mapping[int, str], *, erased: bool) -> None:
    """
    Delete the streams of *conversations*: of ended answers if messages were removed, of all if they are *erased*.

    The runs of erased conversations are deleted with them, so their processes find out that they have to stop.
    """
    memory_ids = list(conversations.values())
    kept = streams()
    if isinstance(kept, DatabaseStreams):
        kept.using = router.db_for_write(AnswerChunk, beside=using)
    if kept.using == using:
        if erased:
            kept.forget(memory_ids)
        else:
            forget_ended(kept, using, memory_ids)

    def forget() -> None:  # not a partial: Django 5.2 logs errors with the name of the function
        forget_ended(kept, using, memory_ids)

    if erased or kept.using != using:
        # In any case of erased ones: a process may have written a piece in the meantime. If this fails, it is logged;
        # what is left then expires, and no one else finds it.
        transaction.on_commit(forget, using=using, robust=True)


def forget_ended(kept: Streams, using: str, memory_ids: Collection[str]) -> None:
    """Delete the streams in these conversations but of the answers that go on."""
    kept.forget(memory_ids, but=[run.hex for run in leases.streamed(using, memory_ids)])


def delete_rest(using: str, asked: bool, dry_run: bool) -> None:
    """Delete the runs of long ago, and what is left of streams that ended, but in a *dry_run*; see ``Pruning``."""
    if not dry_run:
        leases.prune(using, chat_settings().RUN_SECONDS)
        delete_old(router.db_for_write(AnswerChunk, beside=using))  # may be another than that of conversations
