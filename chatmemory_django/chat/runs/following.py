"""Answers that other processes generate: who listens to them here reads their streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress

from django.db import DatabaseError

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer, InterruptedAnswerError, Locale, Work
from chatmemory_django.chat.runs.leases import Progress
from chatmemory_django.chat.runs.overload import NoThreadError
from chatmemory_django.chat.runs.streams import INTERVAL, MAX_PIECES, Maker, Piece, Streams, decoded, of_last
from chatmemory_django.db.threads import in_thread

logger = logging.getLogger(__name__)

LISTEN = 2.0
"""Seconds after which a process that listens to an answer of another one notes that again."""

LONG_WAIT = 10.0
"""Seconds after which it is logged that an answer waits for a worker."""


class Listening:
    """A stream in *kept* that is read from its beginning to its end; the run of *maker* is in the database *using*."""

    def __init__(self, kept: Streams, using: str, maker: Maker) -> None:
        self._kept = kept
        self._using = using
        self._maker = maker
        self._piece, self._begins = Piece(0, ""), 0  # that was read last, which may have more events now, and where
        self.length = 0
        """How many characters of the stream were read."""

    def read(self) -> tuple[Progress, str]:
        """Return how far the answer is, and the events that are new."""
        stored = self._kept.read(self._maker, self._piece.position)
        # Behind the pieces: who takes the run after this reads them, too, and goes on behind them.
        progress, fence = leases.progress(self._using, self._maker.run)
        if fence is None:  # who ends a run has written the last piece
            stored = self._kept.read(self._maker, self._piece.position)
        is_due = stored and (fence is None or stored[-1].fence >= fence)  # else who goes on decides what counts
        events = self._new(of_last(stored)) if is_due and stored[-1] != self._piece else ""
        return progress, events

    def _new(self, pieces: Sequence[Piece]) -> str:
        begins = self.length
        if pieces[0].position == self._piece.position:
            begins = self._begins
        elif pieces[0].position % MAX_PIECES == 0:
            begins = 0
        elif not self.length:  # no client can read a stream without its beginning
            return ""
        texts = decoded(self._maker, pieces)
        events = "".join(texts)[self.length - begins :]
        self.length += len(events)
        self._piece, self._begins = pieces[-1], self.length - len(texts[-1])
        return events


class Following:
    """The answers of others in *streams*; all who listen to one here share its reader, which may *carry_on* with it."""

    def __init__(self, streams: Streams, carry_on: Callable[[Maker, Work, Locale], Awaitable[Answer | None]]) -> None:
        self._streams = streams
        self._carry_on = carry_on
        self._followed: dict[Maker, Answer] = {}
        self._waits = False

    async def listen(self, maker: Maker, work: Callable[[], Work] | None, locale: Locale) -> AsyncGenerator[str, None]:
        """
        Yield the stream of an answer from its beginning to its end.

        Once nobody works on it, this process does, with what *work* returns, in *locale*; without that, it waits for
        others.
        """
        answer = self._followed.get(maker)
        if answer is None:
            answer = self._followed[maker] = Answer(maker)
            answer.start(self._follow(answer, locale))
        answer.going_on = work or answer.going_on  # one who listens may leave it to others, and another one stop it
        async with aclosing(answer.listen()) as pieces:
            async for piece in pieces:
                yield piece
        if answer.successor is not None:
            made, heard = answer.successor
            async with aclosing(made.listen(heard)) as pieces:
                async for piece in pieces:
                    yield piece
        elif answer.failure is not None:
            raise answer.failure

    async def _follow(self, answer: Answer, locale: Locale) -> None:
        """
        Read the stream of *answer* as long as it goes on and anyone listens.

        Once nobody works on it, this process does, with what its ``going_on`` returns.
        """
        listening = Listening(self._streams, answer.maker.using, answer.maker)
        progress, noted_at, began = Progress.RUNS, 0.0, time.monotonic()
        try:
            while progress in {Progress.RUNS, Progress.LEFT} and answer.has_listeners():
                is_due = time.monotonic() - noted_at >= LISTEN
                noted_at = time.monotonic() if is_due else noted_at
                progress, events = await in_thread(self._read, answer.maker, listening, notes=is_due)
                if events:
                    answer.put(events)
                self._note_wait(is_long=listening.length == 0 and time.monotonic() - began > LONG_WAIT)
                if progress is Progress.LEFT and answer.going_on is not None:
                    with suppress(NoThreadError):  # the next time, unless others are faster
                        made = await self._carry_on(answer.maker, answer.going_on(), locale)
                        if made is not None:
                            answer.successor = made, listening.length
                            return
                if progress in {Progress.RUNS, Progress.LEFT}:
                    await asyncio.sleep(INTERVAL)
            if progress is Progress.LOST:
                answer.failure = InterruptedAnswerError("Nobody can go on with the answer.")
        except Exception as exc:  # noqa: BLE001  # for those who listen
            answer.failure = exc
        finally:
            del self._followed[answer.maker]
            answer.end()

    def _read(self, maker: Maker, listening: Listening, *, notes: bool) -> tuple[Progress, str]:
        """Return how far an answer is, and its new events; it *notes* that somebody listens to it."""
        progress, events = listening.read()
        if notes and progress in {Progress.RUNS, Progress.LEFT}:
            with suppress(DatabaseError):  # the next time comes soon
                leases.note_listener(maker.using, maker.run)
        return progress, events

    def _note_wait(self, *, is_long: bool) -> None:
        """Log the first of several answers that nobody begins to generate, where that is for workers to do."""
        if is_long and not self._waits and chat_settings().has_workers:
            text = "Answers wait for a worker for more than %.0f s: is manage.py run_chatmemory running?"
            logger.warning(text, LONG_WAIT)
        self._waits = is_long
