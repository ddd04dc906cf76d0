"""
Conversion from and to the JSON of pydantic-ai's model messages, as ``ModelMessagesTypeAdapter`` wrote it in 2026.

A response is one AI message. A request is one message for each of its native parts: system prompts, the user's prompts,
results of tools. A request or response without native parts is a ``CustomMessage``. The original JSON is always stored,
because every part has a timestamp, which messages do not have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

from chatmemory_django.formats.arguments import to_text
from chatmemory_django.formats.files import PDF, base64_of, content_of, media_type_of, written
from chatmemory_django.formats.verbatim import as_text, custom, of_custom, to_group
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    NewMessage,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)

NAME = "pydantic_ai"

FAILED = {"success": False, "failed": True, "retried": True, "interrupted": True}
"""Whether a tool failed, by the outcome of its call. A call that was denied did not run."""

FILES = frozenset({"image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file"})

STANDARD_BASE64 = str.maketrans("-_", "+/")
"""Pydantic writes the URL-safe alphabet, and reads both."""

_encode = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


def to_new_messages(model_message: object, where: str) -> list[NewMessage]:
    """
    Convert *model_message*, the JSON of a request or a response, to messages; *where* is its path for error messages.

    Raises:
        TypeError: It is not a JSON object.
        ValueError: It is nested too deeply, or contains itself.

    """
    return to_group(model_message, NAME, to_messages, where)


def to_messages(model_message: dict[str, Any]) -> list[ChatMessage]:
    """Convert *model_message*, any JSON object, to one or more messages."""
    messages: list[ChatMessage] = []
    with suppress(KeyError, TypeError, ValueError):  # data that does not match its kind
        parts = _parts(model_message["parts"])
        match model_message["kind"]:
            case "request":
                messages = [message for part in parts if (message := _of_request_part(part)) is not None]
            case "response":
                messages = [message] if (message := _of_response(parts)) is not None else []
    return messages or [custom(model_message, NAME)]


def from_message(message: ChatMessage, at: str | None = None) -> list[dict[str, Any]]:
    """
    Convert *message* to a request or a response; an empty list if pydantic-ai has no such message.

    *at* is its time: without one, pydantic-ai uses the time at which it reads the JSON.
    """
    moment = {} if at is None else {"timestamp": at}
    match message:
        case SystemMessage():
            return [_request("system-prompt", moment, content=message.text)]
        case UserMessage():
            content = written(message.contents, _written_item)
            return [] if content == [] else [_request("user-prompt", moment, content=content)]
        case AiMessage():
            thinking = [] if message.thinking is None else [{"content": message.thinking, "part_kind": "thinking"}]
            texts = [] if message.text is None else [{"content": message.text, "part_kind": "text"}]
            calls = [
                {
                    "tool_name": call.name or "",
                    "args": call.arguments,
                    "tool_call_id": call.id or "",
                    "part_kind": "tool-call",
                }
                for call in message.tool_execution_requests
            ]
            return [{"parts": [*thinking, *texts, *calls], "kind": "response", **moment}]
        case ToolExecutionResultMessage():
            answered = {"tool_name": message.tool_name or "", "tool_call_id": message.id or ""}
            outcome = "failed" if message.is_error else "success"
            content = written(message.contents, _written_item)
            return [_request("tool-return", moment, **answered, content=content, outcome=outcome)]
        case CustomMessage():
            return of_custom(message, NAME)


def metadata_of(model_message: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a response's metadata about its call, as they are stored with a message; None for a request."""
    if model_message.get("kind") != "response":
        return None
    usage = model_message.get("usage") or {}
    counts = {"input": usage.get("input_tokens"), "output": usage.get("output_tokens")}
    found = {
        "id": model_message.get("provider_response_id"),
        "model": model_message.get("model_name"),
        "finish_reason": model_message.get("finish_reason"),
        "usage": {name: count for name, count in counts.items() if count} or None,
    }
    return {name: value for name, value in found.items() if value is not None} or None


def _request(part_kind: str, moment: Mapping[str, Any], **part: Any) -> dict[str, Any]:
    return {"parts": [{**part, **moment, "part_kind": part_kind}], "kind": "request", **moment}


