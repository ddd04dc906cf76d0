"""
Answers in progress: each is a task that outlives the request, and any number of clients can listen to it.

Each event loop has a registry of the answers that it is generating. Several times a second, the registry writes the new
events of all of them at once to the ``streams``, where other processes can read and stop them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import TypeVar
from weakref import WeakKeyDictionary

from django.utils import translation

from chatmemory_django.chat.streams import Maker, Piece, streams
from chatmemory_django.chat.ui_stream import PING
from chatmemory_django.db.threads import close_thread_sensitive, in_background, in_thread

logger = logging.getLogger(__name__)

INTERVAL = 0.25
"""Seconds between two writes, and between two reads of an answer that another process generates."""

ALIVE_FOR = 1.5
"""Seconds for which a process counts as alive after its last write; after that, it may be dead."""

PING_AFTER = 15.0
"""Seconds of silence after which listeners are sent a comment, so that proxies keep the connection open."""

_T = TypeVar("_T")


class BusyError(RuntimeError):
    """Another answer is being generated in this conversation."""


class Answer:
    """An answer that is being generated in this event loop."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.events: list[str] = []
        """The events of its stream so far, encoded as they are sent."""
        self.is_stopping = False
        """Whether the answer was asked to stop."""
        self.failure: Exception | None = None
        """The exception that ended the answer, if there was one."""
        self.is_being_made = False
        """Whether the model is at work: only then can the answer be interrupted."""
        self._has_ended = False
        self._changed = asyncio.Event()
        self._written = 0
        self._pieces = 0
        self._task: asyncio.Task[None] | None = None

    def put(self, events: str) -> None:
        """Append *events* to the stream, and wake all listeners."""
        self.events.append(events)
        self._wake()

    def end(self) -> None:
        """End the stream: listeners return once they have read all events."""
        self._has_ended = True
        self._wake()

    def start(self, making: Awaitable[None]) -> None:
        """Start generating the answer in a task of its own, independent of the request."""
        self._task = _apart(making)

    @contextmanager
    def being_made(self) -> Iterator[None]:
        """Mark the part of the work that can be interrupted; what comes before and after always runs to its end."""
        self.is_being_made = True
        if self.is_stopping:
            self._cancel()
        try:
            yield
        finally:
            self.is_being_made = False

    def stop(self) -> None:
        """Interrupt the answer. Calling this again has no effect."""
        if not self.is_stopping:
            self.is_stopping = True
            self._cancel()

    def new(self) -> Piece:
        """Return the events that are not written yet."""
        return Piece(self._pieces, "".join(self.events[self._written :]))

    def note_written(self, count: int) -> None:
        """Record that the first *count* events are written."""
        self._pieces += count > self._written
        self._written = count

    async def listen(self) -> AsyncGenerator[str, None]:
        """Yield the stream from its beginning to its end, with comments during silence."""
        position = 0
        while True:
            changed = self._changed
            if position < len(self.events):
                new, position = "".join(self.events[position:]), len(self.events)
                yield new
            elif self._has_ended:
                return
            else:
                try:
                    async with asyncio.timeout(PING_AFTER):
                        await changed.wait()
                except TimeoutError:
                    yield PING

    def _cancel(self) -> None:
        if self.is_being_made and self._task is not None:
            self._task.cancel()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Answers:
    """The registry of the answers that are being generated in one event loop."""

    def __init__(self) -> None:
        self._streams = streams()
        self._made: dict[Maker, Answer] = {}
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def begin(self, maker: Maker, make: Callable[[Answer], Awaitable[str]], *, wait: float) -> Answer:
        """
        Start an answer, and return it. *make* puts events into it, and returns the last ones.

        If another answer is in progress in the conversation, this waits for up to *wait* seconds, then raises
        ``BusyError``.
        """
        loop, language = asyncio.get_running_loop(), translation.get_language()
        end = loop.time() + wait
        while True:
            # In a task, too: a client that disconnects now must not leave an answer that nothing generates.
            begun = await asyncio.shield(_apart(self._begin(maker, make, language)))
            if isinstance(begun, Answer):
                return begun
            if loop.time() >= end and begun < ALIVE_FOR:
                raise BusyError("Another answer is being generated in this conversation; try again when it has ended.")
            await asyncio.sleep(INTERVAL)

    async def find(self, memory_id: str, owner_key: str) -> Maker | None:
        """Return the answer in progress in the owner's conversation, in any process, or None."""
        return await in_thread(self._streams.find, memory_id, owner_key)

    def listen(self, maker: Maker) -> AsyncGenerator[str, None]:
        """Return the stream of an answer from its beginning to its end, in whichever process it is generated."""
        answer = self._made.get(maker)
        return self._listen_elsewhere(maker) if answer is None else answer.listen()

    async def stop(self, maker: Maker) -> None:
        """Interrupt an answer, in whichever process it is generated, and wait for its end."""
        answer = self._made.get(maker)
        rest = self.listen(maker)
        if answer is None:
            await in_thread(self._streams.stop, maker)
        else:
            answer.stop()
        async for _ in rest:
            pass

    async def _begin(
        self, maker: Maker, make: Callable[[Answer], Awaitable[str]], language: str | None
    ) -> Answer | float:
        """Start an answer, and return it; if another one is in progress, return the seconds since its last write."""
        silent_for = await in_thread(self._streams.begin, maker)
        if silent_for is not None:
            return silent_for
        answer = self._made[maker] = Answer(maker)
        answer.start(self._make(answer, make, language))
        if self._writer is None or self._writer.done():
            self._writer = _apart(self._write_on())
        return answer

    async def _listen_elsewhere(self, maker: Maker) -> AsyncGenerator[str, None]:
        position, is_running, silent_for = 0, True, 0.0
        while is_running:
            with in_background():  # so that listening does not hold a database connection
                pieces, is_running = await in_thread(self._streams.read, maker, position)
            position += len(pieces)
            silent_for = 0.0 if pieces else silent_for + INTERVAL
            if pieces:
                yield "".join(pieces)
            elif silent_for >= PING_AFTER:
                silent_for = 0.0
                yield PING
            if is_running:
                await asyncio.sleep(INTERVAL)

    async def _make(self, answer: Answer, make: Callable[[Answer], Awaitable[str]], language: str | None) -> None:
        if language is not None:
            translation.activate(language)
        try:
            with answer.being_made():
                last = await make(answer)
            answer.events.append(last)  # sent only once the next answer can begin
        except Exception:
            logger.exception("An answer in the conversation %r failed.", answer.maker.memory_id)
        finally:
            try:
                async with self._writing:
                    pass  # wait for a write in progress
                await in_thread(self._streams.end, answer.maker, answer.new())
            except Exception:
                logger.exception("The end of an answer in %r could not be written.", answer.maker.memory_id)
            finally:
                del self._made[answer.maker]
                answer.end()
                await close_thread_sensitive()

    async def _write_on(self) -> None:
        while self._made:
            await asyncio.sleep(INTERVAL)
            try:
                async with self._writing:
                    await self._write([answer for answer in self._made.values() if answer.is_being_made])
            except Exception:
                logger.exception("Answers in progress could not be written; the next write tries again.")

    async def _write(self, answers: list[Answer]) -> None:
        counts = {answer: len(answer.events) for answer in answers}
        pieces = {answer.maker: answer.new() for answer in answers}
        if not pieces:
            return
        stopping = await in_thread(self._streams.write, pieces)
        for answer, count in counts.items():
            answer.note_written(count)
            if answer.maker in stopping:
                answer.stop()


_registries: WeakKeyDictionary[asyncio.AbstractEventLoop, Answers] = WeakKeyDictionary()


def answers() -> Answers:
    """Return the registry of the running event loop."""
    return _registries.setdefault(asyncio.get_running_loop(), Answers())


def _apart(making: Awaitable[_T]) -> asyncio.Task[_T]:
    """Return a task for *making* that outlives the request."""

    async def awaited() -> _T:
        with in_background():
            return await making

    # With a new context: the request's context refers to a thread that ends with the request.
    return asyncio.create_task(awaited(), context=Context())
