"""Running what the tests are about: in an event loop of its own, and in many threads at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from django.db import connections


def run(coroutine):
    """What *coroutine* returns, in an event loop of its own."""
    return asyncio.run(coroutine)


def in_threads(count: int, call) -> list:
    """What *call* returns for each number below *count*, all begun at once, each in a thread of its own."""
    begin = threading.Barrier(count)

    def called(number: int):
        begin.wait()
        try:
            return call(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(called, range(count)))
