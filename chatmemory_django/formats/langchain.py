"""
Conversion from and to the JSON of LangChain's messages, as ``message_to_dict`` of langchain-core 1 writes it.

The JSON has the form ``{"type", "data"}``. What only LangChain's messages have, for example ids, the provider's
metadata and whether the message was a chunk, is stored next to the message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from chatmemory_django.formats.arguments import to_object, to_text
from chatmemory_django.formats.files import base64_of, media_type_of, written
from chatmemory_django.formats.openai_files import to_image, to_url
from chatmemory_django.formats.verbatim import Format, as_object, as_text, custom, of_custom
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

NAME = "langchain"
PDF = "application/pdf"

ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}
"""The role for each type of message; messages of the type ``chat`` have a role of their own."""

ROLES |= {f"{name}MessageChunk": ROLES[name.lower()] for name in ("Human", "AI", "System", "Tool", "Function")}

DETAILS = {DetailLevel.LOW: "low", DetailLevel.HIGH: "high"}
LEVELS = {name: level for level, name in DETAILS.items()}


def item_to_message(item: dict[str, Any]) -> ChatMessage:
    """Convert *item*, any JSON object, to a message."""
    with suppress(KeyError, TypeError, ValueError):  # data that does not match its type
        data = as_object(item["data"])
        content = data["content"]
        match ROLES[item["type"]] if item["type"] not in {"chat", "ChatMessageChunk"} else data["role"]:
            case "user" | "human":
                return UserMessage(_contents(content), data.get("name") or None)
            case "system" | "developer":
                return SystemMessage(_text(content))
            case "assistant" | "ai":
                calls = [
                    _call(as_object(call))
                    for name in ("tool_calls", "invalid_tool_calls")
                    for call in data.get(name) or ()
                ]
                return AiMessage(_text(content) or (None if calls else ""), _thinking(content), calls)
            case "tool":
                # A FunctionMessage has neither a status nor an id.
                failed = {"success": False, "error": True}.get(data.get("status", ""))
                return ToolExecutionResultMessage(data.get("tool_call_id"), data["name"], _contents(content), failed)
    return custom(item, NAME)


def message_to_items(message: ChatMessage) -> list[dict[str, Any]]:
    """Return *message* as an item; an empty list if LangChain has no such message."""
    match message:
        case SystemMessage():
            return [_item("system", message.text)]
        case UserMessage():
            content = written(message.contents, _written_part)
            return [] if content == [] else [_item("human", content, name=message.name)]
        case AiMessage():
            return [
                _item("ai", message.text or "", **_written_calls(message.tool_execution_requests), usage_metadata=None)
            ]
        case ToolExecutionResultMessage():
            status = "error" if message.is_error else "success"
            answered = {"name": message.tool_name, "tool_call_id": message.id or ""}
            return [_item("tool", written(message.contents, _written_part), **answered, artifact=None, status=status)]
        case CustomMessage():
            return of_custom(message, NAME)


LANGCHAIN = Format(NAME, item_to_message, message_to_items)


def _item(type: str, content: str | list[dict[str, Any]], **data: Any) -> dict[str, Any]:
    every: dict[str, Any] = {
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
        "type": type,
        "name": None,
        "id": None,
    }
    return {"type": type, "data": {**every, **data}}


def _call(call: Mapping[str, Any]) -> ToolExecutionRequest:
    return ToolExecutionRequest(call["id"], call["name"], to_text(call["args"]))


def _written_calls(calls: Sequence[ToolExecutionRequest]) -> dict[str, Any]:
    """Return *calls*, divided into those whose arguments are an object and the others."""
    valid, invalid = [], []
    for call in calls:
        if (args := to_object(call.arguments)) is not None:
            valid.append({"name": call.name or "", "args": args, "id": call.id, "type": "tool_call"})
        else:
            wrong = {"name": call.name, "args": call.arguments, "id": call.id, "error": None}
            invalid.append({**wrong, "type": "invalid_tool_call"})
    return {"tool_calls": valid, "invalid_tool_calls": invalid}


def _parts(content: object) -> list[dict[str, Any]]:
    """Return *content*, a text or a list of texts and blocks, as blocks."""
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise TypeError
    return [{"type": "text", "text": part} if isinstance(part, str) else as_object(part) for part in parts]


def _text(content: object) -> str:
    return "".join(as_text(part["text"]) for part in _parts(content) if part.get("type") == "text")


def _thinking(content: object) -> str | None:
    """Return the model's thinking in *content*, in the blocks of Anthropic or of LangChain itself."""
    parts = [part for part in _parts(content) if part.get("type") in {"thinking", "reasoning"}]
    return "\n\n".join(text for part in parts if isinstance(text := part.get(part["type"]), str) and text) or None


def _contents(content: object) -> str | list[Content]:
    """Return those parts of *content* that are native contents."""
    if isinstance(content, str):
        return content
    return [each for part in _parts(content) if (each := _content(part)) is not None]


def _content(part: Mapping[str, Any]) -> Content | None:
    match part.get("type"):
        case "text":
            return TextContent(as_text(part["text"]))
        case "image_url":
            image = part["image_url"] if isinstance(part["image_url"], dict) else {"url": part["image_url"]}
            return ImageContent(to_image(as_text(image["url"])), LEVELS.get(image.get("detail", ""), DetailLevel.AUTO))
        case "image" if file := _file(part):
            return ImageContent(Image(**file), DetailLevel.AUTO)
        case "audio" if file := _file(part):
            return AudioContent(Audio(**file))
        case "video" if file := _file(part):
            return VideoContent(Video(**file))
        case "file" | "document" if (file := _file(part)) and file.get("mime_type") == PDF:
            return PdfFileContent(PdfFile(**file))
        case _:
            return None


def _file(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file in *part*; empty if it is only referenced by an id. Anthropic nests it in *source*."""
    source = as_object(part.get("source", part))
    names = {"url": ["url"], "base64_data": ["base64", "data"], "mime_type": ["mime_type", "media_type"]}
    found = {name: source[key] for name, keys in names.items() for key in keys if key in source}
    return found if "url" in found or "base64_data" in found else {}


def _written_part(content: Content | None) -> dict[str, Any] | None:
    match content:
        case TextContent():
            return {"type": "text", "text": content.text}
        # Only OpenAI's kind of block has a detail level.
        case ImageContent() if detail := DETAILS.get(content.detail_level):
            url = to_url(content.image)
            return None if url is None else {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        case ImageContent():
            return _written_file("image", content.image)
        case AudioContent(audio=Audio() as file):
            return _written_file("audio", file)
        case VideoContent(video=Video() as file):
            return _written_file("video", file)
        case PdfFileContent(pdf_file=PdfFile() as file):
            return _written_file("file", file, PDF)
        case _:
            return None


def _written_file(
    type: str, file: Image | Audio | Video | PdfFile, mime_type: str | None = None
) -> dict[str, Any] | None:
    """Return *file* as a standard block, with its content, else its URL; None if it has neither."""
    if (data := base64_of(file)) is not None:
        return {"type": type, "mime_type": media_type_of(file, data), "base64": data}
    mime_type = file.mime_type or mime_type
    block = {"type": type, **({} if mime_type is None else {"mime_type": mime_type})}
    return None if file.url is None else {**block, "url": file.url}
