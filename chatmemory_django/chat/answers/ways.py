"""
The two ways to answer: in the caller's thread, or in an event loop.

The loop of an answer is written once, as a coroutine. In the caller's thread, nothing that it awaits ever waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from chatmemory_django.chat.answers.context import Checked, atext_of, text_of
from chatmemory_django.chat.answers.exchange import Exchange
from chatmemory_django.chat.answers.titles import TitleFunction, aentitle, entitle
from chatmemory_django.chat.model import ChatEvent, ChatRequest, ModelTimeoutError
from chatmemory_django.chat.threads import afterwards, apart, araisable
from chatmemory_django.chat.tools import Tool, acall_tool, call_tool
from chatmemory_django.db.contexts import in_context
from chatmemory_django.db.threads import in_slow_thread, in_thread, to_its_end
from chatmemory_django.messages import ToolExecutionRequest, ToolExecutionResultMessage

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Way(Protocol):
    """How an answer calls what may take long."""

    async def stored(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what *function*, which uses the database, returns."""

    async def called(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Return what *function* of the site returns; ``ModelTimeoutError`` once the answer has taken too long."""

    async def text(self, functions: Sequence[Checked], values: Mapping[str, Any]) -> str | None:
        """Return the text that *functions* of the site make of *values*."""

    async def value(self, function: Checked, values: Mapping[str, Any]) -> Any:
        """Return what *function* of the site makes of *values*."""

    def asked(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Yield the events of the model."""

    def results(
        self,
        exchange: Exchange,
        tools: Mapping[str, Tool],
        calls: Sequence[ToolExecutionRequest],
        values: Mapping[str, Any],
    ) -> AsyncGenerator[ToolExecutionResultMessage, None]:
        """Yield the results of *calls* as they end, which the caller stores."""

    async def end(self, exchange: Exchange) -> None:
        """End the turn of *exchange*."""

    async def entitle(self, exchange: Exchange, title: TitleFunction) -> None:
        """Give the conversation its title, if *exchange* was the first one."""


class InThisThread:
    """The way of ``chat`` and ``stream``: *ask* calls the model, and an answer takes at most *timeout* seconds."""

    def __init__(self, ask: Callable[[ChatRequest], Generator[ChatEvent, None, None]], timeout: float | None) -> None:
        self._ask = ask
        self._deadline = _Deadline(timeout)

    async def stored(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return in_context(function)(*args, **kwargs)

    async def called(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        returned = in_context(function)(*args, **kwargs)
        self._deadline.check()
        return returned

    async def text(self, functions: Sequence[Checked], values: Mapping[str, Any]) -> str | None:
        return await self.called(text_of, functions, values)

    async def value(self, function: Checked, values: Mapping[str, Any]) -> Any:
        return await self.called(function.value, values)

    async def asked(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        with closing(self._ask(request)) as events:
            following = partial(next, events, None)
            while (event := in_context(following)()) is not None:  # a model of the site may use the database
                yield event
                self._deadline.check()

    async def results(
        self,
        exchange: Exchange,
        tools: Mapping[str, Tool],
        calls: Sequence[ToolExecutionRequest],
        values: Mapping[str, Any],
    ) -> AsyncGenerator[ToolExecutionResultMessage, None]:
        for call in calls:
            self._deadline.check()
            yield in_context(call_tool)(tools, call, values)
        self._deadline.check()

    async def end(self, exchange: Exchange) -> None:
        if in_context(exchange.finish)(keeps_part=False, has_failed=False):
            in_context(exchange.turn.follow)()

    async def entitle(self, exchange: Exchange, title: TitleFunction) -> None:
        if exchange.first:
            in_context(entitle)(exchange.memory, *exchange.first, title)


class InEventLoop:
    """The way of ``achat`` and ``astream``, and of the chat over HTTP; see ``InThisThread``."""

    def __init__(self, ask: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]], timeout: float | None) -> None:
        self._ask = ask
        self._deadline = _Deadline(timeout)

    async def stored(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await to_its_end(in_thread(function, *args, **kwargs))  # what is stored of a cancelled answer is known

    async def called(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self._deadline.of(in_slow_thread(function, *args, **kwargs))

    async def text(self, functions: Sequence[Checked], values: Mapping[str, Any]) -> str | None:
        return await self._deadline.of(atext_of(functions, values))

    async def value(self, function: Checked, values: Mapping[str, Any]) -> Any:
        return await self._deadline.of(function.avalue(values))

    async def asked(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        async with aclosing(self._ask(request)) as events:
            while (event := await self._deadline.of(anext(events, None))) is not None:
                yield event

    async def results(
        self,
        exchange: Exchange,
        tools: Mapping[str, Tool],
        calls: Sequence[ToolExecutionRequest],
        values: Mapping[str, Any],
    ) -> AsyncGenerator[ToolExecutionResultMessage, None]:
        running = {asyncio.ensure_future(acall_tool(tools, call, values)): tools.get(call.name or "") for call in calls}
        try:
            while running:
                ended, _ = await self._deadline.of(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
                for task in [task for task in running if task in ended]:
                    result = task.result()
                    del running[task]
                    yield result
        finally:
            for task, tool in running.items():
                if tool is not None and tool.is_async:
                    task.cancel()
                else:  # its thread goes on, and what it does is remembered
                    apart(_store_late(exchange, task))

    async def end(self, exchange: Exchange) -> None:
        if await self.stored(exchange.finish, keeps_part=False, has_failed=False):
            await afterwards(exchange.turn.afollow())

    async def entitle(self, exchange: Exchange, title: TitleFunction) -> None:
        if exchange.first:
            await aentitle(exchange.memory, *exchange.first, title)


async def _store_late(exchange: Exchange, task: Awaitable[ToolExecutionResultMessage]) -> None:
    await in_thread(exchange.store_late, await task)


def in_this_thread(events: AsyncGenerator[_T, None]) -> Generator[_T, None, None]:
    """Yield what *events* yields, which awaits nothing that waits."""
    try:
        while True:
            try:
                anext(events).send(None)
            except StopIteration as exc:
                yield exc.value
            except StopAsyncIteration:
                return
            else:
                raise RuntimeError("Something that an answer awaits has waited, although it has no event loop.")
    finally:
        with suppress(StopIteration):
            events.aclose().send(None)


class _Deadline:
    """A deadline in *seconds* from now, or none if that is None."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Raise ``ModelTimeoutError`` if the deadline has passed."""
        if time.monotonic() > self._end:
            raise ModelTimeoutError(f"The answer took more than {self._seconds} seconds.")

    async def of(self, awaitable: Awaitable[_T]) -> _T:
        """Return the result of *awaitable*; raise ``ModelTimeoutError`` if the deadline passes first."""
        left = None if self._seconds is None else self._end - time.monotonic()
        try:
            async with asyncio.timeout(left):
                return await araisable(awaitable)
        except TimeoutError:
            self.check()
            raise
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("A CancelledError escaped from a model, although no one cancelled the answer.") from exc
