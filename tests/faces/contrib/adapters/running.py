"""Ways to run the code under test: in an event loop of its own, or in many threads at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from django.db import connections


def run(coroutine):
    """Return the result of *coroutine*, run in an event loop of its own."""
    return asyncio.run(coroutine)


def in_threads(count: int, call) -> list:
    """Return the results of *call* for each number below *count*, all started at once, each in its own thread."""
    begin = threading.Barrier(count)

    def called(number: int):
        begin.wait()
        try:
            return call(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(called, range(count)))
