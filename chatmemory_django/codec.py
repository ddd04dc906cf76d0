"""
Messages to JSON and back, in LangChain4j's format, so that a Java service and a Django site can share it.

Errors in what is read are ``ValueError``; they name the location (``$[3].contents[0].image``) and the reason, and never
repeat message text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from chatmemory_django.messages import MESSAGE_CLASSES, ChatMessage, UserMessage

_T = TypeVar("_T")

MAX_REASON = 300
"""The longest reason in an error, in characters: it may name the sender's keys and tags, which can be of any length."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OTHER_FORMS = re.compile("got `null`|Message.contents is empty|missing required field `attributes`")
_MISSING = re.compile("Object missing required field `(.+)`")

_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(ChatMessage)
# LangChain4j writes null for a missing list, and reads null as an empty list.
_messages_decoder = msgspec.json.Decoder(list[ChatMessage] | None)


def message_to_json(message: ChatMessage) -> str:
    """
    Return *message* as a JSON object.

    Raises:
        TypeError: *message* is not a message.

    """
    return _encode(_as_written(message, "message"))


def messages_to_json(messages: Iterable[ChatMessage]) -> str:
    """
    Return *messages* as a JSON array.

    Raises:
        TypeError: One of *messages* is not a message; the error names its index.

    """
    return _encode([_as_written(message, f"messages[{index}]") for index, message in enumerate(messages)])


def message_from_json(text: str | bytes) -> ChatMessage:
    """Return the message in *text*."""
    message: ChatMessage = _decode(text, _message_decoder)
    return message


def messages_from_json(text: str | bytes | None) -> list[ChatMessage]:
    """Return the messages in *text*, in order; none for None, as a store may have no value yet."""
    return [] if text is None else _decode(text, _messages_decoder) or []


def _as_written(message: ChatMessage, where: str) -> ChatMessage:
    if not isinstance(message, MESSAGE_CLASSES):
        raise TypeError(f"{where} must be a message, not {type(message).__name__}.")
    if message.__class__ is UserMessage and message.name == "":
        return msgspec.structs.replace(message, name=None)  # LangChain4j leaves out an empty name
    return message


def _encode(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        # A lone surrogate cannot be encoded as UTF-8, but JSON can hold it as an escape.
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def _decode(text: str | bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    if not isinstance(text, (str, bytes, bytearray)):
        raise TypeError(f"JSON must be str or bytes, not {type(text).__name__}.")
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        error = exc
    # Four things need a second, slower parse: lone surrogates, which only Python's own parser reads; null for an absent
    # field; a custom message without attributes; and tool results from before 1.13, whose text was in "text".
    written = text if isinstance(text, str) else text.decode(errors="replace")
    is_odd = isinstance(error, UnicodeEncodeError) or _SURROGATE.search(written)
    if is_odd or _OTHER_FORMS.search(str(error)):
        try:
            return msgspec.convert(_modernised((json.loads if is_odd else msgspec.json.decode)(text)), decoder.type)
        except (msgspec.DecodeError, RecursionError) as exc:
            error = exc
        except ValueError:
            pass  # not JSON at all: the first error is the better explanation
    raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return what was wrong and where, in one sentence."""
    if isinstance(error, RecursionError):
        return "$: the JSON is nested too deeply."
    if isinstance(error, UnicodeError):
        return "$: the JSON is not UTF-8."
    reason, _, where = str(error).rpartition(" - at `")
    if not reason:  # msgspec reports no path for the document itself
        reason, where = where, "$"
    where = where.removesuffix("`")
    if missing := _MISSING.fullmatch(reason):
        return f"{where}.{missing[1]} is missing."
    return f"{where}: {reason[:MAX_REASON].removesuffix('.')}."


def _modernised(value: Any) -> Any:
    """Return *value* with its messages in the current form: no null for absent fields, contents instead of text."""
    for message in value if isinstance(value, list) else [value]:
        if not isinstance(message, dict):
            continue
        for name, nothing in (("attributes", {}), ("toolExecutionRequests", [])):
            if message.get(name, nothing) is None:
                message[name] = nothing
        if message.get("type") == "CUSTOM":
            message.setdefault("attributes", {})
        contents, text = message.get("contents"), message.get("text")
        if message.get("type") == "TOOL_EXECUTION_RESULT" and contents in (None, []) and isinstance(text, str):
            message["contents"] = [{"type": "TEXT", "text": text}]
        for content in contents if isinstance(contents, list) else ():
            if isinstance(content, dict) and content.get("detailLevel", content) is None:
                del content["detailLevel"]
    return value
