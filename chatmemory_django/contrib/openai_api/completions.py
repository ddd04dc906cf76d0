"""Chat completions: what clients ask, and what they are sent, whole or in pieces."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.answers.ui_stream import DONE, decoded
from chatmemory_django.chat.http.posted import NULL, read_value
from chatmemory_django.chat.http.rewriting import rewritten
from chatmemory_django.contrib.openai_api.chunks import REASONS, AnswerSoFar
from chatmemory_django.contrib.openai_api.history import SentHistory, read_history
from chatmemory_django.contrib.openai_api.wishes import AnswerRequest
from chatmemory_django.messages import UserMessage


class CompletionRequest(AnswerRequest):
    """The fields that are used of a body."""

    messages: msgspec.Raw
    stream_options: msgspec.Raw = NULL
    n: int | None = None
    response_format: msgspec.Raw = NULL

    def read(self, check: Callable[[UserMessage], object]) -> SentHistory:
        """Return the history; *check* is called with each message of the user. ``ValueError`` as from ``of``."""
        if self.n not in {None, 1}:
            raise ValueError(f"$.n: it must be 1, not {self.n}.")
        return read_history(self.messages, check)

    def form(self) -> tuple[Any, str]:
        """See ``AnswerRequest.form``."""
        return read_value(self.response_format, Any, "$.response_format"), "$.response_format"

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to have the usage."""
        options: Any = read_value(self.stream_options, Any, "$.stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True


class CompletionEvents:
    """
    The chunks of the completion *id* by the assistant *model*, made of those of an answer.

    Calls of tools come at the end: only then is it known which of them are for the client. Those of the site are not
    shown.
    """

    def __init__(self, id: str, model: str, *, wants_usage: bool = False) -> None:
        self._head = {"id": id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._wants_usage = wants_usage
        self._shown = AnswerSoFar()
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._has_started = self._has_ended = False

    async def written(self, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """Yield *pieces* of the AI SDK's stream as this protocol has them."""
        async with aclosing(rewritten(pieces, self.of)) as events:
            async for piece in events:
                yield piece
        yield DONE

    def of(self, chunk: Chunk) -> list[dict[str, Any]]:
        """Return the chunks that have the same meaning as *chunk*."""
        if self._has_ended:
            return []
        if chunk["type"] == "text-delta":  # most chunks are these
            return self._text(chunk["delta"])
        self._shown.note(chunk)
        if self._shown.error:
            self._has_ended = True
            return [{"error": {"message": self._shown.error, "type": "server_error", "param": None, "code": None}}]
        match chunk["type"]:
            case "start" if not self._has_started:
                self._has_started = True
                return [self._piece({"role": "assistant", "content": ""})]
            case "text-start" if self._texts:  # a paragraph of its own, after calls of tools
                return self._text("\n\n")
            case "reasoning-delta":
                self._reasoning.append(chunk["delta"])
                return [self._piece({"reasoning_content": chunk["delta"]})]
            case "finish" | "abort":
                self._has_ended = True
                return self._last()
        return []

    def whole(self, stream: str) -> dict[str, Any]:
        """Return the completion for a whole *stream* of the AI SDK."""
        for chunk in decoded(stream):
            self.of(chunk)
        calls, text = self._calls(), "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        message |= {"reasoning_content": "".join(self._reasoning)} if self._reasoning else {}
        message |= {"tool_calls": calls} if calls else {}
        choice = {"index": 0, "message": message, "finish_reason": self._reason(), "logprobs": None}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def _text(self, text: str) -> list[dict[str, Any]]:
        self._texts.append(text)
        return [self._piece({"content": text})]

    def _last(self) -> list[dict[str, Any]]:
        calls = [{"index": index, **call} for index, call in enumerate(self._calls())]
        pieces = [self._piece({"tool_calls": calls})] if calls else []
        pieces.append(self._piece({}, self._reason()))
        return [*pieces, {**self._head, "choices": [], "usage": self._usage()}] if self._wants_usage else pieces

    def _piece(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self._shown.for_client
        ]

    def _reason(self) -> str:
        if self._shown.for_client:
            return "tool_calls"
        return REASONS.get(str(self._shown.metadata.get("finishReason")), "stop")

    def _usage(self) -> dict[str, int]:
        sent, written = self._shown.tokens()
        return {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": sent + written}
