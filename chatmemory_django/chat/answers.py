"""
Answers in the making: each is a task that outlives the request that asked for it, and that any number may listen to.

Each event loop has a registry of the answers that are made in it. It writes what they have come to, all at once and
several times a second, to the ``streams``, where other processes can read and stop them.
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
from chatmemory_django.threads import close_thread_sensitive, in_background, in_thread

logger = logging.getLogger(__name__)

INTERVAL = 0.25
"""Seconds between two writes, and between two looks at an answer that another process makes."""

ALIVE_FOR = 1.5
"""For how many seconds after its last sign of life a process is sure to be alive; then it may also be dead."""

PING_AFTER = 15.0
"""Seconds of silence after which a listener is sent a comment, so that no proxy takes the connection for dead."""

PING = ": ping\n\n"

_T = TypeVar("_T")


class BusyError(RuntimeError):
    """Another answer is being made in this conversation."""


class Answer:
    """An answer that is being made in this event loop."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.events: list[str] = []
        """The events of its stream, as they are sent."""
        self.is_stopping = False
        """Whether somebody wants no more of it."""
        self.failure: Exception | None = None
        """Why there is no answer, if that is so."""
        self.is_being_made = False
        """Whether it can be broken off, and more of it may come."""
        self._has_ended = False
        self._changed = asyncio.Event()
        self._written = 0
        self._pieces = 0
        self._task: asyncio.Task[None] | None = None

    def put(self, events: str) -> None:
        """Send *events* to all who listen."""
        self.events.append(events)
        self._wake()

    def end(self) -> None:
        """Let those who listen go: nothing more will come."""
        self._has_ended = True
        self._wake()

    def start(self, making: Awaitable[None]) -> None:
        """Have the answer made, apart from the request that asks for it."""
        self._task = _apart(making)

    @contextmanager
    def being_made(self) -> Iterator[None]:
        """The part of making it that can be broken off; before and after it, the answer must come to an end."""
        self.is_being_made = True
        if self.is_stopping:
            self._cancel()
        try:
            yield
        finally:
            self.is_being_made = False

    def stop(self) -> None:
        """Break it off, once."""
        if not self.is_stopping:
            self.is_stopping = True
            self._cancel()

    def new(self) -> Piece:
        """Return what is not written yet."""
        return Piece(self._pieces, "".join(self.events[self._written :]))

    def note_written(self, count: int) -> None:
        """Take note that the first *count* events are written."""
        self._pieces += count > self._written
        self._written = count

    async def listen(self) -> AsyncGenerator[str, None]:
        """Yield its stream from the beginning to its end, and comments while nothing comes."""
        place = 0
        while True:
            changed = self._changed
            if place < len(self.events):
                new, place = "".join(self.events[place:]), len(self.events)
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
    """The answers that are being made in one event loop."""

    def __init__(self) -> None:
        self._streams = streams()
        self._made: dict[Maker, Answer] = {}
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def begin(self, maker: Maker, make: Callable[[Answer], Awaitable[str]], *, wait: float) -> Answer:
        """
        Begin an answer, and return it. *make* puts events to it, and returns the last ones.

        ``BusyError`` if another is being made in the conversation, and still is after *wait* seconds.
        """
        loop, language = asyncio.get_running_loop(), translation.get_language()
        end = loop.time() + wait
        while True:
            # Apart, too: whoever asks and goes away in the middle of it would leave an answer that nobody makes.
            begun = await asyncio.shield(_apart(self._begin(maker, make, language)))
            if isinstance(begun, Answer):
                return begun
            if loop.time() >= end and begun < ALIVE_FOR:
                raise BusyError("Another answer is being made in this conversation; try again when it has ended.")
            await asyncio.sleep(INTERVAL)

    async def find(self, memory_id: str, owner_key: str) -> Maker | None:
        """Return the answer that is being made in the conversation of that owner, in whatever process."""
        return await in_thread(self._streams.find, memory_id, owner_key)

    def listen(self, maker: Maker) -> AsyncGenerator[str, None]:
        """Return the stream of an answer from its beginning to its end, wherever it is made."""
        answer = self._made.get(maker)
        return self._listen_elsewhere(maker) if answer is None else answer.listen()

    async def stop(self, maker: Maker) -> None:
        """Break off an answer, wherever it is made, and wait for its end."""
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
        """Begin an answer, and return it; if another is made, return how many seconds ago that gave a sign of life."""
        silent_for = await in_thread(self._streams.begin, maker)
        if silent_for is not None:
            return silent_for
        answer = self._made[maker] = Answer(maker)
        answer.start(self._make(answer, make, language))
        if self._writer is None or self._writer.done():
            self._writer = _apart(self._write_on())
        return answer

    async def _listen_elsewhere(self, maker: Maker) -> AsyncGenerator[str, None]:
        place, is_running, silent_for = 0, True, 0.0
        while is_running:
            with in_background():  # so that no connection is held for as long as somebody listens
                pieces, is_running = await in_thread(self._streams.read, maker, place)
            place += len(pieces)
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
            answer.events.append(last)  # sent only when the next answer can begin
        except Exception:
            logger.exception("An answer in the conversation %r failed.", answer.maker.memory_id)
        finally:
            try:
                async with self._writing:
                    pass  # what is being written of it, is written then
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
                logger.exception("Answers in the making could not be written; that is tried again.")

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
    """Return a task that outlives the request."""

    async def awaited() -> _T:
        with in_background():
            return await making

    # In a context of its own: that of the request holds a thread that ends with it.
    return asyncio.create_task(awaited(), context=Context())
