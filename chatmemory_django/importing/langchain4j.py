"""The JSON of LangChain4j's ``ChatMessageSerializer``, which is also this project's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from chatmemory_django.codec import messages_from_json
from chatmemory_django.importing.moved import MovedMessage
from chatmemory_django.messages import NewMessage


def read_messages(items: Sequence[Any]) -> list[MovedMessage]:
    """Return the messages in *items*."""
    return [MovedMessage(NewMessage(message)) for message in messages_from_json(json.dumps(items))]
