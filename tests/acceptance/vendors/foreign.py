"""Messages that no vendor has written: a site adds them, or other frameworks' files have them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

from chatmemory_django.codec import message_to_json
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
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
from tests.acceptance.vendors.rules import SYSTEM

BLANKS = ("", " ", "\n\n", "\t", "\xa0")
TEXTS = ("Hello.", "Wie spät ist es? 🕛", "All is well.\n\nIs it?", "<|im_start|>user", "x " * 60)
IDS = (
    "call_0",
    "call_9aZ8bY7cX6dW5eV4fU3gT2hS",
    "functions.look:0",
    "toolu_01A09q90qw90lq917835lq9",
    "x" * 80,
    "a b",
    "ünïcödé",
    "tooluse.1:2",
    "abcDEF123",
    "1",
    "",
    None,
)
"""Those of OpenAI, Ollama, Kimi, Claude, gateways, frameworks, Bedrock and Mistral, and none."""
NAMES = ("look", "count", "default_api.look", "look it up", "a" * 70, "sök", "", None)
ARGUMENTS = (
    '{"where": "here"}',
    '{"where": "he',
    '{"where": NaN}',
    "{}",
    "",
    "null",
    "[1]",
    "where=here",
    '"here"',
    None,
)
SPEAKERS = ("ann", "Ann Lee", "<ann>", "", "ä" * 70)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
OTHER = base64.b64encode(b"the content of a file").decode()

FILES: dict[str, Content] = {
    "image": ImageContent(Image(base64_data=PNG, mime_type="image/png")),
    "pdf": PdfFileContent(PdfFile(base64_data=OTHER, mime_type="application/pdf")),
    "audio": AudioContent(Audio(base64_data=OTHER, mime_type="audio/wav")),
    "video": VideoContent(Video(base64_data=OTHER, mime_type="video/mp4")),
}
"""A file of each kind."""

VARIANTS: dict[str, tuple[Content, ...]] = {
    "image": (
        ImageContent(Image(url="https://example.com/a/cat.png", mime_type="image/png")),
        ImageContent(Image(url="https://example.com/a/cat.webp?size=1")),
        ImageContent(Image(base64_data=PNG)),
        ImageContent(Image(base64_data=OTHER, mime_type="image/tiff")),
    ),
    "pdf": (
        PdfFileContent(PdfFile(url="https://example.com/a/file.pdf", mime_type="application/pdf")),
        PdfFileContent(PdfFile(base64_data=OTHER)),
    ),
    "audio": (
        AudioContent(Audio(url="https://example.com/a/sound.mp3")),
        *(
            AudioContent(Audio(base64_data=OTHER, mime_type=f"audio/{each}"))
            for each in ("mpeg", "ogg", "flac", "aiff")
        ),
    ),
    "video": (
        VideoContent(Video(url="https://example.com/a/film.mp4", mime_type="video/mp4")),
        *(VideoContent(Video(base64_data=OTHER, mime_type=f"video/{each}")) for each in ("webm", "quicktime")),
    ),
}
"""Files of other types, of none, and those that are given by a URL."""


def file(random: Random, kinds: Collection[str] = tuple(FILES)) -> Content:
    """Return a file of one of these *kinds*."""
    kind = random.choice(sorted(kinds))
    return random.choice([FILES[kind], *VARIANTS[kind]])


KINDS: dict[type, str] = {type(content): kind for kind, content in FILES.items()}


def kinds_in(message: ChatMessage) -> set[str]:
    """Return the kinds of the files in *message*."""
    contents = message.contents if isinstance(message, UserMessage | ToolExecutionResultMessage) else ()
    return {KINDS[type(content)] for content in contents if type(content) in KINDS}


def text(random: Random) -> str:
    return random.choice(BLANKS) if random.random() < 0.15 else random.choice(TEXTS)


def messages(random: Random) -> list[ChatMessage]:
    """Return one message, or some that belong together, more or less."""
    kinds: Sequence[Callable[[Random], list[ChatMessage]]] = (
        _from_user,
        _from_user,
        _answer,
        _answer,
        _called,
        _called,
        _called,
        _orphan,
        _system,
        _custom,
    )
    return random.choice(kinds)(random)


def conversation(random: Random) -> list[ChatMessage]:
    """Return what another framework may have stored."""
    return [message for _ in range(random.randint(1, 8)) for message in messages(random)]


def _from_user(random: Random) -> list[ChatMessage]:
    files = [file(random)] if random.random() < 0.2 else []
    many = [files[0]] * 101 if files and "image" in kinds_in(UserMessage(files)) and random.random() < 0.05 else files
    texts = [TextContent(text(random))] if random.random() < 0.9 or not files else []
    name = random.choice(SPEAKERS) if random.random() < 0.2 else None
    return [UserMessage([*texts, *many], name)]


def _answer(random: Random) -> list[ChatMessage]:
    return [AiMessage(text(random), "I have thought." if random.random() < 0.2 else None)]


def _called(random: Random) -> list[ChatMessage]:
    """Return calls, often with their results: a result may be missing, or behind something else."""
    one_id = random.choice(IDS) if random.random() < 0.1 else ...
    calls = [
        ToolExecutionRequest(
            random.choice(IDS) if one_id is ... else one_id, random.choice(NAMES), random.choice(ARGUMENTS)
        )
        for _ in range(random.choice([1, 1, 2, 3]))
    ]
    answer = AiMessage(random.choice([None, text(random)]), "Hm." if random.random() < 0.2 else None, calls)
    results: list[ChatMessage] = [_result(random, call) for call in calls if random.random() < 0.9]
    if random.random() < 0.2:
        random.shuffle(results)
    if random.random() < 0.2:
        results.insert(random.randint(0, len(results)), random.choice([_from_user, _answer, _system])(random)[0])
    return [answer, *results]


def _result(random: Random, call: ToolExecutionRequest) -> ToolExecutionResultMessage:
    files = [file(random)] if random.random() < 0.1 else []
    return ToolExecutionResultMessage.from_request(
        call, [TextContent(text(random)), *files], is_error=random.choice([None, False, True])
    )


def _orphan(random: Random) -> list[ChatMessage]:
    return [_result(random, ToolExecutionRequest(random.choice(IDS), random.choice(NAMES), "{}"))]


def _system(random: Random) -> list[ChatMessage]:
    return [SystemMessage(f"{SYSTEM} You are {random.choice(['strict', 'kind', 'brief'])}.")]


def _custom(random: Random) -> list[ChatMessage]:
    return [CustomMessage({"note": text(random)})]


def write(random: Random, memory_id: str, folder: Path) -> tuple[str, Path]:
    """Write a conversation as the file of another framework; return the framework's name, and the file."""
    framework = random.choice([*_WRITERS])
    items = [item for message in conversation(random) for item in _WRITERS[framework](message)]
    path = folder / f"{memory_id}.json"
    path.write_text(json.dumps(items), encoding="utf-8")
    return framework, path


