"""One answer in progress: its events, who listens to them, and how it is generated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from datetime import tzinfo
from typing import NamedTuple, Protocol, Self, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from django.utils import timezone, translation

from chatmemory_django.chat.runs.deleting import KEEP
from chatmemory_django.chat.runs.leases import State, Taken
from chatmemory_django.chat.runs.streams import MAX_PIECES, Maker, Piece
from chatmemory_django.db.contexts import ThreadContext
from chatmemory_django.db.threads import bring_into, in_background
from chatmemory_django.private import empty_frames
from chatmemory_django.stores.base import LeaseLostError

PING_AFTER = 15.0
"""Seconds of silence after which listeners are sent a comment, so that proxies keep the connection open."""

PING = ": ping\n\n"
"""A comment that keeps the connection open."""

TOUCH_AFTER = KEEP / 4
"""Seconds of silence after which the pieces of an answer in progress are written again, so that they are kept."""

OF_THE_REQUEST = frozenset(
    {"asgiref.local", "thread_sensitive_context", "deadlock_context", "async_single_thread_context"}
)
"""The names of context variables of asgiref that refer to a thread or a connection which ends with the request."""

_T = TypeVar("_T")


class InterruptedAnswerError(RuntimeError):
    """
    The answer has no end here: another one has taken its place, its process was the only one that could go on with it,
    or this process ends, and has handed it over.
    """


class Locale(NamedTuple):
    """The language and the time zone of a request, which its answer keeps; Django has them in variables of asgiref."""

    language: str | None
    time_zone: tzinfo

    @classmethod
    def current(cls) -> Self:
        """Return those that are active now."""
        return cls(translation.get_language(), timezone.get_current_timezone())

    @classmethod
    def named(cls, language: str, time_zone: str) -> Self:
        """Return those with these names; what is empty, or unknown here, is the site's."""
        here = cls.current()
        known = time_zone in available_timezones()
        return cls(language or here.language, ZoneInfo(time_zone) if known else here.time_zone)

    def activate(self) -> None:
        """Activate both for the rest of this task."""
        if self.language is not None:
            translation.activate(self.language)
        timezone.activate(self.time_zone)


class Work(Protocol):
    """How an answer is generated: the calls of its three steps, of which the first and the last are made in threads."""

    assistant: str
    """The name of the assistant whose answer it is: the conversation belongs to that one."""

    question: int | None
    """The message that it answers once more, if it does."""

    goes_on: bool
    """Whether it goes on with an answer that has waited, and begins none."""

    def begin(self, answer: Answer) -> None:
        """
        Store the question of *answer*, whose run is ``taken``. If this fails, the answer has a ``failure``.

        If it ``is_handed_over``, all else is for another process to do; if there is nothing else, it is no longer. One
        that has events already was begun by another process: it goes on.
        """

    async def make(self, answer: Answer) -> None:
        """Put the events of *answer* into it: this can be interrupted. If it fails, the answer has a ``failure``."""

    def end(self, answer: Answer) -> str:
        """
        Store *answer*, whatever has become of it, and return its last events.

        If it is handed over to another process, it is ``ASKED``.

        If the database is away, this raises an ``OperationalError`` or an ``InterfaceError``, and is called again.
        """

    def give_up(self, answer: Answer) -> str:
        """Return the last events of *answer* if it could not be stored: it has a ``failure``."""

    async def follow(self) -> None:
        """Start what the conversation does after an answer, for which no one waits."""


