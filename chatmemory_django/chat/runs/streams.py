"""
The storage of answers in progress, from which any process can serve, refuse or stop them.

A process writes the new events of its answers several times a second. If it has not written for ``DEAD_AFTER`` seconds,
it is considered dead, and its answers as ended. The clock is that of the database or of Redis, whatever the servers'
clocks show.

Ended streams are deleted after ``KEEP`` seconds, and all streams of a conversation when it is erased.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache, partial
from typing import Any, NamedTuple

from django.db import IntegrityError, connections, router, transaction
from django.db.models import Exists, F, OuterRef, QuerySet, Value
from django.db.models.functions import Concat
from django.utils.module_loading import import_string

from chatmemory_django import conf
from chatmemory_django.chat.models import AnswerChunk, AnswerStream
from chatmemory_django.chat.runs.deleting import Deletion
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.db.retries import tried_again
from chatmemory_django.encryption.ciphers import cipher, for_owner
from chatmemory_django.models import Conversation

DEAD_AFTER = 5.0
"""Seconds without a write after which an answer in progress is given up: 20 writes were missed."""

KEEP = 60.0
"""Seconds for which the stream of an answer is kept after its end, for clients that are still reading it."""

ANSWERS = 100
"""How many answers' streams one statement deletes."""

ERASED = "erased:"
"""What stands before the id of an answer whose conversation was erased, in the place of the memory id."""


class StreamsUnavailableError(RuntimeError):
    """The streams cannot be reached, so that no answer can begin, be listened to or be stopped."""


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


def encrypted(maker: Maker, piece: Piece) -> Piece:
    """Return *piece* of the answer of *maker* as it is stored: encrypted, if the app ``encryption`` is installed."""
    encrypts = cipher()
    if encrypts is None or not piece.data:
        return piece
    with for_owner(maker.owner_key or None, maker.answer_id):
        using = router.db_for_write(Conversation, owner_key=maker.owner_key)
        return piece._replace(data=encrypts.encrypt(piece.data, _PLACE, using))


def decrypted(maker: Maker, stored: Iterable[str]) -> list[str]:
    """Return the data of the *stored* pieces of the answer of *maker*."""
    decrypts = cipher()
    if decrypts is None:
        return list(stored)
    with for_owner(maker.owner_key or None):
        using = router.db_for_read(Conversation, owner_key=maker.owner_key)
        return [decrypts.decrypt(data, _PLACE, using) for data in stored]


_PLACE = "chatmemory_chat.answerchunk.data"


class Streams(ABC):
    """
    Stores the streams of answers. Every method is called in a thread that can use the database. What is stored is
    already encrypted, if it has to be.

    Those that are not in the site's database raise ``StreamsUnavailableError`` if they cannot be reached.
    """

    using: str | None = None
    """The database that the streams are in; None if they are elsewhere, or where the router decides."""

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

    def running(self, owner_key: str) -> int:
        """Return how many answers an owner has in progress: 0 if the class cannot count them, which sets no bound."""
        return 0

    @abstractmethod
    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        """Return the pieces of an answer from *position* on, and whether more may follow."""

    @abstractmethod
    def stop(self, maker: Maker) -> None:
        """Ask the process that generates an answer to stop it."""

    @abstractmethod
    def forget(self, memory_ids: Collection[str], *, erased: bool) -> None:
        """
        Delete the streams of the answers in these conversations that have ended; if *erased*, of the others as well.

        An answer in progress in an *erased* conversation has to stop, and nothing of it may be written any more. This
        may be called again for the same conversations.
        """


