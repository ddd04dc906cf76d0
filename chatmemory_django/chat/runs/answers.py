"""
Answers in progress: each is a task that outlives the request, and any number of clients can listen to it.

Each event loop has a registry of the answers that it is generating. Several times a second, the registry writes the new
events of all of them at once to the ``streams``, where other processes can read them, and looks whether one of them has
to stop. What an answer does with the database takes one call in a thread at its beginning and one at its end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from contextvars import Context
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from django.db import DatabaseError, InterfaceError, OperationalError, router

from chatmemory_django import conf
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer, Locale, Work, apart, own_context
from chatmemory_django.chat.runs.erasing import forget_ended
from chatmemory_django.chat.runs.leases import BusyError, Progress, State, Taken
from chatmemory_django.chat.runs.overload import in_thread_soon
from chatmemory_django.chat.runs.streams import Maker, StreamsUnavailableError, decrypted, encrypted, streams
from chatmemory_django.db.threads import close_thread_sensitive, in_thread, raisable
from chatmemory_django.models import Conversation

logger = logging.getLogger(__name__)

INTERVAL = 0.25
"""Seconds between two writes, and between two reads of an answer that another process generates."""

ALIVE_FOR = 1.5
"""Seconds for which a process counts as alive after its last renewal; after that, it may be dead."""

FIRST_PAUSE, MAX_PAUSE = 0.25, 4.0
"""Seconds until an end that could not be stored is tried again: at first, and at most; each pause is twice as long."""

AWAY = (OperationalError, InterfaceError)
"""The errors of a database that may be there again in a moment."""


class TooManyError(RuntimeError):
    """The user has as many answers in progress, or streams open, as one user may have."""


class InterruptedAnswerError(RuntimeError):
    """The answer has no end: the process that generated it has ended or is dead, or another one has taken its place."""


class Seat:
    """A stream that a user has open: whatever holds this object keeps the place taken."""


class Answers:
    """The registry of the answers that are being generated in one event loop, and of who listens."""

    def __init__(self) -> None:
        self._streams = streams()
        self._made: dict[Maker, Answer] = {}
        self._followed: dict[Maker, Answer] = {}
        self._seats: WeakKeyDictionary[Seat, str] = WeakKeyDictionary()
        self._beginning: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._writing = threading.Lock()
        self._writer: asyncio.Task[None] | None = None
        self._has_failed = False

    async def begin(self, maker: Maker, work: Work, *, wait: float) -> Answer:
        """
        Start an answer, and return it. Its *work* begins as soon as no other answer can begin in the conversation.

        If another answer is in progress in the conversation, this waits for up to *wait* seconds, then raises
        ``BusyError``. If the owner has ``MAX_ANSWERS`` in progress, in all processes together, it raises
        ``TooManyError``; if this process has too much to do, ``NoThreadError``.
        """
        loop, locale = asyncio.get_running_loop(), Locale.current()
        end = loop.time() + wait
        while True:
            # In a task, too: a client that disconnects now must not leave an answer that nothing generates.
            begun = await asyncio.shield(apart(self._begin(maker, work, locale), own_context()))
            if isinstance(begun, Answer):
                return begun
            if loop.time() >= end and begun < ALIVE_FOR:
                raise BusyError
            await asyncio.sleep(INTERVAL)

    def seat(self, user_key: str) -> Seat:
        """Return a place for one more stream of a user; ``TooManyError`` if ``MAX_STREAMS`` are open here."""
        most = conf.chat()["MAX_STREAMS"]
        if sum(each == user_key for each in self._seats.values()) >= most:
            raise TooManyError(f"You have {most} streams of answers open; close one of them.")
        seat = Seat()
        self._seats[seat] = user_key
        return seat

    async def find(self, memory_id: str, owner_key: str) -> Maker | None:
        """Return the answer in progress in the owner's conversation, in any process, or None."""
        run = await in_thread(lambda: leases.find(_database(owner_key), memory_id, owner_key))
        return None if run is None else Maker(memory_id, owner_key, run.hex)

    def listen(self, maker: Maker) -> AsyncGenerator[str, None]:
        """
        Return the stream of an answer from its beginning to its end, in whichever process it is generated.

        If its process dies, or loses it, this ends with an ``InterruptedAnswerError``.
        """
        answer = self._made.get(maker)
        return self._listen_elsewhere(maker) if answer is None else answer.listen()

    async def stop(self, maker: Maker) -> None:
        """Interrupt an answer, in whichever process it is generated, and wait for its end."""
        answer = self._made.get(maker)
        rest = self.listen(maker)
        if answer is None:
            await in_thread(lambda: leases.stop(_database(maker.owner_key), UUID(maker.answer_id)))
        else:
            answer.stop()
        with suppress(InterruptedAnswerError):
            async for _ in rest:
                pass

    async def _begin(self, maker: Maker, work: Work, locale: Locale) -> Answer | float:
        """Start an answer, and return it; if another one is in progress, return the seconds since its last renewal."""
        beginning = self._beginning.setdefault(maker.owner_key, threading.Lock())
        answer = self._made[maker] = Answer(maker)
        if self._writer is None or self._writer.done():
            self._writer = apart(self._write_on(), Context())  # of no request: it writes the answers to all
        silent_for: float | None = 0.0
        try:
            silent_for = await in_thread_soon(self._open, answer, work, beginning)
        finally:
            if silent_for is not None:
                del self._made[maker]
                answer.end()
        if silent_for is not None:
            return silent_for
        answer.start(self._make(answer, work, locale))
        return answer

    def _open(self, answer: Answer, work: Work, beginning: threading.Lock) -> float | None:
        """Take a run for *answer*, and begin its *work*; if another one is in progress, return what ``take`` does."""
        with beginning:  # otherwise, of several that begin at once, each could count the others and be refused
            taken = _take(answer.maker)
        if not isinstance(taken, Taken):
            return taken
        answer.taken, answer.is_written = taken, True
        try:
            raisable(work.begin)(answer)
        except Exception as exc:  # noqa: BLE001  # the answer reports it
            answer.fail(exc)
        return None

    async def _listen_elsewhere(self, maker: Maker) -> AsyncGenerator[str, None]:
        """Yield the stream of an answer that another process generates; all who listen to it here share one reader."""
        answer = self._followed.get(maker)
        if answer is None:
            answer = self._followed[maker] = Answer(maker)
            answer.start(self._follow(answer))
        answer.listeners += 1
        try:
            async with aclosing(answer.listen()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            answer.listeners -= 1
        if answer.failure is not None:
            raise answer.failure

    async def _follow(self, answer: Answer) -> None:
        """Read the stream of *answer* as long as it goes on and anyone listens."""
        position, progress = 0, Progress.RUNS
        try:
            while progress is Progress.RUNS and answer.listeners:
                progress, pieces = await in_thread(self._read, answer.maker, position)
                position += len(pieces)
                if pieces:
                    answer.put("".join(pieces))
                if progress is Progress.RUNS:
                    await asyncio.sleep(INTERVAL)
            if progress is Progress.LOST:
                answer.failure = InterruptedAnswerError("The process that generated the answer is gone.")
        except Exception as exc:  # noqa: BLE001  # for those who listen
            answer.failure = exc
        finally:
            del self._followed[answer.maker]
            answer.end()

    def _read(self, maker: Maker, position: int) -> tuple[Progress, list[str]]:
        # First, to miss no last piece: who ends a run has written it.
        progress = leases.progress(_database(maker.owner_key), UUID(maker.answer_id))
        return progress, decrypted(maker, self._streams.read(maker, position))

    async def _make(self, answer: Answer, work: Work, locale: Locale) -> None:
        locale.activate()
        try:
            with answer.being_made():
                await asyncio.sleep(0)  # an answer that was stopped before now ends here
                await work.make(answer)
        except asyncio.CancelledError:
            answer.state = State.STOPPED
            if not answer.is_stopping:  # the server ends
                answer.state = State.INTERRUPTED
                answer.failure = InterruptedAnswerError("The server has ended before the answer.")
                raise
        except Exception as exc:  # noqa: BLE001  # the answer reports it
            answer.fail(exc)
        finally:
            await self._finish(answer, work)

    async def _finish(self, answer: Answer, work: Work) -> None:
        """End *answer*, and then its stream, whatever happens."""
        last = ""
        try:
            last = await self._ended(answer, work)
            await work.follow()
        except Exception:
            logger.exception("What follows an answer in the conversation %r failed.", answer.maker.memory_id)
        finally:
            answer.put(last or answer.last or "")  # only now that the next answer can begin
            del self._made[answer.maker]
            answer.end()
            await close_thread_sensitive()

    async def _ended(self, answer: Answer, work: Work) -> str:
        """End *answer*, and return its last events. While the database is away, try again for ``END_SECONDS``."""
        end, pause = time.monotonic() + conf.chat()["END_SECONDS"], FIRST_PAUSE
        try:
            while True:
                try:
                    return await in_thread(self._end, answer, work)
                except AWAY as exc:
                    if time.monotonic() + pause > end:
                        raise
                    if pause == FIRST_PAUSE:
                        text = "The end of an answer in %r could not be stored (%s); this is tried again."
                        logger.warning(text, answer.maker.memory_id, type(exc).__name__)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)
        except Exception as exc:
            answer.fail(exc)
            logger.exception("An answer in the conversation %r was given up.", answer.maker.memory_id)
            return work.give_up(answer)
        finally:
            if answer.taken is not None:
                leases.leave(answer.taken)

    def _end(self, answer: Answer, work: Work) -> str:
        """End *work*, once, and then the run and the stream of *answer* with the events that this returns."""
        if answer.last is None:
            answer.last = raisable(work.end)(answer)
        with self._writing:  # after a write in progress
            answer.is_written = False
        has_failed = answer.failure is not None and answer.state is not State.INTERRUPTED
        taken, state = answer.taken, State.FAILED if has_failed else answer.state
        try:
            last = encrypted(answer.maker, answer.new(last=answer.last))
            if taken and not self._streams.end(answer.maker, last, taken, state, answer.question):
                forget_ended(self._streams, taken.using, [answer.maker.memory_id])
        except AWAY:
            raise
        except Exception:
            logger.exception("The end of an answer in %r could not be written.", answer.maker.memory_id)
        return answer.last

    async def _write_on(self) -> None:
        while self._made:
            await asyncio.sleep(INTERVAL)
            written = [answer for answer in self._made.values() if answer.is_written]
            try:
                stopping = await in_thread(self._write, written) if written else {}
            except Exception as exc:  # noqa: BLE001  # whatever it is, the next write may succeed
                self._note_failure(exc)
                continue
            for answer in written:
                self._heed(answer, stopping)

    def _heed(self, answer: Answer, stopping: Mapping[UUID, bool]) -> None:
        """Stop *answer* if it has to, or if its run is not its own any more: then it is not among *stopping*."""
        run = answer.taken and answer.taken.run
        if not answer.is_written or run is None:
            return  # it has ended since
        if run not in stopping:
            answer.lose()
        elif stopping[run]:
            answer.stop()

    def _write(self, answers: Collection[Answer]) -> Mapping[UUID, bool]:
        """Write the new events of those *answers* that have not ended; return which runs go on, and have to stop."""
        try:
            self._write_events(answers)
        except StreamsUnavailableError as exc:  # which runs have to stop is known all the same
            self._note_failure(exc)
        else:
            self._has_failed = False
        places: defaultdict[str, dict[UUID, Answer]] = defaultdict(dict)
        for answer in answers:
            if answer.taken is not None and answer.is_written:
                places[answer.taken.using][answer.taken.run] = answer
        stopping: dict[UUID, bool] = {}
        for using, own in places.items():
            stopping.update(leases.stopping(using, own))
            # What has ended since then is not written any more, and others may still read its end.
            lost = [answer.maker.memory_id for run, answer in own.items() if run not in stopping and answer.is_written]
            if lost:
                forget_ended(self._streams, using, lost)
        return stopping

    def _write_events(self, answers: Collection[Answer]) -> None:
        with self._writing:
            counts = {answer: len(answer.events) for answer in answers if answer.is_written}
            new = {answer: count for answer, count in counts.items() if answer.has_new(count)}
            pieces = {each.maker: encrypted(each.maker, each.new(count)) for each, count in new.items()}
            if pieces:
                self._streams.write(pieces)
            for answer, count in new.items():
                answer.note_written(count)

    def _note_failure(self, error: Exception) -> None:
        """Log the first of several failures to write."""
        if not self._has_failed:
            logger.error("Answers in progress could not be written; the next writes try again.", exc_info=error)
        self._has_failed = True


