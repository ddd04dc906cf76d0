"""What can be stored: ids, numbers, moments, characters, and how deep and how long JSON may be."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)

MAX_INTEGER = 2_147_483_647
"""The largest number that a column of whole numbers holds on every database."""

MAX_IMPORTED = 2_000_000_000
"""The largest number of a message or note in an import: there is room for more below ``MAX_INTEGER``."""

MAX_METADATA_DEPTH = 31
"""The maximum depth of metadata: MariaDB accepts no deeper JSON."""

YEARS = range(1970, 9999)
"""The years that imported moments may be in: databases, time zones and cursors support all of them."""

MAX_MEMORY_ID_LENGTH = 255

MAX_TITLE_LENGTH = 255
"""In characters, of the title of a conversation."""
MAX_CLIENT_MESSAGE_ID_LENGTH = 64
MAX_RATING_REASON = 2_000
"""The same of the reason for a rating."""
MAX_COUNTER_LENGTH = 64
"""The longest name of an estimator whose counts are stored."""

MAX_ASSISTANT_LENGTH = 64
ASSISTANT_NAME = rf"[-a-zA-Z0-9_]{{1,{MAX_ASSISTANT_LENGTH}}}"
"""The pattern of the name of an assistant in the settings."""

EDIT = "#edit-"
"""Separates the client message id of a question from the suffix that makes the id of each edited version unique."""

FILES = frozenset({"base64Data", "binaryData", "data", "file_data", "image_url", "result", "url"})
"""Fields that may hold a whole file; only the limit on the total size applies to them."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_ADDRESS = re.compile(r"<[^<>]+ at 0x[0-9a-fA-F]+>")
"""The ``str()`` of an object whose class defines none: its address, which another object has tomorrow."""

MAX_WHERE = 300
"""The longest location in an error, in characters: it is made of the sender's own keys."""

VALUE_BYTES = 140
"""
What decoded JSON takes at most for each comma and opening bracket, in bytes: measured for dicts of whole numbers while
they grow, on Python 3.12.
"""

RAW_BYTES = 64
"""The same for ``msgspec.Raw``, a value that is not decoded."""

_GROWTH = 3
"""How many times its size the values of a body may take, besides the body itself and the texts in it."""

_SMALL_BODY = 1024 * 1024
"""The size in bytes up to which a body may have as many values as one of this size."""

# Each match ends at a comma or an opening bracket outside of strings, the last one at the end. It never backtracks.
_TO_NEXT_VALUE = re.compile(rb'(?:[^"\[{,]++|"(?:[^"\\]++|\\.)*+"?)*+(?:[\[{,]|\Z)', re.DOTALL)


def is_storable(text: str) -> bool:
    """
    Return whether every database can store *text*: NUL characters and lone surrogates are not supported.

    The text, which may be a whole file, is not copied.
    """
    return "\0" not in text and (text.isascii() or _SURROGATE.search(text) is None)


def storable(text: str) -> str:
    """Return *text* with surrogate pairs joined, and U+FFFD in place of what no database can store."""
    if is_storable(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").replace("\0", "\ufffd")


def memory_key(memory_id: object) -> str:
    """
    Return the string under which *memory_id* is stored.

    Raises:
        TypeError: *memory_id* is None.
        ValueError: Its ``str()`` is empty, too long, contains an object's address, or cannot be stored.

    """
    if memory_id is None:
        raise TypeError("A memory id must not be None; use a value with a stable str().")
    key = str(memory_id)
    if memory_id.__class__ is not str and _ADDRESS.search(key):
        raise ValueError(
            f"A memory id must have a stable str(), but this {type(memory_id).__name__} has an address in it: "
            f"{key[:100]!r}. Use the key of an object, for example order.pk."
        )
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


@lru_cache  # each window asks for it
def checked_counter(name: object) -> str:
    """
    Return *name*, the name of an estimator, under which its counts are stored.

    Raises:
        TypeError: It is not a str.
        ValueError: It is too long, or cannot be stored.

    """
    if not isinstance(name, str):
        raise TypeError(f"The name of an estimator must be a str, not {type(name).__name__}.")
    if len(name) > MAX_COUNTER_LENGTH:
        raise ValueError(
            f"The name of an estimator must have at most {MAX_COUNTER_LENGTH} characters; {name[:20]!r}… has "
            f"{len(name)}."
        )
    return _checked_characters("The name of an estimator", name)


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


def check_values(content: bytes, value_bytes: int = VALUE_BYTES) -> None:
    """
    Raise ``ValueError`` if *content*, JSON that is not decoded yet, has too many values for its size.

    Decoded, ``{},{},…`` takes 24 times as much memory as the text. *value_bytes* is what one value takes.
    """
    most = _GROWTH * max(len(content), _SMALL_BODY) // value_bytes
    if sum(map(content.count, (b",", b"[", b"{"))) <= most:  # texts included, so nearly every body ends here
        return
    if next(islice(_TO_NEXT_VALUE.finditer(content), most + 1, None), None) is not None:
        raise ValueError(f"It has more than {most} values in {len(content)} bytes; send less at once.")


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


def check_text_length(message: ChatMessage, max_text_length: int) -> None:
    """Raise ``ValueError`` if the texts of *message*, files aside, have more characters than that in total."""
    length = sum(map(len, _all_texts(message)))
    if length > max_text_length:
        raise ValueError(f"Its texts have {length} characters in total; at most {max_text_length} are allowed.")


def texts_of(message: ChatMessage) -> Iterator[str]:
    """Yield the texts in the fields of *message*, without attributes; a ``CustomMessage`` has no other fields."""
    match message:
        case SystemMessage():
            yield message.text
        case UserMessage() | ToolExecutionResultMessage():
            yield from (content.text for content in message.contents if isinstance(content, TextContent))
        case AiMessage():
            yield from (message.text or "", message.thinking or "")
            yield from (call.arguments or "" for call in message.tool_execution_requests)


def _all_texts(message: ChatMessage) -> Iterator[str]:
    yield from texts_of(message)
    if not isinstance(message, SystemMessage):
        yield from _strings(message.attributes)


def _strings(value: object) -> Iterator[str]:
    """Yield the strings in the JSON *value*, except for files."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not (isinstance(item, str) and key in FILES):
                yield from _strings(item)
