"""
The storage of answers in progress, from which any process can serve, refuse or stop them.

A process writes the new events of its answers several times a second. If it has not written for ``DEAD_AFTER`` seconds,
it is considered dead, and its answers as ended.
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
from chatmemory_django.db.retries import tried_again

DEAD_AFTER = 5.0
"""Seconds without a write after which an answer in progress is given up: 20 writes were missed."""

KEEP = 60.0
"""Seconds for which the stream of an answer is kept after its end, for clients that are still reading it."""


class Maker(NamedTuple):
    """An answer in progress."""

    memory_id: str
    owner_key: str
    """The key of the conversation's owner, as text."""
    answer_id: str


class Piece(NamedTuple):
    """The new events of an answer, and the index of the piece; without events, it shows that the process is alive."""

    position: int
    data: str


class Streams(ABC):
    """Stores the streams of answers. Every method is called in a thread that can use the database."""

    @abstractmethod
    def begin(self, maker: Maker) -> float | None:
        """
        Start an answer unless another one is in progress in the conversation.

        Returns None if it was started, otherwise the seconds since the last write of the other one.
        """

    @abstractmethod
    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        """Write the new events of this process's answers, and return the answers that have to stop."""

    @abstractmethod
    def end(self, maker: Maker, last: Piece) -> None:
        """Write the *last* events of an answer, and end it."""

    @abstractmethod
    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        """Return the answer in progress in the owner's conversation, or None."""

    @abstractmethod
    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        """Return the pieces of an answer from *position* on, and whether more may follow."""

    @abstractmethod
    def stop(self, maker: Maker) -> None:
        """Ask the process that generates an answer to stop it."""


class DatabaseStreams(Streams):
    """Streams in the tables of this app."""

    def __init__(self) -> None:
        self._using = router.db_for_write(AnswerStream)
        self._delete_old_at = 0.0

    def begin(self, maker: Maker) -> float | None:
        if time.monotonic() >= self._delete_old_at:  # rarely, since it takes longer than starting an answer
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
            AnswerChunk(answer_id=maker.answer_id, position=piece.position, data=piece.data, written_at=now)
            for maker, piece in pieces.items()
            if piece.data
        ]
        # The rows may exist already, if an earlier attempt succeeded but reported an error.
        AnswerChunk.objects.using(self._using).bulk_create(chunks, ignore_conflicts=True)

    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        alive = timezone.now() - timedelta(seconds=DEAD_AFTER)
        found = AnswerStream.objects.using(self._using).filter(
            memory_id=memory_id, owner_key=owner_key, written_at__gte=alive
        )
        answer_id = found.values_list("answer_id", flat=True).first()
        return None if answer_id is None else Maker(memory_id, owner_key, answer_id)

    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        is_running = self.find(maker.memory_id, maker.owner_key) == maker  # checked first, to miss no last piece
        chunks = AnswerChunk.objects.using(self._using).filter(answer_id=maker.answer_id, position__gte=position)
        return list(chunks.order_by("position").values_list("data", flat=True)), is_running

    def stop(self, maker: Maker) -> None:
        self._running(maker).update(is_stopping=True)

    def _running(self, *makers: Maker) -> QuerySet[AnswerStream]:
        return AnswerStream.objects.using(self._using).filter(
            memory_id__in=[maker.memory_id for maker in makers],
            answer_id__in=[maker.answer_id for maker in makers],
        )


def delete_old(using: str | None) -> None:
    """Delete what is left of answers that have ended, or whose process is dead, from the database *using*."""
    old = timezone.now() - timedelta(seconds=KEEP)
    AnswerChunk.objects.using(using).filter(written_at__lt=old).delete()
    AnswerStream.objects.using(using).filter(written_at__lt=old).delete()


def streams() -> Streams:
    """Return an instance of the class in the setting ``STREAMS``."""
    made: Streams = import_string(conf.chat()["STREAMS"])()
    return made
