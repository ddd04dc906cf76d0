"""Messages to the columns of a row and back: a message that is only a text needs no JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from chatmemory_django import conf
from chatmemory_django.codec import message_from_json
from chatmemory_django.core.limits import MAX_METADATA_DEPTH, YEARS, is_storable
from chatmemory_django.db import row_codec
from chatmemory_django.db.moments import to_moment
from chatmemory_django.db.row_codec import is_like_encoded
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    Metadata,
    SystemMessage,
    TextContent,
    UserMessage,
    copy_json,
)

_encode = msgspec.json.Encoder().encode
_TEXT_CLASSES = {"SYSTEM": SystemMessage, "USER": UserMessage, "AI": AiMessage}


class Columns(NamedTuple):
    """The columns of a message. *payload* is its whole JSON, or None if *type* and *text* are enough."""

    type: str
    text: str
    payload: str | None


class HistoryRow(NamedTuple):
    """The row of a message of the history."""

    sequence: int
    type: str
    text: str
    payload: str | None
    verbatim: str | None
    conversation_id: int

    @property
    def chat_message(self) -> ChatMessage:
        """The message as a value."""
        return to_message(self.type, self.text, self.payload)


class ShownRow(msgspec.Struct, gc=False):
    """The row of a message as a list shows it: many of them take a fraction of the time of as many models."""

    sequence: int
    created_at: datetime
    type: str
    text: str
    payload: str | None
    token_count: int | None
    counted_by: str
    superseded: bool
    is_cleared: bool
    in_history: bool
    on_path: bool
    is_complete: bool
    is_pinned: bool
    parent_sequence: int | None
    client_message_id: str | None
    metadata: Metadata
    sent: ChatMessage | None = None
    """What the LLM is sent of it, if that is what is shown; not a column."""

    @property
    def chat_message(self) -> ChatMessage:
        """The message as a value."""
        return to_message(self.type, self.text, self.payload)


SHOWN = ShownRow.__struct_fields__[:-1]
"""The columns of a ``ShownRow``."""


def to_columns(message: ChatMessage) -> Columns:
    """
    Return the columns of *message*.

    Raises:
        ValueError: It contains NUL characters, which PostgreSQL does not support, or lone surrogates, which UTF-8
            cannot encode, or is larger than the setting ``MAX_MESSAGE_BYTES``.

    """
    if (columns := only_text(message)) is not None:
        return columns
    return Columns(message.type, text_of(message), _checked_json(message, type(message).__name__))


def only_text(message: ChatMessage) -> Columns | None:
    """
    Return the columns of *message* if it has nothing but a text, otherwise None. Raises what ``to_columns`` does.

    A text that begins as if it were encoded is not alone in its row, so that it is never taken for one that is.
    """
    text, is_all = _text(message)
    if not is_all or (text[:3] == "enc" and is_like_encoded(text)):
        return None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise _refusal(message, type(message).__name__) from None
    if "\0" in text:
        raise _refusal(message, type(message).__name__)
    _check_size(size, type(message).__name__)
    return Columns(message.type, text, None)


def to_metadata(metadata: Metadata, max_bytes: int | None = None) -> Metadata:
    """
    Return a copy of *metadata*, which has at most *max_bytes* as JSON, by default the setting ``MAX_MESSAGE_BYTES``.

    Raises:
        TypeError: *metadata* is neither None nor a JSON object.
        ValueError: It is too large, or not every database can store it.

    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping or None, not {type(metadata).__name__}.")
    copied: Mapping[str, Any] = copy_json(metadata, "metadata", MAX_METADATA_DEPTH)
    size = len(_checked_json(copied, "metadata").encode())
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"metadata has {size} bytes; at most {max_bytes} are allowed.")
    return copied


def checked_moment(moment: datetime) -> datetime:
    """Return the aware *moment* as a column takes it; ``ValueError`` unless all databases and time zones support it."""
    try:
        utc = moment.astimezone(UTC)
        if utc.year in YEARS:
            return to_moment(utc)
    except OverflowError:
        pass
    raise ValueError(f"{moment.isoformat()} must be between the years {YEARS[0]} and {YEARS[-1]}")


def checked_verbatim(verbatim: str) -> str:
    """
    Return *verbatim* unchanged.

    Raises:
        TypeError: It is not a str.
        ValueError: It is too large, or not every database can store it.

    """
    if not isinstance(verbatim, str):
        raise TypeError(f"verbatim must be a str or None, not {type(verbatim).__name__}.")
    if not is_storable(verbatim):
        raise ValueError("verbatim holds a NUL character or a lone surrogate; pass JSON that escapes them.")
    _check_size(len(verbatim.encode()), "verbatim")
    return verbatim


def to_message(type: str, text: str, payload: str | None) -> ChatMessage:
    """Return the message that a row holds; ``UnreadableError`` if it is encoded, and nothing is installed for that."""
    if payload is None and text[:3] == "enc" and row_codec.installed is None:
        text = row_codec.plain(text)
    return _TEXT_CLASSES[type](text) if payload is None else message_from_json(payload)


def text_of(message: ChatMessage) -> str:
    """Return the text of *message* that a person would read, and search for; empty if it has none."""
    return _text(message)[0]


def _text(message: ChatMessage) -> tuple[str, bool]:
    """Return the text for which a person would search *message*, and whether it is all that the message has."""
    if isinstance(message, UserMessage) and message.has_single_text:
        return message.single_text, message.name is None and not message.attributes
    if isinstance(message, AiMessage):
        others = message.thinking is not None or message.tool_execution_requests or message.attributes
        return message.text or "", message.text is not None and not others
    if isinstance(message, SystemMessage):
        return message.text, True
    if isinstance(message, CustomMessage):
        return message.text, False
    texts = (content.text for content in message.contents if isinstance(content, TextContent))
    return "\n".join(texts), False


def _checked_json(value: object, name: str) -> str:
    try:
        encoded = _encode(value)
    except UnicodeEncodeError:
        raise _refusal(value, name) from None
    if b"\\u0000" in encoded and _bad_field(value) is not None:
        raise _refusal(value, name)
    _check_size(len(encoded), name)
    return encoded.decode()


def _check_size(size: int, name: str) -> None:
    if size > (limit := conf.general().MAX_MESSAGE_BYTES):
        raise ValueError(f"{name} has {size} bytes, but CHATMEMORY['MAX_MESSAGE_BYTES'] is {limit}.")


def _refusal(value: object, name: str) -> ValueError:
    return ValueError(f"{name}.{_bad_field(value)} holds a NUL character or a lone surrogate; remove it.")


def _bad_field(value: object) -> str | None:
    """Return the location of a string in *value* that cannot be stored; None if there is none."""
    for where, text in _texts(msgspec.to_builtins(value), ""):
        if not is_storable(text):
            return where
    return None


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{where}[...]", key
            yield from _texts(item, f"{where}.{key}" if where else key)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}[{index}]")
