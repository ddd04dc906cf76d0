"""
A plugin for pytest: wherever langchain-core's own tests make an ``InMemoryChatMessageHistory``, they get one of ours.

Left out are those of the class itself, of which one reads a history without ``await`` in an event loop.
"""

import asyncio
import os
import uuid
from concurrent.futures import ThreadPoolExecutor

import dj_database_url
import django
import pytest
from django.conf import settings
from django.test.utils import setup_databases, teardown_databases

database = {**dj_database_url.parse(os.environ["DATABASE_URL"]), "TEST": {"NAME": os.environ["TEST_NAME"]}}
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "chatmemory_django"],
    DATABASES={"default": database},
    CHATMEMORY={
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}}
    },
    USE_TZ=True,
)
django.setup()

import langchain_core.chat_history  # noqa: E402
from django.db import connections  # noqa: E402

from chatmemory_django.integrations.langchain import DjangoChatMessageHistory  # noqa: E402
from chatmemory_django.threads import close_thread_sensitive  # noqa: E402

OF_THE_CLASS = {"test_chat_history_deprecated", "test_in_memory_history_initialization"}

_databases = []


def _apart(function, *arguments):
    """What *function* returns, in a thread that no event loop runs in."""

    def called():
        try:
            return function(*arguments)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(called).result()


class History(DjangoChatMessageHistory):
    """A history that takes the arguments of an ``InMemoryChatMessageHistory``, and is equal by its messages."""

    def __init__(self, messages=()):
        super().__init__(str(uuid.uuid4()))
        _apart(self.add_messages, messages)

    def __eq__(self, other):
        return _apart(lambda: self.messages == other.messages)

    __hash__ = None


langchain_core.chat_history.InMemoryChatMessageHistory = History


def pytest_collection_modifyitems(config, items):
    """Leave out what is about the class itself; it must be there, so that no name here is a mistake."""
    left = [item for item in items if item.originalname in OF_THE_CLASS]
    if {item.originalname for item in left} != OF_THE_CLASS:
        raise pytest.UsageError(f"langchain-core has no tests of some of these names any more: {OF_THE_CLASS}")
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_sessionstart(session):
    """Make the test database."""
    _databases.extend(setup_databases(verbosity=0, interactive=False))


def pytest_sessionfinish(session):
    """Drop it, once the thread that has used it has no connection to it."""
    asyncio.run(close_thread_sensitive())
    teardown_databases(_databases, verbosity=0)
