"""Recorded runs of LangChain4j: from their neutral descriptions to our messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

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

DATA = Path(__file__).parent / "data"


def load_vectors(name: str) -> dict[str, Any]:
    """Load the recording *name* from tests/data."""
    loaded: dict[str, Any] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return loaded


def message_from_description(d: dict[str, Any]) -> ChatMessage:
    """Return the message that *d* describes."""
    match d["type"]:
        case "SYSTEM":
            return SystemMessage(d["text"])
        case "USER":
            return UserMessage(_contents(d), d.get("name"), _attributes(d))
        case "AI":
            requests = [ToolExecutionRequest(**request) for request in d.get("toolExecutionRequests") or ()]
            return AiMessage(d.get("text"), d.get("thinking"), requests, _attributes(d))
        case "TOOL_EXECUTION_RESULT":
            return ToolExecutionResultMessage(
                d.get("id"), d.get("toolName"), _contents(d), d.get("isError"), _attributes(d)
            )
        case "CUSTOM":
            return CustomMessage(_attributes(d))
    raise ValueError(f"There is no message of type {d['type']!r}.")


def _attributes(d: dict[str, Any]) -> dict[str, Any]:
    return d.get("attributes") or {}


def _contents(d: dict[str, Any]) -> list[Content | None]:
    return [None if content is None else _content(content) for content in d["contents"]]


def _content(d: dict[str, Any]) -> Content:
    match d["type"]:
        case "TEXT":
            return TextContent(d["text"])
        case "IMAGE":
            image = d["image"]
            detail = {} if d.get("detailLevel") is None else {"detail_level": DetailLevel(d["detailLevel"])}
            return ImageContent(Image(**_media(image), revised_prompt=image.get("revisedPrompt")), **detail)
        case "AUDIO":
            audio = d.get("audio")
            return AudioContent(None if audio is None else Audio(**_media(audio), binary_data=_binary_data(audio)))
        case "VIDEO":
            video = d.get("video")
            return VideoContent(None if video is None else Video(**_media(video)))
        case "PDF":
            pdf_file = d.get("pdfFile")
            return PdfFileContent(None if pdf_file is None else PdfFile(**_media(pdf_file)))
    raise ValueError(f"There is no content of type {d['type']!r}.")


def _media(d: dict[str, Any]) -> dict[str, Any]:
    return {"url": d.get("url"), "base64_data": d.get("base64Data"), "mime_type": d.get("mimeType")}


def _binary_data(d: dict[str, Any]) -> bytes | None:
    return None if d.get("binaryData") is None else base64.b64decode(d["binaryData"])
