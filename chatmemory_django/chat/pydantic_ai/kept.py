"""
What a vendor wants back that a message has no field for: thinking with its signature, and calls of the vendor's tools.

It is an attribute of the answer, pydantic-ai's JSON of the response. Only the vendor that sent it gets it back, and
only as long as the message is still the same. Its calls have other ids and arguments, and no blank texts, where
``chat.outgoing`` has made the message fit: then what goes back has them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pydantic
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models import Model

from chatmemory_django.chat.outgoing import STRICTEST, Rules, Words, as_object
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.formats.pydantic_ai import to_messages
from chatmemory_django.messages import AiMessage

FIELDS = (
    "kind",
    "parts",
    "provider_name",
    "provider_url",
    "canonical_system",
    "provider_details",
    "provider_response_id",
    "model_name",
)
"""The fields of a response that its model may need; not its usage, which is metadata."""


def to_message(response: ModelResponse, model: Model) -> AiMessage:
    """Return *response* of *model* as a message."""
    named = replace(response, provider_name=response.provider_name or model.system)
    [dumped] = ModelMessagesTypeAdapter.dump_python([named], mode="json", exclude_none=True)
    message = _message(dumped)
    if all(isinstance(part, TextPart | ToolCallPart) and not part.provider_details for part in response.parts):
        return message
    kept = {name: dumped[name] for name in FIELDS if name in dumped}
    return AiMessage(message.text, message.thinking, message.tool_execution_requests, {VENDOR_ATTRIBUTE: kept})


def to_response(message: AiMessage, model: Model, rules: Rules = STRICTEST) -> ModelResponse | None:
    """Return the response that *message* was, if *model*'s vendor sent it and the message has not been changed."""
    kept = message.attributes.get(VENDOR_ATTRIBUTE)
    if not isinstance(kept, Mapping) or "parts" not in kept:
        return None
    if _content(_message(dict(kept))) != _content(message):
        return None
    try:
        [response] = ModelMessagesTypeAdapter.validate_python([dict(kept)])
    except pydantic.ValidationError:  # another release of pydantic-ai wrote it
        return None
    if not isinstance(response, ModelResponse) or not model.accepts_stateless_artifacts(response):
        return None
    parts = list(_fitted(response.parts, message, rules))
    if rules.words is Words.NEVER_NULL and not any(isinstance(part, TextPart) for part in parts):
        parts.append(TextPart(""))
    return replace(response, parts=parts)


def _content(message: AiMessage) -> tuple[str, list[tuple[str | None, str]]]:
    """Return the text and the calls of *message*, whatever was done to make it fit."""
    text = message.text or ""
    calls = [(call.name, as_object(call.arguments)) for call in message.tool_execution_requests]
    return "" if text.isspace() else text, calls


def _fitted(parts: Sequence[ModelResponsePart], message: AiMessage, rules: Rules) -> Iterator[ModelResponsePart]:
    calls = iter(message.tool_execution_requests)
    for part in parts:
        if isinstance(part, ToolCallPart):
            call = next(calls)
            is_same = (part.tool_call_id, part.args_as_json_str()) == (call.id, call.arguments)
            yield part if is_same else replace(part, tool_call_id=call.id or part.tool_call_id, args=call.arguments)
        elif rules.words is not Words.VISIBLE or not isinstance(part, TextPart) or part.content.strip():
            yield part


def _message(dumped: dict[str, Any]) -> AiMessage:
    [message] = to_messages(dumped)
    return message if isinstance(message, AiMessage) else AiMessage()  # none of its parts is text, thinking or a call
