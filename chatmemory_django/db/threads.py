"""
The threads in which coroutines use the database.

Django gives each request a thread of its own, which ends with the request. Tasks that outlive their request share a few
threads; each call is one hop into one of them, in the context of the request, and leaves no open connection except
those that ``CONN_MAX_AGE`` keeps.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, Token, copy_context
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from chatmemory_django import conf
from chatmemory_django.db.background import Background, leave_connections
from chatmemory_django.db.contexts import ThreadContext, current, in_context
from chatmemory_django.private import private

if TYPE_CHECKING:
    from django.http import HttpRequest

SLOW_THREADS = 32
"""How many of the site's functions, for example tools, run concurrently in addition."""

UNRAISABLE = (
    StopIteration,
    StopAsyncIteration,
    GeneratorExit,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
    SystemExit,
)
"""
Exceptions that do something else in a coroutine than report an error: no future can hold the first, so that its caller
waits forever; others end a generator, count as a cancellation of the caller, or end the event loop.
"""

_P = ParamSpec("_P")
_R = TypeVar("_R")

_in_background: ContextVar[bool] = ContextVar("_in_background", default=False)

is_in_background = _in_background.get
"""Returns whether this task outlives its request, see ``in_background``."""


def raisable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return *function* with a ``RuntimeError`` in place of the exceptions that cannot be raised in a coroutine."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except UNRAISABLE as exc:
            raise RuntimeError(f"A function that a coroutine called raised {type(exc).__name__}.") from exc

    return call


@private
async def in_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """
    Call *function*, which may use the database, without blocking the event loop.

    In the background, a cancellation takes effect only after the call has ended: pending writes are completed.
    """
    return await _in_thread(background, partial(function, *args, **kwargs))


@private
async def in_thread_last(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call *function* like ``in_thread``, in the background after all other calls: for what is new."""
    return await _in_thread(lambda: background().new, partial(function, *args, **kwargs))


async def _in_thread(executor: Callable[[], Executor], function: Callable[[], _R]) -> _R:
    if not _in_background.get():
        return await _call_here(function)
    return await to_its_end(_call_in(executor(), _call, function))


async def to_its_end(call: Awaitable[_R]) -> _R:
    """Await *call* to its end, so that its writes are completed; a cancellation takes effect only after that."""
    calling = asyncio.ensure_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not calling.done():
        try:
            await asyncio.wait([calling])
        except asyncio.CancelledError as exc:
            cancelled = cancelled or exc
    if cancelled is not None:
        calling.exception()  # marks its exception as retrieved: no one else will handle it
        raise cancelled
    return calling.result()


async def in_slow_thread(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call *function* of the site, which may take long, like ``in_thread``; a cancelled caller does not wait for it."""
    if not _in_background.get():
        return await _call_here(function, *args, **kwargs)
    return await _call_in(_slow(), _call_and_leave, partial(function, *args, **kwargs))


async def context_of(request: HttpRequest) -> ThreadContext | None:
    """Return the context of *request*, found in its own thread, where it can be read from the connection, too."""
    return None if conf.threads().THREAD_CONTEXT is None else await in_thread(ThreadContext.of, request)


async def close_thread_sensitive() -> None:
    """Close the connections of the thread in which Django runs code outside of requests and of the background."""
    await sync_to_async(close_old_connections, thread_sensitive=True)()


async def leave_thread() -> None:
    """Close the connections of the request's thread and let the thread end; Django starts another if needed."""
    await sync_to_async(_close_connections, thread_sensitive=True)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None:
        # No other reference to the executor exists: its thread ends with it, as it does when the context goes out of
        # scope.
        SyncToAsync.context_to_thread_executor.pop(context, None)


@contextmanager
def in_background(context: ThreadContext | None = None) -> Iterator[None]:
    """
    Let the block and the tasks it starts outlive the request: ``in_thread`` then uses the shared threads, which work in
    *context*.
    """
    token, before = _in_background.set(True), current.set(context)
    try:
        yield
    finally:
        current.reset(before)
        _in_background.reset(token)


def bring_into(context: ThreadContext) -> Token[ThreadSensitiveContext]:
    """
    Let Django's own asynchronous calls in this task be made in *context*, in the threads of the site's functions.

    Returns what takes that back.
    """
    own = ThreadSensitiveContext()
    SyncToAsync.context_to_thread_executor[own] = _InContext(context)
    return SyncToAsync.thread_sensitive_context.set(own)


class _InContext(Executor):
    def __init__(self, context: ThreadContext) -> None:
        self._context = context

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _slow().submit(_call_and_leave, partial(self._context.run, function, *args, **kwargs))


@contextmanager
def leaving_no_connection() -> Iterator[None]:
    """Close the connections opened in the block: for threads that neither belong to Django nor end with a request."""
    open_before = {each.alias for each in connections.all(initialized_only=True) if each.connection is not None}
    try:
        yield
    finally:
        _close_connections(but=open_before)


def from_callback(function: Callable[[], _R]) -> _R:
    """
    Call *function*, which may use the database, in a callback of a library, whatever thread that is.

    An event loop in this thread waits for it: such a callback cannot be awaited.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with leaving_no_connection():
            return in_context(function)()
    return background().submit(copy_context().run, _call, function).result()


@cache
def background() -> Background:
    """Return the threads that all tasks of this process share which outlive their requests, for the database."""
    return Background(conf.threads().THREADS)


@cache
def _slow() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="chatmemory-slow")


@sync_to_async(thread_sensitive=True)  # created once, which takes as long as a hop
@private
def _call_here(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    return raisable(in_context(function))(*args, **kwargs)


async def _call_in(executor: Executor, call: Callable[[Callable[[], _R]], _R], function: Callable[[], _R]) -> _R:
    # The stubs know no executor but that of Python.
    return await sync_to_async(call, thread_sensitive=False, executor=cast("ThreadPoolExecutor", executor))(function)


def _close_connections(but: Collection[str] = ()) -> None:
    for connection in connections.all(initialized_only=True):
        if connection.alias not in but and not connection.in_atomic_block:
            connection.close()


@private
def _call(function: Callable[[], _R]) -> _R:
    return raisable(in_context(function))()


@private
def _call_and_leave(function: Callable[[], _R]) -> _R:
    try:
        return _call(function)
    finally:
        leave_connections()
