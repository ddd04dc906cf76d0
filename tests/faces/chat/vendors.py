"""What the servers of Anthropic and Google send, whole and as a stream, and models of pydantic-ai that call them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider

from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from tests.faces.chat.server import ModelServer, Part, Reply, Request

KEY = "key-of-the-site"
SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


class Anthropic:
    """Anthropic's Messages API; a content is a list of its blocks."""

    name = "anthropic"
    text = staticmethod(lambda text: {"type": "text", "text": text})
    call = staticmethod(
        lambda id, name, **arguments: {"type": "tool_use", "id": id, "name": name, "input": arguments}  # noqa: A006
    )
    thinking = staticmethod(lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature})

    def model(self, server: ModelServer, name: str = "claude-sonnet-5-5") -> Model:
        url = server.url.removesuffix("/v1")
        return AnthropicModel(name, provider=AnthropicProvider(api_key=KEY, base_url=url))

    def answer(
        self,
        server: ModelServer,
        *blocks: dict[str, Any],
        reason: str | None = None,
        cached: int = 0,
        written: int = 0,
        for_an_hour: int = 0,
    ) -> None:
        reason = reason or ("tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn")
        usage = {
            "input_tokens": 12,
            "output_tokens": 3,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written + for_an_hour,
            "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": for_an_hour},
        }
        server.replies.append(_either(self.whole(blocks, reason, usage), [*self.events(blocks, reason, usage)]))

    @staticmethod
    def whole(blocks: tuple[dict[str, Any], ...], reason: str | None, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-5-5-20260901",
            "content": list(blocks),
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }

    def events(self, blocks: tuple[dict[str, Any], ...], reason: str | None, usage: dict[str, Any]) -> Iterator[bytes]:
        begun = {**self.whole((), None, usage), "usage": {**usage, "output_tokens": 1}}
        yield event("message_start", message=begun)
        for index, block in enumerate(blocks):
            yield from self.block_events(index, block)
        yield event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage={"output_tokens": usage["output_tokens"]},
        )
        yield event("message_stop")

    @staticmethod
    def block_events(index: int, block: dict[str, Any]) -> Iterator[bytes]:
        deltas: list[dict[str, Any]] = []
        match block["type"]:
            case "text":
                empty = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in cut(block["text"])]
            case "thinking":
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case "tool_use":
                empty = {**block, "input": {}}
                pieces = cut(json.dumps(block["input"]))
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
            case _:
                empty = block
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)

    def refuse(self, server: ModelServer, status: int, kind: str, message: str = "", **headers: str) -> None:
        error = {"type": "error", "error": {"type": kind, "message": f"secret words of the server {message}"}}
        server.reply_json(error, status, {name.replace("_", "-"): value for name, value in headers.items()})


class Google:
    """Google's Gemini API; a content is a list of its parts."""

    name = "google"
    text = staticmethod(lambda text: {"text": text})
    call = staticmethod(lambda id, name, **arguments: {"functionCall": {"id": id, "name": name, "args": arguments}})  # noqa: A006

    @staticmethod
    def thinking(text: str, signature: str) -> dict[str, Any]:
        return {"text": text, "thought": True, "thoughtSignature": signature}

    def model(self, server: ModelServer, name: str = "gemini-3.8-flash") -> Model:
        url = server.url.removesuffix("/v1")
        return GoogleModel(name, provider=GoogleProvider(api_key=KEY, base_url=url))

    def answer(self, server: ModelServer, *parts: dict[str, Any], reason: str = "STOP", cached: int = 0) -> None:
        usage = {
            "promptTokenCount": 12,
            "candidatesTokenCount": 3,
            "totalTokenCount": 15,
            **({"cachedContentTokenCount": cached} if cached else {}),
        }
        whole = self.chunk(*parts, finishReason=reason, usage=usage)
        chunks = [self.chunk(piece) for part in parts for piece in self.pieces(part)]
        last = self.chunk({"text": ""}, finishReason=reason, usage=usage)
        server.replies.append(_either(whole, [data(chunk) for chunk in (*chunks, last)]))

    @staticmethod
    def chunk(*parts: dict[str, Any], usage: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
        return {
            "candidates": [{"content": {"role": "model", "parts": list(parts)}, "index": 0, **others}],
            "modelVersion": "gemini-3.8-flash",
            "responseId": "resp-1",
            **({} if usage is None else {"usageMetadata": usage}),
        }

    @staticmethod
    def pieces(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if "text" not in part:
            yield part
            return
        signature = part.get("thoughtSignature")
        texts = list(cut(part["text"]))
        for index, text in enumerate(texts):
            signed = {"thoughtSignature": signature} if signature and index == len(texts) - 1 else {}
            yield {**({"thought": True} if part.get("thought") else {}), "text": text, **signed}

    def refuse(self, server: ModelServer, status: int, kind: str, message: str = "", *details: dict[str, Any]) -> None:
        words = f"secret words of the server {message}"
        server.reply_json({"error": {"code": status, "message": words, "status": kind, "details": details}}, status)


Vendor = Anthropic | Google
VENDORS: dict[str, Vendor] = {"anthropic": Anthropic(), "google": Google()}


def chat_model(vendor: Vendor, server: ModelServer, **settings: Any) -> PydanticAiChatModel:
    """Return a model that asks *server* once."""
    return PydanticAiChatModel(vendor.model(server), **{"max_retries": 0, **settings})


def event(kind: str, **fields: Any) -> bytes:
    """Return an event of Anthropic's streams."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def data(chunk: object) -> bytes:
    """Return a chunk of Google's streams."""
    return f"data: {json.dumps(chunk)}\r\n\r\n".encode()


def cut(text: str) -> Iterator[str]:
    return (text[start : start + 5] for start in range(0, len(text), 5))


def is_stream(request: Request) -> bool:
    return request.body.get("stream") is True or "streamGenerateContent" in request.path


def _either(whole: dict[str, Any], events: list[bytes]) -> Callable[[Request], Reply]:
    """Return a reply that is whole, or streamed, as the request asks for."""
    parts: tuple[Part, ...] = tuple(events)

    def reply(request: Request) -> Reply:
        return Reply(parts, headers=SSE) if is_stream(request) else Reply((json.dumps(whole).encode(),), headers=JSON)

    return reply
