"""How each framework writes messages: in rows of its table, or in lists of JSON objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias

from chatmemory_django.codec import message_from_json
from chatmemory_django.contrib.importing import chatgpt
from chatmemory_django.contrib.importing.documents import open_array, open_conversations
from chatmemory_django.contrib.importing.moved import (
    ReadMessages,
    Source,
    UnreadableSourceError,
    from_json,
    having,
    moment,
)
from chatmemory_django.contrib.importing.tables import ReadRow, Table, ThreadTable, is_database, open_table
from chatmemory_django.formats.langchain import LANGCHAIN
from chatmemory_django.formats.llama_index import LLAMA_INDEX
from chatmemory_django.formats.openai_items import OPENAI_ITEMS
from chatmemory_django.formats.pydantic_ai import to_new_messages
from chatmemory_django.formats.verbatim import Format, to_new_message
from chatmemory_django.messages import NewMessage
from chatmemory_django.operations import ImportedMessage

NANOSECONDS = 1_000_000_000
"""LlamaIndex's timestamps are in this unit of a second."""

Read: TypeAlias = Callable[[Any, str], NewMessage]
"""Returns a message from its JSON object; the text is where that is, for errors."""


def _read(format: Format, keys: Sequence[str], item: Any, where: str) -> NewMessage:
    """Return the message in *item* of *format*, which must have *keys*."""
    return to_new_message(having(item, keys, where), format, where)


_langchain: Read = partial(_read, LANGCHAIN, ("type", "data"))  # as ``messages_to_dict`` writes it
_llama_index: Read = partial(_read, LLAMA_INDEX, ("role",))
_openai: Read = partial(_read, OPENAI_ITEMS, ())


def _row(read: Read, row: Sequence[Any], where: str) -> list[ImportedMessage]:
    """Return the message in *row*: its JSON, and its time."""
    data, time = row
    return [ImportedMessage(read(from_json(data, where), where), moment(time))]


def _llama_index_row(row: Sequence[Any], where: str) -> list[ImportedMessage]:
    """Return the same of LlamaIndex. Archived and active messages become one history: the site's window decides."""
    data, time = row
    return _row(_llama_index, (data, time / NANOSECONDS if isinstance(time, int) else None), where)


def _list(read: Read, items: Iterable[Any]) -> list[ImportedMessage]:
    return [ImportedMessage(read(item, f"messages[{index}]")) for index, item in enumerate(items)]


def _langchain4j_list(items: Iterable[Any]) -> list[ImportedMessage]:
    """Return the messages in *items*, as ``ChatMessageSerializer`` writes them, and this project itself."""

    def read(item: Any, index: int) -> NewMessage:
        try:
            return NewMessage(message_from_json(json.dumps(item)))
        except ValueError as exc:
            raise ValueError(f"$[{index}]{str(exc).removeprefix('$')}") from None

    return [ImportedMessage(read(item, index)) for index, item in enumerate(items)]


def _pydantic_ai_list(items: Iterable[Any]) -> list[ImportedMessage]:
    """Return the messages in *items*, as ``all_messages_json()`` writes them; a request may become several."""
    return [
        ImportedMessage(new, moment(next(_times(item), None)))
        for index, item in enumerate(items)
        for new in to_new_messages(having(item, ("kind", "parts"), f"messages[{index}]"), f"messages[{index}]")
    ]


def _times(item: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the timestamps of *item*; before pydantic-ai 1, only the parts of requests had one."""
    for each in (item, *(item.get("parts") or ())):
        if isinstance(each, dict) and each.get("timestamp") is not None:
            yield each["timestamp"]


TABLES: dict[str, tuple[Table, ReadRow]] = {
    "django-ai-assistant": (
        Table(
            "django_ai_assistant_message",
            "id",
            "thread_id",
            ("message", "created_at"),
            threads=ThreadTable(
                "django_ai_assistant_thread", "id", "created_by_id", "name", "created_at", "updated_at", "assistant_id"
            ),
        ),
        partial(_row, _langchain),
    ),
    # ``SQLChatMessageHistory`` and ``PostgresChatMessageHistory``
    "langchain": (
        Table("message_store", "id", "session_id", ("message",), optional=("created_at",)),
        partial(_row, _langchain),
    ),
    # ``SQLAlchemyChatStore``
    "llamaindex": (Table("llama_index_memory", "id", "key", ("data", "timestamp")), _llama_index_row),
    # ``SQLiteSession`` and ``SQLAlchemySession`` of the Agents SDK
    "openai": (Table("agent_messages", "id", "session_id", ("message_data", "created_at")), partial(_row, _openai)),
}
"""The frameworks that store messages in a table."""

MESSAGES: dict[str, ReadMessages] = {
    "langchain": partial(_list, _langchain),
    "langchain4j": _langchain4j_list,
    "llamaindex": partial(_list, _llama_index),
    "pydantic-ai": _pydantic_ai_list,
}
"""The frameworks that write a conversation's messages as a list."""

FRAMEWORKS = tuple(sorted({*TABLES, *MESSAGES}))


def open_source(
    framework: str, source: str, table: str | None = None, *, with_owners: bool = True
) -> AbstractContextManager[Source]:
    """
    Open the data of *framework*: a database, with *table* if the table is not named as by default, or a JSON file.

    Conversations have their owners, if the framework has them, unless they are not wanted.

    Raises:
        UnreadableSourceError: It is neither, or not that framework's; this may also be raised while it is read.
        OSError: The file does not exist, or cannot be read.

    """
    if framework in TABLES and (table is not None or is_database(source)):
        layout, read_row = TABLES[framework]
        return open_table(source, layout._replace(name=table or layout.name), read_row, with_owners=with_owners)
    if framework == "openai":
        return open_array(source, chatgpt.FILES, chatgpt.read_conversation)
    if framework in MESSAGES and not is_database(source):
        return open_conversations(source, MESSAGES[framework])
    if framework in MESSAGES:
        raise UnreadableSourceError(f"{framework} does not store messages in a table; pass its JSON.")
    raise UnreadableSourceError(f"{framework} stores messages in a table; pass its database.")
