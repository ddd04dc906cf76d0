"""For which memory a function of the site is called now, so that the calls of models in it are recorded with that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Served(Protocol):
    """What is known of such a memory."""

    id: object
    store: Any


_served: ContextVar[Served | None] = ContextVar("_served", default=None)


@contextmanager
def serving(memory: Served) -> Iterator[None]:
    """Let the block serve *memory*, for example summarize or entitle it; threads and tasks that it starts, too."""
    token = _served.set(memory)
    try:
        yield
    finally:
        _served.reset(token)


served = _served.get
"""Returns the memory that is served now, or None."""
