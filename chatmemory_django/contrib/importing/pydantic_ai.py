"""The JSON of pydantic-ai's messages, a list as ``ModelMessagesTypeAdapter`` and ``all_messages_json()`` write it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chatmemory_django.contrib.importing.moved import MovedMessage, having, moment
from chatmemory_django.formats.pydantic_ai import to_new_messages


def read_messages(items: Iterable[Any]) -> list[MovedMessage]:
    """Return the messages in *items*, requests and responses; a request may become several."""
    return [
        MovedMessage(new, moment(_time(item)))
        for index, item in enumerate(items)
        for new in to_new_messages(having(item, ("kind", "parts"), f"messages[{index}]"), f"messages[{index}]")
    ]


def _time(item: Mapping[str, Any]) -> Any:
    """Yield the timestamps of *item*; before pydantic-ai 1, only the parts of requests had one."""
    return next(_times(item), None)


def _times(item: Mapping[str, Any]) -> Iterator[Any]:
    for each in (item, *(item.get("parts") or ())):
        if isinstance(each, dict) and each.get("timestamp") is not None:
            yield each["timestamp"]
