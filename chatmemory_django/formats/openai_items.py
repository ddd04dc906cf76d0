"""
Conversion from and to the items of OpenAI's Responses and Conversations APIs, as these were in 2026.

A native message is converted to its shortest item. An item without a native equivalent, for example reasoning, becomes
a ``CustomMessage``, so each item that is added to a conversation is one message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from chatmemory_django.formats.files import base64_of, content_of, media_type_of, written
from chatmemory_django.formats.openai_files import (
    AUDIO_FORMATS,
    AUDIO_TYPES,
    DATA_URL,
    PDF_NAME,
    to_data_url,
    to_image,
    to_url,
)
from chatmemory_django.formats.verbatim import Format, as_text, custom, of_custom
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    DetailLevel,
    ImageContent,
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

NAME = "openai"

TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})
DETAILS = {DetailLevel.LOW: "low", DetailLevel.HIGH: "high", DetailLevel.AUTO: "auto"}
LEVELS = {name: level for level, name in DETAILS.items()}


def item_to_message(item: dict[str, Any]) -> ChatMessage:
    """Convert *item*, any JSON object, to a message."""
    with suppress(KeyError, TypeError, ValueError):  # data that does not match its type
        match item.get("type", "message"):
            case "message":
                return _read_message(item)
            case "function_call":
                texts = {name: as_text(item[name]) for name in ("call_id", "name", "arguments")}
                call = ToolExecutionRequest(texts["call_id"], texts["name"], texts["arguments"])
                return AiMessage(tool_execution_requests=[call])
            case "function_call_output":
                return ToolExecutionResultMessage(as_text(item["call_id"]), None, _contents(item["output"]))
    return custom(item, NAME)


def message_to_items(message: ChatMessage) -> list[dict[str, Any]]:
    """Convert *message* to items: an answer to its text, then its calls; an empty list if there is no equivalent."""
    match message:
        case SystemMessage():
            return [{"role": "system", "content": message.text}]
        case UserMessage():
            content = written(message.contents, _written_part)
            return [] if content == [] else [{"role": "user", "content": content}]
        case AiMessage():
            texts = [] if message.text is None else [{"role": "assistant", "content": message.text}]
            return texts + [
                {
                    "type": "function_call",
                    "call_id": call.id or "",
                    "name": call.name or "",
                    "arguments": call.arguments or "",
                }
                for call in message.tool_execution_requests
            ]
        case ToolExecutionResultMessage():
            output = written(message.contents, _written_part)
            return [{"type": "function_call_output", "call_id": message.id or "", "output": output}]
        case CustomMessage():
            return of_custom(message, NAME)


OPENAI_ITEMS = Format(NAME, item_to_message, message_to_items)


def _read_message(item: Mapping[str, Any]) -> ChatMessage:
    content = item["content"]
    match item["role"]:
        case "user":
            return UserMessage(_contents(content))
        case "system" | "developer":
            return SystemMessage(_text(content))
        case "assistant":
            return AiMessage(_text(content))
        case role:
            raise ValueError(role)


def _text(content: object) -> str:
    """Return the text in *content*, a text or parts."""
    if isinstance(content, str):
        return content
    return "".join(
        as_text(part.get("refusal") if part["type"] == "refusal" else part["text"]) for part in _parts(content)
    )


def _contents(content: object) -> str | list[Content]:
    """Return those parts of *content* that are native contents."""
    if isinstance(content, str):
        return content
    return [each for part in _parts(content) if (each := _content(part)) is not None]


def _parts(content: object) -> Sequence[Mapping[str, Any]]:
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return content
    raise TypeError


def _content(part: Mapping[str, Any]) -> Content | None:
    match part["type"]:
        case "input_image" if isinstance(url := part.get("image_url"), str):
            level = LEVELS.get(part.get("detail", "auto"), DetailLevel.HIGH)
            return ImageContent(to_image(url), level)
        case "input_file" if isinstance(url := part.get("file_data") or part.get("file_url"), str):
            if data := DATA_URL.fullmatch(url):
                # An image has a part of its own: in this one, it would come back as another item.
                return None if data[1].startswith("image/") else content_of(data[2], data[1])
            return PdfFileContent(PdfFile(url=url)) if url.lower().endswith(".pdf") else None
        case "input_audio" if isinstance(sound := part.get("input_audio"), dict):
            mime_type = AUDIO_TYPES.get(sound.get("format", ""))
            return AudioContent(Audio(base64_data=as_text(sound["data"]), mime_type=mime_type)) if mime_type else None
        case "refusal":
            return TextContent(as_text(part["refusal"]))
        case kind if kind in TEXT_PARTS:
            return TextContent(as_text(part["text"]))
        case _:
            return None


def _written_part(content: Content | None) -> dict[str, Any] | None:
    match content:
        case TextContent():
            return {"type": "input_text", "text": content.text}
        case ImageContent():
            url = to_url(content.image)
            detail = DETAILS.get(content.detail_level, "auto")
            return None if url is None else {"type": "input_image", "image_url": url, "detail": detail}
        case PdfFileContent(pdf_file=PdfFile() as file):
            return _written_file(file, PDF_NAME)
        case AudioContent(audio=Audio() as file):
            data = base64_of(file)
            sound = {"data": data, "format": AUDIO_FORMATS.get(media_type_of(file, data)) if data else None}
            if sound["format"] is not None:
                return {"type": "input_audio", "input_audio": sound}
            return _written_file(file, "audio")
        case VideoContent(video=Video() as file):
            return _written_file(file, "video")
        case _:
            return None


def _written_file(file: Audio | Video | PdfFile, name: str) -> dict[str, Any] | None:
    """Return the part for any file, which a model may refuse; None if *file* has neither content nor URL."""
    if (url := to_data_url(file)) is not None:
        return {"type": "input_file", "filename": name, "file_data": url}
    return None if file.url is None else {"type": "input_file", "file_url": file.url}
