"""Messages to the columns of a row and back: a message that is nothing but its text needs no JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
from django.conf import settings
from django.utils import timezone

from chatmemory_django import conf
from chatmemory_django.codec import message_from_json
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    SystemMessage,
    TextContent,
    UserMessage,
    copy_json,
)
from chatmemory_django.stores.base import Metadata

ESCAPED = "'\"\\\n\r\x1a"
"""The characters that MySQL's drivers escape in text, each by one byte more."""

EARLIEST = datetime(1000, 1, 2, tzinfo=UTC)
"""Before all that is written: databases know the moments from here on, in any time zone."""

MAX_METADATA_DEPTH = 31
"""How deep metadata may nest: MariaDB takes no JSON that is deeper."""

SHORT = 1_024
"""Texts of fewer characters are not measured but taken for the longest that they can be."""

_T = TypeVar("_T")

_encode = msgspec.json.Encoder().encode
_TEXT_CLASSES = {"SYSTEM": SystemMessage, "USER": UserMessage, "AI": AiMessage}


class Columns(NamedTuple):
    """What a row says of a message. *payload* is its whole JSON, or None where *type* and *text* say all."""

    type: str
    text: str
    payload: str | None


class State(NamedTuple):
    """The row of a conversation, as its writer read it."""

    id: int
    version: int
    next_sequence: int
    total_messages: int
    window_start: int
    pinned_sequence: int | None
    summary_sequence: int | None
    parent_sequence: int | None
    forgotten_through: int
    memory_messages: int
    memory_tokens: int
    counted_by: str


class Row(NamedTuple):
    """The row of a message in a memory."""

    type: str
    text: str
    payload: str | None
    tokens: int | None
    """None where no estimator counted them, or another did."""
    sequence: int
    part: int
    """Which of ``models.memory_parts`` it is in: 0, 1 or 2."""
    conversation_id: int


class Said(NamedTuple):
    """A message of a history, as a row has it."""

    sequence: int
    type: str
    text: str
    payload: str | None
    verbatim: str | None


class FrontRow(NamedTuple):
    """As much of a row as eviction needs to know. *payload* is that of an AI message, which may call tools."""

    sequence: int
    type: str
    payload: str | None
    token_count: int | None
    counted_by: str


class NewRow(msgspec.Struct, gc=False):
    """A row to write, but for the columns that it shares with those that are written with it."""

    type: str
    text: str
    payload: str | None
    metadata: Metadata = None
    client_message_id: str | None = None
    verbatim: str | None = None
    is_complete: bool = True
    sent_bytes: int = 0
    """How large it is in an SQL statement, at most."""
    sequence: int = 0
    token_count: int | None = None
    counted_by: str = ""
    superseded: bool = False
    in_history: bool = True
    on_path: bool = True
    parent_sequence: int | None = None

    def __repr__(self) -> str:
        return f"<NewRow {self.type} {self.sequence}>"


def to_columns(message: ChatMessage) -> Columns:
    """
    The columns of *message*.

    ``ValueError`` if a database could not keep it: NUL characters, which PostgreSQL has no place for, half surrogate
    pairs, which UTF-8 has none for, and more than the setting ``MAX_MESSAGE_BYTES``.
    """
    text, is_all = _text(message)
    if not is_all:
        return Columns(message.type, text, _checked_json(message, type(message).__name__))
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
    A copy of *metadata*; ``TypeError`` or ``ValueError`` if it is no JSON object that every database can keep.

    It has at most *max_bytes* as JSON, by default what the setting ``MAX_MESSAGE_BYTES`` allows for.
    """
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping or None, not {type(metadata).__name__}.")
    copied: Mapping[str, Any] = copy_json(metadata, "metadata", MAX_METADATA_DEPTH)
    size = len(_checked_json(copied, "metadata").encode())
    if max_bytes is not None and size > max_bytes:
        raise ValueError(f"metadata has {size} bytes, but may have {max_bytes}.")
    return copied


def checked_verbatim(verbatim: str) -> str:
    """Return *verbatim*; ``TypeError`` or ``ValueError`` if it is no text that every database can keep."""
    if not isinstance(verbatim, str):
        raise TypeError(f"verbatim must be a str or None, not {type(verbatim).__name__}.")
    if not is_storable(verbatim):
        raise ValueError("verbatim holds a NUL character or a lone surrogate; give JSON that escapes them.")
    _check_size(len(verbatim.encode()), "verbatim")
    return verbatim


def to_message(type: str, text: str, payload: str | None) -> ChatMessage:
    """The message that a row holds."""
    return _TEXT_CLASSES[type](text) if payload is None else message_from_json(payload)


def to_moment(moment: datetime) -> datetime:
    """The aware *moment* as this site's database columns take it: with ``USE_TZ`` off, naive and in its time zone."""
    if settings.USE_TZ or timezone.is_naive(moment):
        return moment
    return timezone.make_naive(moment, timezone.get_default_timezone())


def aware(moment: datetime) -> datetime:
    """The *moment* of a database column as an aware one: a naive one is in the site's default time zone."""
    return timezone.make_aware(moment, timezone.get_default_timezone()) if timezone.is_naive(moment) else moment


def is_storable(text: str) -> bool:
    """Whether every database can keep *text*: NUL characters and half surrogate pairs it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def sent_bytes(text: str) -> int:
    """Return how many bytes *text* takes in an SQL statement, escaped, at most."""
    if len(text) < SHORT:
        return 8 * len(text)
    return len(text.encode()) + sum(map(text.count, ESCAPED))


def in_batches(items: Iterable[_T], size_of: Callable[[_T], int], max_size: int, max_count: int) -> Iterator[list[_T]]:
    """Yield *items* in lists of at most *max_count* and *max_size* together; one that is larger comes alone."""
    batch: list[_T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and (len(batch) == max_count or total + size > max_size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def in_parts(items: Sequence[_T], count: int) -> Iterator[Sequence[_T]]:
    """Yield *items* in parts of at most *count*."""
    for first in range(0, len(items), count):
        yield items[first : first + count]


def _text(message: ChatMessage) -> tuple[str, bool]:
    """What a person would search *message* for, and whether that is all there is to it."""
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
    if size > (limit := conf.max_message_bytes()):
        raise ValueError(f"{name} has {size} bytes, but CHATMEMORY['MAX_MESSAGE_BYTES'] allows for {limit}.")


def _refusal(value: object, name: str) -> ValueError:
    return ValueError(f"{name}.{_bad_field(value)} holds a NUL character or a lone surrogate; leave it out.")


def _bad_field(value: object) -> str | None:
    """Where in *value* a text is that cannot be stored."""
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
