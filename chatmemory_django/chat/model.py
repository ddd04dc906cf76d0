"""
Chat models: what is sent to an LLM, what it answers, and what can go wrong.

A ``ChatModel`` has to implement one method, ``do_chat``. Requests and responses are LangChain4j's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, overload

from chatmemory_django.messages import NO_ATTRIBUTES, AiMessage, ChatMessage, UserMessage
from chatmemory_django.stores.base import checked_messages


class FinishReason(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_EXECUTION = "tool_execution"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


class ToolChoice(StrEnum):
    """Whether a model may, must, or must not call a tool."""

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """
    How many tokens a call took; None for what the model does not report.

    *cached_input* is how many of the input were cached, *reasoning* how many of the output were thinking.
    """

    input: int | None = None
    output: int | None = None
    total: int | None = None
    cached_input: int | None = None
    reasoning: int | None = None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum; what neither reports stays None."""
        return TokenUsage(*map(_sum, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class ToolSpecification:
    """A tool that a model may call. *parameters* is the JSON schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """JSON instead of text. With a *schema*, a JSON schema, the answer fits that; *name* names it to the model."""

    schema: Mapping[str, Any] | None = None
    name: str = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """
    What a model is asked. None stands for the model's own default, and is not sent.

    *tool_choice* is a ``ToolChoice``, or the name of the tool that must be called.
    """

    messages: tuple[ChatMessage, ...]
    model_name: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    stop_sequences: tuple[str, ...] = ()
    tools: tuple[ToolSpecification, ...] = ()
    tool_choice: ToolChoice | str | None = None
    response_format: ResponseFormat | None = None

    def __post_init__(self) -> None:
        messages = checked_messages(self.messages)
        if not messages:
            raise ValueError("messages is empty; give at least one message.")
        object.__setattr__(self, "messages", messages)
        object.__setattr__(self, "stop_sequences", tuple(self.stop_sequences))
        object.__setattr__(self, "tools", tuple(self.tools))
        names = [tool.name for tool in self.tools]
        if not isinstance(self.tool_choice, ToolChoice | None) and self.tool_choice not in names:
            raise ValueError(f"tool_choice is {self.tool_choice!r}; give a ToolChoice, or one of the tools {names}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatResponseMetadata:
    """What a model reports of its answer; None for what it does not. *attributes* is what else it reports, as JSON."""

    id: str | None = None
    model_name: str | None = None
    finish_reason: FinishReason | None = None
    token_usage: TokenUsage | None = None
    attributes: Mapping[str, Any] = NO_ATTRIBUTES

    def as_json(self) -> dict[str, Any]:
        """Return what is reported, as it is stored beside the message."""
        usage = {} if self.token_usage is None else asdict(self.token_usage)
        found = {
            **self.attributes,
            "id": self.id,
            "model": self.model_name,
            "finish_reason": None if self.finish_reason is None else self.finish_reason.value,
            "usage": {name: count for name, count in usage.items() if count is not None} or None,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """The answer of a model; in a stream, the last event."""

    ai_message: AiMessage
    metadata: ChatResponseMetadata = ChatResponseMetadata()


@dataclass(frozen=True, slots=True)
class PartialText:
    """A piece of the text of an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class PartialThinking:
    """A piece of the reasoning before an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class PartialToolCall:
    """
    A piece of a tool call: *index* is the call's place in the answer, *arguments* is the next piece of its JSON.

    The first piece of each call has its *id* and *name*.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


ChatEvent: TypeAlias = PartialText | PartialThinking | PartialToolCall | ChatResponse
"""What a stream consists of: pieces, then the whole ``ChatResponse``."""


class ChatModelError(RuntimeError):
    """
    A model gave no answer. The text names neither messages nor keys, so it can be logged; ``__cause__`` may not.

    Raise one of the subclasses.
    """


class AuthenticationError(ChatModelError):
    """The model's server refuses the key, or what the key is used for."""


class InvalidRequestError(ChatModelError):
    """The server refuses the request; the same again will fail again."""


class ContextLengthError(InvalidRequestError):
    """The messages do not fit the model's context."""


class RateLimitError(ChatModelError):
    """Too many requests, or none left. *retry_after* is how many seconds the server asks to wait, if it does."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelTimeoutError(ChatModelError):
    """The model did not answer in time."""


class UnavailableError(ChatModelError):
    """The model's server cannot be reached, or fails."""


class BrokenStreamError(ChatModelError):
    """A stream ended before the answer did."""


class ChatModel(ABC):
    """
    An LLM. Implement ``do_chat``; override the other ``do_`` methods where the model can do better.

    ``chat("text")`` returns a text. Given messages, a list of them or a ``ChatRequest``, it returns a
    ``ChatResponse``. ``stream`` takes the same and yields ``ChatEvent``s. Every method raises ``ChatModelError``.
    """

    @abstractmethod
    def do_chat(self, request: ChatRequest) -> ChatResponse:
        """Answer *request*."""

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        """See ``do_chat``; by default in a thread."""
        return await asyncio.to_thread(self.do_chat, request)

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        """Yield the answer as it is made, a ``ChatResponse`` last; by default, all of it at the end."""
        yield from _pieces(self.do_chat(request))

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """See ``do_stream``."""
        for event in _pieces(await self.do_achat(request)):
            yield event

    @overload
    def chat(self, first: str, /) -> str: ...
    @overload
    def chat(self, first: ChatRequest | Iterable[ChatMessage], /) -> ChatResponse: ...
    @overload
    def chat(self, first: ChatMessage, /, *others: ChatMessage) -> ChatResponse: ...
    def chat(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> str | ChatResponse:
        """Answer a text by a text; messages, a list of them or a request by a ``ChatResponse``."""
        response = self.do_chat(to_request(first, *others))
        return _text_of(response) if isinstance(first, str) else response

    @overload
    async def achat(self, first: str, /) -> str: ...
    @overload
    async def achat(self, first: ChatRequest | Iterable[ChatMessage], /) -> ChatResponse: ...
    @overload
    async def achat(self, first: ChatMessage, /, *others: ChatMessage) -> ChatResponse: ...
    async def achat(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> str | ChatResponse:
        """See ``chat``."""
        response = await self.do_achat(to_request(first, *others))
        return _text_of(response) if isinstance(first, str) else response

    def stream(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> Generator[ChatEvent, None, None]:
        """Yield the answer as it is made; the last event is the ``ChatResponse``. To close this ends the call."""
        return self.do_stream(to_request(first, *others))

    def astream(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> AsyncGenerator[ChatEvent, None]:
        """See ``stream``."""
        return self.do_astream(to_request(first, *others))


def to_request(first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage) -> ChatRequest:
    """Return what ``ChatModel.chat`` was given as a request; ``TypeError`` or ``ValueError`` if it is none."""
    if isinstance(first, ChatRequest):
        if others:
            raise TypeError("Give a ChatRequest alone; its messages are part of it.")
        return first
    if isinstance(first, str):
        if others:
            raise TypeError("Give a str alone, or UserMessage(…) among the other messages.")
        return ChatRequest(messages=(UserMessage(first),))
    if isinstance(first, Iterable):
        return ChatRequest(messages=(*first, *others))
    return ChatRequest(messages=(first, *others))


def _text_of(response: ChatResponse) -> str:
    message = response.ai_message
    if message.text is None and (message.tool_execution_requests or "refusal" in message.attributes):
        what = "calls tools" if message.tool_execution_requests else "is a refusal"
        raise ValueError(f"The answer has no text but {what}; give messages instead of a str to get all of it.")
    return message.text or ""


def _pieces(response: ChatResponse) -> Iterator[ChatEvent]:
    message = response.ai_message
    if message.thinking:
        yield PartialThinking(message.thinking)
    if message.text:
        yield PartialText(message.text)
    for index, call in enumerate(message.tool_execution_requests):
        yield PartialToolCall(index, call.id, call.name, call.arguments or "")
    yield response


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other
