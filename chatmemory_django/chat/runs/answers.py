"""
Answers in progress: each is a task that outlives the request, and any number of clients can listen to it.

Each event loop has a registry of the answers that it is generating. What an answer does with the database takes one
call in a thread at its beginning and one at its end; in between, they are all written together.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from django.db import DatabaseError, InterfaceError, OperationalError

from chatmemory_django import observing
from chatmemory_django.chat.conf import Left, chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer, InterruptedAnswerError, Locale, Work, apart, own_context
from chatmemory_django.chat.runs.following import Following
from chatmemory_django.chat.runs.leases import BusyError, State, Taken
from chatmemory_django.chat.runs.overload import in_thread_soon
from chatmemory_django.chat.runs.streams import INTERVAL, Maker, Piece, decoded, encoded, forget_lost, streams
from chatmemory_django.chat.runs.tables import Run
from chatmemory_django.chat.runs.taking import NOTHING, Given, Kept
from chatmemory_django.chat.runs.writing import Writer
from chatmemory_django.db.contexts import current, name_of
from chatmemory_django.db.threads import close_thread_sensitive, in_thread, raisable
from chatmemory_django.signals import answer_waits
from chatmemory_django.stores.base import LeaseLostError

logger = logging.getLogger(__name__)

ALIVE_FOR = 1.5
"""Seconds for which a process counts as alive after its last renewal; after that, it may be dead."""

FIRST_PAUSE, MAX_PAUSE = 0.25, 4.0
"""Seconds until an end that could not be stored is tried again: at first, and at most; each pause is twice as long."""

LEFT_AFTER = 3.5
"""
Seconds without a listener after which an answer is left: a renewal of its process comes several times in that time, and
one of another process that listens.
"""

ASKED_SECONDS = 3600.0
"""How long an answer waits for a worker, before another question of its conversation may take its place."""

HAND_OVER = 0.02
"""Seconds between two looks whether all answers have been handed over."""

HAND_OVER_SECONDS = leases.DEAD_AFTER
"""How long the end of a process waits for that: as long as others then wait for a sign of life of its answers."""

STOP_SECONDS = 10.0
"""How long a question waits for the end of an answer that it has stopped."""

AWAY = (OperationalError, InterfaceError)
"""The errors of a database that may be there again in a moment."""


class TooManyError(RuntimeError):
    """The user has as many answers in progress, or streams open, as one user may have."""


class Seat:
    """A stream that a user has open: whatever holds this object keeps the place taken."""


class Answers:
    """The registry of the answers that are being generated in one event loop, and of who listens."""

    def __init__(self) -> None:
        self._streams = streams()
        self._made: dict[Maker, Answer] = {}
        self._writer = Writer(self._streams, self._made)
        self._following = Following(self._streams, self.carry_on)
        self._seats: WeakKeyDictionary[Seat, tuple[str, str]] = WeakKeyDictionary()
        self._beginning: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()

    async def begin(
        self,
        maker: Maker,
        work: Work,
        *,
        wait: float,
        left: Left = "refuse",
        may_stop: Callable[[], bool] = lambda: True,
        given: Given | None = None,
        hands_over: bool = False,
    ) -> Answer:
        """
        Start an answer, and return it. Its *work* begins as soon as no other answer can begin in the conversation.

        If another answer is in progress in the conversation, this waits for up to *wait* seconds, then raises
        ``BusyError``; if it belongs to another assistant, ``OtherAssistantError``. An answer that nobody listens to any
        more is stopped, if *left* is ``"stop"`` and it *may_stop* that, or awaited, however long it takes. If the owner
        has ``MAX_ANSWERS`` in progress, in all processes together, this raises ``TooManyError``; if this process has
        too much to do, ``NoThreadError``.

        The run keeps what was *given*, so that other processes can go on with it; if this *hands_over*, at once.
        """
        loop, locale = asyncio.get_running_loop(), Locale.current()
        kept = NOTHING if given is None else Kept.now(maker.memory_id, given)
        began = loop.time()
        end, stopped, heard = began + wait, None, set[datetime]()
        while True:
            # In a task, too: a client that disconnects now must not leave an answer that nothing generates.
            begun = await asyncio.shield(
                apart(self._begin(maker, work, locale, kept, hands_over), own_context(), maker.context)
            )
            if isinstance(begun, Answer):
                return begun
            now = loop.time()  # before the silence is read: it is shorter than the wait only if somebody listened since
            run, silence, heard_at = (None, 0.0, None) if left == "refuse" else await self._silence(maker)
            is_left = run is not None and silence >= LEFT_AFTER
            if is_left and left == "wait":
                end = max(end, now + LEFT_AFTER)
            elif run is not None and is_left and run != stopped:
                if await in_thread(may_stop):
                    await self._interrupt(maker._replace(answer_id=run.hex))
                    stopped, end = run, max(end, now + STOP_SECONDS)
                else:
                    left = "refuse"
            if heard_at is not None and silence < now - began:
                heard.add(heard_at)  # twice: a renewal that was under way when the last listener went comes once
            may_be_left = run is not None and silence < LEFT_AFTER and len(heard) < 2
            if now >= end and begun < ALIVE_FOR and not may_be_left:
                raise BusyError
            await asyncio.sleep(INTERVAL)

    def seat(self, user_key: str, most: int | None = None) -> Seat:
        """Return a place for one more stream of a user; ``TooManyError`` if *most*, ``MAX_STREAMS``, are open here."""
        most = most or chat_settings().MAX_STREAMS
        user = name_of(current.get()), user_key
        if sum(each == user for each in self._seats.values()) >= most:
            raise TooManyError(f"You have {most} streams of answers open; close one of them.")
        seat = Seat()
        self._seats[seat] = user
        return seat

    async def find(self, memory_id: str, owner_key: str) -> Maker | None:
        """Return the answer in progress in the owner's conversation, in any process, or None."""
        maker = Maker(memory_id, owner_key, "", current.get())
        run = await in_thread(lambda: leases.find(maker.using, memory_id, owner_key))
        return None if run is None else maker._replace(answer_id=run.hex)

    async def carry_on(self, maker: Maker, work: Work, locale: Locale | None = None) -> Answer | None:
        """
        Go on here with the run of *maker*, on which nobody works, and return its answer; None if somebody was faster.

        Its *work* goes on from the last stored result, and its stream behind the pieces that are stored. If this
        process has too much to do, this raises ``NoThreadError``.
        """
        going_on = self._carry_on(maker, work, locale or Locale.current())
        # In a task: a client that disconnects now must not leave a run that is taken, and that nobody works on.
        return await asyncio.shield(apart(going_on, own_context(), maker.context))

    def listen(self, maker: Maker, work: Callable[[], Work] | None = None) -> AsyncGenerator[str, None]:
        """
        Return the stream of an answer from its beginning to its end, in whichever process it is generated.

        If nobody works on it any more, this process does, with what *work* returns; without that, it waits for others.
        If it is lost, this ends with an ``InterruptedAnswerError``.
        """
        answer = self._made.get(maker)
        return self._following.listen(maker, work, Locale.current()) if answer is None else answer.listen()

    async def stop(self, maker: Maker, work: Callable[[], Work] | None = None) -> None:
        """
        Interrupt an answer, in whichever process it is generated, and wait for its end.

        One on which nobody works ends by what *work* returns, which is not made.
        """
        rest = self.listen(maker, work)
        await self._interrupt(maker)
        with suppress(InterruptedAnswerError):
            async for _ in rest:
                pass

    async def _interrupt(self, maker: Maker) -> None:
        answer = self._made.get(maker)
        if answer is None:
            await in_thread(lambda: leases.stop(maker.using, maker.run))
        else:
            answer.stop()

    async def _silence(self, maker: Maker) -> tuple[UUID | None, float, datetime | None]:
        """Return the run in progress in the conversation, for how long nobody has listened to it, and since when."""
        found = await in_thread(lambda: leases.unheard(maker.using, maker.memory_id, maker.owner_key))
        return found or (None, 0.0, None)

    async def _begin(
        self, maker: Maker, work: Work, locale: Locale, kept: Kept = NOTHING, hands_over: bool = False
    ) -> Answer | float:
        """Start an answer, and return it; if another one is in progress, return the seconds since its last renewal."""
        beginning = self._beginning.setdefault((name_of(maker.context), maker.owner_key), threading.Lock())
        answer = self._made[maker] = Answer(maker)
        answer.is_handed_over = hands_over
        self._writer.start()
        silent_for: float | None = 0.0
        try:
            silent_for = await in_thread_soon(self._open, answer, work, beginning, kept)
        finally:
            if silent_for is not None or answer.is_handed_over:
                del self._made[maker]
                answer.end()
                if answer.taken is not None:  # what its context did at the end has failed
                    leases.leave(answer.taken)
        if silent_for is not None:
            return silent_for
        if answer.is_handed_over:
            return answer
        return self._started(answer, work, locale)

    async def _carry_on(self, maker: Maker, work: Work, locale: Locale) -> Answer | None:
        if maker in self._made:  # this process was stopped for a while: it renews it again, or finds that it is lost
            return None
        answer = Answer(maker)
        if not await in_thread_soon(self._reopen, answer, work):
            return None
        self._made[maker] = answer
        self._writer.start()
        return self._started(answer, work, locale)

    def _started(self, answer: Answer, work: Work, locale: Locale) -> Answer:
        answer.is_written = True  # only now: its context may be a transaction, in which others see no run
        if answer.taken is not None:
            leases.keep(answer.taken, answer.maker.context, answer.has_listeners)
        answer.start(self._make(answer, work, locale))
        return answer

    def _open(self, answer: Answer, work: Work, beginning: threading.Lock, kept: Kept) -> float | None:
        """Take a run for *answer*, and begin its *work*; if another one is in progress, return what ``take`` does."""
        with beginning:  # otherwise, of several that begin at once, each could count the others and be refused
            taken = _take(answer.maker, work, kept)
        if not isinstance(taken, Taken):
            return taken
        answer.taken = taken
        self._begin_work(answer, work)
        if answer.is_handed_over:
            if leases.hand_over(taken, answer.question, ASKED_SECONDS):
                note_waiting(answer.maker, taken.using)
            else:
                answer.fail(LeaseLostError("The conversation was erased before its question was handed over."))
                answer.was_refused, answer.is_handed_over = True, False
        return None

    def _reopen(self, answer: Answer, work: Work) -> bool:
        """Take the run of *answer* over, and begin its *work* with what is stored; return whether that was possible."""
        maker = answer.maker
        taken = leases.take_over(maker.using, maker.run)
        if taken is None:
            return False
        answer.taken = taken
        try:
            answer.is_stopping = leases.stopping(taken.using, [taken]).get(taken.run, True)
            pieces = self._streams.read(maker, 0)
        except BaseException:
            with suppress(DatabaseError):
                leases.hand_over(taken)
            raise
        self._begin_work(answer, work, pieces)
        return True

    def _begin_work(self, answer: Answer, work: Work, pieces: Sequence[Piece] = ()) -> None:
        """Begin *work*, with the *pieces* that are stored of the stream; what fails then would fail again."""
        try:
            answer.events.extend(decoded(answer.maker, pieces))
            raisable(work.begin)(answer)
        except Exception as exc:  # noqa: BLE001  # the answer reports it
            answer.fail(exc)
            answer.was_refused, answer.is_handed_over = True, False

    async def _make(self, answer: Answer, work: Work, locale: Locale) -> None:
        observing.note("answering", change=1)
        locale.activate()
        try:
            with answer.being_made():
                await asyncio.sleep(0)  # an answer that was stopped before now ends here
                await work.make(answer)
        except asyncio.CancelledError:
            answer.state = State.STOPPED
            if not answer.is_stopping:  # the server ends
                answer.state = State.ASKED
                answer.failure = InterruptedAnswerError("The server has ended before the answer, and handed it over.")
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
            if end := last or answer.last:
                answer.put(end)  # only now that the next answer can begin
            del self._made[answer.maker]
            observing.note("answering", change=-1)
            answer.end()
            await close_thread_sensitive()

    async def _ended(self, answer: Answer, work: Work) -> str:
        """End *answer*, and return its last events. While the database is away, try again for ``END_SECONDS``."""
        end, pause = time.monotonic() + chat_settings().END_SECONDS, FIRST_PAUSE
        try:
            while True:
                try:
                    return await in_thread(self._end, answer, work)
                except AWAY as exc:
                    if time.monotonic() + pause > end or answer.state is State.ASKED:  # its lease ends soon
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
        self._writer.leave(answer)
        if answer.state is State.ASKED:
            self._hand_over(answer)
            return answer.last
        taken, state = answer.taken, answer.state if answer.failure is None else State.FAILED
        try:
            last = encoded(answer.maker, answer.new(last=answer.last))
            if taken and not self._streams.end(answer.maker, last, taken, state, answer.question):
                forget_lost(self._streams, taken.using, [answer.maker.memory_id])
        except AWAY:
            raise
        except Exception:
            logger.exception("The end of an answer in %r could not be written.", answer.maker.memory_id)
        return answer.last

    def _hand_over(self, answer: Answer) -> None:
        """Write what there is of *answer* without an end, and let any other process go on with its run at once."""
        try:
            if (rest := answer.new()).data:
                self._streams.write({answer.maker: encoded(answer.maker, rest)})
        except AWAY:
            raise
        except Exception:
            logger.exception("An answer in %r could not be written.", answer.maker.memory_id)
        if answer.taken is not None:
            leases.hand_over(answer.taken, answer.question)

    @property
    def in_progress(self) -> int:
        """How many answers are generated here."""
        return len(self._made)

    def taken(self) -> list[tuple[Maker, Taken]]:
        """Return the runs of the answers that are generated here."""
        return [(maker, answer.taken) for maker, answer in self._made.items() if answer.taken is not None]

    async def hand_over(self) -> None:
        """
        Leave all that is generated here to other processes, and return when they can go on with it.

        What the database has not stored after ``HAND_OVER_SECONDS``, since it hangs, is renewed no longer.
        """
        end = time.monotonic() + HAND_OVER_SECONDS
        while self._made and time.monotonic() < end:
            for answer in self._made.values():  # and what requests that are still open begin
                answer.leave()
            await asyncio.sleep(HAND_OVER)
        for _, taken in self.taken():
            leases.leave(taken)
        if self._made:
            text = "%d answer(s) could not be handed over in %.1f s; others go on with them once their leases end."
            logger.error(text, len(self._made), HAND_OVER_SECONDS)