_registries: WeakKeyDictionary[asyncio.AbstractEventLoop, Answers] = WeakKeyDictionary()


def answers() -> Answers:
    """Return the registry of the running event loop."""
    return _registries.setdefault(asyncio.get_running_loop(), Answers())


def _database(owner_key: str) -> str:
    """Return the database of the owner's conversations, and so of the runs in them."""
    return router.db_for_write(Conversation, owner_key=owner_key)


def _take(maker: Maker) -> Taken | float:
    """
    Do what ``leases.take`` does; ``TooManyError`` if the owner has too many answers in progress.

    Conversations without an owner are nobody's: they do not count together.
    """
    using, most = _database(maker.owner_key), conf.chat()["MAX_ANSWERS"]
    taken = leases.take(using, maker.memory_id, maker.owner_key or None, UUID(maker.answer_id))
    if not isinstance(taken, Taken):
        return taken
    try:
        # Counted after it is there, since other processes may begin some at the same time.
        are_too_many = bool(maker.owner_key) and leases.running(using, maker.owner_key) > most
    except DatabaseError:
        leases.leave(taken)
        raise
    if are_too_many:
        leases.end(taken, State.FAILED)
        raise TooManyError(f"You have {most} answers in progress; wait for one of them, or stop it.")
    return taken
