"""
What another framework gives, as a message: and beside that word for word, where the message does not give it back.

Native first: search, tokens, the admin and the other frameworks read the message. Whether that says all is decided when
it is written, by giving it back and comparing: 1, 1.0 and True are different, and so are null and what is absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from chatmemory_django.messages import ChatMessage, CustomMessage

REPLACEMENT = "\ufffd"
"""What stands in a message for a NUL character or half a surrogate pair, which no database keeps in a text."""

_encode = json.JSONEncoder(separators=(",", ":")).encode  # in ASCII, so that any character can be kept
_encode_sorted = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
_UNSTORABLE = {0: REPLACEMENT, **dict.fromkeys(range(0xD800, 0xE000), REPLACEMENT)}


class Format(NamedTuple):
    """How a framework's JSON objects are messages, and the other way round."""

    name: str
    """What stands beside a message that was given in this format."""
    to_message: Callable[[dict[str, Any]], ChatMessage]
    """Return the message that an object is; ``custom`` for one that is none of the native kinds."""
    from_message: Callable[[ChatMessage], list[dict[str, Any]]]
    """Return the objects that a message is: one, several, or none where the format cannot say it."""


class Given(NamedTuple):
    """What was given, as it is stored."""

    message: ChatMessage
    verbatim: str | None
    """The same as it was given, in JSON; None where the message says it all."""


def to_given(item: object, format: Format, where: str) -> Given:
    """
    Return *item*, a JSON object of *format*, as it is stored; errors say *where* it is.

    Raises:
        TypeError: It is no JSON object.
        ValueError: It is nested too deeply, or in itself.

    """
    if not isinstance(item, dict):
        raise TypeError(f"{where} must be a dict, not {type(item).__name__}.")
    try:
        text = _encode(item)
        plain = json.loads(text)
        message = format.to_message(_storable(plain))
        again = format.from_message(message)
        is_whole = len(again) == 1 and _encode_sorted(again[0]) == _encode_sorted(plain)
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply; flatten it.") from None
    except (TypeError, ValueError) as exc:
        raise type(exc)(f"{where}: {exc}") from None
    return Given(message, None if is_whole else f'{{"{format.name}":{text}}}')


def of_verbatim(verbatim: str | None, format_name: str) -> dict[str, Any] | None:
    """Return what was given, if that was in the format of that name."""
    # What comes first names the format, so that what another one gave, a film perhaps, is not read.
    if verbatim is None or not verbatim.startswith(f'{{"{format_name}":'):
        return None
    given: dict[str, Any] = json.loads(verbatim)[format_name]
    return given


def custom(item: dict[str, Any], format_name: str) -> CustomMessage:
    """Return the message for an *item* that is none of the native kinds."""
    return CustomMessage({format_name: item})


def of_custom(message: CustomMessage, format_name: str) -> list[dict[str, Any]]:
    """Return the item that *message* was made for; none if that was of another format."""
    item = message.attributes.get(format_name)
    return [item] if isinstance(item, dict) else []


def _storable(value: Any) -> Any:
    """Return *value* with what no message can hold replaced: it is there word for word, too."""
    if isinstance(value, str):
        return value.translate(_UNSTORABLE)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value
