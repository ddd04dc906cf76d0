"""The connections to a model's server: one client for all threads, and one for each event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import openai


class Clients:
    """
    The clients with *options*, each created when it is first needed.

    They are closed when this object is no longer referenced. Otherwise, the client for threads is closed when the
    process ends, and that of an event loop when the loop closes its asynchronous generators, as ``asyncio.run`` does.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._of_processes: dict[int, openai.OpenAI] = {}
        self._of_loops: dict[asyncio.AbstractEventLoop, tuple[openai.AsyncOpenAI, AsyncGenerator[None, None]]] = {}

    @property
    def lacks_key(self) -> bool:
        """Whether the clients have no API key."""
        return not (self._options.get("api_key") or os.environ.get("OPENAI_API_KEY"))

    def for_threads(self) -> openai.OpenAI:
        """Return the client for all threads of this process. A forked process gets its own client and connections."""
        process = os.getpid()
        if process not in self._of_processes:
            transport = openai.DefaultHttpxClient(event_hooks={"response": [_give_up_without_quota]})
            client = openai.OpenAI(http_client=transport, **self._options)
            # Two threads may both create one. Only the first is kept; the other has no connections yet.
            if self._of_processes.setdefault(process, client) is client:
                weakref.finalize(self, _close, client, process)
        return self._of_processes[process]

    async def for_loop(self) -> openai.AsyncOpenAI:
        """Return the client for the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._of_loops:
            for ended in [each for each in tuple(self._of_loops) if each.is_closed()]:
                self._of_loops.pop(ended, None)
            transport = openai.DefaultAsyncHttpxClient(event_hooks={"response": [_agive_up_without_quota]})
            client = openai.AsyncOpenAI(http_client=transport, **self._options)
            keeper = _closes(client)
            await anext(keeper)
            self._of_loops[loop] = client, keeper
        return self._of_loops[loop][0]


class _Response(Protocol):
    """The used part of httpx's response. The client chooses the HTTP package, so it is not imported here."""

    status_code: int
    content: bytes
    headers: Any

    def read(self) -> bytes: ...

    async def aread(self) -> bytes: ...


async def _closes(client: openai.AsyncOpenAI) -> AsyncGenerator[None, None]:
    """Close *client* when this generator is closed, which its event loop does at its end."""
    async with client:
        yield


def _close(client: openai.OpenAI, process: int) -> None:
    if os.getpid() == process:
        client.close()


def _give_up_without_quota(response: _Response) -> None:
    if response.status_code == 429:
        response.read()
        _refuse_to_repeat(response)


async def _agive_up_without_quota(response: _Response) -> None:
    if response.status_code == 429:
        await response.aread()
        _refuse_to_repeat(response)


def _refuse_to_repeat(response: _Response) -> None:
    # The client retries every 429 unless this header forbids it; waiting does not restore a quota.
    if b'"insufficient_quota"' in response.content:
        response.headers["x-should-retry"] = "false"
