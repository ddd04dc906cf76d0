"""Coroutines, run as a server under ASGI would run them."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

T = TypeVar("T")


def run(coroutine: Coroutine[None, None, T]) -> T:
    """What *coroutine* returns. The thread that it used for the database leaves no connection open."""

    async def run_and_close() -> T:
        try:
            return await coroutine
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run_and_close())
