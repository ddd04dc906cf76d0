"""The model of these benchmarks: the question decides the words, their speed and the calls of tools."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator
from typing import NamedTuple, Self

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    TokenUsage,
)
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage

TEXT = "It is a fine day, and there is nothing that I would rather talk about than what you have just sent to me. " * 2
METADATA = ChatResponseMetadata(model_name="clock", finish_reason=FinishReason.STOP, token_usage=TokenUsage(1, 2, 3))
PACE = float(os.environ.get("BENCHMARK_CHAT_PACE", "1"))
"""The factor for the pauses between words."""

END = "."
"""The end of a whole answer."""


class Plan(NamedTuple):
    """An answer of a number of words, one every *pause* seconds, after a number of *calls* of a tool."""

    words: int
    pause: float
    calls: int = 0

    def __str__(self) -> str:
        return f"{self.words} words, {self.pause:.4f} s apart, {self.calls} calls"

    @property
    def seconds(self) -> float:
        """The duration of the answer."""
        return self.words * self.pause

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Return the plan in a question, or None."""
        found = re.search(r"(\d+) words, ([\d.]+) s apart, (\d+) calls", text)
        return None if found is None else cls(int(found[1]), float(found[2]), int(found[3]))


class Clock(ChatModel):
    """Answers at once or, given a ``Plan``, with words that are the times in ns at which they were sent."""

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        return ChatResponse(AiMessage(TEXT), METADATA)

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        return self.do_chat(request)

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        results = 0
        for message in reversed(request.messages):
            if isinstance(message, UserMessage):
                break
            results += isinstance(message, ToolExecutionResultMessage)
        plan = Plan.of(message.single_text) if isinstance(message, UserMessage) else None
        if plan is None:
            yield PartialText(TEXT)
            yield self.do_chat(request)
            return
        if results < plan.calls:
            call = ToolExecutionRequest(f"call-{results}", "look", '{"at": "the clock"}')
            yield ChatResponse(AiMessage(None, tool_execution_requests=[call]), METADATA)
            return
        words = []
        for _ in range(plan.words):
            await asyncio.sleep(plan.pause * PACE)
            words.append(f"{time.perf_counter_ns()} ")
            yield PartialText(words[-1])
        yield PartialText(END)
        yield ChatResponse(AiMessage("".join(words) + END), METADATA)


def look(at: str) -> str:
    """Return what is visible."""
    return f"{at}: it ticks"


assistant = Assistant(Clock(), tools=[look])
