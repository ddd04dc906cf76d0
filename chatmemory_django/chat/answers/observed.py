"""The events of an answer, as one operation for those who observe, see ``observing``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar

from chatmemory_django import observing

_T = TypeVar("_T")


def observed(events: Generator[_T, None, None], assistant: Any) -> Generator[_T, None, None]:
    """
    Return *events*, of which each step is part of one operation: an answer of *assistant*.

    What the caller does between two events is no part of it: a generator shares its context with who iterates.
    """
    return _observed(events, assistant) if observing.observers else events


def aobserved(events: AsyncGenerator[_T, None], assistant: Any) -> AsyncGenerator[_T, None]:
    """See ``observed``."""
    return _aobserved(events, assistant) if observing.observers else events


def _observed(events: Generator[_T, None, None], assistant: Any) -> Generator[_T, None, None]:
    operation, error = observing.Operation("answer", assistant=assistant), None
    try:
        while True:
            with operation.active():
                try:
                    event = next(events)
                except StopIteration:
                    return
            yield event
            del event  # it has no place in an error report
    except BaseException as exc:
        error = exc
        raise
    finally:
        with operation.active():
            events.close()
        operation.end(error)
        del error  # whose traceback has this frame


async def _aobserved(events: AsyncGenerator[_T, None], assistant: Any) -> AsyncGenerator[_T, None]:
    operation, error = observing.Operation("answer", assistant=assistant), None
    try:
        while True:
            with operation.active():
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    return
            yield event
            del event
    except BaseException as exc:
        error = exc
        raise
    finally:
        with operation.active():
            await events.aclose()
        operation.end(error)
        del error  # whose traceback has this frame
