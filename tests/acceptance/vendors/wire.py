"""What the vendors' servers answer, whole and streamed, and how they refuse a request."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias
from zlib import crc32

from tests.acceptance.vendors.rules import Violation, signed
from tests.faces.chat.server import DONE, USAGE, Part, Reply, Request, answer_to, chunk
from tests.faces.chat.vendors import JSON, SSE, Anthropic, Google, cut, data, event

Call: TypeAlias = tuple[str, str, str]
"""A call's id, name and arguments."""

INPUT, OUTPUT = USAGE["prompt_tokens"], USAGE["completion_tokens"]


@dataclass(frozen=True)
class Answer:
    """What a model answers: *thinking* in the vendor's form and signed by it, a *text*, *calls*."""

    text: str | None = None
    calls: tuple[Call, ...] = ()
    thinking: str | None = None
    is_cut: bool = False
    """Whether it has become too long, so that its last arguments may be broken."""


def reply(api: str, vendor: str, number: int, request: Request, answer: Answer) -> Reply:
    """Return *answer* as *vendor* sends it; *number* makes its ids differ from those of others."""
    match api:
        case "chat" if vendor == "mistral":
            return _mistral(request, answer)
        case "chat":
            return answer_to(request, _message(answer, vendor), _reason(answer, "length", "tool_calls", "stop"))
        case "responses":
            return _responses(request, answer, f"{vendor}_{number}")
        case "anthropic":
            return _anthropic(request, answer)
        case "gemini":
            return _gemini(request, answer)
    return _bedrock(request, answer, vendor)


def refusal(api: str, violation: Violation) -> Reply:
    """Return the error 400 as *api* has it; its text begins with the name of the rule."""
    words = f"{violation.rule}: {violation.detail}"
    headers = dict(JSON)
    match api:
        case "anthropic":
            error: Any = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
        case "gemini":
            error = {"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}
        case "bedrock":
            error = {"message": words}
            headers["x-amzn-errortype"] = "ValidationException"
        case _:
            error = {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}
    return Reply((json.dumps(error).encode(),), 400, headers)


def _reason(answer: Answer, is_cut: str, calls: str, end: str) -> str:
    return is_cut if answer.is_cut else calls if answer.calls else end


def _whole(body: object) -> Reply:
    return Reply((json.dumps(body).encode(),), headers=JSON)


# OpenAI's chat completions, and Mistral's.


def _message(answer: Answer, vendor: str) -> dict[str, Any]:
    thinks = vendor in {"deepseek", "moonshot"}  # OpenAI sends no thinking by this API
    thinking = {"reasoning_content": answer.thinking or "Hm."} if thinks else {}
    return {**thinking, "content": answer.text, **_calls(answer)}


def _calls(answer: Answer) -> dict[str, Any]:
    if not answer.calls:
        return {}
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id_, name, arguments in answer.calls
    ]
    return {"tool_calls": calls}


def _mistral(request: Request, answer: Answer) -> Reply:
    """Mistral sends each call as a whole, and the usage with the last choice."""
    message, reason = _message(answer, "mistral"), _reason(answer, "length", "tool_calls", "stop")
    message["content"] = message["content"] or ""
    if not request.body.get("stream"):
        return answer_to(request, message, reason)
    calls = [{**call, "index": index} for index, call in enumerate(message.get("tool_calls", ()))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": piece} for piece in cut(message["content"])]
    last = {"content": "", **({"tool_calls": calls} if calls else {})}
    parts: list[Part] = [*map(chunk, deltas), chunk(last, reason, usage=USAGE), DONE]
    return Reply(tuple(parts), headers=SSE)


# OpenAI's Responses.


def _responses(request: Request, answer: Answer, name: str) -> Reply:
    items = list(_items(answer, name))
    usage = {
        "input_tokens": INPUT,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT + OUTPUT,
    }
    whole: dict[str, Any] = {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": 1784210000,
        "model": "gpt-test-2026",
        "status": "incomplete" if answer.is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if answer.is_cut else None,
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    if not request.body.get("stream"):
        return _whole(whole)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    kind = "response.incomplete" if answer.is_cut else "response.completed"
    events: list[tuple[str, dict[str, Any]]] = [("response.created", {"response": begun})]
    for place, item in enumerate(items):
        at = {"output_index": place, "item_id": item["id"]}
        empty = {name: [] if isinstance(value, list) else value for name, value in item.items()}
        if item["type"] == "function_call":
            empty["arguments"] = ""
        events.append(("response.output_item.added", {"output_index": place, "item": empty}))
        events += [(each, {**at, **fields}) for each, fields in _item_events(item)]
        events.append(("response.output_item.done", {"output_index": place, "item": item}))
    events.append((kind, {"response": whole}))
    return Reply(
        tuple(event(each, sequence_number=number, **fields) for number, (each, fields) in enumerate(events)),
        headers=SSE,
    )


def _items(answer: Answer, name: str) -> Iterator[dict[str, Any]]:
    if answer.thinking is not None:
        yield {
            "id": f"rs_{name}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": answer.thinking}],
            "encrypted_content": signed("responses", f"rs_{name}"),
        }
    if answer.text is not None:
        text = {"type": "output_text", "text": answer.text, "annotations": []}
        yield {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    for index, (id_, called, arguments) in enumerate(answer.calls):
        yield {
            "id": f"fc_{name}_{index}",
            "type": "function_call",
            "call_id": id_,
            "name": called,
            "arguments": arguments,
            "status": "completed",
        }


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    match item["type"]:
        case "message":
            part, at = item["content"][0], {"content_index": 0}
            yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
            for piece in cut(part["text"]):
                yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
            yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**at, "part": part}
        case "reasoning":
            part, at = item["summary"][0], {"summary_index": 0}
            yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
            for piece in cut(part["text"]):
                yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
            yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
            yield "response.reasoning_summary_part.done", {**at, "part": part}
        case "function_call":
            for piece in cut(item["arguments"]):
                yield "response.function_call_arguments.delta", {"delta": piece}
            yield "response.function_call_arguments.done", {"name": item["name"], "arguments": item["arguments"]}


