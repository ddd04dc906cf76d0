"""Why a model's server did not accept a message."""

from __future__ import annotations

from typing import Literal, TypeAlias

from chatmemory_django.chat.model import ContentFilterError, ContextLengthError, InvalidRequestError
from chatmemory_django.core.media import source_of
from chatmemory_django.messages import UserMessage

Rejection: TypeAlias = Literal["too_long", "content_filter", "file", "invalid"]
"""
The reason in the metadata of a message: it is too long for the model, its text or its files are not allowed, it has a
file that the model does not take, or something else about it, or what was sent with it, is not accepted.
"""


def reason_of(error: InvalidRequestError, question: UserMessage | None) -> Rejection:
    """Return why the request with *question*, or with the results of tools, was rejected with *error*."""
    match error:
        case ContextLengthError():
            return "too_long"
        case ContentFilterError():
            return "content_filter"
        case _:
            has_files = question is not None and any(source_of(each) is not None for each in question.contents)
            return "file" if has_files else "invalid"
