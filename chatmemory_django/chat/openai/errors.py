"""The client's errors as ours. Our texts have none of the server's words, which may repeat messages and keys."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import openai

from chatmemory_django.chat.model import (
    AuthenticationError,
    BrokenStreamError,
    ChatModelError,
    ContextLengthError,
    InvalidRequestError,
    ModelTimeoutError,
    RateLimitError,
    UnavailableError,
)

CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
"""The names of too many tokens: OpenAI's ``code``, and llama.cpp's ``type``."""

CONTEXT_WORDS = "maximum context length"
"""What the messages of vLLM and OpenRouter contain, which have no code for it."""


@contextmanager
def model_errors(lost: type[ChatModelError] = UnavailableError) -> Iterator[None]:
    """Raise the client's errors as ``ChatModelError``s; that of a lost connection as *lost*."""
    try:
        yield
    except openai.OpenAIError as exc:
        raise _error(exc, lost) from exc
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise lost("The model's server sends something that is not JSON.") from exc
    except UnicodeEncodeError as exc:
        if exc.encoding == "ascii":  # as headers are written, messages as UTF-8
            raise AuthenticationError(
                "The API key has a character that is not ASCII, so no server can know it."
            ) from exc
        raise InvalidRequestError("A message has a character that UTF-8 cannot represent: half a surrogate.") from exc


def _error(exc: openai.OpenAIError, lost: type[ChatModelError]) -> ChatModelError:
    match exc:
        case openai.APIStatusError():
            return _error_of_status(exc)
        case openai.APITimeoutError():
            return ModelTimeoutError("The model's server did not answer in time.")
        case openai.APIConnectionError():
            return lost("There is no connection to the model's server, or it broke.")
        case openai.APIError():
            return BrokenStreamError("The model's server reports an error in the middle of the stream.")
        case _:
            return AuthenticationError(
                "There is no API key; set OPENAI_API_KEY or give api_key. A server that needs none takes any."
            )


def _error_of_status(exc: openai.APIStatusError) -> ChatModelError:
    status = exc.status_code
    if status in {401, 403}:
        return AuthenticationError(f"The model's server refuses the API key, or what it is used for: status {status}.")
    if status in {402, 429}:
        why = "the quota is used up" if exc.code == "insufficient_quota" or status == 402 else "too many requests"
        return RateLimitError(f"The model's server refuses the request: {why}.", _retry_after(exc))
    if status == 408:
        return ModelTimeoutError("The model's server did not get the request in time.")
    if status == 409 or status >= 500:
        return UnavailableError(f"The model's server fails: status {status}.")
    if CONTEXT_CODES & {exc.code, exc.type} or CONTEXT_WORDS in exc.message:
        return ContextLengthError("The messages do not fit the model's context; send fewer or shorter ones.")
    hint = " Check base_url and the model's name." if status == 404 else ""
    return InvalidRequestError(f"The model's server refuses the request: status {status}.{hint}")


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
