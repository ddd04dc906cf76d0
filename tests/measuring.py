"""How much memory a block of code takes, and large bodies to measure it with."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def measured() -> Iterator[dict[str, int]]:
    """Measure the most that the block allocates, and what it leaves, without the cyclic garbage collector."""
    found: dict[str, int] = {}
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield found
        found["left"], found["most"] = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()


def filled(begin: str, part: str, end: str, size: int) -> bytes:
    """Return JSON of about *size* bytes: *begin*, as many times *part* as fit, and *end*."""
    return begin.encode() + part.encode() * (size // len(part.encode())) + end.encode()
