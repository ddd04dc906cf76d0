"""
Estimates of what a call used whose model reported nothing, as it ended early, or never does.

Vendors bill such a call, too. No tokenizer is needed: these numbers bound budgets, and are not compared with bills.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from chatmemory_django.chat.model import (
    AuthenticationError,
    ChatRequest,
    InvalidRequestError,
    RateLimitError,
    TokenUsage,
    UnavailableError,
)
from chatmemory_django.messages import ChatMessage
from chatmemory_django.tokens import OpenAiTokenCountEstimator

Part: TypeAlias = ChatMessage | str
"""A part of what is sent: a message, or a text, such as the JSON of a tool's specification."""

BYTES_PER_TOKEN = 4
"""Bytes of text in UTF-8 to a token: about as many as OpenAI's models have in English, German, Chinese and code."""

NOTHING = TokenUsage()
"""What is known of a call of which nothing was reported, sent or received."""

REFUSALS = (AuthenticationError, InvalidRequestError, RateLimitError, UnavailableError)

NOT_REACHED = frozenset({"ConnectError", "ConnectTimeout", "ClientConnectorError", "EndpointConnectionError"})
"""The classes of httpx, aiohttp and botocore for a connection that was never made."""


class Estimate:
    """What a call used by what was sent, which is looked at only if that is asked for, and what has arrived."""

    def __init__(self) -> None:
        self._sent: Iterable[Part] = ()
        self._arrived = 0

    def sends(self, parts: str | Iterable[Part]) -> None:
        """Note what is sent."""
        self._sent = [parts] if isinstance(parts, str) else parts

    def arrived(self, text: str) -> None:
        """Note a piece of the answer; only its length is kept."""
        self._arrived += _length(text)

    @property
    def is_answered(self) -> bool:
        """Whether any piece of an answer has arrived."""
        return self._arrived > 0

    def usage(self) -> TokenUsage:
        """Return the estimate, once; ``NOTHING`` if nothing is known."""
        parts, self._sent = self._sent, ()
        sent, written = sum(map(_tokens_in, parts)), _tokens(self._arrived)
        return TokenUsage(sent, written, sent + written) if sent or written else NOTHING


class _Estimator(OpenAiTokenCountEstimator):
    """Counts texts by their length, and all else, such as files, as for an OpenAI model."""

    def __init__(self) -> None:
        super().__init__("gpt-4o")

    def estimate_token_count_in_text(self, text: str) -> int:
        return _tokens(_length(text))


_estimator = _Estimator()


def parts_of(request: ChatRequest) -> Iterator[Part]:
    """Yield the parts of *request*."""
    yield from request.messages
    for tool in request.tools:
        yield specification(tool.name, tool.description, tool.parameters)
    if request.response_format is not None and request.response_format.schema is not None:
        yield json.dumps(dict(request.response_format.schema), default=str)


def specification(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> str:
    """Return about what a model is sent of a tool."""
    return f"{name} {description or ''} {json.dumps(dict(parameters or {}), default=str)}"


def is_refusal(error: BaseException) -> bool:
    """
    Return whether *error* is that the vendor refused a call before it worked on it, or was not reached.

    It is the error of a ``ChatModel``, or of a vendor's own client.
    """
    cause: BaseException | None = error
    while cause is not None:
        status = getattr(cause, "status_code", None)
        if isinstance(cause, (*REFUSALS, ConnectionRefusedError, socket.gaierror)):
            return True
        if (isinstance(status, int) and status >= 400) or type(cause).__name__ in NOT_REACHED:
            return True
        cause = cause.__cause__
    return False


def _tokens_in(part: Part) -> int:
    if isinstance(part, str):
        return _estimator.estimate_token_count_in_text(part)
    return _estimator.estimate_token_count_in_message(part)


def _tokens(length: int) -> int:
    return -(-length // BYTES_PER_TOKEN)


def _length(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