_registries: WeakKeyDictionary[asyncio.AbstractEventLoop, Answers] = WeakKeyDictionary()


def answers() -> Answers:
    """Return the registry of the running event loop."""
    return answers_of(asyncio.get_running_loop())


def answers_of(loop: asyncio.AbstractEventLoop) -> Answers:
    """Return the registry of *loop*."""
    return _registries.setdefault(loop, Answers())


def note_waiting(maker: Maker, using: str) -> None:
    """Let the site know that an answer waits for a worker."""
    captured = "" if maker.context is None else maker.context.captured
    answer_waits.send_robust(sender=Run, memory_id=maker.memory_id, context=captured, using=using)


def _take(maker: Maker, work: Work, kept: Kept) -> Taken | float:
    """
    Do what ``leases.take`` does; ``TooManyError`` if the owner has too many answers in progress.

    Conversations without an owner are nobody's: they do not count together.
    """
    using, most, owner = maker.using, chat_settings().MAX_ANSWERS, maker.owner_key or None
    taken = leases.take(using, maker.memory_id, owner, maker.run, work.assistant, question=work.question, kept=kept)
    if not isinstance(taken, Taken):
        return taken
    try:
        # Counted after it is there, since other processes may begin some at the same time.
        are_too_many = bool(maker.owner_key) and leases.running(using, maker.owner_key, most + 1) > most
    except DatabaseError:
        leases.leave(taken)
        raise
    if are_too_many:
        leases.end(taken, State.FAILED)
        raise TooManyError(f"You have {most} answers in progress; wait for one of them, or stop it.")
    return taken
