"""
What goes on while an answer is generated, and after it: pieces that threads make, and calls for which nobody waits.

See ``db.threads`` for the threads in which coroutines use the database.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from asgiref.sync import SyncToAsync

from chatmemory_django.db.contexts import ThreadContext, in_context
from chatmemory_django.db.threads import bring_into, in_background, is_in_background, leaving_no_connection, raisable

if TYPE_CHECKING:
    from django.http import StreamingHttpResponse

_P = ParamSpec("_P")
_R = TypeVar("_R")

_afterwards: set[asyncio.Future[None]] = set()


def has_threads() -> bool:
    """Return whether threads are those of Python, and not gevent's or eventlet's, in which no event loop can run."""
    return isinstance(_thread.get_ident, BuiltinFunctionType)  # debuggers replace the function that starts them


async def araisable(returned: Awaitable[_R]) -> _R:
    """Await what code of the site has *returned*; ``RuntimeError`` if it calls ``sys.exit``, which ends the loop."""
    try:
        return await returned
    except SystemExit as exc:
        raise RuntimeError("A model, or a function of the site, raised SystemExit.") from exc


async def in_own_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call *function*, which takes long and rarely uses the database, in a thread of neither a request nor a pool."""
    call = in_context(partial(function, *args, **kwargs))

    def leave() -> _R:
        with leaving_no_connection():
            return call()

    return await asyncio.to_thread(raisable(leave))


class _End(NamedTuple):
    error: BaseException | None


async def from_thread(generator: Generator[_R, None, None]) -> AsyncGenerator[_R, None]:
    """
    Yield what *generator* yields, which runs in a thread of its own.

    Who stops reading, or is cancelled, does not wait for the next value: the thread closes the generator after it.
    """
    loop, is_left = asyncio.get_running_loop(), threading.Event()
    queue: asyncio.Queue[_R | _End] = asyncio.Queue()

    def put(value: _R | _End) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody reads
            loop.call_soon_threadsafe(queue.put_nowait, value)

    def read() -> None:
        with closing(generator):
            for value in generator:
                if is_left.is_set():
                    break
                put(value)

    def run() -> None:
        error = None
        try:
            with leaving_no_connection():
                raisable(in_context(read))()
        except BaseException as exc:  # noqa: BLE001  # it is raised where the values are read
            error = exc
        put(_End(error))

    threading.Thread(target=copy_context().run, args=[run], daemon=True).start()
    try:
        while not isinstance(value := await queue.get(), _End):
            yield value
        if value.error is not None:
            raise value.error
    finally:
        is_left.set()


async def afterwards(call: Awaitable[None]) -> None:
    """Await *call*; in the background, in a task of its own, for which no one waits but ``all_afterwards``."""
    if is_in_background():
        apart(call)
    else:
        await call


def apart(call: Awaitable[None]) -> None:
    """Await *call* in a task of its own, for which no one waits but ``all_afterwards``."""
    task = asyncio.ensure_future(call)
    _afterwards.add(task)
    task.add_done_callback(_afterwards.discard)


async def all_afterwards() -> None:
    """Await the calls of ``afterwards`` in this event loop, which ends with the request under WSGI."""
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(each for each in tuple(_afterwards) if each.get_loop() is loop), return_exceptions=True)


def close_with(response: StreamingHttpResponse, pieces: AsyncGenerator[Any, None]) -> None:
    """
    Let *pieces* be closed with *response*, in the background, since the request may end before that.

    Django closes no asynchronous generator at which it has stopped to read, as if the client leaves while it is sent
    one.
    """
    loop = asyncio.get_running_loop()

    async def close() -> None:
        with in_background():
            await pieces.aclose()

    def close_soon() -> None:  # in a thread
        loop.call_soon_threadsafe(lambda: apart(close()))

    response._resource_closers.append(close_soon)  # type: ignore[attr-defined]  # missing in the stubs


async def made_in(context: ThreadContext, pieces: AsyncGenerator[_R, None]) -> AsyncGenerator[_R, None]:
    """Yield *pieces*, which other threads than that of their request make in *context*: that may have left it."""

    @contextmanager
    def there() -> Iterator[None]:
        token = bring_into(context)
        try:
            with in_background(context):
                yield
        finally:
            SyncToAsync.thread_sensitive_context.reset(token)

    try:
        while True:
            with there():
                piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece
    finally:
        with there():
            await pieces.aclose()
