"""Fixtures of the tests of adapters."""

import asyncio
from collections.abc import Iterator

import pytest

from chatmemory_django.db.threads import close_thread_sensitive

pytest.register_assert_rewrite("tests.faces.contrib.adapters.contract")


@pytest.fixture
def a_small_memory(settings) -> None:
    """Use a memory of three messages: what a framework stores and reads is not limited by it."""
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}}
    }


@pytest.fixture(autouse=True)
def _no_connection_is_left(django_db_blocker) -> Iterator[None]:
    yield
    with django_db_blocker.unblock():  # another test may have left one, which is looked at
        asyncio.run(close_thread_sensitive())
