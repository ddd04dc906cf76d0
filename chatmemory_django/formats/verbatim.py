"""
Storage of other frameworks' messages: as a message and, if that loses anything, also as the original JSON.

Search, token counts, the admin and other frameworks read the message. Whether it loses anything is found out when it is
written, by converting it back and comparing: 1, 1.0 and True are different, and so are null and a missing key.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import msgspec

from chatmemory_django.messages import ChatMessage, CustomMessage, NewMessage

REPLACEMENT = "\ufffd"
"""Replaces NUL characters and lone surrogates in a message, because databases cannot store them in a text."""

_encode = json.JSONEncoder(separators=(",", ":")).encode  # in ASCII, so that any character can be stored
_encode_sorted = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_decode = msgspec.json.Decoder().decode
_UNSTORABLE = {0: REPLACEMENT, **dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT)}


class Format(NamedTuple):
    """The conversions between a framework's JSON objects and messages."""

    name: str
    """The key of the original JSON that is stored next to a message of this format."""
    to_message: Callable[[dict[str, Any]], ChatMessage]
    """Convert an object to a message; use ``custom`` for one that is not of a native kind."""
    from_message: Callable[[ChatMessage], list[dict[str, Any]]]
    """Convert a message to objects: one, several, or none if the format has no such message."""


class Original(Protocol):
    """A row that holds a message, and perhaps its original JSON."""

    @property
    def verbatim(self) -> str | None: ...

    @property
    def chat_message(self) -> ChatMessage: ...


def to_new_message(item: object, format: Format, where: str) -> NewMessage:
    """
    Convert *item*, a JSON object of *format*, to what is stored; *where* is its path for error messages.

    Raises:
        TypeError: The item is not a JSON object.
        ValueError: The item is nested too deeply, or contains itself.

    """
    with _errors_at(item, where):
        text = _encode(item)
        plain = _loads(text)
        message = format.to_message(storable(plain))
        again = format.from_message(message)
        is_whole = again == [plain] and _encode_sorted(again[0]) == _encode_sorted(plain)
    return NewMessage(message, verbatim=None if is_whole else f'{{"{format.name}":{text}}}')


def to_group(
    item: object, format_name: str, to_messages: Callable[[dict[str, Any]], Sequence[ChatMessage]], where: str
) -> list[NewMessage]:
    """
    Convert *item*, a JSON object that may be several messages; the original JSON is stored next to the last one.

    The conversation continues from the last one. Raises the same errors as ``to_new_message``.
    """
    with _errors_at(item, where):
        text = _encode(item)
        messages = to_messages(storable(json.loads(text)))
    rows = f',"rows":{len(messages)}' if len(messages) > 1 else ""
    last = NewMessage(messages[-1], verbatim=f'{{"{format_name}":{text}{rows}}}')
    return [*map(NewMessage, messages[:-1]), last]


def of_group(verbatim: str | None, format_name: str) -> tuple[dict[str, Any] | None, int]:
    """Return the original item, if it has that format, and its number of messages, of which this is the last."""
    if verbatim is None or not verbatim.startswith(f'{{"{format_name}":'):
        return None, 1
    given = json.loads(verbatim)
    item, rows = given[format_name], given.get("rows", 1)
    # Imported data may contain anything.
    return (item, rows) if isinstance(item, dict) and isinstance(rows, int) and rows > 0 else (None, 1)


def as_object(value: object) -> dict[str, Any]:
    """Return *value*; raise ``TypeError`` if it is not a JSON object, which means that the item is not of its type."""
    if isinstance(value, dict):
        return value
    raise TypeError


def as_text(value: object) -> str:
    """Return *value*; raise ``TypeError`` if it is not a str."""
    if isinstance(value, str):
        return value
    raise TypeError


def to_text(arguments: object) -> str | None:
    """Return *arguments*, an object or any text that a model wrote instead, as the text of a call of a tool."""
    return arguments if arguments is None or isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def to_object(arguments: str | None) -> dict[str, Any] | None:
    """Return the JSON object in *arguments* of a call, or None if there is none."""
    try:
        value = json.loads(arguments) if arguments and not arguments.isspace() else {}  # some models write nothing
    except (RecursionError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def items_of(row: Original, format: Format) -> list[dict[str, Any]]:
    """Return the items of *format* for a row: the original one if there is one."""
    given = of_verbatim(row.verbatim, format.name)
    return format.from_message(row.chat_message) if given is None else [given]


def of_verbatim(verbatim: str | None, format_name: str) -> dict[str, Any] | None:
    """Return the original item, if it has that format."""
    # The format's name comes first, so that another format's item, which may contain a video, need not be parsed.
    if verbatim is None or not verbatim.startswith(f'{{"{format_name}":'):
        return None
    given: dict[str, Any] = _loads(verbatim)[format_name]
    return given


def _loads(text: str) -> Any:
    """Return what the JSON *text* holds, as ``json.loads`` does, which takes several times as long."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):  # lone surrogates, and numbers that JSON does not have
        return json.loads(text)


def custom(item: dict[str, Any], format_name: str) -> CustomMessage:
    """Return the message for an *item* that is not of a native kind."""
    return CustomMessage({format_name: item})


def of_custom(message: CustomMessage, format_name: str) -> list[dict[str, Any]]:
    """Return the item that *message* was created for; an empty list if it has another format."""
    item = message.attributes.get(format_name)
    return [item] if isinstance(item, dict) else []


@contextmanager
def _errors_at(item: object, where: str) -> Iterator[None]:
    """Add the path of *item*, *where*, to errors."""
    if not isinstance(item, dict):
        raise TypeError(f"{where} must be a dict, not {type(item).__name__}.")
    try:
        yield
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply; flatten it.") from None
    except (TypeError, ValueError) as exc:
        raise type(exc)(f"{where}: {exc}") from None


def storable(value: Any) -> Any:
    """Return *value* without characters and numbers that cannot be stored; the original JSON still has them."""
    if isinstance(value, str):
        return value.translate(_UNSTORABLE)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value
