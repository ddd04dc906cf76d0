"""The event loop in which this process generates answers for which no request waits."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading

from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answers import answers, answers_of
from chatmemory_django.db.contexts import in_context

logger = logging.getLogger(__name__)

END_SECONDS = 5.0
"""How long the end of the process waits for the loop."""


class _Background:
    """One thread with an event loop, from its first use to the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():  # a fork has no threads of its parent
                self._process, self._loop = os.getpid(), asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="chatmemory-runs", daemon=True)
                self._thread.start()
                atexit.register(self._end, self._loop, self._thread)
            return self._loop

    async def hand_over(self) -> None:
        if self._loop is not None and self._process == os.getpid():
            handing = answers_of(self._loop).hand_over()
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(handing, self._loop))

    def _end(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        """End the loop, and hand over what it generates: by now, there are no other threads that could."""
        if self._process != os.getpid():
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_SECONDS)
        for maker, taken in answers_of(loop).taken():
            try:
                in_context(leases.hand_over, maker.context)(taken)
            except Exception:
                logger.exception("An answer in %r could not be handed over.", maker.memory_id)


_background = _Background()


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, which is started if need be; what runs there has to be ``in_background``."""
    return _background.loop()


async def hand_over() -> None:
    """Leave all that this process generates, in the running loop and in the background, to others; then return."""
    await asyncio.gather(answers().hand_over(), _background.hand_over())
