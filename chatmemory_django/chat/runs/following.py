"""Answers that other processes generate: who listens to them here reads their streams."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

from django.db import DatabaseError

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer, InterruptedAnswerError, Locale, Work
from chatmemory_django.chat.runs.leases import Progress
from chatmemory_django.chat.runs.overload import NoThreadError
from chatmemory_django.chat.runs.streams import INTERVAL, Maker, Streams, decoded
from chatmemory_django.db.threads import in_thread

logger = logging.getLogger(__name__)

LISTEN = 2.0
"""Seconds after which a process that listens to an answer of another one notes that again."""

LONG_WAIT = 10.0
"""Seconds after which it is logged that an answer waits for a worker."""


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
            made, position = answer.successor
            async with aclosing(made.listen(position)) as pieces:
                async for piece in pieces:
                    yield piece
        elif answer.failure is not None:
            raise answer.failure

    async def _follow(self, answer: Answer, locale: Locale) -> None:
        """
        Read the stream of *answer* as long as it goes on and anyone listens.

        Once nobody works on it, this process does, with what its ``going_on`` returns.
        """
        position, progress, noted_at, began = 0, Progress.RUNS, 0.0, time.monotonic()
        try:
            while progress in {Progress.RUNS, Progress.LEFT} and answer.has_listeners():
                is_due = time.monotonic() - noted_at >= LISTEN
                noted_at = time.monotonic() if is_due else noted_at
                progress, pieces = await in_thread(self._read, answer.maker, position, notes=is_due)
                position += len(pieces)
                if pieces:
                    answer.put("".join(pieces))
                self._note_wait(is_long=position == 0 and time.monotonic() - began > LONG_WAIT)
                if progress is Progress.LEFT and answer.going_on is not None:
                    with suppress(NoThreadError):  # the next time, unless others are faster
                        made = await self._carry_on(answer.maker, answer.going_on(), locale)
                        if made is not None:
                            answer.successor = made, position
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

    def _read(self, maker: Maker, position: int, *, notes: bool) -> tuple[Progress, list[str]]:
        """Return how far an answer is, and its stream from *position* on; it *notes* that somebody listens to it."""
        using, run = maker.using, maker.run
        # First, to miss no last piece: who ends a run has written it.
        progress = leases.progress(using, run)
        if notes and progress in {Progress.RUNS, Progress.LEFT}:
            with suppress(DatabaseError):  # the next time comes soon
                leases.note_listener(using, run)
        return progress, decoded(maker, self._streams.read(maker, position), position)

    def _note_wait(self, *, is_long: bool) -> None:
        """Log the first of several answers that nobody begins to generate, where that is for workers to do."""
        if is_long and not self._waits and chat_settings().has_workers:
            text = "Answers wait for a worker for more than %.0f s: is manage.py run_chatmemory running?"
            logger.warning(text, LONG_WAIT)
        self._waits = is_long
