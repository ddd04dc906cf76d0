"""
Error reports without messages: what a function held when it failed is dropped before its exception is reported.

``sensitive_variables`` hides the variables of a function and of what it calls. It knows no generators, and not what
coroutines call, so that here the frames themselves are emptied. The traceback with its lines stays.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from functools import wraps
from traceback import clear_frames
from typing import Any, TypeVar

from django.http.response import HttpResponseBase
from django.template.response import SimpleTemplateResponse
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

_T = TypeVar("_T")


def private_view(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Return *view*; if that fails, or the rendering of its response, which comes later, no variable is reported."""

    @sensitive_post_parameters()
    @wraps(view)
    @sensitive_variables()
    def wrapped(*args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(*args, **kwargs)
        if isinstance(response, SimpleTemplateResponse):

            @sensitive_variables()
            def render() -> SimpleTemplateResponse:
                del response.__dict__["render"]  # a cache may pickle the response
                return response.render()

            response.render = render  # type: ignore[method-assign]
        return response

    return wrapped


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


def private(events: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """Yield *events*; if that fails, no variable of what has made them is reported."""
    try:
        yield from events
    except Exception as exc:
        empty_frames(exc)
        raise


async def aprivate(events: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """See ``private``."""
    async with aclosing(events):
        while True:
            try:
                yield await anext(events)  # no variable holds it, which would be reported
            except StopAsyncIteration:
                return
            except Exception as exc:
                empty_frames(exc)
                raise