# Anthropic's Messages.


def _anthropic(request: Request, answer: Answer) -> Reply:
    vendor, reason = Anthropic(), _reason(answer, "max_tokens", "tool_use", "end_turn")
    usage = {"input_tokens": INPUT, "output_tokens": OUTPUT}
    thoughts = (
        [] if answer.thinking is None else [vendor.thinking(answer.thinking, signed("anthropic", answer.thinking))]
    )
    texts = [] if answer.text is None else [vendor.text(answer.text)]
    calls = [vendor.call(id_, name, **json.loads(arguments)) for id_, name, arguments in answer.calls]
    blocks = (*thoughts, *texts, *calls)
    if not request.body.get("stream"):
        return _whole(vendor.whole(blocks, reason, usage))
    return Reply(tuple(vendor.events(blocks, reason, usage)), headers=SSE)


# Gemini's generateContent: each chunk of a stream has the usage so far.


def _gemini(request: Request, answer: Answer) -> Reply:
    vendor, reason = Google(), "MAX_TOKENS" if answer.is_cut else "STOP"
    thoughts = [] if answer.thinking is None else [{"text": answer.thinking, "thought": True}]
    texts = [] if answer.text is None else [vendor.text(answer.text)]
    calls = [vendor.call(id_, name, **json.loads(arguments)) for id_, name, arguments in answer.calls]
    if calls:
        calls[0]["thoughtSignature"] = signed("gemini", answer.thinking or "nothing")
    parts = [*thoughts, *texts, *calls]
    usage = {"promptTokenCount": INPUT, "candidatesTokenCount": OUTPUT, "totalTokenCount": INPUT + OUTPUT}
    if "streamGenerateContent" not in request.path:
        return _whole(vendor.chunk(*parts, finishReason=reason, usage=usage))
    so_far = {**usage, "candidatesTokenCount": 1, "totalTokenCount": INPUT + 1}
    chunks = [vendor.chunk(piece, usage=so_far) for part in parts for piece in vendor.pieces(part)]
    return Reply(tuple(map(data, [*chunks, vendor.chunk({"text": ""}, finishReason=reason, usage=usage)])), headers=SSE)


# Bedrock's Converse.


def _bedrock(request: Request, answer: Answer, vendor: str) -> Reply:
    reason = _reason(answer, "max_tokens", "tool_use", "end_turn")
    usage = {"inputTokens": INPUT, "outputTokens": OUTPUT, "totalTokens": INPUT + OUTPUT}
    blocks: list[dict[str, Any]] = []
    if answer.thinking is not None and vendor == "bedrock-claude":
        thought = {"text": answer.thinking, "signature": signed(vendor, answer.thinking)}
        blocks.append({"reasoningContent": {"reasoningText": thought}})
    if answer.text is not None:
        blocks.append({"text": answer.text})
    for id_, name, arguments in answer.calls:
        blocks.append({"toolUse": {"toolUseId": id_, "name": name, "input": json.loads(arguments)}})
    if not request.path.endswith("converse-stream"):
        message = {"message": {"role": "assistant", "content": blocks}}
        return _whole({"output": message, "stopReason": reason, "usage": usage, "metrics": {"latencyMs": 1}})
    events = [_aws("messageStart", role="assistant")]
    for index, block in enumerate(blocks):
        events += [_aws(kind, contentBlockIndex=index, **fields) for kind, fields in _block_events(block)]
    events += [_aws("messageStop", stopReason=reason), _aws("metadata", usage=usage, metrics={"latencyMs": 1})]
    return Reply(tuple(events), headers={"content-type": "application/vnd.amazon.eventstream"})


def _block_events(block: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    match block:
        case {"text": text}:
            deltas: list[dict[str, Any]] = [{"text": piece} for piece in cut(text)]
        case {"reasoningContent": {"reasoningText": thought}}:
            deltas = [{"reasoningContent": {"text": piece}} for piece in cut(thought["text"])]
            deltas.append({"reasoningContent": {"signature": thought["signature"]}})
        case _:
            call = block["toolUse"]
            yield "contentBlockStart", {"start": {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}}
            deltas = [{"toolUse": {"input": piece}} for piece in cut(json.dumps(call["input"]))]
    for delta in deltas:
        yield "contentBlockDelta", {"delta": delta}
    yield "contentBlockStop", {}


def _aws(kind: str, **fields: Any) -> bytes:
    """Return an event of AWS's binary streams: lengths, headers and content, each with its checksum."""
    headers = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in {
            ":event-type": kind,
            ":content-type": "application/json",
            ":message-type": "event",
        }.items()
    )
    content = json.dumps(fields).encode()
    prelude = struct.pack("!II", len(headers) + len(content) + 16, len(headers))
    message = prelude + struct.pack("!I", crc32(prelude)) + headers + content
    return message + struct.pack("!I", crc32(message))
