"""The model: what each request has in common, and the four ways to ask."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from typing import Any, Literal

import openai

from chatmemory_django.chat.model import BrokenStreamError, ChatEvent, ChatModel, ChatRequest, ChatResponse
from chatmemory_django.chat.openai.answers import Answer
from chatmemory_django.chat.openai.clients import Clients
from chatmemory_django.chat.openai.errors import model_errors
from chatmemory_django.chat.openai.requests import to_messages, to_options


class OpenAiChatModel(ChatModel):
    """
    A model behind OpenAI's chat completions, at OpenAI or at any server that has the same API.

    Where *base_url* or *api_key* is None, the environment's ``OPENAI_BASE_URL`` or ``OPENAI_API_KEY`` is read when the
    model is first asked. A server that needs no key takes any.

    *timeout* is how many seconds the server may be silent, *connect_timeout* how many it may take to accept a
    connection. A request is repeated up to *max_retries* times when either is over, when the connection fails, and for
    the statuses 408, 409, 429 and 5xx. It is not repeated when a quota is used up, or when a stream has begun.

    *temperature*, *top_p*, *max_output_tokens* and *stop_sequences* are the defaults for requests that have none. Many
    servers know ``max_tokens`` but not ``max_completion_tokens``; *max_tokens_parameter* says which to send. With
    *strict*, tool calls and JSON fit their schemas in every case, but OpenAI refuses many schemas. *extra_body* is a
    JSON object of what else the server knows. Whatever is None is not sent.

    One model serves all threads, event loops and forked processes. Closing a stream closes its connection, so that the
    server stops; use ``contextlib.aclosing`` for an ``astream``.

    A message's thinking, attributes and ``is_error`` are not sent, nor is an AI message with neither text nor calls.
    What a tool returns beside text is sent in a user message behind all results. A content that has no place in the API
    is an ``InvalidRequestError``.
    """

    def __init__(
        self,
        model_name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        connect_timeout: float = 5.0,
        max_retries: int = 2,
        max_tokens_parameter: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens",
        temperature: float | None = None,
        top_p: float | None = None,
        max_output_tokens: int | None = None,
        stop_sequences: Iterable[str] = (),
        strict: bool = False,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        if max_tokens_parameter not in {"max_completion_tokens", "max_tokens"}:
            raise ValueError(
                f"max_tokens_parameter is {max_tokens_parameter!r}; use 'max_completion_tokens' or 'max_tokens'."
            )
        self.model_name = model_name
        self._max_tokens_parameter = max_tokens_parameter
        self._strict = strict
        self._extra_body = None if extra_body is None else dict(extra_body)
        self._defaults = self._parameters(model_name, temperature, top_p, max_output_tokens, stop_sequences)
        self._clients = Clients(
            base_url=base_url,
            api_key=api_key,
            timeout=openai.Timeout(timeout, connect=connect_timeout),
            max_retries=max_retries,
        )

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        arguments = self._arguments(request)
        with model_errors():
            return Answer.of(self._clients.for_threads().chat.completions.create(**arguments))

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        arguments = self._arguments(request)
        with model_errors():
            client = await self._clients.for_loop()
            return Answer.of(await client.chat.completions.create(**arguments))

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        arguments = self._arguments(request, stream=True)
        with model_errors():
            stream = self._clients.for_threads().chat.completions.create(**arguments)
        answer = Answer()
        with stream, model_errors(lost=BrokenStreamError):
            for chunk in stream:
                yield from answer.add(chunk)
        yield answer.end()

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        arguments = self._arguments(request, stream=True)
        with model_errors():
            client = await self._clients.for_loop()
            stream = await client.chat.completions.create(**arguments)
        answer = Answer()
        async with stream:
            with model_errors(lost=BrokenStreamError):
                async for chunk in stream:
                    for event in answer.add(chunk):
                        yield event
        yield answer.end()

    def _arguments(self, request: ChatRequest, *, stream: bool = False) -> dict[str, Any]:
        arguments = {
            "messages": to_messages(request.messages),
            **self._defaults,
            **self._parameters(
                request.model_name,
                request.temperature,
                request.top_p,
                request.max_output_tokens,
                request.stop_sequences,
            ),
            **to_options(request, strict=self._strict),
            "extra_body": self._extra_body,
        }
        if stream:
            arguments |= {"stream": True, "stream_options": {"include_usage": True}}
        return arguments

    def _parameters(
        self,
        model_name: str | None,
        temperature: float | None,
        top_p: float | None,
        max_output_tokens: int | None,
        stop_sequences: Iterable[str],
    ) -> dict[str, Any]:
        parameters = {
            "model": model_name,
            "temperature": temperature,
            "top_p": top_p,
            self._max_tokens_parameter: max_output_tokens,
            "stop": list(stop_sequences) or None,
        }
        # The client would send None as null, which is not the server's default.
        return {name: value for name, value in parameters.items() if value is not None}