class Answer:
    """An answer that is being generated in this event loop, or that another process generates."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.taken: Taken | None = None
        """Its run, once it is this process's."""
        self.question: int | None = None
        """The message that it answers, once that is stored."""
        self.state = State.DONE
        """How it ends, unless it has a ``failure``."""
        self.failure: Exception | None = None
        """The exception that ended the answer, if there was one."""
        self.was_refused = False
        """Whether it failed before the model was asked."""
        self.events: list[str] = []
        """The events of its stream so far, encoded as they are sent."""
        self.last: str | None = None
        """Its last events, once it is stored."""
        self.is_stopping = False
        """Whether the answer was asked to stop."""
        self.is_being_made = False
        """Whether the model is at work: only then can the answer be interrupted."""
        self.is_handed_over = False
        """Whether another process generates it from now on: its events are not here."""
        self.is_written = False
        """Whether its events are written to the streams as they come."""
        self.listeners = 0
        """How many clients listen to it here."""
        self.successor: tuple[Answer, int] | None = None
        """With what those who listen go on here, and how many characters of it they have."""
        self.going_on: Callable[[], Work] | None = None
        """What makes the work by which this process goes on with another one's answer, if it does."""
        self._has_ended = self._is_leaving = False
        self._changed = asyncio.Event()
        self._woken_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._written = 0
        self._pieces = 0
        self._written_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def put(self, events: str) -> None:
        """Append *events* to the stream, and wake all listeners."""
        self.events.append(events)
        self._wake()

    def end(self) -> None:
        """End the stream: listeners return once they have read all events."""
        self._has_ended = True
        self._wake()
        if self._timer is not None:
            self._timer.cancel()

    def start(self, making: Awaitable[None]) -> None:
        """Start generating the answer in a task of its own, independent of the request."""
        self._task = apart(making, own_context(), self.maker.context)

    @contextmanager
    def being_made(self) -> Iterator[None]:
        """Mark the part of the work that can be interrupted; what comes before and after always runs to its end."""
        self.is_being_made = True
        if self.is_stopping or self._is_leaving:
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

    def leave(self) -> None:
        """Interrupt the answer, so that others go on with it, as at the end of a server. Again, this has no effect."""
        if not self._is_leaving:
            self._is_leaving = True
            self._cancel()

    def lose(self) -> None:
        """Interrupt the answer, whose run is no longer this process's: nothing of it can be stored any more."""
        self.is_written = False
        self.failure = self.failure or LeaseLostError(
            f"The answer in the conversation {self.maker.memory_id!r} was taken over, or the conversation erased."
        )
        self.stop()

    def fail(self, error: Exception) -> None:
        """Record the *error* that ended the answer, without the messages that its frames hold."""
        self.failure = error
        empty_frames(error)

    def new(self, count: int | None = None, last: str = "") -> Piece:
        """Return those of the first *count* events that are not written yet, or of all, and *last*."""
        position = self._pieces + (self.taken.fence * MAX_PIECES if self.taken else 0)
        return Piece(position, "".join(self.events[self._written : count]) + last)

    def has_new(self, count: int) -> bool:
        """Return whether some of the first *count* events are not written yet, or were written long ago."""
        is_silent = self._pieces > 0 and time.monotonic() - self._written_at > TOUCH_AFTER
        return count > self._written or is_silent

    def note_written(self, count: int) -> None:
        """Record that the first *count* events are written."""
        self._pieces += count > self._written
        self._written, self._written_at = count, time.monotonic()

    async def listen(self, heard: int = 0) -> AsyncGenerator[str, None]:
        """Yield the stream behind the characters *heard* of it, to its end, with comments during silence."""
        position = 0
        self.listeners += 1
        try:
            while True:
                changed = self._changed
                if position < len(self.events):
                    new, position = "".join(self.events[position:])[heard:], len(self.events)
                    heard = 0
                    if new:
                        yield new
                elif self._has_ended:
                    return
                else:
                    self._ping_later()
                    await changed.wait()
                    if position == len(self.events) and not self._has_ended:
                        yield PING
        finally:
            self.listeners -= 1

    def has_listeners(self) -> bool:
        """Return whether any client listens to it here."""
        return self.listeners > 0

    def _cancel(self) -> None:
        if self.is_being_made and self._task is not None:
            self._task.cancel()

    def _wake(self) -> None:
        self._woken_at = time.monotonic()
        self._changed.set()
        self._changed = asyncio.Event()

    def _ping_later(self) -> None:
        """Wake all listeners after silence: by one timer, as one for each piece and listener takes longer than both."""
        if self._timer is None:
            seconds = self._woken_at + PING_AFTER - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._ping)

    def _ping(self) -> None:
        self._timer = None
        if time.monotonic() >= self._woken_at + PING_AFTER:
            self._wake()
        elif self.listeners:
            self._ping_later()


def own_context() -> Context:
    """Return the context of the request, with what routers and instrumentation keep there, for a task of its own."""
    context = Context()
    for variable, value in copy_context().items():
        if variable.name not in OF_THE_REQUEST:
            context.run(variable.set, value)
    return context


def apart(making: Awaitable[_T], context: Context, thread_context: ThreadContext | None = None) -> asyncio.Task[_T]:
    """Return a task for *making* that outlives the request, in *context*; its threads work in *thread_context*."""

    async def awaited() -> _T:
        if thread_context is not None:
            bring_into(thread_context)
        with in_background(thread_context):
            return await making

    return asyncio.create_task(awaited(), context=context)
