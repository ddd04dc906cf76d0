"""The client's errors as ``ChatModelError``s. They may repeat messages and keys, so no text has them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import openai

from chatmemory_django.chat.model import (
    AuthenticationError,
    BrokenStreamError,
    ChatModelError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    ModelTimeoutError,
    RateLimitError,
    UnavailableError,
)

CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
"""How servers report too many tokens: OpenAI as ``code``, llama.cpp as ``type``."""

FILTER_CODES = {"content_filter", "content_policy_violation"}
"""How Azure and OpenAI report what their filters do not allow."""

CONTEXT_WORDS = "maximum context length"
"""Part of the messages of vLLM and OpenRouter, which have no code for too many tokens."""

POSITION = re.compile(r".*?messages\W{1,2}(\d{1,6})", re.DOTALL)
"""How servers name a message: ``messages[3]``, ``messages.3.content``."""


@contextmanager
def model_errors(lost: type[ChatModelError] = UnavailableError, *, has_positions: bool = False) -> Iterator[None]:
    """
    Convert the client's errors to ``ChatModelError``s; a lost connection is raised as *lost*.

    If it *has_positions*, what was sent has the messages at the positions at which they were given.
    """
    try:
        yield
    except openai.OpenAIError as exc:
        error = _error(exc, lost)
        if isinstance(error, InvalidRequestError) and has_positions:
            error.index = _position(exc)
        raise error from exc
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise lost("The model's server sent something that is not JSON.") from exc
    except UnicodeEncodeError as exc:
        if exc.encoding == "ascii":  # headers are encoded as ASCII, messages as UTF-8
            raise AuthenticationError("The API key contains a character that is not ASCII; check it.") from exc
        raise InvalidRequestError("A message contains a lone surrogate, which UTF-8 cannot encode.") from exc


def _error(exc: openai.OpenAIError, lost: type[ChatModelError]) -> ChatModelError:
    match exc:
        case openai.APIStatusError():
            return _error_of_status(exc)
        case openai.APITimeoutError():
            return ModelTimeoutError("The model's server did not answer in time.")
        case openai.APIConnectionError():
            return lost("The connection to the model's server failed or was lost.")
        case openai.APIError():
            return BrokenStreamError("The model's server reported an error in the middle of the stream.")
        case _:
            return AuthenticationError(
                "There is no API key; set OPENAI_API_KEY or pass api_key. Servers without keys accept any value."
            )


def _error_of_status(exc: openai.APIStatusError) -> ChatModelError:
    status = exc.status_code
    if status in {401, 403}:
        return AuthenticationError(
            f"The model's server rejected the API key, or its use for this request: status {status}."
        )
    if status in {402, 429}:
        why = "the quota is exhausted" if exc.code == "insufficient_quota" or status == 402 else "too many requests"
        return RateLimitError(f"The model's server rejected the request: {why}.", _retry_after(exc))
    if status == 408:
        return ModelTimeoutError("The model's server did not receive the request in time.")
    if status == 409 or status >= 500:
        return UnavailableError(f"The model's server failed: status {status}.")
    if CONTEXT_CODES & {exc.code, exc.type} or CONTEXT_WORDS in exc.message:
        return ContextLengthError("The messages do not fit in the model's context; send fewer or shorter messages.")
    if FILTER_CODES & {exc.code, exc.type}:
        return ContentFilterError("The filter of the model's server rejected the request.")
    if status == 404:
        return InvalidRequestError(
            f"The model's server rejected the request: status {status}. Check base_url and the model's name."
        )
    text = f"The model's server rejected the request: status {status}."
    return InvalidRequestError(text, server_text=exc.message)


def _position(exc: openai.OpenAIError) -> int | None:
    """Return the position of the message that the server has named."""
    named = POSITION.match(f"{getattr(exc, 'param', '')} {exc}")
    return None if named is None else int(named[1])


def _retry_after(exc: openai.APIStatusError) -> float | None:
    header = exc.response.headers.get("retry-after", "")
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None
