"""
Reading of answers: the pieces of a stream, and the response that they add up to.

A complete answer is read as a stream of one piece, so both end with the same response.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import uuid4

import openai

from chatmemory_django.chat.model import (
    BrokenStreamError,
    ChatEvent,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
    UnavailableError,
)
from chatmemory_django.messages import AiMessage, Attributes, ToolExecutionRequest

FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_EXECUTION,
    "function_call": FinishReason.TOOL_EXECUTION,
    "content_filter": FinishReason.CONTENT_FILTER,
}

THINKING = ("reasoning_content", "reasoning")
"""The fields in which servers send thinking: the first one with text is read. OpenAI sends none."""

METADATA = ("service_tier", "system_fingerprint")


@dataclass(slots=True)
class _Call:
    index: int
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class AnswerReader:
    """An answer that is being read."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_Call] = []
        self._calls_by_index: dict[int | None, _Call] = {}
        self._refusals: list[str] = []
        self._annotations: list[Any] = []
        self._audio: list[dict[str, Any]] = []
        self._id: str | None = None
        self._model_name: str | None = None
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._metadata: dict[str, Any] = {}

    @classmethod
    def of(cls, completion: object) -> ChatResponse:
        """Return the response for *completion*, the client's complete answer."""
        whole = _plain(completion)
        if not whole.get("choices"):
            raise UnavailableError("The model's server sent no choices, so this is not an answer; check base_url.")
        answer = cls()
        answer._add(whole, "message")
        return answer._response()

    def add(self, chunk: object) -> Sequence[ChatEvent]:
        """Add the client's next *chunk* of a stream, and return its events."""
        return self._add(_plain(chunk), "delta")

    def end(self) -> ChatResponse:
        """Return the response at the end of the stream; raise ``BrokenStreamError`` if it ended too early."""
        if self._finish_reason is None:
            raise BrokenStreamError("The stream ended without a finish reason, so the end of the answer is missing.")
        return self._response()

    def _add(self, part: Mapping[str, Any], key: Literal["message", "delta"]) -> Sequence[ChatEvent]:
        self._id = self._id or part.get("id")
        self._model_name = self._model_name or part.get("model")
        self._usage = part.get("usage") or self._usage
        self._metadata |= {name: part[name] for name in METADATA if part.get(name) is not None}
        events: list[ChatEvent] = []
        for choice in part.get("choices") or ():
            if not choice.get("index"):  # other indexes are alternative answers, which only extra_body can request
                self._finish_reason = choice.get("finish_reason") or self._finish_reason
                events += self._add_piece(choice.get(key) or {})
        return events

    def _add_piece(self, piece: Mapping[str, Any]) -> Sequence[ChatEvent]:
        events: list[ChatEvent] = []
        if thinking := next(filter(None, (_text(piece, name) for name in THINKING)), ""):
            self._thinking.append(thinking)
            events.append(PartialThinking(thinking))
        if text := _text(piece, "content"):
            self._texts.append(text)
            events.append(PartialText(text))
        self._refusals.append(_text(piece, "refusal"))
        self._annotations += piece.get("annotations") or ()
        if piece.get("audio"):
            self._audio.append(piece["audio"])
        for call in piece.get("tool_calls") or ():
            events += self._add_call(call)
        return events

    def _add_call(self, piece: Mapping[str, Any]) -> Sequence[ChatEvent]:
        function = piece.get("function") or {}
        call_id, name, arguments = _text(piece, "id"), _text(function, "name"), _text(function, "arguments")
        index = piece.get("index")
        call = self._calls_by_index.get(index)
        # Some servers send no index, or the same for all calls: then a piece with a name begins another call.
        if call is None or (name and (index is None or call_id not in {"", call.id})):
            # A result needs the id of its call.
            call = _Call(len(self._calls), call_id or f"call_{uuid4().hex}", name, [arguments])
            self._calls.append(call)
            self._calls_by_index[index] = call
            return [PartialToolCall(call.index, call.id, call.name, arguments)]
        if not arguments:
            return []
        call.arguments.append(arguments)
        return [PartialToolCall(call.index, arguments=arguments)]

    def _response(self) -> ChatResponse:
        attributes = {
            "refusal": "".join(self._refusals),
            "annotations": self._annotations,
            "audio": _sound(self._audio),
        }
        message = AiMessage(
            "".join(self._texts) or None,
            "".join(self._thinking) or None,
            [ToolExecutionRequest(call.id, call.name, "".join(call.arguments)) for call in self._calls],
            {name: value for name, value in attributes.items() if value},
        )
        reason = self._finish_reason
        metadata = ChatResponseMetadata(
            id=self._id,
            model_name=self._model_name,
            finish_reason=None if reason is None else FINISH_REASONS.get(reason, FinishReason.OTHER),
            token_usage=None if self._usage is None else _token_usage(self._usage),
            attributes=Attributes(self._metadata),
        )
        return ChatResponse(message, metadata)


def _plain(part: object) -> Mapping[str, Any]:
    """Return *part* as a dict; empty if it is not one of the client's objects, as when a server sends HTML."""
    # warnings: pydantic warns about every difference from OpenAI's documentation.
    return part.to_dict(warnings=False) if isinstance(part, openai.BaseModel) else {}


def _text(piece: Mapping[str, Any], name: str) -> str:
    value = piece.get(name)
    return value if isinstance(value, str) else ""


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    return TokenUsage(
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        usage.get("total_tokens"),
        cached_input=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        reasoning=(usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    )


def _sound(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if len(pieces) < 2:
        return pieces[0] if pieces else {}
    merged = {name: value for piece in pieces for name, value in piece.items()}
    merged["transcript"] = "".join(_text(piece, "transcript") for piece in pieces)
    # Each piece is encoded separately, so any of them can end with "=".
    data = b"".join(base64.b64decode(_text(piece, "data")) for piece in pieces)
    return {**merged, "data": base64.b64encode(data).decode()}
