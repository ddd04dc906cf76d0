"""Too much to do: new work is refused, and this is logged once, instead of waiting without end for a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from chatmemory_django import observing
from chatmemory_django.db.threads import background, in_thread, in_thread_last, to_its_end

logger = logging.getLogger(__name__)

BEGIN_SECONDS = 10.0
"""How many seconds a call of ``in_thread_soon`` may wait for a thread."""

WAITING = 200
"""
How many requests may wait for each of the threads: about as many as it begins in ``BEGIN_SECONDS``, at 50 ms each.
"""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class NoThreadError(RuntimeError):
    """No thread became free in time, so the call was not made."""


async def in_thread_soon(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """
    Call *function* like ``in_thread``, or not at all: ``NoThreadError`` if no thread is free in ``BEGIN_SECONDS``.

    So new work is refused if there is too much of it, and does not wait without end.
    """
    return await _soon(in_thread, partial(function, *args, **kwargs))


async def in_thread_in_turn(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """
    Call *function* like ``in_thread_soon``, after all that goes on: for what a request begins with.

    If as many wait as may, this raises ``NoThreadError`` at once.
    """
    pool = background()
    if pool.new_waiting >= pool.threads * WAITING:
        raise _overload.refusal(f"more than {pool.threads * WAITING:,} requests wait for them")
    return await _soon(in_thread_last, partial(function, *args, **kwargs))


async def _soon(call: Callable[[Callable[[], _R]], Coroutine[Any, Any, _R]], function: Callable[[], _R]) -> _R:
    claim = threading.Lock()  # of who is first: the thread, or the caller that has lost patience

    def begin() -> _R:
        if claim.acquire(blocking=False):
            return function()
        raise NoThreadError

    calling = asyncio.ensure_future(call(begin))
    calling.add_done_callback(lambda call: call.cancelled() or call.exception())  # marks its exception as retrieved
    try:
        await asyncio.wait([calling], timeout=BEGIN_SECONDS)
    except asyncio.CancelledError:
        if not claim.acquire(blocking=False):
            with suppress(Exception):
                await to_its_end(calling)
        raise
    if calling.done() or not claim.acquire(blocking=False):  # done without a claim: its context could not be entered
        if not background().waiting:
            _overload.note_end()
        return await to_its_end(calling)
    raise _overload.refusal(f"one has waited for {BEGIN_SECONDS:.1f} s")


class _Overload:
    """Logs once that requests are refused, and once that there are free threads again."""

    is_there = False

    def refusal(self, reason: str) -> NoThreadError:
        """Return the error of a request that is refused for this *reason*, which is logged and counted."""
        observing.note("refused")
        if not self.is_there:
            self.is_there = True
            text = "All %d threads that use the database are busy, and %s: requests to the chat are refused with 503."
            logger.warning(text, background().threads, reason)
        return NoThreadError(f"No thread is free, and {reason}.")

    def note_end(self) -> None:
        if self.is_there:
            self.is_there = False
            logger.warning("Threads that use the database are free again.")


_overload = _Overload()
