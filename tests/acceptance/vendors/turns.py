"""Requests to the vendors' APIs, read as turns, so that a rule is written once for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thinking:
    """A thought: *signature* is what the vendor needs to know it again, *id* its name in the Responses API."""

    text: str
    signature: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Call:
    id: str | None
    name: str
    arguments: object
    """A text where the API has one, else JSON."""
    signature: str | None = None


@dataclass(frozen=True)
class Result:
    id: str | None
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class File:
    """A file: *kind* is image, pdf, audio or video."""

    kind: str


@dataclass(frozen=True)
class Unknown:
    """A part that the API does not have."""

    what: str


@dataclass(frozen=True)
class CachePoint:
    pass


Part: TypeAlias = Text | Thinking | Call | Result | File | CachePoint | Unknown


@dataclass(frozen=True)
class Turn:
    role: str
    """system, user, assistant or tool, or what the request has instead."""
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def results(self) -> list[Result]:
        return [part for part in self.parts if isinstance(part, Result)]

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.parts if isinstance(part, Text)]


@dataclass(frozen=True)
class Asked:
    """A request: *system* is the field of its own, where the API has one."""

    turns: tuple[Turn, ...]
    system: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    choice: object = None
    thinks: bool = False
    """Whether it asks for thinking, of which the next answer of a loop must see what was thought before."""
    stores: bool = True
    """Whether the vendor keeps what it answers, as the Responses API can."""
    breakpoints: int = 0
    """Of a prompt cache."""
    body: Json = field(default_factory=dict)


def of_chat(body: Json) -> Asked:
    """Read a request to OpenAI's chat completions, or to an API like it."""
    return Asked(
        tuple(map(_chat_turn, body["messages"])),
        tools=tuple(tool["function"]["name"] for tool in body.get("tools") or ()),
        choice=body.get("tool_choice"),
        body=body,
    )


