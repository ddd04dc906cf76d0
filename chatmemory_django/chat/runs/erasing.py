"""The deletion of streams along with the conversations or messages that they repeat."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import router, transaction

from chatmemory_django.chat.models import AnswerStream
from chatmemory_django.chat.runs.streams import DatabaseStreams, streams


def forget_streams(using: str, conversations: Mapping[int, str], *, erased: bool) -> None:
    """Delete the streams of *conversations*: of ended answers if messages were removed, of all if they are *erased*."""
    kept = streams()
    if isinstance(kept, DatabaseStreams):
        kept.using = router.db_for_write(AnswerStream, beside=using)

    def forget() -> None:  # not a partial: Django 5.2 logs errors with the name of the function
        kept.forget(list(conversations.values()), erased=erased)

    if kept.using == using:
        forget()
    else:
        # If this fails, it is logged; what has ended by then expires, and no one else finds it.
        transaction.on_commit(forget, using=using, robust=True)
