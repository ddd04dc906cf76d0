"""Answers that no request generates: those that were handed over, those of dead processes, and those decided on."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from uuid import UUID, uuid4

from chatmemory_django import observing
from chatmemory_django.chat.orders import Decided, carried_on, decided, resumed
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Locale
from chatmemory_django.chat.runs.answers import AWAY, TooManyError, answers
from chatmemory_django.chat.runs.leases import BusyError, Left
from chatmemory_django.chat.runs.overload import NoThreadError
from chatmemory_django.chat.runs.streams import Maker, StreamsUnavailableError
from chatmemory_django.chat.runs.taking import Given
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.db.contexts import ThreadContext
from chatmemory_django.db.threads import in_background, in_thread

logger = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two looks at a database, of one statement that reads an index of the runs in progress."""

DECIDED_EVERY = 2.0
"""Seconds between two looks for calls that somebody has decided on, and between two counts of what waits."""

DECIDED = 500
"""How many calls that somebody has decided on are looked at, those included that have failed."""

CONTEXTS_EVERY = 30.0
"""Seconds after which the site is asked once more in which contexts to look, and one that was gone is tried again."""

MAY_PASS = (*AWAY, NoThreadError, StreamsUnavailableError)
"""Errors after which the context of a run is not taken for gone: the next look may go on with it."""


class UnknownWorkError(RuntimeError):
    """Whether answers wait is not known: the database, or the site's function of contexts, has failed."""


