"""
Where the streams of answers are kept while they are made, so that any process can serve, refuse or stop them.

A process writes what its answers have come to several times a second. One that has not written for ``DEAD_AFTER``
seconds is dead, and so are its answers.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db import IntegrityError, router, transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.chat.models import AnswerChunk, AnswerStream
from chatmemory_django.deadlocks import tried_again

DEAD_AFTER = 5.0
"""After how many seconds without a sign of life an answer in the making is given up: 20 writes were missed."""

KEEP = 60.0
"""For how many seconds the stream of an answer is kept once it has ended, for those who still read it."""


class Maker(NamedTuple):
    """An answer that is made now."""

    memory_id: str
    owner_key: str
    """The key of the conversation's owner, as text."""
    answer_id: str


class Piece(NamedTuple):
    """What is new of an answer: its *place* among the pieces of the stream, and events, none for a sign of life."""

    place: int
    data: str


class Streams(ABC):
    """Keeps the streams of answers. Every method is called in a thread that may use the database."""

    @abstractmethod
    def begin(self, maker: Maker) -> float | None:
        """
        Begin an answer unless another is made in the conversation.

        Returns None if it is begun, else how many seconds ago the other gave its last sign of life.
        """

    @abstractmethod
    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        """Write what is new of the answers that this process makes; return those that are to be stopped."""

    @abstractmethod
    def end(self, maker: Maker, last: Piece) -> None:
        """Write what is new of an answer, the *last* of it, and end it."""

    @abstractmethod
    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        """Return the answer that is made in the conversation of that owner; None if there is none."""

    @abstractmethod
    def read(self, maker: Maker, place: int) -> tuple[Sequence[str], bool]:
        """Return the pieces of an answer from *place* on, and whether more may come."""

    @abstractmethod
    def stop(self, maker: Maker) -> None:
        """Have the process that makes an answer stop it."""


class DatabaseStreams(Streams):
    """Streams in the tables of this app."""

    def __init__(self) -> None:
        self._using = router.db_for_write(AnswerStream)
        self._delete_old_at = 0.0

    def begin(self, maker: Maker) -> float | None:
        if time.monotonic() >= self._delete_old_at:  # seldom, since it takes longer than to begin an answer
            self._delete_old_at = time.monotonic() + KEEP
            tried_again(self._using, partial(delete_old, self._using))
        return tried_again(self._using, partial(self._begin, maker))

    def _begin(self, maker: Maker) -> float | None:
        now = timezone.now()
        there = AnswerStream.objects.using(self._using).filter(memory_id=maker.memory_id)
        dead = there.filter(written_at__lt=now - timedelta(seconds=DEAD_AFTER))
        if self._is_created(maker, now) or (dead.delete()[0] and self._is_created(maker, now)):
            return None
        written_at = there.values_list("written_at", flat=True).first()
        return 0.0 if written_at is None else max(0.0, (now - written_at).total_seconds())

    def _is_created(self, maker: Maker, now: datetime) -> bool:
        try:
            AnswerStream.objects.using(self._using).create(**maker._asdict(), written_at=now)
        except IntegrityError:
            return False
        return True

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        return tried_again(self._using, partial(self._write, pieces))

    def _write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        now = timezone.now()
        makers = {maker.answer_id: maker for maker in pieces}
        running = self._running(*pieces)
        with transaction.atomic(using=self._using):
            self._add(pieces, now)
            running.update(written_at=now)
        return {makers[each] for each in running.filter(is_stopping=True).values_list("answer_id", flat=True)}

    def end(self, maker: Maker, last: Piece) -> None:
        tried_again(self._using, partial(self._end, maker, last))

    def _end(self, maker: Maker, last: Piece) -> None:
        with transaction.atomic(using=self._using):
            self._add({maker: last}, timezone.now())
            self._running(maker).delete()

    def _add(self, pieces: Mapping[Maker, Piece], now: datetime) -> None:
        chunks = [
            AnswerChunk(answer_id=maker.answer_id, place=piece.place, data=piece.data, written_at=now)
            for maker, piece in pieces.items()
            if piece.data
        ]
        # Written once more if an earlier attempt was answered by an error, and had succeeded.
        AnswerChunk.objects.using(self._using).bulk_create(chunks, ignore_conflicts=True)

    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        alive = timezone.now() - timedelta(seconds=DEAD_AFTER)
        found = AnswerStream.objects.using(self._using).filter(
            memory_id=memory_id, owner_key=owner_key, written_at__gte=alive
        )
        answer_id = found.values_list("answer_id", flat=True).first()
        return None if answer_id is None else Maker(memory_id, owner_key, answer_id)

    def read(self, maker: Maker, place: int) -> tuple[Sequence[str], bool]:
        is_running = self.find(maker.memory_id, maker.owner_key) == maker  # first: what is there then is all
        chunks = AnswerChunk.objects.using(self._using).filter(answer_id=maker.answer_id, place__gte=place)
        return list(chunks.order_by("place").values_list("data", flat=True)), is_running

    def stop(self, maker: Maker) -> None:
        self._running(maker).update(is_stopping=True)

    def _running(self, *makers: Maker) -> QuerySet[AnswerStream]:
        return AnswerStream.objects.using(self._using).filter(
            memory_id__in=[maker.memory_id for maker in makers],
            answer_id__in=[maker.answer_id for maker in makers],
        )


def delete_old(using: str | None) -> None:
    """Delete from the database *using* what is left of answers that have ended, or whose makers are dead."""
    old = timezone.now() - timedelta(seconds=KEEP)
    AnswerChunk.objects.using(using).filter(written_at__lt=old).delete()
    AnswerStream.objects.using(using).filter(written_at__lt=old).delete()


def streams() -> Streams:
    """Return the streams that the setting ``STREAMS`` names."""
    made: Streams = import_string(conf.chat()["STREAMS"])()
    return made