class DatabaseStreams(Streams):
    """
    Streams in the tables of this app, in the database *using*, or the one that the router selects.

    A router that gives each owner a database decides by the hint ``owner_key``, since one process writes the answers of
    many owners. A writer locks the lease of its answer first, the row of ``AnswerStream``: nothing is written without
    one.
    """

    def __init__(self, using: str | None = None) -> None:
        self.using = using

    def _database(self, owner_key: str) -> str:
        return self.using or router.db_for_write(AnswerStream, owner_key=owner_key)

    def begin(self, maker: Maker) -> float | None:
        using = self._database(maker.owner_key)
        return tried_again(using, partial(self._begin, maker, using))

    def _begin(self, maker: Maker, using: str) -> float | None:
        if self._is_created(maker, using):
            return None
        there = AnswerStream.objects.using(using).filter(memory_id=maker.memory_id)
        dead = there.filter(written_at__lt=_before(DEAD_AFTER))
        if dead.delete()[0] and self._is_created(maker, using):
            return None
        silent_for = there.values_list(DatabaseNow() - F("written_at"), flat=True).first()
        return 0.0 if silent_for is None else max(0.0, silent_for.total_seconds())

    def _is_created(self, maker: Maker, using: str) -> bool:
        try:
            AnswerStream.objects.using(using).create(**maker._asdict(), written_at=DatabaseNow())
        except IntegrityError:
            return False
        return True

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        by_database: dict[str, dict[Maker, Piece]] = {}
        for maker, piece in pieces.items():
            by_database.setdefault(self._database(maker.owner_key), {})[maker] = piece
        stopping = (tried_again(using, partial(self._write, own, using)) for using, own in by_database.items())
        return set().union(*stopping)

    def _write(self, pieces: Mapping[Maker, Piece], using: str) -> set[Maker]:
        leases = self._leases(using, *pieces)
        with transaction.atomic(using=using):
            leases.update(written_at=DatabaseNow())
            stops = {lease[:2]: lease[2] for lease in leases.values_list("memory_id", "answer_id", "is_stopping")}
            held = {maker: piece for maker, piece in pieces.items() if (maker.memory_id, maker.answer_id) in stops}
            self._add(held, using)
        stopping = {answer_id for (_, answer_id), is_stopping in stops.items() if is_stopping}
        return {maker for maker in pieces if maker.answer_id in stopping}

    def end(self, maker: Maker, last: Piece) -> None:
        using = self._database(maker.owner_key)
        deletion(using).note_end()
        tried_again(using, partial(self._end, maker, last, using))

    def _end(self, maker: Maker, last: Piece, using: str) -> None:
        if last.data and self._is_ended_at_once(maker, last, using):
            return
        with transaction.atomic(using=using):
            if last.data and self._running(maker, using).delete()[0]:
                self._add({maker: last}, using)
            else:
                self._leases(using, maker).delete()

    def _is_ended_at_once(self, maker: Maker, last: Piece, using: str) -> bool:
        """Delete a lease and add the *last* piece in one statement, if this is PostgreSQL; return whether it was."""
        connection = connections[using]
        if connection.vendor != "postgresql":
            return False
        lease, chunk = (connection.ops.quote_name(each._meta.db_table) for each in (AnswerStream, AnswerChunk))
        now, _ = AnswerChunk.objects.all().query.get_compiler(using).compile(DatabaseNow())
        named = "memory_id, answer_id"
        sql = (
            f"WITH ended AS (DELETE FROM {lease} WHERE memory_id = %s AND answer_id = %s RETURNING {named}) "  # noqa: S608
            f'INSERT INTO {chunk} ({named}, "position", data, written_at) '
            f"SELECT {named}, %s, %s, {now} FROM ended ON CONFLICT DO NOTHING"
        )
        with connection.cursor() as cursor:
            cursor.execute(sql, [maker.memory_id, maker.answer_id, *last])
            is_ended: bool = cursor.rowcount > 0
        return is_ended

    def _add(self, pieces: Mapping[Maker, Piece], using: str) -> None:
        chunks = [
            AnswerChunk(
                memory_id=maker.memory_id,
                answer_id=maker.answer_id,
                position=piece.position,
                data=piece.data,
                written_at=DatabaseNow(),
            )
            for maker, piece in pieces.items()
            if piece.data
        ]
        # The rows may exist already, if an earlier attempt succeeded but reported an error.
        AnswerChunk.objects.using(using).bulk_create(chunks, ignore_conflicts=True)

    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        found = self._alive(owner_key).filter(memory_id=memory_id)
        answer_id = found.values_list("answer_id", flat=True).first()
        return None if answer_id is None else Maker(memory_id, owner_key, answer_id)

    def running(self, owner_key: str) -> int:
        return len(self._alive(owner_key).values_list("pk"))  # at most a few: quicker than a COUNT is built

    def _alive(self, owner_key: str) -> QuerySet[AnswerStream]:
        rows = AnswerStream.objects.using(self._database(owner_key))
        return rows.filter(owner_key=owner_key, written_at__gte=_before(DEAD_AFTER))

    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        is_running = self.find(maker.memory_id, maker.owner_key) == maker  # checked first, to miss no last piece
        chunks = AnswerChunk.objects.using(self._database(maker.owner_key)).filter(
            memory_id=maker.memory_id, answer_id=maker.answer_id, position__gte=position
        )
        return list(chunks.order_by("position").values_list("data", flat=True)), is_running

    def stop(self, maker: Maker) -> None:
        self._running(maker, self._database(maker.owner_key)).update(is_stopping=True)

    def forget(self, memory_ids: Collection[str], *, erased: bool) -> None:
        using = self.using or router.db_for_write(AnswerStream)
        tried_again(using, partial(self._forget, memory_ids, erased, using))

    def _forget(self, memory_ids: Collection[str], erased: bool, using: str) -> None:
        leases = AnswerStream.objects.using(using).filter(memory_id__in=memory_ids)
        chunks = AnswerChunk.objects.using(using).filter(memory_id__in=memory_ids)
        with transaction.atomic(using=using):
            if erased:
                # First, to wait for those who are writing. A lease of another conversation, which does not exist, is
                # how the process learns that it has to stop.
                leases.update(memory_id=Concat(Value(ERASED), "answer_id"), owner_key="", is_stopping=True)
            else:
                alive = leases.filter(written_at__gte=_before(DEAD_AFTER))
                chunks = chunks.exclude(answer_id__in=list(alive.values_list("answer_id", flat=True)))
            chunks.delete()

    def _running(self, maker: Maker, using: str) -> QuerySet[AnswerStream]:
        """Return the lease of an answer whose conversation was not erased."""
        return self._leases(using, maker).filter(memory_id=maker.memory_id)

    def _leases(self, using: str, *makers: Maker) -> QuerySet[AnswerStream]:
        return AnswerStream.objects.using(using).filter(
            memory_id__in=[each for maker in makers for each in (maker.memory_id, ERASED + maker.answer_id)],
            answer_id__in=[maker.answer_id for maker in makers],
        )


