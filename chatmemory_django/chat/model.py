"""
Chat models: their requests, their responses, and their errors.

A ``ChatModel`` has to implement one method, ``do_chat``. Requests and responses have the same fields as LangChain4j's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping
from contextlib import aclosing, closing
from dataclasses import astuple, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, Self, TypeAlias, overload
from uuid import UUID

from chatmemory_django.chat.outgoing.rules import Rules
from chatmemory_django.chat.surrogates import Halves, with_whole_characters
from chatmemory_django.chat.threads import from_thread, in_own_thread
from chatmemory_django.messages import (
    NO_ATTRIBUTES,
    AiMessage,
    ChatMessage,
    ToolExecutionRequest,
    UserMessage,
    checked_messages,
)
from chatmemory_django.private import private


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """
    The number of tokens that a call used; None for what the model does not report.

    *input* and *output* are all that is billed, and the others are parts of them. Of the input, *cached_input* was read
    from the vendor's cache of prompts, and *cache_write* was written to it, of which *cache_write_1h* is kept for an
    hour instead of the vendor's default; both have prices of their own. *reasoning* is the part of the output that was
    thinking.
    """

    input: int | None = None
    output: int | None = None
    total: int | None = None
    cached_input: int | None = None
    reasoning: int | None = None
    cache_write: int | None = None
    cache_write_1h: int | None = None

    def __add__(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both; what neither reports stays None."""
        return TokenUsage(*map(_sum, astuple(self), astuple(other)))


class FinishReason(StrEnum):
    """Why a model stopped generating."""

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
class ToolSpecification:
    """A tool that a model can call. *parameters* is the JSON schema of its arguments, of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """A request for JSON instead of text. *schema* is a JSON schema for the answer, *name* its name for the model."""

    schema: Mapping[str, Any] | None = None
    name: str = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """
    A request to a model. None selects the model's default, and is not sent.

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
    """What a model reports about its answer; None if it does not. *attributes* holds any other values, as JSON."""

    id: str | None = None
    model_name: str | None = None
    finish_reason: FinishReason | None = None
    token_usage: TokenUsage | None = None
    attributes: Mapping[str, Any] = NO_ATTRIBUTES

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the metadata that were *stored* with a message; what they cannot be is left out."""
        known = {"id", "model", "finish_reason", "usage"}
        usage, reasons = stored.get("usage"), {each.value: each for each in FinishReason}
        counts = usage.items() if isinstance(usage, Mapping) else ()
        names = {each.name for each in fields(TokenUsage)}
        return cls(
            id=stored.get("id"),
            model_name=stored.get("model"),
            finish_reason=reasons.get(str(stored.get("finish_reason"))),
            token_usage=TokenUsage(**{name: count for name, count in counts if name in names}) if counts else None,
            attributes={name: value for name, value in stored.items() if name not in known},
        )

    def as_json(self) -> dict[str, Any]:
        """Return the metadata as it is stored with the message."""
        counted = ((name, getattr(self.token_usage, name, None)) for name in TokenUsage.__slots__)
        found = {
            **self.attributes,
            "id": self.id,
            "model": self.model_name,
            "finish_reason": None if self.finish_reason is None else self.finish_reason.value,
            "usage": {name: count for name, count in counted if count is not None} or None,
        }
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """The answer of a model, and the last event of a stream."""

    ai_message: AiMessage
    metadata: ChatResponseMetadata = ChatResponseMetadata()


OWNER = "owner"
"""Those who may approve the calls in a conversation: its owner, unless the access policy has other rules."""

CLIENT = "client"
"""In place of those who approve: the owner's client, which runs the call and sends its output."""

MAX_APPROVER_LENGTH = 255
"""How many characters ``approve_by`` has at most."""

