"""The tables of the OpenAI Agents SDK: those of its ``SQLiteSession`` and of its ``SQLAlchemySession``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chatmemory_django.contrib.importing.moved import MovedMessage, from_json, moment
from chatmemory_django.contrib.importing.tables import Table
from chatmemory_django.formats.openai_items import OPENAI_ITEMS
from chatmemory_django.formats.verbatim import to_new_message

TABLE = Table("agent_messages", "id", "session_id", ("message_data", "created_at"))


def read_row(row: Sequence[Any], where: str) -> list[MovedMessage]:
    """Return the message in a row of ``agent_messages``."""
    data, created_at = row
    return [MovedMessage(to_new_message(from_json(data, where), OPENAI_ITEMS, where), moment(created_at))]
