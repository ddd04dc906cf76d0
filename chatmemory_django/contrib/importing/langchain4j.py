"""The JSON of LangChain4j's ``ChatMessageSerializer``, which is also this project's own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from chatmemory_django.codec import message_from_json
from chatmemory_django.contrib.importing.moved import MovedMessage
from chatmemory_django.messages import NewMessage


def read_messages(items: Iterable[Any]) -> list[MovedMessage]:
    """Return the messages in *items*."""
    return [MovedMessage(_new_message(item, index)) for index, item in enumerate(items)]


def _new_message(item: Any, index: int) -> NewMessage:
    try:
        return NewMessage(message_from_json(json.dumps(item)))
    except ValueError as exc:
        raise ValueError(f"$[{index}]{str(exc).removeprefix('$')}") from None
