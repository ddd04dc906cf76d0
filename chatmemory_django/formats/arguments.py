"""The arguments of a tool call: the text that the model wrote, and the JSON object that it should be."""

from __future__ import annotations

import json
from typing import Any


def to_text(arguments: object) -> str | None:
    """Return *arguments*, an object or any text that a model wrote instead, as the text of a call."""
    return arguments if arguments is None or isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def to_object(arguments: str | None) -> dict[str, Any] | None:
    """Return the JSON object in *arguments*, or None if there is none."""
    try:
        value = json.loads(arguments) if arguments and not arguments.isspace() else {}  # some models write nothing
    except (RecursionError, ValueError):
        return None
    return value if isinstance(value, dict) else None
