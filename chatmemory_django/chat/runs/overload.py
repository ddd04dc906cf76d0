"""Too much to do: new work is refused, and this is logged once, instead of waiting without end for a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from chatmemory_django.db.threads import BACKGROUND_THREADS, in_thread, to_its_end

logger = logging.getLogger(__name__)

BEGIN_SECONDS = 5.0
"""How many seconds a call of ``in_thread_soon`` may wait for a thread."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class NoThreadError(RuntimeError):
    """No thread became free in time, so the call was not made."""


async def in_thread_soon(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """
    Call *function* like ``in_thread``, or not at all: ``NoThreadError`` if no thread is free in ``BEGIN_SECONDS``.

    So new work is refused if there is too much of it, and does not wait without end.
    """
    claim = threading.Lock()  # of who is first: the thread, or the caller that has lost patience

    def begin() -> _R:
        if claim.acquire(blocking=False):
            return function(*args, **kwargs)
        raise NoThreadError

    calling = asyncio.ensure_future(in_thread(begin))
    calling.add_done_callback(lambda call: call.cancelled() or call.exception())  # marks its exception as retrieved
    try:
        await asyncio.wait([calling], timeout=BEGIN_SECONDS)
    except asyncio.CancelledError:
        if not claim.acquire(blocking=False):
            with suppress(Exception):
                await to_its_end(calling)
        raise
    if not claim.acquire(blocking=False):
        _overload.note_end()
        return await to_its_end(calling)
    _overload.note()
    raise NoThreadError(f"No thread became free in {BEGIN_SECONDS:.0f} seconds.")


class _Overload:
    """Logs once that there are no free threads, and once that there are some again."""

    is_there = False

    def note(self) -> None:
        if not self.is_there:
            self.is_there = True
            text = "All %d threads that use the database are busy for more than %.0f s: questions are refused with 503."
            logger.warning(text, BACKGROUND_THREADS, BEGIN_SECONDS)

    def note_end(self) -> None:
        if self.is_there:
            self.is_there = False
            logger.warning("Threads that use the database are free again.")


_overload = _Overload()
