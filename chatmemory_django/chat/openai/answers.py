"""
Reading of answers: the pieces of a stream, and the response that they add up to.

A complete answer is read as a stream of one piece, so both end with the same response.
"""

from __future__ import annotations

import base64
import json
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
from chatmemory_django.core.limits import MAX_INTEGER
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
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    is_announced: bool = False

    def add(self, name: str, arguments: str) -> Sequence[ChatEvent]:
        """Add a piece, and return its events: there are none before the call has a name."""
        # Some servers repeat the name in every piece, others cut it.
        more = "" if self.arguments or name == self.name else name
        self.name += more
        if arguments:
            self.arguments.append(arguments)
        if not self.name:
            return []
        if not self.is_announced:
            self.is_announced = True
            return [PartialToolCall(self.index, self.id, self.name, "".join(self.arguments))]
        return [PartialToolCall(self.index, None, more or None, arguments)] if more or arguments else []

    def is_another(self, call_id: str, name: str, arguments: str) -> bool:
        """Whether a piece with the same index begins another call, although all calls should have their own."""
        if not (name and self.name):
            return False
        if call_id not in {"", self.id}:
            return True
        if not arguments and name == self.name:
            return False
        return _is_whole(self.arguments) or (bool(self.arguments) and name != self.name)


class AnswerReader:
    """An answer that is being read."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[_Call] = []
        self._calls_by_index: dict[object, _Call] = {}
        self._refusals: list[str] = []
        self._annotations: list[Any] = []
        self._audio: list[Mapping[str, Any]] = []
        self._id: str | None = None
        self._model_name: str | None = None
        self._finish_reason: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._metadata: dict[str, Any] = {}

    @classmethod
    def of(cls, completion: object) -> ChatResponse:
        """Return the response for *completion*, the client's complete answer."""
        whole = _plain(completion)
        if not _objects(whole.get("choices")):
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
        self._id = self._id or _text(part.get("id"))
        self._model_name = self._model_name or _text(part.get("model"))
        self._usage = _object(part.get("usage")) or self._usage
        self._metadata |= {name: text for name in METADATA if (text := _text(part.get(name)))}
        events: list[ChatEvent] = []
        for choice in _objects(part.get("choices")):
            if not choice.get("index"):  # other indexes are alternative answers, which only extra_body can request
                self._finish_reason = _text(choice.get("finish_reason")) or self._finish_reason
                events += self._add_piece(_object(choice.get(key)))
        return events

    def _add_piece(self, piece: Mapping[str, Any]) -> Sequence[ChatEvent]:
        events: list[ChatEvent] = []
        content = piece.get("content")
        thoughts = [_text(piece.get(name)) for name in THINKING]
        if thinking := next(filter(None, thoughts), "") or _text(content, "thinking"):
            self._thinking.append(thinking)
            events.append(PartialThinking(thinking))
        if text := _text(content):
            self._texts.append(text)
            events.append(PartialText(text))
        self._refusals += [_text(piece.get("refusal")), _text(content, "refusal")]
        self._annotations += _objects(piece.get("annotations"))
        if audio := _object(piece.get("audio")):
            self._audio.append(audio)
        for call in _objects(piece.get("tool_calls")):
            events += self._add_call(call, call.get("index"))
        if function := _object(piece.get("function_call")):  # the only call, as older servers send it
            events += self._add_call({"function": function}, "function_call")
        return events

    def _add_call(self, piece: Mapping[str, Any], index: object) -> Sequence[ChatEvent]:
        function = _object(piece.get("function"))
        call_id, name, arguments = _text(piece.get("id")), _text(function.get("name")), function.get("arguments")
        # Some servers send the arguments as an object.
        arguments = json.dumps(arguments) if isinstance(arguments, dict) else _text(arguments)
        slot = index if isinstance(index, int | str) else None
        call = self._calls_by_index.get(slot)
        if call is None or call.is_another(call_id, name, arguments):
            # A result needs the id of its call.
            call = self._calls_by_index[slot] = _Call(len(self._calls), call_id or f"call_{uuid4().hex}")
            self._calls.append(call)
        return call.add(name, arguments)

    def _response(self) -> ChatResponse:
        attributes = {
            "refusal": "".join(self._refusals),
            "annotations": self._annotations,
            "audio": _sound(self._audio),
        }
        try:
            message = AiMessage(
                "".join(self._texts) or None,
                "".join(self._thinking) or None,
                [ToolExecutionRequest(call.id, call.name, "".join(call.arguments)) for call in self._calls],
                {name: value for name, value in attributes.items() if value},
            )
        except ValueError as exc:
            raise UnavailableError("The model's server sent an answer that cannot be stored.") from exc
        reason = self._finish_reason
        metadata = ChatResponseMetadata(
            id=self._id or None,
            model_name=self._model_name or None,
            finish_reason=None if reason is None else FINISH_REASONS.get(reason, FinishReason.OTHER),
            token_usage=None if self._usage is None else _token_usage(self._usage),
            attributes=Attributes(self._metadata),
        )
        return ChatResponse(message, metadata)


def _plain(part: object) -> Mapping[str, Any]:
    """Return *part* as a dict; empty if it is not one of the client's objects, as when a server sends HTML."""
    # warnings: pydantic warns about every difference from OpenAI's documentation.
    return part.to_dict(warnings=False) if isinstance(part, openai.BaseModel) else {}


# Servers may send anything anywhere; what has another type than in OpenAI's documentation counts as absent.


def _text(value: object, kind: str = "text") -> str:
    """Return *value* if it is a text; of a list of parts, as some servers send instead, the texts of that *kind*."""
    if isinstance(value, str):
        return value if kind == "text" else ""
    found = [part.get(kind) for part in _objects(value)]
    # Thinking is itself a list of parts.
    inner = [text.get("text") for each in found for text in _objects(each)]
    return "".join(text for text in (*found, *inner) if isinstance(text, str))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_whole(arguments: Sequence[str]) -> bool:
    """Return whether *arguments*, which came in pieces, are a whole JSON object."""
    if not (arguments and arguments[-1].rstrip().endswith("}")):
        return False
    try:
        return isinstance(json.loads("".join(arguments)), dict)
    except (ValueError, RecursionError):
        return False


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    details = _object(usage.get("prompt_tokens_details"))
    return TokenUsage(
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        _count(usage, "total_tokens"),
        cached_input=_count(details, "cached_tokens"),
        reasoning=_count(_object(usage.get("completion_tokens_details")), "reasoning_tokens"),
        cache_write=_count(details, "cache_write_tokens"),
    )


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    count = usage.get(name)
    return count if type(count) is int and 0 <= count <= MAX_INTEGER else None


def _sound(pieces: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    if len(pieces) < 2:
        return pieces[0] if pieces else {}
    merged = {name: value for piece in pieces for name, value in piece.items()}
    merged["transcript"] = "".join(_text(piece.get("transcript")) for piece in pieces)
    data = b"".join(_decoded(_text(piece.get("data"))) for piece in pieces)
    return {**merged, "data": base64.b64encode(data).decode()}


def _decoded(piece: str) -> bytes:
    # Each piece is encoded separately, so any of them can end with "=", which some servers leave out.
    try:
        return base64.b64decode(piece + "=" * (-len(piece) % 4))
    except ValueError as exc:
        raise UnavailableError("The model's server sent audio that is not Base64.") from exc
