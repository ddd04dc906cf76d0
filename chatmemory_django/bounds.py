"""Bounds of JSON that comes from elsewhere: how deep it may be, and how long its texts."""

from __future__ import annotations

import sys
from typing import Any

FILES = frozenset({"base64Data", "binaryData", "data", "file_data", "image_url", "result", "url"})
"""Fields that may hold a whole file; only the size of everything bounds them."""

MAX_WHERE = 300
"""How many characters of a place are named in an error: it consists of the sender's own keys."""


class BoundsError(ValueError):
    """JSON that is too deep, or that has a text too long. *where* is its place, *reason* never repeats the text."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where[:MAX_WHERE]
        self.reason = reason
        super().__init__(f"{self.where}: {reason}")


def check_bounds(value: Any, max_depth: int, max_text_length: int, where: str = "$") -> None:
    """Raise ``BoundsError`` if *value* is nested deeper than *max_depth*, or a text is longer, files aside."""
    if isinstance(value, str):
        if len(value) > max_text_length:
            raise BoundsError(where, f"It has {len(value)} characters, but may have {max_text_length}.")
    elif isinstance(value, (dict, list)):
        if max_depth == 0:
            raise BoundsError(where, "It is nested too deeply; flatten it.")
        if isinstance(value, list):
            for index, item in enumerate(value):
                check_bounds(item, max_depth - 1, max_text_length, f"{where}[{index}]")
            return
        for key, item in value.items():
            check_bounds(key, max_depth, max_text_length, where)
            longest = sys.maxsize if key in FILES else max_text_length
            check_bounds(item, max_depth - 1, longest, f"{where}.{key[:MAX_WHERE]}")
