"""
The threads that tasks which outlive their requests share for the database, and what waits for one of them.

What goes on comes before what is new, so that answers in progress do not wait for a crowd at the door. While several
calls wait, a thread keeps its connections from one to the next, although ``CONN_MAX_AGE`` may be 0: the crowd is like
one long request. Otherwise, Django's own rules apply.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

from django.db import Error, connections

from chatmemory_django import observing
from chatmemory_django.private import private

KEPT_CALLS = 100
"""After how many calls a thread closes its connections even if more wait, as behind a crowd that does not end."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _Call(NamedTuple):
    future: Future[Any]
    function: Callable[[], Any]
    since: float


class _New(Executor):
    """The end of the queue of *background*."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def submit(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        return self._background.add(partial(function, *args, **kwargs), is_new=True)


class Background(Executor):
    """Makes calls in so many *threads*. ``new`` is an executor whose calls come after all others."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.new = _New(self)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="chatmemory")
        self._going_on: deque[_Call] = deque()
        self._new: deque[_Call] = deque()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return len(self._going_on) + len(self._new)

    @property
    def new_waiting(self) -> int:
        """How many of them are ``new``."""
        return len(self._new)

    def submit(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_R]:
        return self.add(partial(function, *args, **kwargs), is_new=False)

    def add(self, function: Callable[[], _R], *, is_new: bool) -> Future[_R]:
        """Let *function* be called in one of the threads, after all that wait if it *is_new*."""
        call = _Call(Future(), function, time.monotonic())
        with self._lock:
            (self._new if is_new else self._going_on).append(call)
        if observing.observers:
            observing.note("waiting", change=1)
        self._executor.submit(self._work)
        return call.future

    def _work(self) -> None:
        """Make the calls that wait, until there are none."""
        made, call = 0, self._next()
        while call is not None:
            value, error = _outcome(call.function)
            made, following = made + 1, self._next()
            is_crowd = following is not None and self.waiting > 0  # beside it, as another thread may have been as quick
            _, failed = _outcome(partial(leave_connections, keeps=is_crowd and made % KEPT_CALLS > 0))
            error = error or failed
            if error is None:
                call.future.set_result(value)
            else:
                call.future.set_exception(error)
            call, value, error = following, None, None  # which must not live until the next call

    def _next(self) -> _Call | None:
        """Return the call that comes next, and is not cancelled."""
        while True:
            with self._lock:
                waiting = self._going_on or self._new
                if not waiting:
                    return None
                call = waiting.popleft()
            if observing.observers:
                observing.note("waiting", change=-1)
            if call.future.set_running_or_notify_cancel():
                if observing.observers:
                    observing.note("waited", seconds=time.monotonic() - call.since)
                return call


@private
def _outcome(function: Callable[[], _R]) -> tuple[_R | None, BaseException | None]:
    """Return the value of *function*, or its error, in whose traceback is no frame that sees the next call."""
    try:
        return function(), None
    except BaseException as exc:  # noqa: BLE001  # it is raised where the value is awaited
        return None, exc


def leave_connections(*, keeps: bool = False) -> None:
    """
    Do what Django does with the connections of a thread between two requests, in a thread that no test's transaction
    is in. If it *keeps* those with a ``CONN_MAX_AGE`` of 0, that does not count, except of a pool, for which others may
    wait.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            # It was cut as a transaction ended, so that its autocommit stayed off: then Django leaves no other one.
            with suppress(Error):
                connection.close()
            del connections[connection.alias]
            continue
        given = connection.settings_dict
        if given["CONN_MAX_AGE"] == 0 and not given["OPTIONS"].get("pool"):
            connection.close_at = None if keeps else 0
        connection.close_if_unusable_or_obsolete()
