"""A model with scripted answers, and an answer without a model."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence

from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    TokenUsage,
)
from chatmemory_django.chat.runs.answer import Answer as Answered
from chatmemory_django.messages import AiMessage, ChatMessage, ToolExecutionRequest

METADATA = ChatResponseMetadata(
    id="chatcmpl-1", model_name="scripted", finish_reason=FinishReason.STOP, token_usage=TokenUsage(5, 7, 12)
)

Answer = str | AiMessage | Exception | Callable[[ChatRequest], str | AiMessage]


def calling(*calls: tuple[str, str, str], text: str | None = None) -> AiMessage:
    """Return a message that calls tools, given the id, name and arguments of each call."""
    return AiMessage(text, tool_execution_requests=[ToolExecutionRequest(*call) for call in calls])


class ScriptedModel(ChatModel):
    """Gives *answers* one after the other, and the last one for every further request. Keeps the requests.

    A text is streamed word by word; an exception is raised, in a stream after ``words_before_error`` words. An
    asynchronous stream waits before its second word until ``gate`` is open.
    """

    def __init__(
        self, *answers: Answer, words_before_error: int = 0, pause: float = 0, gate: asyncio.Event | None = None
    ) -> None:
        self.answers: Sequence[Answer] = answers
        self.words_before_error = words_before_error
        self.pause = pause
        self.gate = gate
        self.requests: list[ChatRequest] = []
        self.open_streams = 0

    @property
    def sent(self) -> list[list[ChatMessage]]:
        return [list(request.messages) for request in self.requests]

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        answer = self._next(request)
        if isinstance(answer, Exception):
            raise answer
        return ChatResponse(answer, METADATA)

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        await asyncio.sleep(self.pause)
        return self.do_chat(request)

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        self.open_streams += 1
        try:
            yield from self._events(self._next(request))
        finally:
            self.open_streams -= 1

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        self.open_streams += 1
        try:
            for place, event in enumerate(self._events(self._next(request))):
                await asyncio.sleep(self.pause)
                if place and self.gate is not None:
                    await self.gate.wait()
                yield event
        finally:
            self.open_streams -= 1

    def _next(self, request: ChatRequest) -> AiMessage | Exception:
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(request)
        if callable(answer):
            answer = answer(request)
        return AiMessage(answer) if isinstance(answer, str) else answer

    def _events(self, answer: AiMessage | Exception) -> Generator[ChatEvent, None, None]:
        if isinstance(answer, Exception):
            yield from (PartialText(f"word{number} ") for number in range(self.words_before_error))
            raise answer
        if answer.thinking:
            yield PartialThinking(answer.thinking)
        for word in (answer.text or "").split(" "):
            if word:
                yield PartialText(f"{word} ")
        yield ChatResponse(answer, METADATA)


class Saying:
    """The work of an answer of one event, *last*, after the test's own *make*."""

    assistant = ""
    question = None
    goes_on = False

    def __init__(self, last: str, make: Callable[[Answered], Awaitable[None]] | None = None) -> None:
        self._last = last
        self._make = make

    def begin(self, answer: Answered) -> None:
        pass

    async def make(self, answer: Answered) -> None:
        if self._make is not None:
            await self._make(answer)

    def end(self, answer: Answered) -> str:
        return self._last

    def give_up(self, answer: Answered) -> str:
        return f"Given up: {type(answer.failure).__name__}."

    async def follow(self) -> None:
        pass
