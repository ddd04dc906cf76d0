"""
Answers in progress: each is a task that outlives the request, and any number of clients can listen to it.

Each event loop has a registry of the answers that it is generating. Several times a second, the registry writes the new
events of all of them at once to the ``streams``, where other processes can read and stop them. What an answer does with
the database takes one call in a thread at its beginning and one at its end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import Context, copy_context
from datetime import tzinfo
from typing import NamedTuple, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from django.utils import timezone, translation

from chatmemory_django import conf
from chatmemory_django.chat.runs.streams import Maker, Piece, decrypted, encrypted, streams
from chatmemory_django.db.private import empty_frames
from chatmemory_django.db.threads import close_thread_sensitive, in_background, in_thread, raisable

logger = logging.getLogger(__name__)

INTERVAL = 0.25
"""Seconds between two writes, and between two reads of an answer that another process generates."""

ALIVE_FOR = 1.5
"""Seconds for which a process counts as alive after its last write; after that, it may be dead."""

PING_AFTER = 15.0
"""Seconds of silence after which listeners are sent a comment, so that proxies keep the connection open."""

PING = ": ping\n\n"
"""A comment that keeps the connection open."""

OF_THE_REQUEST = frozenset(
    {"asgiref.local", "thread_sensitive_context", "deadlock_context", "async_single_thread_context"}
)
"""The names of context variables of asgiref that refer to a thread or a connection which ends with the request."""

_T = TypeVar("_T")


class BusyError(RuntimeError):
    """Another answer is being generated in this conversation."""


class TooManyError(RuntimeError):
    """The user has as many answers in progress, or streams open, as one user may have."""


class Seat:
    """A stream that a user has open: whatever holds this object keeps the place taken."""


class Locale(NamedTuple):
    """The language and the time zone of a request, which its answer keeps; Django has them in variables of asgiref."""

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


class Work(Protocol):
    """How an answer is generated: the calls of its three steps, of which the first and the last are made in threads."""

    def begin(self) -> None:
        """Store the question. If this fails, the answer has a ``failure``."""

    async def make(self, answer: Answer) -> None:
        """Put the events of *answer* into it: this can be interrupted. If it fails, the answer has a ``failure``."""

    def end(self, answer: Answer) -> str:
        """Store *answer*, whatever has become of it, and return its last events."""

    async def follow(self) -> None:
        """Start what the conversation does after an answer, for which no one waits."""


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
        self.is_leased = False
        """Whether the streams have it as in progress, which has to be renewed."""
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
        self._task = _apart(making, _own_context())

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

    def new(self, count: int | None = None, last: str = "") -> Piece:
        """Return those of the first *count* events that are not written yet, or of all, and *last*."""
        return Piece(self._pieces, "".join(self.events[self._written : count]) + last)

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
        self._beginning: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._writing = threading.Lock()
        self._writer: asyncio.Task[None] | None = None

    async def begin(self, maker: Maker, work: Work, *, wait: float) -> Answer:
        """
        Start an answer, and return it. Its *work* begins as soon as no other answer can begin in the conversation.

        If another answer is in progress in the conversation, this waits for up to *wait* seconds, then raises
        ``BusyError``. If the owner has ``MAX_ANSWERS`` in progress, in all processes together, it raises
        ``TooManyError``.
        """
        loop, locale = asyncio.get_running_loop(), Locale.current()
        end = loop.time() + wait
        while True:
            # In a task, too: a client that disconnects now must not leave an answer that nothing generates.
            begun = await asyncio.shield(_apart(self._begin(maker, work, locale), _own_context()))
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

    async def _begin(self, maker: Maker, work: Work, locale: Locale) -> Answer | float:
        """Start an answer, and return it; if another one is in progress, return the seconds since its last write."""
        beginning = self._beginning.setdefault(maker.owner_key, threading.Lock())
        answer = self._made[maker] = Answer(maker)
        if self._writer is None or self._writer.done():
            self._writer = _apart(self._write_on(), Context())  # of no request: it writes the answers to all
        silent_for: float | None = 0.0
        try:
            silent_for = await in_thread(self._open, answer, work, beginning)
        finally:
            if silent_for is not None:
                del self._made[maker]
                answer.end()
        if silent_for is not None:
            return silent_for
        answer.start(self._make(answer, work, locale))
        return answer

    def _open(self, answer: Answer, work: Work, beginning: threading.Lock) -> float | None:
        """Take the lease of *answer*, and begin its *work*; return what ``Streams.begin`` does."""
        with beginning:  # otherwise, of several that begin at once, each could count the others and be refused
            silent_for = self._take(answer.maker)
        if silent_for is None:
            answer.is_leased = True
            try:
                raisable(work.begin)()
            except Exception as exc:  # noqa: BLE001  # the answer reports it
                answer.failure = exc
                empty_frames(exc)
        return silent_for

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
                pieces, is_running = await in_thread(self._read, answer.maker, position)
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

    def _read(self, maker: Maker, position: int) -> tuple[list[str], bool]:
        stored, is_running = self._streams.read(maker, position)
        return decrypted(maker, stored), is_running

    async def _make(self, answer: Answer, work: Work, locale: Locale) -> None:
        locale.activate()
        try:
            with answer.being_made():
                await asyncio.sleep(0)  # an answer that was stopped before now ends here
                await work.make(answer)
        except asyncio.CancelledError:
            if not answer.is_stopping:
                raise
        except Exception as exc:  # noqa: BLE001  # the answer reports it
            answer.failure = exc
            empty_frames(exc)
        finally:
            try:
                last = await in_thread(self._end, answer, work)
                await work.follow()
                answer.put(last)  # only now that the next answer can begin
            except Exception as exc:
                answer.failure = exc
                logger.exception("An answer in the conversation %r failed.", answer.maker.memory_id)
            finally:
                del self._made[answer.maker]
                answer.end()
                await close_thread_sensitive()

    def _end(self, answer: Answer, work: Work) -> str:
        """End *work*, and then the stream of *answer* with the events that this returns, and return them."""
        last = ""
        try:
            last = work.end(answer)
        finally:
            with self._writing:  # after a write in progress
                answer.is_leased = False
            try:
                self._streams.end(answer.maker, encrypted(answer.maker, answer.new(last=last)))
            except Exception:
                logger.exception("The end of an answer in %r could not be written.", answer.maker.memory_id)
        return last

    async def _write_on(self) -> None:
        while self._made:
            await asyncio.sleep(INTERVAL)
            leased = [answer for answer in self._made.values() if answer.is_leased]
            try:
                if leased:
                    stopping = await in_thread(self._write, leased)
                    for answer in leased:
                        if answer.maker in stopping:
                            answer.stop()
            except Exception:
                logger.exception("Answers in progress could not be written; the next write tries again.")

    def _write(self, answers: list[Answer]) -> set[Maker]:
        """Write the new events of those *answers* that have not ended; return which have to stop."""
        with self._writing:
            counts = {answer: len(answer.events) for answer in answers if answer.is_leased}
            pieces = {answer.maker: encrypted(answer.maker, answer.new(count)) for answer, count in counts.items()}
            stopping = self._streams.write(pieces) if pieces else set()
            for answer, count in counts.items():
                answer.note_written(count)
        return stopping


_registries: WeakKeyDictionary[asyncio.AbstractEventLoop, Answers] = WeakKeyDictionary()


def answers() -> Answers:
    """Return the registry of the running event loop."""
    return _registries.setdefault(asyncio.get_running_loop(), Answers())


def _own_context() -> Context:
    """Return the context of the request, with what routers and instrumentation keep there, for a task of its own."""
    context = Context()
    for variable, value in copy_context().items():
        if variable.name not in OF_THE_REQUEST:
            context.run(variable.set, value)
    return context


def _apart(making: Awaitable[_T], context: Context) -> asyncio.Task[_T]:
    """Return a task for *making* that outlives the request, in *context*."""

    async def awaited() -> _T:
        with in_background():
            return await making

    return asyncio.create_task(awaited(), context=context)
