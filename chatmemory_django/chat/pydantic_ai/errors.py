"""pydantic-ai's errors as ``ChatModelError``s. Their own texts are left out: they contain what the server sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic_ai import exceptions

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


@contextmanager
def model_errors(lost: type[ChatModelError] = UnavailableError) -> Iterator[None]:
    """Convert all errors to ``ChatModelError``s; a lost connection and a failed server are raised as *lost*."""
    try:
        yield
    except ChatModelError:
        raise
    except exceptions.ModelAPIError as exc:
        raise _error_of_api(exc, lost) from exc
    except exceptions.UserError as exc:
        raise InvalidRequestError(
            "pydantic-ai cannot make this request with this model; its cause is the reason."
        ) from exc
    except exceptions.ContentFilterError as exc:
        raise ContentFilterError("The vendor's content filter rejected the request.") from exc
    except exceptions.FallbackExceptionGroup as exc:
        raise _error_of_group(exc, lost) from exc
    except TimeoutError as exc:
        raise ModelTimeoutError("The model's server did not answer in time.") from exc
    except Exception as exc:
        if isinstance(exc, NotImplementedError) or type(exc).__name__ == "ParamValidationError":  # that of botocore
            raise InvalidRequestError(
                "The request has something that the model does not support; its cause is the reason."
            ) from exc
        raise lost(f"The model failed, or sent something that is not an answer: {type(exc).__name__}.") from exc


def _error_of_api(exc: exceptions.ModelAPIError, lost: type[ChatModelError]) -> ChatModelError:
    status = getattr(exc, "status_code", None)
    match exc:
        case exceptions.ModelTimeoutError() | exceptions.ModelRequestTimeout():
            return ModelTimeoutError("The model's server did not answer in time.")
        case exceptions.ModelContextWindowExceededError():
            return ContextLengthError("The messages do not fit in the model's context; send fewer or shorter messages.")
        case exceptions.ModelQuotaExceededError():
            return RateLimitError("The model's server rejected the request: the quota is exhausted.", exc.retry_after)
        case exceptions.ModelRateLimitError():
            return RateLimitError("The model's server rejected the request: too many requests.", exc.retry_after)
        case exceptions.ModelConnectionError():
            return lost("The connection to the model's server failed or was lost.")
    return _error_of_status(exc, status, lost)


def _error_of_status(exc: exceptions.ModelAPIError, status: int | None, lost: type[ChatModelError]) -> ChatModelError:
    status_text = "" if status is None else f": status {status}"
    if isinstance(exc, exceptions.ModelAuthenticationError) or status in {401, 403}:
        return AuthenticationError(
            f"The model's server rejected the API key, or its use for this request{status_text}."
        )
    if status in {402, 429}:
        return RateLimitError("The model's server rejected the request: too many requests.", exc.retry_after)
    if status == 408:
        return ModelTimeoutError("The model's server did not receive the request in time.")
    if isinstance(exc, exceptions.ModelNotFoundError) or status == 404:
        return InvalidRequestError(f"The model's server rejected the request{status_text}. Check the model's name.")
    if isinstance(exc, exceptions.ModelRequestRejectedError) or (status is not None and 400 <= status < 500):
        if status == 409:
            return UnavailableError(f"The model's server failed{status_text}.")
        return InvalidRequestError(
            f"The model's server rejected the request{status_text}.", server_text=str(getattr(exc, "body", None) or exc)
        )
    if exc.in_stream:
        return BrokenStreamError("The model's server reported an error in the middle of the stream.")
    return lost(f"The model's server failed{status_text}.")


def _error_of_group(group: exceptions.FallbackExceptionGroup, lost: type[ChatModelError]) -> ChatModelError:
    """Return the error of the last model that a ``FallbackModel`` tried."""
    try:
        with model_errors(lost):
            raise group.exceptions[-1]
    except ChatModelError as exc:
        return exc
