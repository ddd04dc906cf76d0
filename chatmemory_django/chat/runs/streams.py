"""
The streams of answers in progress, in pieces, from which any process can serve them.

Which answers are in progress is not known here, see ``leases``. Pieces are deleted ``KEEP`` seconds after the last one
of their answer, and with their conversation.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db import connections, router, transaction
from django.utils.module_loading import import_string

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.deleting import delete_old, deletion
from chatmemory_django.chat.runs.leases import State, Taken
from chatmemory_django.chat.runs.tables import AnswerChunk, Run
from chatmemory_django.db import row_codec
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.contexts import ThreadContext, current
from chatmemory_django.db.engines import combines
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.db.row_codec import Address, Coder
from chatmemory_django.db.tables import databases_with
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.models import Conversation
from chatmemory_django.models.copies import Remnant
from chatmemory_django.stores.base import ConversationErasedError

logger = logging.getLogger(__name__)

INTERVAL = 0.25
"""Seconds between two writes, and between two reads of an answer that another process generates."""


class StreamsUnavailableError(RuntimeError):
    """The streams cannot be reached, so that nobody can listen to the answers of other processes."""


class Maker(NamedTuple):
    """An answer in progress."""

    memory_id: str
    owner_key: str
    """The key of the conversation's owner, as text."""
    answer_id: str
    """The id of its run, in 32 hexadecimal digits."""
    context: ThreadContext | None = None
    """In which threads work for it: other tenants may have conversations and users with the same keys."""

    @property
    def run(self) -> UUID:
        """The key of its run."""
        return UUID(self.answer_id)

    @property
    def using(self) -> str:
        """The database of the owner's conversations, and so of the runs in them."""
        return router.db_for_write(Conversation, owner_key=self.owner_key)


MAX_PIECES = 1 << 24
"""More pieces than a process writes of an answer, at four a second for weeks."""


class Piece(NamedTuple):
    """
    The new events of an answer; without events, it keeps the piece before it.

    The position is the fence of its process's run times ``MAX_PIECES``, and the number of pieces that this process has
    written before. A process that takes the run over writes the whole stream again behind what the one before it can
    still write: that is read by nobody then.
    """

    position: int
    data: str

    @property
    def fence(self) -> int:
        """The fence of its process's run."""
        return self.position // MAX_PIECES


def encoded(maker: Maker, piece: Piece) -> Piece:
    """Return *piece* of the answer of *maker* as it is stored: without events if its conversation was erased."""
    coder = _coder(maker, router.db_for_write) if piece.data else None
    key = _row(maker), piece.position
    try:
        return piece if coder is None else piece._replace(data=coder.encode(piece.data, _COLUMN, key))
    except ConversationErasedError:
        return piece._replace(data="")


def decoded(maker: Maker, stored: Sequence[Piece]) -> list[str]:
    """Return the events of the pieces that are *stored* of the answer of *maker*: of those of the last process."""
    coder, own = _coder(maker, router.db_for_read), of_last(stored)
    if coder is None:
        return [piece.data for piece in own]
    return [coder.decode(data, _COLUMN, (_row(maker), position)) for position, data in own]


def of_last(stored: Sequence[Piece]) -> list[Piece]:
    """Return those pieces that the process has stored which has taken the run last."""
    return [piece for piece in stored if piece.fence == stored[-1].fence]


def _row(maker: Maker) -> str:
    """Return whose pieces are read together: a run that is moved to another conversation takes none along."""
    return f"{maker.answer_id}:{maker.memory_id}"


def _coder(maker: Maker, route: Callable[..., str]) -> Coder | None:
    using = route(Conversation, owner_key=maker.owner_key)
    return row_codec.at(Address(using, None, maker.memory_id, maker.owner_key or None))


_COLUMN = "chatmemory_chat.answerchunk.data"


class Streams(ABC):
    """
    Stores the streams of answers. Every method is called in a thread that can use the database. What is stored is
    already encoded.

    Those that are not in the site's database raise ``StreamsUnavailableError`` if they cannot be reached.
    """

    using: str | None = None
    """The database that the streams are in; None if they are elsewhere, or where the router decides."""

    @abstractmethod
    def write(self, pieces: Mapping[Maker, Piece]) -> None:
        """Write the new events of this process's answers. A piece may come again, and have more events then."""

    @abstractmethod
    def read(self, maker: Maker, position: int) -> Sequence[Piece]:
        """Return the pieces of an answer from *position* on, by their positions."""

    @abstractmethod
    def forget(self, memory_ids: Collection[str], *, but: Collection[str] = ()) -> None:
        """Delete the streams of all answers in these conversations, *but* of those with these ids."""

    def memory_ids(self) -> Iterable[str]:
        """Return the conversations that have streams outside of the tables of this app."""
        return ()

    def end(self, maker: Maker, last: Piece, taken: Taken, state: State, question: int | None = None) -> bool:
        """
        Write the *last* events of an answer, and end its run as ``leases.end`` does, whose result this returns.

        Who reads that the run has ended can read all events.
        """
        try:
            self.write({maker: last})
        except StreamsUnavailableError as exc:  # listeners elsewhere find that it has no end
            logger.error("The end of an answer in %r could not be written: %r", maker.memory_id, exc)  # noqa: TRY400  # as in the view
        return leases.end(taken, state, question)


