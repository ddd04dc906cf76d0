"""What can be stored: ids, numbers, moments, characters, and how deep and how long JSON may be."""

from __future__ import annotations

import sys
import uuid
from typing import Any

MAX_INTEGER = 2_147_483_647
"""The largest number that a column of whole numbers holds on every database."""

MAX_METADATA_DEPTH = 31
"""The maximum depth of metadata: MariaDB accepts no deeper JSON."""

YEARS = range(1970, 9999)
"""The years that imported moments may be in: databases, time zones and cursors support all of them."""

MAX_MEMORY_ID_LENGTH = 255
MAX_CLIENT_MESSAGE_ID_LENGTH = 64

EDIT = "#edit-"
"""Separates the client message id of a question from the suffix that makes the id of each edited version unique."""

FILES = frozenset({"base64Data", "binaryData", "data", "file_data", "image_url", "result", "url"})
"""Fields that may hold a whole file; only the limit on the total size applies to them."""

MAX_WHERE = 300
"""The longest location in an error, in characters: it is made of the sender's own keys."""


def is_storable(text: str) -> bool:
    """Return whether every database can store *text*: NUL characters and lone surrogates are not supported."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def memory_key(memory_id: object) -> str:
    """
    Return the string under which *memory_id* is stored.

    Raises:
        TypeError: *memory_id* is None.
        ValueError: Its ``str()`` is empty, too long, or cannot be stored.

    """
    if memory_id is None:
        raise TypeError("A memory id must not be None; use a value with a stable str().")
    key = str(memory_id)
    if not 1 <= len(key) <= MAX_MEMORY_ID_LENGTH:
        raise ValueError(
            f"A memory id must have 1 to {MAX_MEMORY_ID_LENGTH} characters; this one has {len(key)}: {key[:20]!r}."
        )
    return _checked_characters("A memory id", key)


def is_uuid(memory_id: str) -> bool:
    """Return whether *memory_id* is a UUID as Python writes it."""
    try:
        return str(uuid.UUID(memory_id)) == memory_id
    except ValueError:
        return False


def checked_client_message_id(client_message_id: str | None, where: str) -> str | None:
    """
    Return *client_message_id* unchanged.

    Raises:
        TypeError: It is neither a str nor None; the error names *where* it was.
        ValueError: It is empty, too long, or cannot be stored.

    """
    if client_message_id is None:
        return None
    if not isinstance(client_message_id, str):
        raise TypeError(f"{where} must be a str or None, not {type(client_message_id).__name__}.")
    if not 1 <= len(client_message_id) <= MAX_CLIENT_MESSAGE_ID_LENGTH:
        raise ValueError(
            f"{where} must have 1 to {MAX_CLIENT_MESSAGE_ID_LENGTH} characters, not {len(client_message_id)}."
        )
    return _checked_characters(where, client_message_id)


def unedited(client_message_id: str) -> str:
    """Return the id by which a client knows the message *client_message_id*: the id of its first version."""
    return client_message_id.partition(EDIT)[0]


def _checked_characters(name: str, text: str) -> str:
    if not is_storable(text):
        raise ValueError(f"{name} must not hold NUL characters or lone surrogates, but is {text!r}.")
    return text


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
