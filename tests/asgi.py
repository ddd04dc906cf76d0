"""Run coroutines, and send requests, as an ASGI server does."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import connections

T = TypeVar("T")


def run(coroutine: Coroutine[None, None, T]) -> T:
    """Return the result of *coroutine*, and close the database connection of the thread it used."""

    async def run_and_close() -> T:
        try:
            return await coroutine
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run_and_close())


async def send(application: Callable, path: str, headers: dict, body: bytes) -> tuple[int, bytes]:
    """Post *body* as an ASGI server does, and return the status and the content of the response."""
    named = {"Host": "testserver", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in named.items()],
    }
    one = ApplicationCommunicator(application, scope)
    await one.send_input({"type": "http.request", "body": body})
    start, content = await one.receive_output(60), await one.receive_output(60)
    await one.wait()
    return start["status"], content["body"]


async def leave(application: Callable, path: str, headers: dict | None = None, body: bytes = b"") -> None:
    """Send a request as a client that goes while a server sends it the first piece of the response."""
    method, received, is_gone = "POST" if body else "GET", [{"type": "http.request", "body": body}], asyncio.Event()

    async def receive() -> dict:
        if not received:
            await is_gone.wait()
        return received.pop() if received else {"type": "http.disconnect"}

    async def never_sent(message: dict) -> None:
        if message.get("body"):
            is_gone.set()
            await asyncio.Event().wait()

    named = {"Host": "testserver", "Content-Type": "application/json", **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": raw}
    await application(scope, receive, never_sent)
