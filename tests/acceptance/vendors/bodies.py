"""Requests written by hand: turns as the body that each API has. The inverse of ``turns``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.acceptance.vendors.turns import Asked, Call, File, Part, Result, Text, Thinking, Turn, Unknown

MIME = {"image": "image/png", "pdf": "application/pdf", "audio": "audio/wav", "video": "video/mp4"}


def body_of(api: str, asked: Asked) -> dict[str, Any]:
    """Return *asked* as *api* has it. Results are turns of their own there, or begin the user's next turn."""
    body = _WRITERS[api](asked)
    return {name: value for name, value in body.items() if value not in (None, [], ())}


def _chat(asked: Asked) -> dict[str, Any]:
    messages = []
    for turn in [*(Turn("system", (Text(text),)) for text in asked.system), *asked.turns]:
        content = [_chat_part(part) for part in turn.parts if not isinstance(part, Call | Result | Thinking)]
        message: dict[str, Any] = {"role": turn.role, "content": content or None}
        if all(part["type"] == "text" for part in content) and content:
            message["content"] = "".join(part["text"] for part in content)
        for part in turn.parts:
            match part:
                case Call():
                    function = {"name": part.name, "arguments": part.arguments}
                    message.setdefault("tool_calls", []).append(
                        {"id": part.id, "type": "function", "function": function}
                    )
                case Result():
                    message |= {"tool_call_id": part.id, "content": _text(part)}
                case Thinking():
                    message["reasoning_content"] = part.text
        messages.append(message if turn.name is None else {**message, "name": turn.name})
    tools = [
        {"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in asked.tools
    ]
    return {"messages": messages, "tools": tools, "tool_choice": asked.choice}


def _chat_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case File():
            return {"type": {"image": "image_url", "audio": "input_audio", "pdf": "file"}.get(part.kind, "video_url")}
    return {"type": "hologram"}


def _responses(asked: Asked) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for turn in asked.turns:
        for part in turn.parts:
            match part:
                case Call():
                    call = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
                    items.append({"type": "function_call", **call})
                case Result():
                    items.append({"type": "function_call_output", "call_id": part.id, "output": _text(part)})
                case Thinking():
                    thought: dict[str, Any] = {"id": part.id, "summary": [], "encrypted_content": part.signature}
                    items.append({"type": "reasoning", **thought})
                case Text() | File() | Unknown():
                    kind = {Text: "input_text", File: "input_image"}.get(type(part), "hologram")
                    kind = "input_video" if part == File("video") else kind
                    content = {"type": kind, "text": getattr(part, "text", None)}
                    items.append({"type": "message", "role": turn.role, "content": [content]})
    tools = [{"type": "function", "name": name} for name in asked.tools]
    found = {"input": items, "tools": tools, "tool_choice": asked.choice, "store": asked.stores}
    return {**found, "instructions": "\n".join(asked.system) or None}


def _anthropic(asked: Asked) -> dict[str, Any]:
    system = [{"type": "text", "text": text} for text in asked.system]
    tools: list[dict[str, Any]] = [{"name": name} for name in asked.tools]
    for block in [*tools, *system][: asked.breakpoints]:
        block["cache_control"] = {"type": "ephemeral"}
    return {
        "system": system,
        "messages": [
            {"role": turn.role, "content": [_block(part) for part in turn.parts]} for turn in _joined(asked.turns)
        ],
        "tools": tools,
        "tool_choice": asked.choice,
        "thinking": {"type": "enabled"} if asked.thinks else None,
    }


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Thinking():
            return {"type": "thinking", "thinking": part.text, "signature": part.signature}
        case Call():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _value(part)}
        case Result():
            return {"type": "tool_result", "tool_use_id": part.id, "content": [_block(each) for each in part.parts]}
        case File():
            return {"type": {"image": "image", "pdf": "document"}.get(part.kind, part.kind)}
    return {"type": "hologram"}


def _gemini(asked: Asked) -> dict[str, Any]:
    system = {"parts": [{"text": text} for text in asked.system]} if asked.system else None
    contents = [
        {
            "role": {"assistant": "model"}.get(turn.role, turn.role),
            "parts": [_gemini_part(part) for part in turn.parts],
        }
        for turn in _joined(asked.turns)
    ]
    tools = [{"functionDeclarations": [{"name": name} for name in asked.tools]}] if asked.tools else None
    return {"systemInstruction": system, "contents": contents, "tools": tools, "toolConfig": asked.choice}


def _gemini_part(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"text": part.text}
        case Thinking():
            return {"text": part.text, "thought": True}
        case Call():
            call: dict[str, Any] = {"functionCall": {"id": part.id, "name": part.name, "args": _value(part)}}
            return {**call, **({"thoughtSignature": part.signature} if part.signature else {})}
        case Result():
            return {"functionResponse": {"id": part.id, "name": "", "response": {"result": _text(part)}}}
        case File():
            return {"inlineData": {"mimeType": MIME[part.kind], "data": ""}}
    return {"hologram": {}}


def _bedrock(asked: Asked) -> dict[str, Any]:
    tools: list[dict[str, Any]] = [{"toolSpec": {"name": name}} for name in asked.tools]
    tools += [{"cachePoint": {"type": "default"}}] * asked.breakpoints
    config = {"tools": tools, **({} if asked.choice is None else {"toolChoice": asked.choice})}
    return {
        "system": [{"text": text} for text in asked.system],
        "messages": [
            {"role": turn.role, "content": [_bedrock_block(part) for part in turn.parts]}
            for turn in _joined(asked.turns)
        ],
        "toolConfig": config if tools or asked.choice is not None else None,
        "additionalModelRequestFields": {"thinking": {"type": "enabled"}} if asked.thinks else None,
    }


def _bedrock_block(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"text": part.text}
        case Thinking():
            return {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}
        case Call():
            return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": _value(part)}}
        case Result():
            content = [_bedrock_block(each) for each in part.parts]
            return {"toolResult": {"toolUseId": part.id, "content": content}}
        case File():
            return {{"pdf": "document"}.get(part.kind, part.kind): {"format": part.kind}}
    return {"hologram": {}}


def _joined(turns: Sequence[Turn]) -> Iterator[Turn]:
    """Yield *turns* with results at the beginning of the user's turn behind them."""
    results: list[Part] = []
    for turn in turns:
        if turn.role == "tool":
            results += turn.parts
        elif turn.role == "user":
            yield Turn("user", (*results, *turn.parts))
            results = []
        else:
            yield from [Turn("user", tuple(results))] if results else []
            yield turn
            results = []
    yield from [Turn("user", tuple(results))] if results else []


def _text(result: Result) -> str:
    return "".join(part.text for part in result.parts if isinstance(part, Text))


def _value(call: Call) -> object:
    return json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments


_WRITERS: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "chat": _chat,
    "responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "bedrock": _bedrock,
}
