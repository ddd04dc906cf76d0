"""
An event loop that runs in a thread of its own, so that a vendor's asynchronous client can be used from everywhere.

A connection belongs to the event loop that opened it. All calls run in this one loop, whichever thread or loop they
come from: so connections stay open from one request of a site to the next, and nothing is lost when a loop ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")

PAUSE = 0.05
"""
The seconds after which a stream that is closed is cancelled. By then, whatever had arrived has been read, and it waits
for its server: interrupted elsewhere, Google's client (2.34) leaves the connection to the garbage collector.
"""

_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""The loop of each process. A forked process inherits that of its parent, but not the thread that runs it."""


def the_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process."""
    process = os.getpid()
    if process not in _loops:
        loop = asyncio.new_event_loop()
        # Two threads may both create one; only the first runs. A lock could be held when the process is forked.
        if _loops.setdefault(process, loop) is loop:
            thread = threading.Thread(target=loop.run_forever, name="chatmemory-models", daemon=True)
            thread.start()
            atexit.register(_close, loop, thread, process)
        else:
            loop.close()
    return _loops[process]


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of *work*, which is cancelled if the caller is interrupted."""
    future = _begin(work)
    try:
        return future.result()
    finally:
        future.cancel()


async def arun(work: Coroutine[Any, Any, _T]) -> _T:
    """Return what ``run`` returns; *work* is cancelled with the caller."""
    return await asyncio.wrap_future(_begin(work))


def iterate(events: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
    """Yield *events*. When this generator is closed, so are they, shortly afterwards."""
    queue: SimpleQueue[_Item[_T]] = SimpleQueue()
    future = _begin(_pump(events, queue.put))
    try:
        while not isinstance(item := queue.get(), _End):
            yield item[0]
    finally:
        _end(future)
    item.check()


async def aiterate(events: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """Yield what ``iterate`` yields."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Item[_T]] = asyncio.Queue()

    def put(item: _Item[_T]) -> None:
        with suppress(RuntimeError):  # the reader's loop is closed
            loop.call_soon_threadsafe(queue.put_nowait, item)

    future = _begin(_pump(events, put))
    try:
        while not isinstance(item := await queue.get(), _End):
            yield item[0]
    finally:
        _end(future)
    item.check()


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the events, and the error that ended them."""

    error: Exception | None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


_Item: TypeAlias = tuple[_T] | _End


async def _pump(events: AsyncGenerator[_T, None], put: Callable[[_Item[_T]], None]) -> None:
    """Put each of *events*, then their end. One task reads them all, since they may open and close a context."""
    error = None
    try:
        async with aclosing(events):
            async for event in events:
                put((event,))
    except asyncio.CancelledError:
        pass  # not raised: the task would keep the traceback, and what its frames hold, until garbage is collected
    except Exception as exc:  # noqa: BLE001  # the reader raises it
        error = exc
    finally:
        put(_End(error))


def _begin(work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
    return asyncio.run_coroutine_threadsafe(work, the_loop())


def _end(future: concurrent.futures.Future[None]) -> None:
    """Cancel *future*, without waiting for it: a generator that is garbage may be closed in the thread of the loop."""
    if not future.done():
        loop = the_loop()
        loop.call_soon_threadsafe(loop.call_later, PAUSE, future.cancel)


def _close(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    """Stop *loop* at the end of its *process*, and close what is open in it."""
    if os.getpid() != process:
        return
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=1)
    if not thread.is_alive():
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