def _chat_turn(message: Json) -> Turn:
    role, parts = message["role"], tuple(map(_chat_part, _listed(message.get("content"), "text")))
    if role == "tool":
        return Turn(role, (Result(message.get("tool_call_id"), parts),))
    calls = [
        Call(call.get("id"), call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    thought = message.get("reasoning_content")
    thinking = () if thought is None else (Thinking(thought),)
    role = "system" if role == "developer" else role
    return Turn(role, (*thinking, *parts, *calls), message.get("name"))


def _chat_part(part: Json) -> Part:
    match part["type"]:
        case "text":
            return Text(part["text"])
        case "thinking":
            return Thinking("".join(each.get("text", "") for each in part["thinking"]))
        case "image_url":
            return File("image")
        case "input_audio":
            return File("audio")
        case "file" | "document_url":
            return File("pdf")
        case "video_url":
            return File("video")
    return Unknown(part["type"])


def of_responses(body: Json) -> Asked:
    """Read a request to OpenAI's Responses API: each item is a turn."""
    items = body["input"]
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    return Asked(
        tuple(map(_item, items)),
        system=_texts(body.get("instructions")),
        tools=tuple(tool["name"] for tool in body.get("tools") or () if tool["type"] == "function"),
        choice=body.get("tool_choice"),
        stores=body.get("store", True),
        body=body,
    )


def _item(item: Json) -> Turn:
    match item.get("type", "message"):
        case "message":
            role = "system" if item["role"] == "developer" else item["role"]
            return Turn(role, tuple(map(_item_part, _listed(item["content"], "input_text"))))
        case "reasoning":
            text = "".join(each["text"] for each in item.get("summary") or ())
            return Turn("assistant", (Thinking(text, item.get("encrypted_content"), item.get("id")),))
        case "function_call":
            return Turn("assistant", (Call(item["call_id"], item["name"], item["arguments"]),))
        case "function_call_output":
            return Turn(
                "tool", (Result(item["call_id"], tuple(map(_item_part, _listed(item["output"], "input_text")))),)
            )
    return Turn(item["type"], ())


def _item_part(part: Json) -> Part:
    match part["type"]:
        case "input_text" | "output_text":
            return Text(part["text"])
        case "input_image":
            return File("image")
        case "input_file":
            return File("pdf")
        case "input_audio" | "input_video":
            return File(part["type"].removeprefix("input_"))
    return Unknown(part["type"])


def of_anthropic(body: Json) -> Asked:
    """Read a request to Anthropic's Messages API."""
    system = body.get("system")
    cached = [block for block in _blocks(body) if block.get("cache_control")]
    return Asked(
        tuple(Turn(each["role"], tuple(map(_block, _listed(each["content"], "text")))) for each in body["messages"]),
        system=_texts(system) if isinstance(system, str) else tuple(each["text"] for each in system or ()),
        tools=tuple(tool["name"] for tool in body.get("tools") or ()),
        choice=body.get("tool_choice"),
        thinks=body.get("thinking", {}).get("type") == "enabled",
        breakpoints=len(cached) + ("cache_control" in body),
        body=body,
    )


def _blocks(body: Json) -> Iterable[Json]:
    """Yield everything that can have a breakpoint."""
    yield from body.get("tools") or ()
    yield from (() if isinstance(body.get("system"), str) else body.get("system") or ())
    for message in body["messages"]:
        for block in _listed(message["content"], "text"):
            yield block
            if block["type"] == "tool_result":
                yield from _listed(block.get("content"), "text")


def _block(block: Json) -> Part:
    match block["type"]:
        case "text":
            return Text(block["text"])
        case "thinking":
            return Thinking(block["thinking"], block["signature"])
        case "tool_use":
            return Call(block["id"], block["name"], block["input"])
        case "tool_result":
            return Result(block["tool_use_id"], tuple(map(_block, _listed(block.get("content"), "text"))))
        case "image":
            return File("image")
        case "document":
            return File("pdf")
        case "audio" | "video":
            return File(block["type"])
    return Unknown(block["type"])


def of_gemini(body: Json) -> Asked:
    """Read a request to Gemini's generateContent."""
    declared = [each for tool in body.get("tools") or () for each in tool.get("functionDeclarations") or ()]
    return Asked(
        tuple(map(_content, body["contents"])),
        system=tuple(part["text"] for part in body.get("systemInstruction", {}).get("parts") or ()),
        tools=tuple(each["name"] for each in declared),
        choice=body.get("toolConfig"),
        body=body,
    )


def _content(content: Json) -> Turn:
    role = "assistant" if content["role"] == "model" else content["role"]
    return Turn(role, tuple(map(_gemini_part, content.get("parts", ()))))


def _gemini_part(part: Json) -> Part:
    signature = part.get("thoughtSignature")
    if "functionCall" in part:
        call = part["functionCall"]
        return Call(call.get("id"), call["name"], call.get("args", {}), signature)
    if "functionResponse" in part:
        answered = part["functionResponse"]
        return Result(answered.get("id"), (Text(json.dumps(answered["response"])),))
    for name in ("inlineData", "fileData"):
        if name in part:
            file = part[name]  # the API knows two spellings, and its client writes both
            kind = (file.get("mimeType") or file["mime_type"]).partition("/")[0]
            return File("pdf" if kind == "application" else kind)
    if part.get("thought"):
        return Thinking(part.get("text", ""), signature)
    return Text(part["text"]) if "text" in part else Unknown(",".join(part))


def of_bedrock(body: Json) -> Asked:
    """Read a request to Bedrock's Converse."""
    config = body.get("toolConfig") or {}
    tools = config.get("tools") or ()
    thinking = (body.get("additionalModelRequestFields") or {}).get("thinking") or {}
    content = [block for message in body["messages"] for block in message["content"]]
    everything = [*content, *tools, *(body.get("system") or ())]
    return Asked(
        tuple(Turn(each["role"], tuple(map(_bedrock_part, each["content"]))) for each in body["messages"]),
        system=tuple(each["text"] for each in body.get("system") or () if "text" in each),
        tools=tuple(tool["toolSpec"]["name"] for tool in tools if "toolSpec" in tool),
        choice=config.get("toolChoice"),
        thinks=thinking.get("type") == "enabled",
        breakpoints=sum("cachePoint" in block for block in everything),
        body=body,
    )


def _bedrock_part(block: Json) -> Part:
    match block:
        case {"text": str(text)}:
            return Text(text)
        case {"json": value}:
            return Text(json.dumps(value))
        case {"toolUse": call}:
            return Call(call["toolUseId"], call["name"], call["input"])
        case {"toolResult": result}:
            return Result(result["toolUseId"], tuple(map(_bedrock_part, result["content"])))
        case {"reasoningContent": {"reasoningText": thought}}:
            return Thinking(thought["text"], thought.get("signature"))
        case {"image": _}:
            return File("image")
        case {"document": _}:
            return File("pdf")
        case {"video": _} | {"audio": _}:
            return File(next(iter(block)))
        case {"cachePoint": _}:
            return CachePoint()
    return Unknown(",".join(block))


def _listed(content: Any, kind: str) -> list[Json]:
    """Return *content*, which may be a text or null, as a list of parts."""
    if content is None:
        return []
    return [{"type": kind, "text": content}] if isinstance(content, str) else list(content)


def _texts(text: str | None) -> tuple[str, ...]:
    return () if text is None else (text,)


READERS: dict[str, Callable[[Json], Asked]] = {
    "chat": of_chat,
    "responses": of_responses,
    "anthropic": of_anthropic,
    "gemini": of_gemini,
    "bedrock": of_bedrock,
}
"""How the body of a request is read, by the API."""