class DatabaseStreams(Streams):
    """
    Streams in a table of this app, in the database *using*, or the one that the router selects.

    A router that gives each owner a database decides by the hint ``owner_key``, since one process writes the answers of
    many owners.
    """

    def __init__(self, using: str | None = None) -> None:
        self.using = using

    def _database(self, owner_key: str) -> str:
        return self.using or router.db_for_write(AnswerChunk, owner_key=owner_key)

    def write(self, pieces: Mapping[Maker, Piece]) -> None:
        by_database: dict[str, dict[Maker, Piece]] = {}
        for maker, piece in pieces.items():
            by_database.setdefault(self._database(maker.owner_key), {})[maker] = piece
        for using, own in by_database.items():
            tried_again(using, partial(_write, own, using))

    def read(self, maker: Maker, position: int) -> Sequence[Piece]:
        chunks = AnswerChunk.objects.using(self._database(maker.owner_key)).filter(
            memory_id=maker.memory_id, answer_id=maker.answer_id, position__gte=position
        )
        return [Piece(*row) for row in chunks.order_by("position").values_list("position", "data")]

    def forget(self, memory_ids: Collection[str], *, but: Collection[str] = ()) -> None:
        using = self.using or router.db_for_write(AnswerChunk)
        chunks = AnswerChunk.objects.using(using).filter(memory_id__in=memory_ids)
        tried_again(using, chunks.exclude(answer_id__in=but).delete)

    def end(self, maker: Maker, last: Piece, taken: Taken, state: State, question: int | None = None) -> bool:
        using = self._database(maker.owner_key)
        try:
            if using != taken.using or not last.data:
                return super().end(maker, last, taken, state, question)
            write = _end_at_once if combines(connections[using]) else _end
            with leases.ending(taken, question):
                return tried_again(using, partial(write, maker, last, taken, state, question))
        finally:  # what is written later than it is noted would be found too new, and stay
            deletion(using).note_end(current.get())


def _write(pieces: Mapping[Maker, Piece], using: str) -> None:
    rows = AnswerChunk.objects.using(using)
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
    key = ["memory_id", "answer_id", "position"]
    can_name_target = connections[using].features.supports_update_conflicts_with_target
    # The rows may exist already, if an earlier attempt succeeded but reported an error.
    rows.bulk_create(
        chunks,
        update_conflicts=True,
        update_fields=["data", "written_at"],
        unique_fields=key if can_name_target else None,
    )
    silent = {maker: piece.position - 1 for maker, piece in pieces.items() if not piece.data}
    if silent:
        memory_ids, answer_ids = {each.memory_id for each in silent}, [each.answer_id for each in silent]
        last = rows.filter(memory_id__in=memory_ids, answer_id__in=answer_ids, position__in=silent.values())
        last.update(written_at=DatabaseNow())


def _end(maker: Maker, last: Piece, taken: Taken, state: State, question: int | None) -> bool:
    with transaction.atomic(using=taken.using):
        is_own = leases.update_end(taken, state, question)
        if is_own:
            _write({maker: last}, taken.using)
    return is_own


def _end_at_once(maker: Maker, last: Piece, taken: Taken, state: State, question: int | None) -> bool:
    """Do what ``_end`` does in one statement, where one ``combines``."""
    connection = connections[taken.using]
    run, chunk = (connection.ops.quote_name(each._meta.db_table) for each in (Run, AnswerChunk))
    now, _ = AnswerChunk.objects.all().query.get_compiler(taken.using).compile(DatabaseNow())
    ended = f"state = %s, active = NULL, question = %s, asked = '', ended_at = {now}"
    sql = (
        f"WITH ended AS (UPDATE {run} SET {ended} WHERE id = %s AND fence = %s AND active IS NOT NULL RETURNING id) "  # noqa: S608  # names
        f'INSERT INTO {chunk} (memory_id, answer_id, "position", data, written_at) SELECT %s, %s, %s, %s, {now} '
        "FROM ended ON CONFLICT (memory_id, answer_id, position) DO UPDATE SET data = excluded.data"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql, [state.value, question, taken.run, taken.fence, maker.memory_id, maker.answer_id, *last])
        is_own: bool = cursor.rowcount > 0
    return is_own


def streams() -> Streams:
    """Return an instance of the class in the setting ``STREAMS``."""
    made: Streams = import_string(chat_settings().STREAMS)()
    return made


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
    kept.forget(memory_ids, but=[run.hex for run in leases.streamed(using, memory_ids, have_ended=False)])


def forget_lost(kept: Streams, using: str, memory_ids: Collection[str]) -> None:
    """Delete the streams of answers in these conversations that were erased, or in whose place another one has come."""
    kept.forget(memory_ids, but=[run.hex for run in leases.streamed(using, memory_ids, have_ended=True)])


def left(using: str) -> Iterator[Remnant]:
    """See ``models.copies.FindRemnants``. The conversations of all databases have their streams in the same place."""
    count: int | None
    try:
        gone = list(streams().memory_ids())
    except StreamsUnavailableError:
        count = None
    else:
        for alias in databases_with(Conversation):
            rows = Conversation.objects.using(alias)
            there = {
                memory_id
                for part in in_parts(gone, 1_000)
                for memory_id in rows.filter(memory_id__in=part).values_list("memory_id", flat=True)
            }
            gone = [each for each in gone if each not in there]
        count = len(gone)
    if count != 0:
        yield Remnant("streams of answers in conversations that are gone", count)


def delete_rest(using: str, asked: bool, dry_run: bool) -> None:
    """Delete the runs of long ago, and what is left of streams that ended, but in a *dry_run*; see ``Pruning``."""
    if not dry_run:
        leases.prune(using, chat_settings().RUN_SECONDS)
        delete_old(router.db_for_write(AnswerChunk, beside=using))  # may be another than that of conversations
