"""Limits for JSON from outside: how deeply it may be nested, and how long its strings may be."""

from __future__ import annotations

import sys
from typing import Any

FILES = frozenset({"base64Data", "binaryData", "data", "file_data", "image_url", "result", "url"})
"""Fields that may hold a whole file; only the limit on the total size applies to them."""

MAX_WHERE = 300
"""The longest location in an error, in characters: it is made of the sender's own keys."""


class BoundsError(ValueError):
    """
    The error for JSON that is nested too deeply or has a string that is too long.

    *where* is its location; *reason* never repeats the text.
    """

    def __init__(self, where: str, reason: str) -> None:
        self.where = where[:MAX_WHERE]
        self.reason = reason
        super().__init__(f"{self.where}: {reason}")


def check_bounds(value: Any, max_depth: int, max_text_length: int, where: str = "$") -> None:
    """
    Raise ``BoundsError`` if *value* is nested deeper than *max_depth* or has a string, files aside, that is too long.

    *where* is the location of *value*.
    """
    if isinstance(value, str):
        if len(value) > max_text_length:
            raise BoundsError(where, f"It has {len(value)} characters; at most {max_text_length} are allowed.")
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
