"""The assistant of the soak of runs: its tools have effects, lines of a file, each with the key of its call."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator
from itertools import accumulate
from typing import NamedTuple, Self

from benchmarks.chat.model import END, METADATA
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, ChatResponse, PartialText
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage

EFFECTS = "BENCHMARK_CHAT_EFFECTS"
"""The environment variable with the path of the file."""

TOOLS = ("act", "ask_first", "locate")
"""The names of the tools: one that runs at once, one that waits for an approval, and one that runs in the browser."""


class Plan(NamedTuple):
    """The answer to the question *key*: rounds of calls of tools, with words before each and at the end."""

    key: str
    rounds: list[list[str]]
    words: int
    pause: float

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the plan that is a question's *text*: a list in JSON."""
        return cls(*json.loads(text))

    def calls(self, number: int) -> list[ToolExecutionRequest]:
        """Return the calls of a round."""
        return [
            ToolExecutionRequest(f"call-{number}-{place}", name, json.dumps({"key": f"{self.key}.{number}.{place}"}))
            for place, name in enumerate(self.rounds[number])
        ]


class Acting(ChatModel):
    """Follows the plan in the last question, from the results that there are; its words are never the same again."""

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        raise NotImplementedError("The chat streams.")

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        results = 0
        for message in reversed(request.messages):
            if isinstance(message, UserMessage):
                break
            results += isinstance(message, ToolExecutionResultMessage)
        plan = Plan.of(message.single_text)  # type: ignore[attr-defined]  # the question
        counts = accumulate(len(each) for each in plan.rounds)
        number = next((place for place, count in enumerate(counts) if results < count), None)
        words = []
        for _ in range(plan.words):
            await asyncio.sleep(plan.pause)
            words.append(f"{time.time_ns() % 10**9:x} ")
            yield PartialText(words[-1])
        if number is None:
            yield PartialText(END)
            yield ChatResponse(AiMessage("".join(words) + END), METADATA)
        else:
            yield ChatResponse(AiMessage("".join(words), tool_execution_requests=plan.calls(number)), METADATA)


def act(key: str) -> str:
    """Have the effect *key*, which takes some time."""
    time.sleep(random.uniform(0, 0.2))
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{key} {os.getpid()}\n".encode())
    os.close(file)
    time.sleep(random.uniform(0, 0.2))
    return f"did {key}"


def locate(key: str) -> str:
    """Return where the user is, for *key*."""
    raise NotImplementedError("The client runs this.")


assistant = Assistant(
    Acting(), tools=[act, Tool(act, name="ask_first", needs_approval=True), Tool(locate, runs_in="client")]
)
