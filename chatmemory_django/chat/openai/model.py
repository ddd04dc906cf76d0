"""The chat model: its configuration, and its four ways to call the server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import openai

from chatmemory_django.chat.model import BrokenStreamError, ChatEvent, ChatModel, ChatRequest, ChatResponse
from chatmemory_django.chat.openai.answers import AnswerReader
from chatmemory_django.chat.openai.clients import Clients
from chatmemory_django.chat.openai.errors import model_errors
from chatmemory_django.chat.openai.requests import to_messages, to_options
from chatmemory_django.chat.outgoing import Rules, named, rules_of
from chatmemory_django.formats.openai_files import AUDIO_TYPES
from chatmemory_django.messages import AiMessage

OPENAI_URL = "https://api.openai.com/v1"
"""The server that the client asks, unless it is given another one."""


class OpenAiChatModel(ChatModel):
    """
    A model behind OpenAI's chat completions API, at OpenAI or at any compatible server.

    If *base_url* or *api_key* is None, it is read from the environment variable ``OPENAI_BASE_URL`` or
    ``OPENAI_API_KEY`` at the first call. Servers without keys accept any value.

    *timeout* is the number of seconds for which the server may send nothing, *connect_timeout* the limit for
    connecting. A request is retried up to *max_retries* times after a timeout, after a failed connection, and after the
    statuses 408, 409, 429 and 5xx. It is not retried when a quota is exhausted, or after a stream has begun.

    *temperature*, *top_p*, *max_output_tokens* and *stop_sequences* are defaults for requests that do not set them.
    Many servers support ``max_tokens`` but not ``max_completion_tokens``; *max_tokens_parameter* selects which of them
    is sent. With *strict*, tool calls and JSON always match their schemas, but OpenAI rejects many schemas.
    *extra_body* is a JSON object with other parameters of the server. Values that are None are not sent.

    One instance can be used in all threads, event loops and forked processes. Closing a stream closes its connection,
    which stops the server; use ``contextlib.aclosing`` for ``astream``.

    *rules* are what the server accepts, by default those that ``chat.outgoing.rules_of`` knows by the address and the
    name; what the API cannot express is left out of them.

    A message's thinking is sent where *rules* want it. Its attributes and ``is_error`` are not sent, and neither are AI
    messages without text and calls. Files in the results of tools are sent in a user message after all results. A
    content that the API does not support raises ``InvalidRequestError``.
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
        rules: Rules | None = None,
    ) -> None:
        if max_tokens_parameter not in {"max_completion_tokens", "max_tokens"}:
            raise ValueError(
                f"max_tokens_parameter is {max_tokens_parameter!r}; use 'max_completion_tokens' or 'max_tokens'."
            )
        self.model_name = model_name
        self._base_url = base_url
        self._rules = rules
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

    @property
    def lacks_key(self) -> bool:
        """Whether there is no API key, neither passed nor in the environment: then each call fails."""
        return self._clients.lacks_key

    @cached_property
    def rules(self) -> Rules:
        url = self._base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL
        rules = self._rules or rules_of(self.model_name, url)
        return replace(_expressible(rules), vendor=rules.vendor or self.model_name)

    def returns_thinking(self, message: AiMessage) -> bool:
        return bool(message.tool_execution_requests) and self.rules.returns_reasoning

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        arguments = self._arguments(request)
        with model_errors(has_positions=_has_positions(request, arguments)):
            return self._named(AnswerReader.of(self._clients.for_threads().chat.completions.create(**arguments)))

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        arguments = self._arguments(request)
        with model_errors(has_positions=_has_positions(request, arguments)):
            client = await self._clients.for_loop()
            return self._named(AnswerReader.of(await client.chat.completions.create(**arguments)))

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        arguments = self._arguments(request, stream=True)
        with model_errors(has_positions=_has_positions(request, arguments)):
            stream = self._clients.for_threads().chat.completions.create(**arguments)
        answer = AnswerReader()
        with stream, model_errors(lost=BrokenStreamError):
            for chunk in stream:
                yield from answer.add(chunk)
        yield self._named(answer.end())

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        arguments = self._arguments(request, stream=True)
        with model_errors(has_positions=_has_positions(request, arguments)):
            client = await self._clients.for_loop()
            stream = await client.chat.completions.create(**arguments)
        answer = AnswerReader()
        async with stream:
            with model_errors(lost=BrokenStreamError):
                async for chunk in stream:
                    for event in answer.add(chunk):
                        yield event
        yield self._named(answer.end())

    def _named(self, response: ChatResponse) -> ChatResponse:
        return ChatResponse(named(response.ai_message, self.rules), response.metadata)

    def _arguments(self, request: ChatRequest, *, stream: bool = False) -> dict[str, Any]:
        arguments = {
            "messages": to_messages(request.messages, self.rules),
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


def _expressible(rules: Rules) -> Rules:
    """Return *rules* without what chat completions have no words for."""
    return replace(
        rules,
        user_after_result=rules.user_after_result and not rules.alternates,  # the files of a result are a user's
        files=rules.files - {"video"},
        linked=rules.linked & {"image"},
        audio_types=frozenset(AUDIO_TYPES.values()),
        returns_responses=False,
    )


def _has_positions(request: ChatRequest, arguments: Mapping[str, Any]) -> bool:
    return len(request.messages) == len(arguments["messages"])
