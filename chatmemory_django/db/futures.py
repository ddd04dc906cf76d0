"""What functions may raise when they are called in a thread for a coroutine."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

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


def raisable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return *function* with a ``RuntimeError`` in place of the exceptions that cannot be raised in a coroutine."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except UNRAISABLE as exc:
            raise RuntimeError(f"A function that a coroutine called raised {type(exc).__name__}.") from exc

    return call