MAX_ASKS_LENGTH = 300
"""How many characters the words have at most in which a person is asked for an approval."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """
    That an answer waits for a *call*: for the approval *id* or, if the call runs in the client, for the output *id*.

    It is what an assistant, and no model, yields at its end.
    """

    id: UUID
    call: ToolExecutionRequest
    approve_by: str = OWNER
    """Who decides: ``OWNER``, or a permission that a user needs to have; ``CLIENT`` if it waits for an output."""
    asks: str = ""
    """What the assistant wants to do, in words of the tool; empty if it has none."""

    @property
    def runs_in(self) -> Literal["server", "client"]:
        """Where the call runs, see ``Tool``."""
        return "client" if self.approve_by == CLIENT else "server"


@dataclass(frozen=True, slots=True)
class PartialText:
    """A piece of the text of an answer."""

    text: str


@dataclass(frozen=True, slots=True)
class PartialThinking:
    """A piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class PartialToolCall:
    """
    A piece of a tool call: *index* is the call's position in the answer, *arguments* the next piece of its JSON.

    The first piece of each call has its *id* and *name*, or the beginning of a name whose rest comes before the first
    *arguments*.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


ChatEvent: TypeAlias = PartialText | PartialThinking | PartialToolCall | ChatResponse
"""An event of a stream: pieces, then the complete ``ChatResponse``."""


class ChatModelError(RuntimeError):
    """
    A model gave no answer. The text contains neither messages nor keys, so it is safe to log; ``__cause__`` may not be.

    Raise one of the subclasses.
    """


class AuthenticationError(ChatModelError):
    """The server rejected the API key, or its use for this request."""


class InvalidRequestError(ChatModelError):
    """
    The server rejected the request; sending it again will fail again.

    *server_text* is what the server wrote about it, and may repeat messages: keep it out of logs. *index* is the
    position of the message that it names among those of the request, and *sequence* that of the message in the
    conversation, if an assistant has asked; None if that is not known.
    """

    def __init__(self, *args: object, server_text: str | None = None, index: int | None = None) -> None:
        super().__init__(*args)
        self.server_text = server_text
        self.index = index
        self.sequence: int | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.sequence is not None:
            text += f" It is about the message {self.sequence} of the conversation."
        if self.server_text:
            text += " What it wrote is in server_text; if that is a rule of the vendor's, give the model such rules."
        return text


class UnsupportedFileError(InvalidRequestError):
    """The question has a file that the model does not take, so the model was not called, and nothing is stored."""


class ContextLengthError(InvalidRequestError):
    """The messages do not fit in the model's context."""


class ContentFilterError(InvalidRequestError):
    """The server's filter does not allow a text or a file in the messages."""