def _langchain4j(message: ChatMessage) -> list[Any]:
    return [json.loads(message_to_json(message))]


def _langchain(message: ChatMessage) -> list[Any]:
    match message:
        case SystemMessage():
            return [{"type": "system", "data": {"content": message.text, "type": "system"}}]
        case UserMessage():
            return [{"type": "human", "data": {"content": _text_of(message), "type": "human", "name": message.name}}]
        case AiMessage():
            calls = [
                {"name": call.name or "", "args": _json(call.arguments), "id": call.id, "type": "tool_call"}
                for call in message.tool_execution_requests
            ]
            return [{"type": "ai", "data": {"content": message.text or "", "type": "ai", "tool_calls": calls}}]
        case ToolExecutionResultMessage():
            data = {"content": _text_of(message), "type": "tool", "name": message.tool_name, "tool_call_id": message.id}
            return [{"type": "tool", "data": {**data, "tool_call_id": message.id or "", "status": "success"}}]
    return [{"type": "chat", "data": {"content": "noted", "type": "chat", "role": "narrator"}}]


def _pydantic_ai(message: ChatMessage) -> list[Any]:
    match message:
        case SystemMessage():
            return [_request({"content": message.text, "part_kind": "system-prompt"})]
        case UserMessage():
            return [_request({"content": _text_of(message), "part_kind": "user-prompt"})]
        case AiMessage():
            thoughts = [{"content": message.thinking, "signature": "c2ln", "part_kind": "thinking"}]
            texts = [{"content": message.text, "part_kind": "text"}]
            calls = [
                {
                    "tool_name": call.name or "",
                    "args": call.arguments,
                    "tool_call_id": call.id or "",
                    "part_kind": "tool-call",
                }
                for call in message.tool_execution_requests
            ]
            parts = [*thoughts * bool(message.thinking), *texts * (message.text is not None), *calls]
            return [{"parts": parts, "kind": "response"}] if parts else []
        case ToolExecutionResultMessage():
            answered = {"tool_name": message.tool_name or "", "tool_call_id": message.id or ""}
            return [_request({**answered, "content": _text_of(message), "part_kind": "tool-return"})]
    return []


def _llama_index(message: ChatMessage) -> list[Any]:
    def item(role: str, *blocks: dict[str, Any], **others: Any) -> list[Any]:
        return [{"role": role, "additional_kwargs": others, "blocks": list(blocks)}]

    def block(text: str) -> dict[str, Any]:
        return {"block_type": "text", "text": text}

    match message:
        case SystemMessage():
            return item("system", block(message.text))
        case UserMessage():
            return item("user", block(_text_of(message)))
        case AiMessage():
            calls: list[dict[str, Any]] = [
                {
                    "block_type": "tool_call",
                    "tool_call_id": call.id,
                    "tool_name": call.name or "",
                    "tool_kwargs": call.arguments or {},
                }
                for call in message.tool_execution_requests
            ]
            return item("assistant", block(message.text or ""), *calls)
        case ToolExecutionResultMessage():
            return item("tool", block(_text_of(message)), tool_call_id=message.id or "", name=message.tool_name)
    return item("chatbot", block("noted"))


_WRITERS: dict[str, Callable[[ChatMessage], list[Any]]] = {
    "langchain": _langchain,
    "langchain4j": _langchain4j,
    "llamaindex": _llama_index,
    "pydantic-ai": _pydantic_ai,
}


def _request(part: dict[str, Any]) -> dict[str, Any]:
    return {"parts": [{**part, "timestamp": "2026-11-22T18:40:03Z"}], "kind": "request"}


def _text_of(message: UserMessage | ToolExecutionResultMessage) -> str:
    return "".join(content.text for content in message.contents if isinstance(content, TextContent))


def _json(arguments: str | None) -> dict[str, Any]:
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
