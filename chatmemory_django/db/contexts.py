"""
The context of the work that threads do for a request: what the middleware has set on its connection, set on theirs.

It is what ``CHATMEMORY["CHAT"]["THREAD_CONTEXT"]`` makes of the request, again for each piece of work. Without it, this
does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from chatmemory_django import conf

if TYPE_CHECKING:
    from django.http import HttpRequest

MAX_CAPTURED = 255
"""How many characters ``capture`` may return."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class ThreadContext:
    """
    The context of a request, known by what the setting captures of it or, if that is a function, by the request.

    Work in contexts that are equal can be done together.
    """

    subject: HttpRequest | str

    @classmethod
    def of(cls, request: HttpRequest | None) -> Self | None:
        """Return the context of *request*, which the site looks at in this thread; None without one."""
        given: Any = conf.imported(conf.threads().THREAD_CONTEXT)
        if given is None or request is None:
            return None
        if not hasattr(given, "capture"):
            return cls(request)
        captured = given.capture(request)
        if not isinstance(captured, str) or len(captured) > MAX_CAPTURED:
            size = f" of {len(captured)} characters" if isinstance(captured, str) else ""
            raise ValueError(
                f"capture() of CHATMEMORY['CHAT']['THREAD_CONTEXT'] has returned a {type(captured).__name__}{size}; it "
                f"must return a str of at most {MAX_CAPTURED} characters."
            )
        return cls(captured)

    @property
    def captured(self) -> str:
        """What is stored with a run; without ``capture``, nothing."""
        return self.subject if isinstance(self.subject, str) else ""

    @property
    def name(self) -> str:
        """What keeps users with the same key apart: without ``capture``, the host."""
        return self.subject if isinstance(self.subject, str) else self.subject.get_host()

    def run(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call *function* in this context, which is entered unless this thread is in it already."""
        before = _entered.context
        if before == self:
            return function(*args, **kwargs)
        given: Any = conf.imported(conf.threads().THREAD_CONTEXT)
        enter = given.enter if isinstance(self.subject, str) else given
        with enter(self.subject):
            _entered.context, token = self, current.set(self)
            try:
                return function(*args, **kwargs)
            finally:
                current.reset(token)
                _entered.context = before
        raise RuntimeError("The context manager of CHATMEMORY['CHAT']['THREAD_CONTEXT'] has suppressed an exception.")


class _Entered(threading.local):
    context: ThreadContext | None = None


_entered = _Entered()

current: ContextVar[ThreadContext | None] = ContextVar("current", default=None)
"""The context for which this code works, also where it is not entered, as in an event loop."""


def in_context(function: Callable[_P, _R], context: ThreadContext | None = None) -> Callable[_P, _R]:
    """Return *function* so that a thread calls it in *context*, by default the current one."""
    context = context or current.get()
    return function if context is None else partial(context.run, function)


@contextmanager
def _working_for(context: ThreadContext | None) -> Iterator[None]:
    """Let *context* be the current one in the block, which does not enter it."""
    token = current.set(context)
    try:
        yield
    finally:
        current.reset(token)


def continued(pieces: Generator[_R, None, None], context: ThreadContext | None) -> Generator[_R, None, None]:
    """
    Yield *pieces*, of which all but the first one, and their end, are made for *context*.

    The first one is made while the middleware of the request has set what it sets; the others come when it has ended.
    """
    try:
        yield next(pieces)
        while True:
            with _working_for(context):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece
    finally:
        with _working_for(context):
            pieces.close()


def name_of(context: ThreadContext | None) -> str:
    """Return the name of *context*."""
    return "" if context is None else context.name
