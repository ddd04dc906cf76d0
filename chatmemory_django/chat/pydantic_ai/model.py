"""The chat model: its configuration, and its four ways to call a vendor."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any

from pydantic_ai import direct
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model, parse_model_id
from pydantic_ai.providers import infer_provider_class

from chatmemory_django.chat.model import (
    AuthenticationError,
    BrokenStreamError,
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    InvalidRequestError,
)
from chatmemory_django.chat.outgoing.rules import Rules
from chatmemory_django.chat.pydantic_ai.answers import Pieces, at_end, count_last_usage, to_chat_response
from chatmemory_django.chat.pydantic_ai.errors import model_errors
from chatmemory_django.chat.pydantic_ai.kept import to_response
from chatmemory_django.chat.pydantic_ai.loops import aiterate, arun, iterate, run, the_loop
from chatmemory_django.chat.pydantic_ai.positions import located
from chatmemory_django.chat.pydantic_ai.requests import to_arguments
from chatmemory_django.chat.pydantic_ai.vendors import expressible, rules_for
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.messages import AiMessage

TIMEOUT = 60.0
"""The number of seconds for which a server may send nothing, unless ``timeout`` is set."""


class PydanticAiChatModel(ChatModel):
    """
    A model of any vendor that pydantic-ai supports.

    *model* is pydantic-ai's name of it, ``"vendor:name"``, for example ``"anthropic:claude-sonnet-5-5"``, or one of its
    ``Model`` instances. With a name, the vendor's key is read from the environment at the first call. *settings* are
    pydantic-ai's ``ModelSettings``, the vendor's own included, as defaults for requests that do not set them.

    *timeout* is the number of seconds for which the server may send nothing, 60 by default; *request_timeout* limits
    the whole call. The vendor's client decides what is retried; *max_retries* limits how often.

    One instance can be used in all threads and event loops. Its calls run in one event loop, in a thread of their own,
    so an instance of ``Model`` must not be used elsewhere at the same time, or in a process that was forked after its
    first call. Closing a stream closes its connection; use ``contextlib.aclosing`` for ``astream``.

    *rules* are what the vendor accepts, by default those that ``chat.outgoing`` knows of the vendor, or of the model.

    Thinking goes back to the vendor that sent it, with its signature, unless the message was changed. A message's other
    attributes and the ``name`` of a user are not sent, and neither are AI messages without text and calls.

    Raises:
        ImportError: The vendor's package is not installed.
        ValueError: pydantic-ai has no such vendor.

    """

    def __init__(self, model: str | Model, *, rules: Rules | None = None, **settings: Any) -> None:
        self._given = model
        self._rules = rules
        self._settings: Mapping[str, Any] = settings
        self._models: dict[tuple[int, str | None], Model] = {}
        if isinstance(model, str) and model != "test":
            vendor, _ = parse_model_id(model)
            if vendor is None:
                raise ValueError(f"model is {model!r}; put the vendor before it, as in 'anthropic:claude-sonnet-5-5'.")
            infer_provider_class(vendor)

    @property
    def lacks_key(self) -> bool:
        """Whether the vendor's key, or what it needs instead, is missing in the environment: then each call fails."""
        try:
            self._made(None)
        except AuthenticationError:
            return True
        return False

    @cached_property
    def rules(self) -> Rules:
        return rules_for(self._given) if self._rules is None else expressible(self._rules, self._given)

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        return run(self._chat(request, self._model(request.model_name)))

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        return await arun(self._chat(request, self._model(request.model_name)))

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        yield from iterate(self._stream(request, self._model(request.model_name)))

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        async with aclosing(aiterate(self._stream(request, self._model(request.model_name)))) as events:
            async for event in events:
                yield event

    async def _chat(self, request: ChatRequest, model: Model) -> ChatResponse:
        with located(request, model, self.rules), model_errors():
            response = await direct.model_request(**to_arguments(request, model, self._settings_for(model), self.rules))
            return to_chat_response(response, model)

    async def _stream(self, request: ChatRequest, model: Model) -> AsyncGenerator[ChatEvent, None]:
        pieces = Pieces()
        with located(request, model, self.rules), model_errors():
            arguments = to_arguments(request, model, self._settings_for(model), self.rules)
            async with direct.model_request_stream(**arguments) as stream:
                count_last_usage(stream)
                with model_errors(lost=BrokenStreamError):
                    async for event in stream:
                        for piece in pieces.of(event):
                            yield piece
                    response = stream.get()
        yield at_end(response, model)

    def returns_thinking(self, message: AiMessage) -> bool:
        if not message.thinking or VENDOR_ATTRIBUTE not in message.attributes:
            return False
        try:
            return to_response(message, self._model(None)) is not None
        except AuthenticationError:  # the call, which comes next, raises it
            return False

    def _settings_for(self, model: Model) -> Mapping[str, Any]:
        # A setting that a vendor ignores would only be warned about.
        own = model.settings or {}
        timeout = {} if "timeout" in own or "timeout" in model.unsupported_settings else {"timeout": TIMEOUT}
        return {**timeout, **self._settings}

    def _model(self, name: str | None) -> Model:
        """Return the model called *name*, by default the one that was given, with connections of this process."""
        key = os.getpid(), name
        if key not in self._models:
            model = self._made(name)
            keeper = run(_opened(model))
            # Two threads may both make one. Only the first is kept; the other has no connections yet.
            if self._models.setdefault(key, model) is model:
                weakref.finalize(self, _close, keeper, os.getpid()).atexit = False  # its loop does it then
        return self._models[key]

    def _made(self, name: str | None) -> Model:
        if isinstance(self._given, Model):
            if name not in {None, self._given.model_name}:
                raise InvalidRequestError(
                    f"model_name is {name!r}, but this model can only be {self._given.model_name!r}."
                )
            return self._given
        vendor, given_name = parse_model_id(self._given)
        try:
            return infer_model(self._given if name is None else f"{vendor}:{name}")
        except UserError as exc:
            raise AuthenticationError(
                f"pydantic-ai cannot set up {vendor or given_name!r}. {str(exc).partition(' To try ')[0]}"
            ) from exc


async def _opened(model: Model) -> AsyncGenerator[None, None]:
    """Open *model*, and return what keeps its connections open, until it is closed or its loop ends."""
    keeper = _kept_open(model)
    await anext(keeper)
    return keeper


async def _kept_open(model: Model) -> AsyncGenerator[None, None]:
    async with model:
        yield


def _close(keeper: AsyncGenerator[None, None], process: int) -> None:
    """Close *keeper* soon; it may be any thread that collects the garbage."""
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(_closed(keeper), the_loop())


async def _closed(keeper: AsyncGenerator[None, None]) -> None:
    await keeper.aclose()