class Worker:
    """
    Generates up to *concurrency* answers at once: those that wait in *databases*, and there in the *contexts* that this
    function returns, as the setting ``THREAD_CONTEXT`` captures them; by default, in none.

    Any number of workers can run beside each other: each answer is one worker's.
    """

    def __init__(
        self, databases: Sequence[str], contexts: Callable[[], Iterable[str]] | None = None, concurrency: int = 20
    ) -> None:
        self._databases = databases
        self._contexts = contexts
        self._concurrency = concurrency
        self._found: Sequence[ThreadContext | None] = () if contexts else (None,)
        self._found_at = self._decided_at = float("-inf")
        self._tried: dict[tuple[str, ThreadContext | None], set[UUID]] = {}
        self._failed: set[tuple[str, ThreadContext | None]] = set()
        self._gone: dict[tuple[str, str], float] = {}
        self._unknown = ""
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Take nothing any more; ``work`` returns when what is in progress has been handed over."""
        self._ending.set()

    async def work(self) -> None:
        """Generate answers until ``end`` is called."""
        while not self._ending.is_set():
            await self._take()
            await self._pause()
        await answers().hand_over()
        await all_afterwards()

    async def work_off(self) -> None:
        """
        Generate answers until none waits and all have ended, or until ``end`` is called.

        Raises:
            UnknownWorkError: Whether more answers wait is not known at the end.

        """
        is_last = False
        while not (is_last or self._ending.is_set()):
            is_idle = not answers().in_progress
            is_last = not await self._take(is_idle=is_idle) and is_idle
            if not is_last:
                await self._pause()
        await answers().hand_over()
        await all_afterwards()
        if self._unknown:
            raise UnknownWorkError(self._unknown)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(POLL * random.uniform(0.8, 1.2)):  # noqa: S311  # workers keep apart
                await self._ending.wait()
        except TimeoutError:
            pass

    async def _take(self, *, is_idle: bool = False) -> int:
        """Begin what waits, as much as this has room for; return how much. If it *is_idle*, decisions count now."""
        count, now = 0, time.monotonic()
        self._unknown = ""
        is_due = now - self._decided_at >= DECIDED_EVERY
        if is_due:
            self._decided_at = now
        for context in await self._where():
            for using in self._databases:
                if self._room > 0 and not self._ending.is_set():
                    count += await self._take_in(using, context, looks_for_decided=is_due or is_idle)
        if is_due and observing.observers and not self._unknown:
            with suppress(Exception):  # the next look reports it
                await self._note_waiting()
        return count

    async def _note_waiting(self) -> None:
        """Note in the metrics how many answers wait in each database, in all contexts together."""
        for using in self._databases:
            count = 0
            for context in self._found:
                with in_background(context):
                    count += await in_thread(leases.waiting, using)
            observing.note("asked", database=using, count=count)

    async def _take_in(self, using: str, context: ThreadContext | None, *, looks_for_decided: bool) -> int:
        """Begin what waits in *context*; what cannot begin keeps nothing else waiting."""
        count, failure = 0, None
        with in_background(context):
            try:
                async for name, begin in self._waiting(using, context, looks_for_decided=looks_for_decided):
                    try:
                        count += await begin()
                    except Exception as exc:  # noqa: BLE001  # the others must not wait for it
                        failure = exc
                        if name and not isinstance(exc, MAY_PASS):
                            self._gone[using, name] = time.monotonic()
            except Exception as exc:  # noqa: BLE001  # whatever it is, the next look may succeed
                failure = exc
                self._unknown = f"Whether answers wait in the database {using!r} is not known: {exc!r}"
            if failure is None:
                self._failed.discard((using, context))
            else:
                self._note_failure(using, context, failure)
        return count

    async def _waiting(
        self, using: str, context: ThreadContext | None, *, looks_for_decided: bool
    ) -> AsyncGenerator[tuple[str, Callable[[], Awaitable[bool]]], None]:
        """Yield what begins each answer that waits, with the name of its own context, unless that is gone."""
        known: Collection[str] | None = None
        while (gone := self._gone_in(using)) != known and self._room > 0:  # behind those found gone, others may wait
            known = gone
            left = await in_thread(leases.left, using, self._room, gone)
            random.shuffle(left)  # of several workers, each begins with another one
            for each in left:
                if each.context not in self._gone_in(using):
                    yield each.context, partial(self._go_on, each, context)
        for one in await self._decided(using, context) if looks_for_decided else ():
            if one.context not in self._gone_in(using):
                yield one.context, partial(self._resume, one, using, context)

    def _gone_in(self, using: str) -> Collection[str]:
        """Return the contexts that could not be entered in the database *using* a moment ago."""
        since = time.monotonic() - CONTEXTS_EVERY
        self._gone = {each: found_at for each, found_at in self._gone.items() if found_at > since}
        return {name for database, name in self._gone if database == using}

    async def _go_on(self, left: Left, found_in: ThreadContext | None) -> bool:
        context = ThreadContext(left.context) if left.context else found_in
        maker = Maker(left.memory_id, left.owner_key, left.run.hex, context)
        locale = Locale.named(left.language, left.time_zone)
        return await answers().carry_on(maker, carried_on(maker), locale) is not None

    async def _decided(self, using: str, context: ThreadContext | None) -> Sequence[Decided]:
        found = await in_thread(decided, using, DECIDED)
        self._tried[using, context] = self._tried.get((using, context), set()) & {one.approval for one in found}
        return found

    async def _resume(self, one: Decided, using: str, found_in: ThreadContext | None) -> bool:
        """Go on with an answer whose call was decided, once: what fails then stays for who asks next."""
        tried = self._tried[using, found_in]
        if one.is_new:
            return True  # it waits, and is perhaps another process's
        if self._room <= 0 or one.approval in tried:
            return False
        context = ThreadContext(one.context) if one.context else found_in
        maker = Maker(one.memory_id, one.owner_key, uuid4().hex, context)
        given = Given(about=[str(one.approval)])
        try:
            await answers().begin(maker, resumed(maker, given, one.assistant), wait=0, given=given)
        except (BusyError, NoThreadError, TooManyError):
            return False  # the next look finds it once more
        tried.add(one.approval)
        return True

    async def _where(self) -> Sequence[ThreadContext | None]:
        """Return the contexts in which to look."""
        if self._contexts is not None and time.monotonic() - self._found_at >= CONTEXTS_EVERY:
            try:
                names = await in_thread(lambda: list(self._contexts()))  # type: ignore[misc]  # it is not None
                self._found = [ThreadContext(name) for name in names]
                self._found_at = time.monotonic()
            except Exception as exc:
                self._unknown = f"In which contexts answers wait is not known: {exc!r}"
                logger.exception("In which contexts to look for answers is not known; it is asked again.")
        return self._found

    @property
    def _room(self) -> int:
        return self._concurrency - answers().in_progress

    def _note_failure(self, using: str, context: ThreadContext | None, error: Exception) -> None:
        """Log the first of several failures to look at a database."""
        if (using, context) not in self._failed:
            text = "The worker could not look for answers in the database %r, or go on with one; the next look may."
            logger.error(text, using, exc_info=error)
        self._failed.add((using, context))