def _of_request_part(part: Mapping[str, Any]) -> ChatMessage | None:
    """Convert *part* of a request to a message, or None if it has no native equivalent."""
    with suppress(KeyError, TypeError, ValueError):
        match part["part_kind"]:
            case "system-prompt":
                return SystemMessage(as_text(part["content"]))
            case "user-prompt":
                content = part["content"]
                return UserMessage(content if isinstance(content, str) else _contents(content))
            case "speech":
                spoken = [] if part.get("transcript") is None else [TextContent(as_text(part["transcript"]))]
                return UserMessage([*spoken, *_contents([part.get("audio")])])
            case "tool-return" | "retry-prompt" if part.get("tool_name") is not None:
                return ToolExecutionResultMessage(
                    as_text(part["tool_call_id"]),
                    as_text(part["tool_name"]),
                    _result(part["content"]),
                    FAILED.get(part.get("outcome", "success" if part["part_kind"] == "tool-return" else "retried")),
                )
    return None


def _of_response(parts: Sequence[Mapping[str, Any]]) -> AiMessage | None:
    """Convert *parts* of a response to an answer, or None if an AI message supports none of them."""
    # As ``ModelResponse.text`` does: adjacent texts are one text.
    runs = groupby(map(_spoken, parts), key=lambda text: text is not None)
    texts = ["".join(map(as_text, run)) for is_text, run in runs if is_text]
    thinking = [text for part in parts if part["part_kind"] == "thinking" and (text := as_text(part["content"]))]
    calls = [
        ToolExecutionRequest(as_text(part["tool_call_id"]), as_text(part["tool_name"]), to_text(part.get("args")))
        for part in parts
        if part["part_kind"] == "tool-call"
    ]
    if not (texts or thinking or calls):
        return None
    return AiMessage("\n\n".join(texts) if texts else None, "\n\n".join(thinking) or None, calls)


def _spoken(part: Mapping[str, Any]) -> str | None:
    """Return the text of *part* of a response, if it is text or speech."""
    match part["part_kind"]:
        case "text":
            return as_text(part["content"])
        case "speech":
            return part.get("transcript")
        case _:
            return None


def _result(content: object) -> str | list[Content]:
    """Return what a tool returned: any JSON, with files anywhere at its top level."""
    items = content if isinstance(content, list) else [content]
    if any(_is_file(item) for item in items):
        return _contents([item if isinstance(item, str) or _is_file(item) else _encode(item) for item in items])
    return content if isinstance(content, str) else _encode(content)


def _is_file(item: object) -> bool:
    return isinstance(item, dict) and item.get("kind") in FILES


def _contents(items: Iterable[object]) -> list[Content]:
    """Return those of *items* that are native contents."""
    return [content for item in items if (content := _content(item)) is not None]


def _content(item: Any) -> Content | None:
    if isinstance(item, str):
        return TextContent(item)
    match item:
        case {"kind": "text-content" | "structured-content", "content": str(text)}:
            return TextContent(text)
        case {"kind": "image-url", "url": str(url)}:
            return ImageContent(Image(url=url), DetailLevel.AUTO)
        case {"kind": "audio-url", "url": str(url)}:
            return AudioContent(Audio(url=url))
        case {"kind": "video-url", "url": str(url)}:
            return VideoContent(Video(url=url))
        case {"kind": "document-url", "url": str(url), "media_type": "application/pdf"}:
            return PdfFileContent(PdfFile(url=url))
        case {"kind": "binary", "data": str(data), "media_type": str(media_type)}:
            return content_of(data.translate(STANDARD_BASE64), media_type)
        case _:
            return None


def _written_item(content: Content | None) -> str | dict[str, Any] | None:
    match content:
        case TextContent():
            return content.text
        case ImageContent():
            return _written_file("image-url", content.image)
        case AudioContent(audio=Audio() as file):
            return _written_file("audio-url", file)
        case VideoContent(video=Video() as file):
            return _written_file("video-url", file)
        case PdfFileContent(pdf_file=PdfFile() as file):
            return _written_file("document-url", file, media_type=PDF)
        case _:
            return None


def _written_file(
    kind: str, file: Image | Audio | Video | PdfFile, *, media_type: str | None = None
) -> dict[str, Any] | None:
    if (data := base64_of(file)) is not None:
        return {"data": data, "media_type": media_type_of(file, data), "kind": "binary"}
    media_type = file.mime_type or media_type
    if file.url is None:
        return None
    return {"url": file.url, "kind": kind, **({} if media_type is None else {"media_type": media_type})}


def _parts(parts: object) -> Sequence[Mapping[str, Any]]:
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        return parts
    raise TypeError
