"""What a client wishes for one answer, beside the question: tools of its own, the form of the answer, a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from chatmemory_django.chat.model import ResponseFormat, ToolSpecification


class Wishes(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What a client wishes for one answer. The assistant stays the site's: its model, system message and own tools.

    The caller has checked it: nothing here has a bound of its own.
    """

    tools: Sequence[ToolSpecification] = ()
    """Tools that run in the client. One of the assistant with the same name comes before it."""
    tool_choice: str | None = None
    """For the first call of the model: a ``ToolChoice``, or the name of one of these tools; None for the default."""
    response_format: ResponseFormat | None = None
    context: str = ""
    """A text that is sent in front of the question, after the context of the assistant."""


NONE = Wishes()


def wished(assistant: Any, wishes: Wishes) -> Any:
    """Return *assistant* of the settings for one answer, with what a client *wishes* for it."""
    return assistant if wishes == NONE else assistant.wished(wishes)
