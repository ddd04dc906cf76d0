"""What a request has in addition to what a window counts: thinking, tools, and the format of the answer, in tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from pydantic_core import to_json

from chatmemory_django.chat.model import ChatModel, ResponseFormat, ToolSpecification
from chatmemory_django.core.windows import Window
from chatmemory_django.messages import AiMessage, ChatMessage

MAX_COUNTS = 10_000
"""How many counts a process remembers, at about 200 bytes each: the tools, and the thinking in busy conversations."""

_counts: dict[tuple[str, bytes], int] = {}
"""The tokens of a text, by the name of what counted it and the text's hash."""


def specification_tokens(
    tools: Iterable[ToolSpecification], response_format: ResponseFormat | None, window: Window
) -> int:
    """Return the tokens of *tools* and of the format of the answer, as JSON; 0 if *window* counts none."""
    if window.estimator is None:
        return 0
    sent: list[tuple[object, ...]] = [(each.name, each.description, dict(each.parameters)) for each in tools]
    if response_format is not None and response_format.schema is not None:
        sent.append((response_format.name, dict(response_format.schema)))
    return sum(_tokens(to_json(each).decode(), window) for each in sent)


def thinking_tokens(model: ChatModel, window: Window) -> Callable[[ChatMessage], int]:
    """
    Return a function that returns the tokens of a message's thinking, if *model* is sent it; 0 if *window* counts none.

    Keep it for one answer: it asks the model about each message once.
    """
    known: dict[int, tuple[ChatMessage, int]] = {}  # with the messages, so that no other one gets their ids

    def tokens(message: ChatMessage) -> int:
        if not isinstance(message, AiMessage) or not message.thinking or window.estimator is None:
            return 0
        if id(message) not in known:
            known[id(message)] = message, _tokens(message.thinking, window) if model.returns_thinking(message) else 0
        return known[id(message)][1]

    return tokens


def _tokens(text: str, window: Window) -> int:
    """Return the tokens of *text*; each is counted once in a process if counts can be stored."""
    if window.estimator is None or not window.counter:
        return 0 if window.estimator is None else window.estimator.estimate_token_count_in_text(text)
    key = window.counter, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    if key not in _counts:
        if len(_counts) >= MAX_COUNTS:
            _counts.clear()
        _counts[key] = window.estimator.estimate_token_count_in_text(text)
    return _counts[key]
