"""
The table of LlamaIndex's ``SQLAlchemyChatStore``, and the JSON of its ``SimpleChatStore``.

Archived and active messages become one history; the site's own window determines which of them are in the memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chatmemory_django.contrib.importing.moved import MovedMessage, from_json, having, moment
from chatmemory_django.contrib.importing.tables import Table
from chatmemory_django.formats.llama_index import LLAMA_INDEX
from chatmemory_django.formats.verbatim import to_new_message
from chatmemory_django.messages import NewMessage

TABLE = Table("llama_index_memory", "id", "key", ("data", "timestamp"))

NANOSECONDS = 1_000_000_000
"""LlamaIndex's timestamps are in this unit of a second."""


def read_row(row: Sequence[Any], where: str) -> list[MovedMessage]:
    """Return the message in a row of a chat store."""
    data, timestamp = row
    time = moment(timestamp / NANOSECONDS) if isinstance(timestamp, int) else None
    return [MovedMessage(_new_message(from_json(data, where), where), time)]


def read_messages(items: Iterable[Any]) -> list[MovedMessage]:
    """Return the messages in *items*."""
    return [MovedMessage(_new_message(item, f"messages[{index}]")) for index, item in enumerate(items)]


def _new_message(item: Any, where: str) -> NewMessage:
    return to_new_message(having(item, ("role",), where), LLAMA_INDEX, where)
