"""
Conversion from and to LlamaIndex's messages, as ``ChatMessage.model_dump(mode="json")`` of 0.14 writes them.

What only LlamaIndex's blocks and ``additional_kwargs`` contain is stored next to the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from chatmemory_django.formats.files import base64_of
from chatmemory_django.formats.openai_files import AUDIO_FORMATS, AUDIO_TYPES, to_image
from chatmemory_django.formats.verbatim import Format, as_object, as_text, custom, of_custom, to_object, to_text
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

NAME = "llama_index"
PDF = "application/pdf"

TITLE = "input_document"
"""LlamaIndex's name for a document without a title."""

DETAILS = {DetailLevel.LOW: "low", DetailLevel.HIGH: "high"}
LEVELS = {name: level for level, name in DETAILS.items()}


def item_to_message(item: dict[str, Any]) -> ChatMessage:
    """Convert *item*, any JSON object, to a message."""
    with suppress(KeyError, TypeError, ValueError):  # data that does not match its role
        # Versions before 0.12 have no blocks.
        blocks = list(_blocks(item["blocks"] if "blocks" in item else [_text_block(item["content"])]))
        match item["role"]:
            case "user":
                return UserMessage(_contents(blocks))
            case "system" | "developer":
                return SystemMessage(_text(blocks) or "")
            case "assistant" | "chatbot" | "model":
                calls = [_call(block) for block in blocks if block["block_type"] == "tool_call"]
                return AiMessage(_text(blocks), _thinking(blocks), calls)
            case "tool" | "function":
                more = as_object(item["additional_kwargs"])
                return ToolExecutionResultMessage(more.get("tool_call_id"), more.get("name"), _contents(blocks))
    return custom(item, NAME)


def message_to_items(message: ChatMessage) -> list[dict[str, Any]]:
    """Return *message* as an item; an empty list if LlamaIndex has no such message."""
    match message:
        case SystemMessage():
            return [_item("system", [_text_block(message.text)])]
        case UserMessage():
            blocks = _written(message.contents)
            return [_item("user", blocks)] if blocks else []
        case AiMessage():
            thought = [] if message.thinking is None else [_thinking_block(message.thinking)]
            texts = [] if message.text is None else [_text_block(message.text)]
            calls = [
                {
                    "block_type": "tool_call",
                    "tool_call_id": call.id,
                    "tool_name": call.name or "",
                    "tool_kwargs": (call.arguments or "") if (given := to_object(call.arguments)) is None else given,
                }
                for call in message.tool_execution_requests
            ]
            return [_item("assistant", [*thought, *texts, *calls])]
        case ToolExecutionResultMessage():
            answered = {"tool_call_id": message.id, "name": message.tool_name}
            answered = {name: value for name, value in answered.items() if value is not None}
            return [_item("tool", _written(message.contents), **answered)]
        case CustomMessage():
            return of_custom(message, NAME)


LLAMA_INDEX = Format(NAME, item_to_message, message_to_items)


def _item(role: str, blocks: list[dict[str, Any]], **additional_kwargs: Any) -> dict[str, Any]:
    return {"role": role, "additional_kwargs": additional_kwargs, "blocks": blocks}


def _text_block(text: str) -> dict[str, Any]:
    return {"block_type": "text", "text": text}


def _thinking_block(text: str) -> dict[str, Any]:
    return {"block_type": "thinking", "content": text, "num_tokens": None, "additional_information": {}}


def _blocks(blocks: object) -> Iterator[dict[str, Any]]:
    """Yield *blocks*, with citations replaced by the cited content."""
    if not isinstance(blocks, list):
        raise TypeError
    for block in blocks:
        match block["block_type"]:
            case "citable":
                yield from _blocks(block["content"])
            case "citation":
                yield from _blocks([block["cited_content"]])
            case _:
                yield block


def _text(blocks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the text of *blocks*, as ``ChatMessage.content`` joins it."""
    texts = [as_text(block["text"]) for block in blocks if block["block_type"] == "text"]
    return "\n".join(texts) if texts else None


def _thinking(blocks: Sequence[Mapping[str, Any]]) -> str | None:
    found = [block["content"] for block in blocks if block["block_type"] == "thinking"]
    return "\n\n".join(as_text(text) for text in found if text is not None) or None


def _call(block: Mapping[str, Any]) -> ToolExecutionRequest:
    return ToolExecutionRequest(block["tool_call_id"], block["tool_name"], to_text(block["tool_kwargs"]))


def _contents(blocks: Iterable[Mapping[str, Any]]) -> list[Content]:
    """Return those of *blocks* that are native contents."""
    return [each for block in blocks if (each := _content(block)) is not None]


def _content(block: Mapping[str, Any]) -> Content | None:
    match block["block_type"]:
        case "text":
            return TextContent(as_text(block["text"]))
        case "image" if file := _file(block, "image", block["image_mimetype"]):
            level = LEVELS.get(block["detail"], DetailLevel.AUTO)
            is_inline = file["url"] is not None and as_text(file["url"]).startswith("data:")
            return ImageContent(to_image(file["url"]) if is_inline else Image(**file), level)
        case "audio" if file := _file(block, "audio", AUDIO_TYPES.get(block["format"])):
            return AudioContent(Audio(**file))
        case "video" if file := _file(block, "video", block["video_mimetype"]):
            return VideoContent(Video(**file))
        case "document" if (file := _file(block, "data", block["document_mimetype"])) and file["mime_type"] == PDF:
            return PdfFileContent(PdfFile(**file))
        case _:
            return None


def _file(block: Mapping[str, Any], content: str, mime_type: str | None) -> dict[str, Any]:
    """Return the file in *block*; empty if it only has a path on the machine that wrote it."""
    if block[content] is None and block["url"] is None:
        return {}
    return {"url": block["url"], "base64_data": block[content], "mime_type": mime_type}


def _written(contents: Sequence[Content | None]) -> list[dict[str, Any]]:
    return [block for content in contents if (block := _written_block(content)) is not None]


def _written_block(content: Content | None) -> dict[str, Any] | None:
    match content:
        case TextContent():
            return _text_block(content.text)
        case ImageContent(image=file):
            more = {"image_mimetype": file.mime_type, "detail": DETAILS.get(content.detail_level)}
            return _written_file("image", "image", file, more)
        case AudioContent(audio=Audio() as file):
            return _written_file("audio", "audio", file, {"format": AUDIO_FORMATS.get(file.mime_type or "")})
        case VideoContent(video=Video() as file):
            return _written_file(
                "video", "video", file, {"video_mimetype": file.mime_type, "detail": None, "fps": None}
            )
        case PdfFileContent(pdf_file=PdfFile() as file):
            return _written_file("document", "data", file, {"title": TITLE, "document_mimetype": PDF})
        case _:
            return None


def _written_file(
    block_type: str, content: str, file: Image | Audio | Video | PdfFile, more: dict[str, Any]
) -> dict[str, Any] | None:
    data = base64_of(file)
    if data is None and file.url is None:
        return None
    return {"block_type": block_type, content: data, "path": None, "url": file.url, **more}
