"""
Where the vendors that cache only what a request asks them to find a breakpoint: Anthropic and Bedrock.

There are four at most: the tools, the system message, the end of what was sent before the present question, whose front
is the context and is new each time, and the end of the request. The vendors look for what they know up to 20 blocks
in front of a breakpoint. Where a request adds more, as a round of eleven calls does, there is one where an earlier
request had written, too; then the tools, which the system message's covers, have none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import CachePoint, ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model

VENDORS = frozenset({"anthropic", "bedrock"})
PLACES = ("tool_definitions", "instructions", "messages")
"""What pydantic-ai's settings call the tools, the system message and the end."""

NEAR = 18
"""How many blocks a request may add: from then on, pydantic-ai has a breakpoint of its own for Bedrock."""


def with_breakpoints(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return pydantic-ai's *arguments* with breakpoints, unless its vendor needs none or the site has set its own."""
    model, messages, settings = (arguments[name] for name in ("model", "messages", "model_settings"))
    own = f"{model.system}_cache"
    if not _is_capable(model) or {"cache", own, *(f"{own}_{place}" for place in PLACES)} & settings.keys():
        return arguments
    closed = {index for index, each in enumerate(messages) if model.system == "bedrock" and _ends_with_file(each)}
    before, written = _places(messages, closed)
    ours = {f"{own}_{place}": place != "tool_definitions" or written is None for place in PLACES[:2]}
    ours[f"{own}_messages"] = len(messages) - 1 not in closed
    return {
        **arguments,
        "messages": [_marked(each) if index in {before, written} else each for index, each in enumerate(messages)],
        "model_settings": {**settings, **ours},
    }


def _is_capable(model: Model) -> bool:
    return model.system in VENDORS and bool(model.profile.get("supports_cache", False))


def _places(messages: Sequence[ModelMessage], closed: Collection[int]) -> tuple[int | None, int | None]:
    """
    Return the end of what was sent before the question, and where a request wrote that is out of sight otherwise.

    The messages in *closed* take no breakpoint.
    """
    users = [index for index, each in enumerate(messages) if _parts_of(each)]
    questions = [
        index for index in users if any(isinstance(part, UserPromptPart) for part in _parts_of(messages[index]))
    ]
    if not questions:
        return None, None
    ends = [index for index in users if index not in closed]
    before = _last(ends, questions[-1])
    written, read = before, users[-1]
    if read > questions[-1]:  # a round of the question's tools: the request before it wrote at its end
        written = _last(ends, read)
    elif before is not None:  # the question before it wrote in front of itself; its end has lost its context
        written, read = _last(ends, questions[-2] if len(questions) > 1 else 0), before
    if written is None or sum(map(_blocks, messages[written + 1 : read + 1])) < NEAR:
        return before, None
    return before, written


def _last(indices: Sequence[int], limit: int) -> int | None:
    """Return the last of *indices* below *limit*."""
    return max((each for each in indices if each < limit), default=None)


def _parts_of(message: ModelMessage) -> list[UserPromptPart | ToolReturnPart]:
    """Return what of *message* is sent as a user's: its end can be marked."""
    parts = message.parts if isinstance(message, ModelRequest) else ()
    return [
        each
        for each in parts
        if isinstance(each, ToolReturnPart) or (isinstance(each, UserPromptPart) and bool(each.content))
    ]


def _ends_with_file(message: ModelMessage) -> bool:
    """Return whether *message* ends with a file: behind a document, Bedrock takes no breakpoint."""
    parts = _parts_of(message)
    content = parts[-1].content if parts else ""
    return isinstance(content, Sequence) and not isinstance(content, str) and not isinstance(content[-1], str)


def _blocks(message: ModelMessage) -> int:
    """Return how many blocks *message* has at most."""
    lists = [part.content for part in _parts_of(message) if isinstance(part.content, Sequence)]
    return len(message.parts) + sum(len(each) - 1 for each in lists if not isinstance(each, str))


def _marked(message: ModelMessage) -> ModelMessage:
    mark = UserPromptPart([CachePoint()])
    return replace(message, parts=[*message.parts, mark]) if isinstance(message, ModelRequest) else message