@cache
def deletion(using: str) -> Deletion:
    """Return what deletes the old streams in the database *using* while this process has answers, and a while after."""
    return Deletion(partial(tried_again, using, partial(delete_old, using)), KEEP)


def delete_old(using: str) -> None:
    """Delete what is left of answers that have ended, or whose process is dead, from the database *using*."""
    old = _before(KEEP)
    streams, chunks = AnswerStream.objects.using(using), AnswerChunk.objects.using(using)
    streams.filter(written_at__lt=old).delete()
    answer = {"memory_id": OuterRef("memory_id"), "answer_id": OuterRef("answer_id")}
    ended = chunks.filter(~Exists(streams.filter(**answer)), ~Exists(chunks.filter(**answer, written_at__gte=old)))
    found = ended.filter(written_at__lt=old).values_list("memory_id", "answer_id").distinct()
    for part in in_parts(list(found), ANSWERS):
        memory_ids, answer_ids = zip(*part, strict=True)
        chunks.filter(memory_id__in=set(memory_ids), answer_id__in=answer_ids).delete()


def _before(seconds: float) -> Any:
    """Return the moment so many *seconds* ago, by the database's clock."""
    return DatabaseNow() - timedelta(seconds=seconds)


def streams() -> Streams:
    """Return an instance of the class in the setting ``STREAMS``."""
    made: Streams = import_string(conf.chat()["STREAMS"])()
    return made
