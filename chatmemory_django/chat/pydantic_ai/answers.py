"""Reading of answers: the pieces of a stream, and the response at its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.usage import RequestUsage

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
)
from chatmemory_django.chat.pydantic_ai.kept import to_message

REASONING = ("reasoning_tokens", "thoughts_tokens")
"""Where vendors' classes put the number of tokens of thinking that have no field of their own."""

FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_call": FinishReason.TOOL_EXECUTION,
    "content_filter": FinishReason.CONTENT_FILTER,
}


def to_chat_response(response: ModelResponse, model: Model) -> ChatResponse:
    """Return *response* of *model*."""
    reason = response.finish_reason
    metadata = ChatResponseMetadata(
        id=response.provider_response_id,
        model_name=response.model_name,
        finish_reason=None if reason is None else FINISH_REASONS.get(reason, FinishReason.OTHER),
        token_usage=token_usage(response.usage),
    )
    return ChatResponse(to_message(response, model), metadata)


def count_last_usage(stream: StreamedResponse) -> None:
    """
    Let the last usage that *stream* reports count: no vendor sends increments, and many send totals again and again.

    pydantic-ai (2.68) adds up what servers with OpenAI's API and Hugging Face's send. Its public way out, the setting
    ``openai_continuous_usage_stats``, also changes the request, and reaches no single model inside of a FallbackModel.
    """
    add = stream._add_usage

    def replace(usage: RequestUsage, *, reported: bool, cumulative: bool = True) -> None:
        if reported:
            add(usage, reported=True, cumulative=True)

    stream._add_usage = replace  # type: ignore[method-assign]


def at_end(response: ModelResponse, model: Model) -> ChatResponse:
    """Return *response*, which was streamed; raise ``BrokenStreamError`` if the stream ended too early."""
    # Models that call no server, such as TestModel, give no reason.
    if response.state == "incomplete" or (response.finish_reason is None and model.provider is not None):
        raise BrokenStreamError("The stream ended without a finish reason, so the end of the answer is missing.")
    return to_chat_response(response, model)


class Pieces:
    """The pieces of a stream. Together, they are the text, the thinking and the calls of the response at its end."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}
        self._has_text = False
        self._has_thinking = False
        self._thinks_again = False

    def of(self, event: ModelResponseStreamEvent) -> Iterator[ChatEvent]:
        """Yield the pieces of *event*."""
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                # Texts with something between them are paragraphs of the answer.
                apart = self._has_text and event.previous_part_kind != "text"
                self._has_text = True
                yield from self._text(f"\n\n{text}" if apart else text)
            case PartStartEvent(part=ThinkingPart(content=text)):
                self._thinks_again = self._has_thinking
                yield from self._thinking(text)
            case PartStartEvent(part=ToolCallPart() as call):
                index = self._calls[event.index] = len(self._calls)
                yield PartialToolCall(index, call.tool_call_id, call.tool_name, _arguments(call.args))
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                yield from self._text(text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))):
                yield from self._thinking(text)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(arguments))) if arguments:
                if index in self._calls:  # not a call of one of the vendor's own tools
                    yield PartialToolCall(self._calls[index], arguments=arguments)

    def _text(self, text: str) -> Iterator[ChatEvent]:
        if text:
            yield PartialText(text)

    def _thinking(self, text: str) -> Iterator[ChatEvent]:
        if text:
            yield PartialThinking(f"\n\n{text}" if self._thinks_again else text)
            self._has_thinking, self._thinks_again = True, False


def _arguments(given: str | dict[str, object] | None) -> str:
    return given if isinstance(given, str) else "" if given is None else json.dumps(given, ensure_ascii=False)


def token_usage(usage: Any) -> TokenUsage | None:
    """Return what *usage*, a ``RequestUsage``, reports; None if that is nothing."""
    if not (usage.input_tokens or usage.output_tokens):
        return None
    others = [usage.output_reasoning_tokens, *(usage.details.get(name, 0) for name in REASONING)]
    return TokenUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens + usage.output_tokens,
        cached_input=usage.cache_read_tokens or None,
        reasoning=next(filter(None, others), None),
        cache_write=usage.cache_write_tokens or None,
        cache_write_1h=usage.cache_write_1h_tokens or None,
    )
