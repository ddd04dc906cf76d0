"""A pytest plugin: langchain-core's own tests get our history wherever they create an ``InMemoryChatMessageHistory``.

Tests of that class itself are left out; one of them reads a history without ``await`` in an event loop.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import langchain_core.chat_history
from django.db import connections
from plain_site import leave_out

from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory

OF_THE_CLASS = ("test_chat_history_deprecated", "test_in_memory_history_initialization")


def _apart(function, *arguments):
    """Return the result of *function*, called in a thread without an event loop."""

    def called():
        try:
            return function(*arguments)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(called).result()


class History(DjangoChatMessageHistory):
    """A history with the arguments of an ``InMemoryChatMessageHistory``, compared by its messages."""

    def __init__(self, messages=()):
        super().__init__(str(uuid.uuid4()))
        _apart(self.add_messages, messages)

    def __eq__(self, other):
        return _apart(lambda: self.messages == other.messages)

    __hash__ = None


langchain_core.chat_history.InMemoryChatMessageHistory = History


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of the class itself."""
    leave_out(config, items, OF_THE_CLASS)
