"""
Messages to JSON and back: the JSON that LangChain4j reads and writes, so a Java service and a Django site can share it.

Read errors are ``ValueError`` and say where (``$[3].contents[0].image``) and what; they never repeat message text.
"""

from __future__ import annotations

import atexit
import gc
import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from chatmemory_django.messages import MESSAGE_CLASSES, ChatMessage, UserMessage

_T = TypeVar("_T")

MAX_REASON = 300
"""How many characters of a reason are told: it may name the caller's keys and tags, which can be of any length."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MISSING = re.compile("Object missing required field `(.+)`")

# When the interpreter ends, msgspec may free the types of structs twice, and the process then ends with a segmentation
# fault (https://github.com/msgspec/msgspec/issues/717). What is frozen, no garbage collection takes apart.
atexit.register(gc.freeze)

_encoder = msgspec.json.Encoder()
_message_decoder = msgspec.json.Decoder(ChatMessage)
# A list that is null is what the original writes for no list, and reads as an empty one.
_messages_decoder = msgspec.json.Decoder(list[ChatMessage] | None)


def message_to_json(message: ChatMessage) -> str:
    """*message* as one JSON object; ``TypeError`` if it is no message."""
    return _encode(_as_written(message, "message"))


def messages_to_json(messages: Iterable[ChatMessage]) -> str:
    """*messages* as a JSON array; ``TypeError`` naming the index if one of them is no message."""
    return _encode([_as_written(message, f"messages[{index}]") for index, message in enumerate(messages)])


def message_from_json(text: str | bytes) -> ChatMessage:
    """The message that *text* holds."""
    message: ChatMessage = _decode(text, _message_decoder)
    return message


def messages_from_json(text: str | bytes) -> list[ChatMessage]:
    """The messages that *text* holds, in order."""
    return _decode(text, _messages_decoder) or []


def _as_written(message: ChatMessage, where: str) -> ChatMessage:
    if not isinstance(message, MESSAGE_CLASSES):
        raise TypeError(f"{where} must be a message, not {type(message).__name__}.")
    if message.__class__ is UserMessage and message.name == "":
        return msgspec.structs.replace(message, name=None)  # the original leaves an empty name out
    return message


def _encode(value: object) -> str:
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair has no UTF-8; JSON can still say it, as an escape.
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))


def _decode(text: str | bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    if not isinstance(text, (str, bytes, bytearray)):
        raise TypeError(f"JSON must be str or bytes, not {type(text).__name__}.")
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        error = exc
    # Two things that the original writes need a second, slower look: half surrogate pairs, and tool results of before
    # 1.13, whose text stood in "text".
    written = text if isinstance(text, str) else text.decode(errors="replace")
    if isinstance(error, UnicodeEncodeError) or "Message.contents" in str(error) or _SURROGATE.search(written):
        try:
            return msgspec.convert(_modernised(json.loads(text)), decoder.type)
        except (msgspec.ValidationError, RecursionError) as exc:
            error = exc
        except ValueError:
            pass  # no JSON at all: the first error says it better
    raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """What was wrong and where, as one sentence."""
    if isinstance(error, RecursionError):
        return "$: the JSON is nested too deeply."
    if isinstance(error, UnicodeError):
        return "$: the JSON is not UTF-8."
    reason, _, where = str(error).rpartition(" - at `")
    if not reason:  # msgspec names no place where it is the whole
        reason, where = where, "$"
    where = where.removesuffix("`")
    if missing := _MISSING.fullmatch(reason):
        return f"{where}.{missing[1]} is missing."
    return f"{where}: {reason[:MAX_REASON].removesuffix('.')}."


def _modernised(value: Any) -> Any:
    """*value* with the tool results in it brought to the present form."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and item.get("type") == "TOOL_EXECUTION_RESULT" and "contents" not in item:
            text = item.pop("text", None)
            if text is not None:
                item["contents"] = [{"type": "TEXT", "text": text}]
    return value