class RateLimitError(ChatModelError):
    """Too many requests, or the quota is exhausted. *retry_after* is the delay in seconds that the server asks for."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelTimeoutError(ChatModelError):
    """The model did not answer in time."""


class UnavailableError(ChatModelError):
    """The server cannot be reached, or failed."""


class BrokenStreamError(ChatModelError):
    """The stream ended before the answer was complete."""


class ChatModel(ABC):
    """
    An LLM. Implement ``do_chat``; override the other ``do_`` methods where the model supports more, ``rules`` if its
    vendor has any, and ``returns_thinking`` if requests contain thinking.

    ``chat("text")`` returns a str. With messages, a list of messages or a ``ChatRequest``, it returns a
    ``ChatResponse``. ``stream`` takes the same arguments and yields ``ChatEvent``s. Every method raises
    ``ChatModelError``. A character that is split between two pieces is joined, and U+FFFD replaces what cannot be
    stored: NUL, and half a character alone.
    """

    @abstractmethod
    def do_chat(self, request: ChatRequest) -> ChatResponse:
        """Return the answer to *request*."""

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        """Return what ``do_chat`` returns, by default from a thread."""
        return await in_own_thread(self.do_chat, request)

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        """Yield the answer as it is generated, a ``ChatResponse`` last; by default, everything at the end."""
        yield from _pieces(self.do_chat(request))

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Yield what ``do_stream`` yields: by default from a thread, or everything at the end as ``do_stream`` does."""
        if type(self).do_stream is ChatModel.do_stream:
            for event in _pieces(await self.do_achat(request)):
                yield event
        else:
            async with aclosing(from_thread(self.do_stream(request))) as events:
                async for event in events:
                    yield event

    @property
    def rules(self) -> Rules | None:
        """
        What the vendor accepts. An assistant makes what it sends fit for it; ``chat`` and ``stream`` send what they are
        given. None, the default, changes nothing.
        """
        return None

    def returns_thinking(self, message: AiMessage) -> bool:
        """Return whether the thinking of *message* is sent to the model again, and so takes tokens; by default not."""
        return False

    @overload
    def chat(self, first: str, /) -> str: ...
    @overload
    def chat(self, first: ChatRequest | Iterable[ChatMessage], /) -> ChatResponse: ...
    @overload
    def chat(self, first: ChatMessage, /, *others: ChatMessage) -> ChatResponse: ...
    @private
    def chat(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> str | ChatResponse:
        """Return a str for a str; return a ``ChatResponse`` for messages, a list of messages or a request."""
        response = with_whole_characters(self.do_chat(to_request(first, *others)))
        return _text_of(response) if isinstance(first, str) else response

    @overload
    async def achat(self, first: str, /) -> str: ...
    @overload
    async def achat(self, first: ChatRequest | Iterable[ChatMessage], /) -> ChatResponse: ...
    @overload
    async def achat(self, first: ChatMessage, /, *others: ChatMessage) -> ChatResponse: ...
    @private
    async def achat(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> str | ChatResponse:
        """Return what ``chat`` returns."""
        response = with_whole_characters(await self.do_achat(to_request(first, *others)))
        return _text_of(response) if isinstance(first, str) else response

    def stream(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> Generator[ChatEvent, None, None]:
        """Yield the answer as it is generated, the ``ChatResponse`` last. Closing the generator ends the call."""
        return _stream(self.do_stream(to_request(first, *others)))

    def astream(
        self, first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage
    ) -> AsyncGenerator[ChatEvent, None]:
        """Yield what ``stream`` yields."""
        return _astream(self.do_astream(to_request(first, *others)))


def to_request(first: str | ChatRequest | Iterable[ChatMessage] | ChatMessage, /, *others: ChatMessage) -> ChatRequest:
    """Return the arguments of ``ChatModel.chat`` as a request; raise ``TypeError`` or ``ValueError`` if invalid."""
    if isinstance(first, ChatRequest):
        if others:
            raise TypeError("A ChatRequest must be the only argument; it contains the messages.")
        return first
    if isinstance(first, str):
        if others:
            raise TypeError("A str must be the only argument; among messages, use UserMessage(…).")
        return ChatRequest(messages=(UserMessage(first),))
    if isinstance(first, Iterable):
        return ChatRequest(messages=(*first, *others))
    return ChatRequest(messages=(first, *others))


@private
def _stream(events: Generator[ChatEvent, None, None]) -> Generator[ChatEvent, None, None]:
    halves: Halves[Any] = Halves()
    with closing(events):
        for event in events:
            yield from _joined(event, halves)


@private
async def _astream(events: AsyncGenerator[ChatEvent, None]) -> AsyncGenerator[ChatEvent, None]:
    halves: Halves[Any] = Halves()
    async with aclosing(events):
        async for event in events:
            for joined in _joined(event, halves):
                yield joined


def _joined(event: ChatEvent, halves: Halves[Any]) -> Iterator[ChatEvent]:
    """Yield *event* with whole characters; before the response, the halves that remained alone."""
    match event:
        case PartialText() | PartialThinking():
            text = halves.join(type(event), event.text)
            if text is event.text:
                yield event
            elif text:
                yield replace(event, text=text)
        case PartialToolCall():
            arguments = halves.join(event.index, event.arguments)
            if arguments or event.id or event.name or not event.arguments:
                yield with_whole_characters(replace(event, arguments=arguments))
        case ChatResponse():
            for kind, text in halves.left():
                yield PartialToolCall(kind, arguments=text) if isinstance(kind, int) else kind(text)
            yield with_whole_characters(event)


def _text_of(response: ChatResponse) -> str:
    message = response.ai_message
    if message.text is None and (message.tool_execution_requests or "refusal" in message.attributes):
        what = "calls tools" if message.tool_execution_requests else "is a refusal"
        raise ValueError(
            f"The answer has no text but {what}; pass messages instead of a str to get the whole response."
        )
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
