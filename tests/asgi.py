"""Run coroutines as an ASGI server runs them."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from asgiref.sync import sync_to_async
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
