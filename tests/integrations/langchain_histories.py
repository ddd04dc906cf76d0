"""
A plugin for pytest: wherever langchain-core's own tests make an ``InMemoryChatMessageHistory``, they get one of ours.

Left out are those of the class itself, of which one reads a history without ``await`` in an event loop.
"""

import uuid
from concurrent.futures import ThreadPoolExecutor

import langchain_core.chat_history
from django.db import connections
from plain_site import leave_out

from chatmemory_django.integrations.langchain import DjangoChatMessageHistory

OF_THE_CLASS = ("test_chat_history_deprecated", "test_in_memory_history_initialization")


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
    """Leave out what is about the class itself."""
    leave_out(config, items, OF_THE_CLASS)
