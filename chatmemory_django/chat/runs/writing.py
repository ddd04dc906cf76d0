"""
The writing of answers in progress: several times a second, the new events of all of them at once, to the streams, where
other processes can read them. Who writes looks also whether one of them has to stop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextvars import Context
from uuid import UUID

from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer, apart
from chatmemory_django.chat.runs.streams import INTERVAL, Maker, Streams, StreamsUnavailableError, encoded, forget_lost
from chatmemory_django.db.background import leave_connections
from chatmemory_django.db.contexts import ThreadContext, current, in_context
from chatmemory_django.db.threads import in_thread

logger = logging.getLogger(__name__)


class Writer:
    """Writes the answers that are *made* in this event loop to *streams*, as long as there are any."""

    def __init__(self, streams: Streams, made: Mapping[Maker, Answer]) -> None:
        self._streams = streams
        self._made = made
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failed: set[ThreadContext | None] = set()

    def start(self) -> None:
        """Write what is made from now on."""
        if self._task is None or self._task.done():
            self._task = apart(self._write_on(), Context())  # of no request: it writes the answers to all

    def leave(self, answer: Answer) -> None:
        """Write nothing of *answer* any more, once a write in progress has ended."""
        with self._lock:
            answer.is_written = False

    async def _write_on(self) -> None:
        while self._made:
            await asyncio.sleep(INTERVAL)
            written = [answer for answer in self._made.values() if answer.is_written]
            for stopping, own in await in_thread(self._write_all, written) if written else ():
                for answer in own:
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

    def _write_all(self, answers: Collection[Answer]) -> list[tuple[Mapping[UUID, bool], Collection[Answer]]]:
        """Do what ``_write`` does in the context of each of *answers*, unless that fails; return with which answers."""
        together: defaultdict[ThreadContext | None, list[Answer]] = defaultdict(list)
        for answer in answers:
            together[answer.maker.context].append(answer)
        self._failed &= together.keys()
        written: list[tuple[Mapping[UUID, bool], Collection[Answer]]] = []
        for context, own in together.items():
            try:
                written.append((in_context(self._write, context)(own), own))
            except Exception as exc:  # noqa: BLE001  # whatever it is, the next write may succeed
                self._note_failure(exc, context)
                leave_connections()
        return written

    def _write(self, answers: Collection[Answer]) -> Mapping[UUID, bool]:
        """Write the new events of those *answers* that have not ended; return which runs go on, and have to stop."""
        places: defaultdict[str, dict[UUID, Answer]] = defaultdict(dict)
        for answer in answers:
            if answer.taken is not None and answer.is_written:
                places[answer.taken.using][answer.taken.run] = answer
        stopping: dict[UUID, bool] = {}
        for using, own in places.items():
            stopping.update(leases.stopping(using, [each.taken for each in own.values() if each.taken is not None]))
            # What has ended since then is not written any more.
            lost = [answer.maker.memory_id for run, answer in own.items() if run not in stopping and answer.is_written]
            if lost:
                forget_lost(self._streams, using, lost)
        try:  # what is another process's by now must not get the pieces of this one
            self._write_events([each for each in answers if each.taken is None or each.taken.run in stopping])
        except StreamsUnavailableError as exc:  # which runs have to stop is known all the same
            self._note_failure(exc, current.get())
        else:
            self._failed.discard(current.get())
        return stopping

    def _write_events(self, answers: Collection[Answer]) -> None:
        with self._lock:
            counts = {answer: len(answer.events) for answer in answers if answer.is_written}
            new = {answer: count for answer, count in counts.items() if answer.has_new(count)}
            pieces = {each.maker: encoded(each.maker, each.new(count)) for each, count in new.items()}
            if pieces:
                self._streams.write(pieces)
            for answer, count in new.items():
                answer.note_written(count)

    def _note_failure(self, error: Exception, context: ThreadContext | None) -> None:
        """Log the first of several failures to write in *context*."""
        if context not in self._failed:
            logger.error("Answers in progress could not be written; the next writes try again.", exc_info=error)
        self._failed.add(context)
