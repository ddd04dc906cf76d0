"""
Answers in progress: each is a task that outlives the request, and any number of clients can listen to it.

Each event loop has a registry of the answers that it is generating. Several times a second, the registry writes the new
events of all of them at once to the ``streams``, where other processes can read and stop them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import Context
from datetime import tzinfo
from typing import NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from django.utils import timezone, translation

from chatmemory_django import conf
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


class TooManyError(RuntimeError):
    """The user has as many answers in progress, or streams open, as one user may have."""


class Seat:
    """A stream that a user has open: whatever holds this object keeps the place taken."""


class Locale(NamedTuple):
    """The language and the time zone of a request, which its answer keeps, and nothing else of its context."""

    language: str | None
    time_zone: tzinfo

    @classmethod
    def current(cls) -> Self:
        """Return those that are active now."""
        return cls(translation.get_language(), timezone.get_current_timezone())

    def activate(self) -> None:
        """Activate both for the rest of this task."""
        if self.language is not None:
            translation.activate(self.language)
        timezone.activate(self.time_zone)


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
        self.listeners = 0
        """How many clients listen to it here, if another process generates it."""
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
    """The registry of the answers that are being generated in one event loop, and of who listens."""

    def __init__(self) -> None:
        self._streams = streams()
        self._made: dict[Maker, Answer] = {}
        self._followed: dict[Maker, Answer] = {}
        self._seats: WeakKeyDictionary[Seat, str] = WeakKeyDictionary()
        self._beginning: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._writing = asyncio.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def begin(self, maker: Maker, make: Callable[[Answer], Awaitable[str]], *, wait: float) -> Answer:
        """
        Start an answer, and return it. *make* puts events into it, and returns the last ones.

        If another answer is in progress in the conversation, this waits for up to *wait* seconds, then raises
        ``BusyError``. If the owner has ``MAX_ANSWERS`` in progress, in all processes together, it raises
        ``TooManyError``.
        """
        loop, locale = asyncio.get_running_loop(), Locale.current()
        end = loop.time() + wait
        while True:
            # In a task, too: a client that disconnects now must not leave an answer that nothing generates.
            begun = await asyncio.shield(_apart(self._begin(maker, make, locale)))
            if isinstance(begun, Answer):
                return begun
            if loop.time() >= end and begun < ALIVE_FOR:
                raise BusyError("Another answer is being generated in this conversation; try again when it has ended.")
            await asyncio.sleep(INTERVAL)

    def seat(self, owner_key: str) -> Seat:
        """Return a place for one more stream of a user; ``TooManyError`` if ``MAX_STREAMS`` are open here."""
        most = conf.chat()["MAX_STREAMS"]
        if sum(each == owner_key for each in self._seats.values()) >= most:
            raise TooManyError(f"You have {most} streams of answers open; close one of them.")
        seat = Seat()
        self._seats[seat] = owner_key
        return seat

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

    async def _begin(self, maker: Maker, make: Callable[[Answer], Awaitable[str]], locale: Locale) -> Answer | float:
        """Start an answer, and return it; if another one is in progress, return the seconds since its last write."""
        beginning = self._beginning.setdefault(maker.owner_key, asyncio.Lock())
        async with beginning:  # otherwise, of several that begin at once, each could count the others and be refused
            silent_for = await in_thread(self._take, maker)
        if silent_for is not None:
            return silent_for
        answer = self._made[maker] = Answer(maker)
        answer.start(self._make(answer, make, locale))
        if self._writer is None or self._writer.done():
            self._writer = _apart(self._write_on())
        return answer

    def _take(self, maker: Maker) -> float | None:
        """Do what ``Streams.begin`` does; ``TooManyError`` if the owner has too many answers in progress."""
        silent_for = self._streams.begin(maker)
        most = conf.chat()["MAX_ANSWERS"]
        # Counted after it is there, since other processes may begin some at the same time.
        if silent_for is None and self._streams.running(maker.owner_key) > most:
            self._streams.end(maker, Piece(0, ""))
            raise TooManyError(f"You have {most} answers in progress; wait for one of them, or stop it.")
        return silent_for

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
        position, is_running = 0, True
        try:
            while is_running and answer.listeners:
                pieces, is_running = await in_thread(self._streams.read, answer.maker, position)
                position += len(pieces)
                if pieces:
                    answer.put("".join(pieces))
                if is_running:
                    await asyncio.sleep(INTERVAL)
        except Exception as exc:  # noqa: BLE001  # for those who listen
            answer.failure = exc
        finally:
            del self._followed[answer.maker]
            answer.end()

    async def _make(self, answer: Answer, make: Callable[[Answer], Awaitable[str]], locale: Locale) -> None:
        locale.activate()
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
