"""
Error reports without messages, in one way: ``private`` on the functions that are given texts, or keys.

Their variables, and those of what they call, are dropped before an exception leaves them; the traceback with its lines
stays. What Django reports in the meantime, of an exception that is logged below, has none either.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from traceback import clear_frames
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


def private(function: _F) -> _F:
    """Return *function*, which may be asynchronous, a generator or both, such that no report has its variables."""
    if isgeneratorfunction(function):
        return cast("_F", wraps(function)(lambda *args, **kwargs: _private(function(*args, **kwargs))))
    if isasyncgenfunction(function):
        return cast("_F", wraps(function)(lambda *args, **kwargs: _aprivate(function(*args, **kwargs))))
    if iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except Exception as exc:
                del args, kwargs
                empty_frames(exc)
                raise

        return cast("_F", awaited)

    @wraps(function)
    def sensitive_variables_wrapper(*args: Any, **kwargs: Any) -> Any:
        # Below a function with this name and attribute, which is that of its own decorator, Django reports no variable.
        sensitive_variables_wrapper.sensitive_variables = "__ALL__"  # type: ignore[attr-defined]
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            del args, kwargs
            empty_frames(exc)
            raise

    return cast("_F", sensitive_variables_wrapper)


def private_view(view: _F) -> _F:
    """Return *view*, private with its form; and so is the rendering of its response, which comes later."""

    @wraps(view)
    @private
    def wrapped(request: Any, *args: Any, **kwargs: Any) -> Any:
        request.sensitive_post_parameters = "__ALL__"  # for Django
        response = view(request, *args, **kwargs)
        if hasattr(response, "render"):

            @private
            def render() -> Any:
                del response.__dict__["render"]  # a cache may pickle the response
                return response.render()

            response.render = render
        return response

    return cast("_F", wrapped)


def empty_frames(error: BaseException) -> None:
    """Drop the variables of all functions that *error*, and what it came from, has ended."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            clear_frames(each.__traceback__)
            errors += [each.__cause__, each.__context__]


def to_log(error: BaseException) -> BaseException:
    """Return *error* without variables, and without the function that handles it, which still has its own."""
    empty_frames(error)
    return error if error.__traceback__ is None else error.with_traceback(error.__traceback__.tb_next)


def _private(events: Generator[_T, None, None]) -> Generator[_T, None, None]:
    try:
        yield from events
    except Exception as exc:
        empty_frames(exc)
        raise


async def _aprivate(events: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    async with aclosing(events):
        while True:
            try:
                yield await anext(events)  # no variable holds it, which would be reported
            except StopAsyncIteration:
                return
            except Exception as exc:
                empty_frames(exc)
                raise
