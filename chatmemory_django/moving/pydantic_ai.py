"""The JSON of pydantic-ai's messages, a list as ``ModelMessagesTypeAdapter`` and ``all_messages_json()`` write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chatmemory_django.formats.pydantic_ai import to_given
from chatmemory_django.moving.moved import MovedMessage, having, moment


def read_messages(items: Sequence[Any]) -> list[MovedMessage]:
    """Return the messages that *items*, requests and responses, are: a request may be several."""
    return [
        MovedMessage(given, moment(_time(item)))
        for index, item in enumerate(items)
        for given in to_given(having(item, ("kind", "parts"), f"messages[{index}]"), f"messages[{index}]")
    ]


def _time(item: Mapping[str, Any]) -> Any:
    """When *item* was said; of requests, only their parts said it before pydantic-ai 1."""
    return next(_times(item), None)


def _times(item: Mapping[str, Any]) -> Iterator[Any]:
    for said in (item, *(item.get("parts") or ())):
        if isinstance(said, dict) and said.get("timestamp") is not None:
            yield said["timestamp"]
