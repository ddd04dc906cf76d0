"""
What tasks of Celery, or of ``django.tasks``, call: a worker for as long as there is something to do.

Each is called in a thread without an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from django.db import DEFAULT_DB_ALIAS

from chatmemory_django.chat.worker import Worker


def generate_answers(databases: Sequence[str] = (DEFAULT_DB_ALIAS,), context: str = "", concurrency: int = 20) -> None:
    """
    Generate all answers that wait in *databases*, and return when they have ended.

    *context* is what the setting ``THREAD_CONTEXT`` has captured: look there only. What another process generates is
    not awaited. If the database is away, so that what waits is not known, this raises ``worker.UnknownWorkError``.
    """

    async def work() -> None:
        await Worker(databases, (lambda: [context]) if context else None, concurrency).work_off()

    asyncio.run(work())
