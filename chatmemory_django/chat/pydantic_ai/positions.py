"""
Which message of a request a vendor's error names, where that is certain.

Vendors count the messages that they are sent, and pydantic-ai sends one for several of ours, or several for one. How
each of its classes does that is known up to the first message that it may send in more than one way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model

from chatmemory_django.chat.model import ChatRequest, InvalidRequestError
from chatmemory_django.chat.outgoing import Rules
from chatmemory_django.chat.pydantic_ai.requests import to_model_messages

PLACE = re.compile(
    r"\b(?:messages|contents|input)(?:\.|\.?\[|['\"], ?)(\d{1,6})(?:\W{1,3}(?:content|parts)\W{1,3}(\d{1,6}))?"
)
"""``messages.3.content.1``, ``contents[3].parts[1]``, ``input[3]``, ``["body", "messages", 3]``."""

Sent: TypeAlias = Iterable[tuple[int, ModelMessage]]
"""The positions of messages, and what pydantic-ai is given for them."""


@contextmanager
def located(request: ChatRequest, model: Model, rules: Rules) -> Iterator[None]:
    """Give an ``InvalidRequestError`` the position of the message of *request* that the vendor names."""
    try:
        yield
    except InvalidRequestError as exc:
        if place := PLACE.search(exc.server_text or ""):
            exc.index = _position(place, list(_written(request, model, rules)))
        raise


def _position(place: re.Match[str], written: Sequence[Sequence[int]]) -> int | None:
    message, part = place.groups()
    parts = written[int(message)] if int(message) < len(written) else ()
    if len({*parts}) > 1:
        parts = parts[int(part) :][:1] if part else ()
    return parts[0] if parts else None


def _written(request: ChatRequest, model: Model, rules: Rules) -> Iterator[Sequence[int]]:
    """Yield of each message that is sent, part by part, the positions of those that are in it."""
    sent = (
        (index, each)
        for index, message in enumerate(request.messages)
        for each in to_model_messages(message, model, rules, index)
    )
    classes = {each.__name__ for each in type(model).__mro__}
    for name in ("AnthropicModel", "BedrockConverseModel", "GoogleModel"):
        if name in classes:
            yield from _turns(sent, name)
    for name in ("MistralModel", "OpenAIChatModel", "OpenAIResponsesModel"):
        if name in classes:
            yield from _items(sent, name)


def _turns(sent: Sent, name: str) -> Iterator[Sequence[int]]:
    """Where what stands between two answers is one message; Gemini's results are one of their own."""
    parts: list[int] = []
    is_result = False
    for index, each in sent:
        if isinstance(each, ModelResponse):
            yield from [parts] if parts else []
            yield [index]
            parts, is_result = [], False
            continue
        for part in each.parts:
            if isinstance(part, SystemPromptPart):
                continue
            if _has_files_of_results(part):
                return
            if is_result and isinstance(part, UserPromptPart):
                if name == "GoogleModel":
                    yield parts
                    parts = []
                elif name == "BedrockConverseModel" and not isinstance(part.content, str):  # files may stand apart
                    return
            parts += [index] * _count(part)
            is_result = isinstance(part, ToolReturnPart)
    yield parts


def _items(sent: Sent, name: str) -> Iterator[Sequence[int]]:
    """Where each text, and each result, is one message; of responses, each call and each thought is an item."""
    is_result = False
    for index, each in sent:
        if not isinstance(each, ModelResponse):
            for part in each.parts:
                if _has_files_of_results(part):
                    return
                if (
                    is_result and isinstance(part, UserPromptPart) and name == "MistralModel"
                ):  # an answer is put between
                    return
                yield [index]
                is_result = isinstance(part, ToolReturnPart)
            continue
        is_result = False
        if name != "OpenAIResponsesModel":
            yield [index]
            continue
        before: str | None = None
        for answered in each.parts:
            if not isinstance(answered, TextPart | ThinkingPart | ToolCallPart):
                return
            if answered.id is None or answered.id != before:  # which pieces of one item have in common
                yield [index]
            before = answered.id


def _count(part: ModelRequestPart) -> int:
    if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
        return 1
    return sum(not isinstance(each, CachePoint) for each in part.content)


def _has_files_of_results(part: ModelRequestPart) -> bool:
    return isinstance(part, ToolReturnPart) and bool(part.files)
