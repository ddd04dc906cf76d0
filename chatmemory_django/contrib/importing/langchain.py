"""
The tables of LangChain's ``SQLChatMessageHistory`` and ``PostgresChatMessageHistory``, and its JSON.

The JSON is a list as ``messages_to_dict`` and ``FileChatMessageHistory`` write it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from chatmemory_django.contrib.importing.moved import MovedMessage, from_json, having, moment
from chatmemory_django.contrib.importing.tables import Table
from chatmemory_django.formats.langchain import LANGCHAIN
from chatmemory_django.formats.verbatim import to_new_message
from chatmemory_django.messages import NewMessage

TABLE = Table("message_store", "id", "session_id", ("message",), optional=("created_at",))


def read_row(row: Sequence[Any], where: str) -> list[MovedMessage]:
    """Return the message in a row of a history."""
    message, created_at = row
    return [MovedMessage(_new_message(from_json(message, where), where), moment(created_at))]


def read_messages(items: Iterable[Any]) -> list[MovedMessage]:
    """Return the messages in *items*."""
    return [MovedMessage(_new_message(item, f"messages[{index}]")) for index, item in enumerate(items)]


def _new_message(item: Any, where: str) -> NewMessage:
    return to_new_message(having(item, ("type", "data"), where), LANGCHAIN, where)
