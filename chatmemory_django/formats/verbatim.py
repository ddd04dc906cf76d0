"""
What another framework gives, as a message: and beside that word for word, where the message does not give it back.

Native first: search, tokens, the admin and the other frameworks read the message. Whether that says all is decided when
it is written, by giving it back and comparing: 1, 1.0 and True are different, and so are null and what is absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from chatmemory_django.messages import ChatMessage, CustomMessage
from chatmemory_django.rows import Said, to_message

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
    with _errors_at(item, where):
        text = _encode(item)
        plain = json.loads(text)
        message = format.to_message(storable(plain))
        again = format.from_message(message)
        is_whole = len(again) == 1 and _encode_sorted(again[0]) == _encode_sorted(plain)
    return Given(message, None if is_whole else f'{{"{format.name}":{text}}}')


def to_group(
    item: object, format_name: str, to_messages: Callable[[dict[str, Any]], Sequence[ChatMessage]], where: str
) -> list[Given]:
    """
    Return *item*, a JSON object that may be several messages, as they are stored: word for word beside the last.

    What follows goes on from the last one. Raises what ``to_given`` does.
    """
    with _errors_at(item, where):
        text = _encode(item)
        messages = to_messages(storable(json.loads(text)))
    rows = f',"rows":{len(messages)}' if len(messages) > 1 else ""
    return [*(Given(each, None) for each in messages[:-1]), Given(messages[-1], f'{{"{format_name}":{text}{rows}}}')]


def of_group(verbatim: str | None, format_name: str) -> tuple[dict[str, Any] | None, int]:
    """Return what was given, if that was in the format of that name, and how many messages it is, this the last."""
    if verbatim is None or not verbatim.startswith(f'{{"{format_name}":'):
        return None, 1
    given = json.loads(verbatim)
    item, rows = given[format_name], given.get("rows", 1)
    # What is imported may say anything.
    return (item, rows) if isinstance(item, dict) and isinstance(rows, int) and rows > 0 else (None, 1)


def as_object(value: object) -> dict[str, Any]:
    """Return *value*; ``TypeError`` if it is no JSON object, so that what it is in is not what its type says."""
    if isinstance(value, dict):
        return value
    raise TypeError


def as_text(value: object) -> str:
    """Likewise for a text."""
    if isinstance(value, str):
        return value
    raise TypeError


def items_of(said: Said, format: Format) -> list[dict[str, Any]]:
    """Return the items of *format* that *said* is: as they were given, if they were."""
    given = of_verbatim(said.verbatim, format.name)
    return format.from_message(to_message(said.type, said.text, said.payload)) if given is None else [given]


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


@contextmanager
def _errors_at(item: object, where: str) -> Iterator[None]:
    """A section whose errors say *where* the *item* is that they are about."""
    if not isinstance(item, dict):
        raise TypeError(f"{where} must be a dict, not {type(item).__name__}.")
    try:
        yield
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply; flatten it.") from None
    except (TypeError, ValueError) as exc:
        raise type(exc)(f"{where}: {exc}") from None


def storable(value: Any) -> Any:
    """Return *value* with what no message can hold replaced: it is there word for word, too."""
    if isinstance(value, str):
        return value.translate(_UNSTORABLE)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value
