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
