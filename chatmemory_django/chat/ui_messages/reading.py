"""Parsing of a user's message that a page sends. It is untrusted, so parsing is strict and limited."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from chatmemory_django.chat.ui_messages.files import is_text, text_in, to_content, to_part
from chatmemory_django.core.limits import MAX_INTEGER, is_storable
from chatmemory_django.core.tool_calls import REJECTED
from chatmemory_django.messages import BLANK, Content, DetailLevel, TextContent, UserMessage, copy_json

UI = "ui"
"""
The attribute for the fields of a ``UIMessage`` other than texts and files: ``parts`` and ``metadata``.
"""

MAX_DEPTH = 20
"""The maximum nesting depth of these fields."""

PART_LENGTH = 500
"""How many characters the fields of a part have at most that are not kept: its type and its media type."""

CREATED_AT = "createdAt"

SERVERS_METADATA = (CREATED_AT, REJECTED)
"""The keys of a user message's metadata that only the server sets."""

_UI_ID = re.compile(r"message-([1-9][0-9]{0,9})")
_MISSING = object()


def from_ui_message(
    message: Mapping[str, Any],
    *,
    max_text_length: int = 100_000,
    max_parts: int = 100,
    image_detail: DetailLevel = DetailLevel.AUTO,
) -> UserMessage:
    """
    Return the user's message that a page sent.

    Texts and text files become texts, and other files images, audio, videos or PDF documents; see ``files``. All other
    fields of the parts, and ``metadata`` except ``SERVERS_METADATA``, are kept in the attribute ``ui``, which is not
    sent to models.

    *max_text_length* limits the total number of characters of all texts, and of all other fields as JSON. The content
    of data URLs is limited only by the size of the request. *image_detail* is the detail level of images; by default,
    the model chooses.

    Raises:
        ValueError: It is not a user's message, it has neither a text that is not blank nor a file, or it is too
            large. The error begins with the path of the invalid value, ``$.parts[0].url``, and repeats no content.

    """
    if not isinstance(message, Mapping):
        raise ValueError("$: a message must be an object.")  # noqa: TRY004  # every invalid value is a ValueError
    if message.get("role") != "user":
        raise ValueError("$.role: it must be 'user'; a page cannot send messages of others.")
    parts = message.get("parts")
    if not isinstance(parts, list) or not 1 <= len(parts) <= max_parts:
        raise ValueError(f"$.parts: it must be a list of 1 to {max_parts} parts.")
    if _is_longer(message, 2 * max_text_length + PART_LENGTH * (max_parts + 1)):
        raise ValueError(f"$: the texts or the other fields have more than {max_text_length} characters.")
    contents: list[Content] = []
    beside: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        content, rest = _read_part(part, f"$.parts[{index}]", image_detail)
        beside.append(rest)
        if content is not None:
            contents.append(content)
    texts = [content.text for content in contents if isinstance(content, TextContent)]
    if len(texts) == len(contents) and not any(text.strip(BLANK) for text in texts):
        raise ValueError("$.parts: a message needs a text that is not blank, or a file.")
    if (length := sum(map(len, texts))) > max_text_length:
        raise ValueError(f"$.parts: the texts have {length} characters; at most {max_text_length} are allowed.")
    kept = _kept(beside, message.get("metadata"))
    if kept and (length := len(msgspec.json.encode(kept).decode())) > max_text_length:
        raise ValueError(
            f"$: the fields other than texts and files have {length} characters; at most {max_text_length} are allowed."
        )
    return UserMessage(contents, attributes={UI: kept} if kept else {})


def message_sequence(ui_id: str) -> int | None:
    """
    Return the sequence in an id that ``ui_id`` generates for a row without a client id; None for any other id.

    A page may use such an id as its own, so look for a row with that ``client_message_id`` first.
    """
    match = _UI_ID.fullmatch(ui_id)
    sequence = 0 if match is None else int(match[1])
    return sequence if 0 < sequence <= MAX_INTEGER else None


def verbatim(value: object, where: str, max_depth: int = MAX_DEPTH) -> Any:
    """Return a copy of *value*; raise ``ValueError`` if it cannot be stored and returned unchanged."""
    try:
        copied = copy_json(value, where, max_depth)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: it must be JSON with at most {max_depth} levels of nesting.") from None
    for text in _texts(copied):
        _check_characters(text, where)
    try:
        comes_back = msgspec.json.decode(msgspec.json.encode(copied)) == copied
    except (ValueError, msgspec.MsgspecError):
        comes_back = False
    if not comes_back:
        raise ValueError(f"{where}: it has a number that is too large.")
    return copied


def _read_part(part: object, where: str, image_detail: DetailLevel) -> tuple[Content | None, dict[str, Any]]:
    """
    Return the content of *part*, and the other fields to keep.

    If it has no content, these are all of its fields, with its type. The kept fields of a content have a type only if
    that is a text file; its data are not kept.
    """
    if not isinstance(part, Mapping):
        raise ValueError(f"{where}: a part must be an object.")  # noqa: TRY004
    kind = _text(part, "type", where)
    content: Content
    if kind == "file" and is_text(part.get("mediaType")):
        content, head = text_in(_text(part, "url", where), part.get("filename"), where)
        _check_characters(content.text, f"{where}.url")
        return content, verbatim({**part, "url": head}, where)
    if kind == "file":
        content = to_content(_text(part, "mediaType", where), _text(part, "url", where), where, image_detail)
        shown = to_part(content) or {}
    elif kind == "text" and (text := _text(part, "text", where)):
        content, shown = TextContent(text), {"type": kind, "text": text}
    else:
        return None, verbatim(part, where)  # including empty texts, which some models reject
    return content, verbatim({key: part[key] for key in part if part[key] != shown.get(key, _MISSING)}, where)


def _kept(beside: list[dict[str, Any]], metadata: object) -> dict[str, Any]:
    """Return the attribute for the fields *beside* the contents, an item for each part; empty ones are left out."""
    while beside and not beside[-1]:
        beside.pop()
    kept: dict[str, Any] = {"parts": beside} if beside else {}
    metadata = verbatim(metadata, "$.metadata")
    if isinstance(metadata, dict):
        for name in SERVERS_METADATA:
            metadata.pop(name, None)
    return kept if metadata in ({}, None) else {**kept, "metadata": metadata}


def _is_longer(message: Mapping[str, Any], most: int) -> bool:
    """
    Return whether *message* has more than *most* characters and values, URLs of files aside.

    Nothing is copied: that is what the rest of this module does several times, with what may be a very large body.
    """
    left: list[Any] = [value for key, value in message.items() if key != "parts"]
    for part in message["parts"]:
        left += [value for key, value in part.items() if key != "url"] if isinstance(part, Mapping) else [part]
    while left and most >= 0:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.keys()
            left += value.values()
        elif isinstance(value, list):
            left += value
        most -= len(value) if isinstance(value, str) else 1
    return most < 0


def _text(part: Mapping[str, Any], key: str, where: str) -> str:
    text = part.get(key)
    if not isinstance(text, str):
        raise ValueError(f"{where}.{key}: it must be a string.")  # noqa: TRY004
    _check_characters(text, f"{where}.{key}")
    return text


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _check_characters(text: str, where: str) -> None:
    if not is_storable(text):
        raise ValueError(f"{where}: it has a NUL character or a lone surrogate, which databases cannot store.")
