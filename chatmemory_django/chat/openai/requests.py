"""The content of requests: messages, tools and the format of the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from chatmemory_django.chat.model import ChatRequest, InvalidRequestError, ResponseFormat, ToolChoice, ToolSpecification
from chatmemory_django.chat.outgoing import OPENAI, Rules, Words, reasoning_of
from chatmemory_django.formats.openai_chat import message_to_openai
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    Content,
    CustomMessage,
    DetailLevel,
    ImageContent,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)

LEVELS = (DetailLevel.AUTO, DetailLevel.LOW, DetailLevel.HIGH)
"""The levels of detail that the API has."""

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""The valid names of tools."""


def to_messages(messages: Iterable[ChatMessage], rules: Rules = OPENAI) -> list[dict[str, Any]]:
    """
    Return *messages* as they are sent; raise ``InvalidRequestError`` for the first that cannot be sent.

    AI messages without text and calls are left out, and so are custom messages, which only the framework that created
    them understands. The API accepts only text as the result of a tool, so anything else is sent in a user message
    after all results. Consecutive messages with calls become one message, since the results have to follow all calls.
    """
    sent: list[dict[str, Any]] = []
    files: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        try:
            if isinstance(message, ToolExecutionResultMessage):
                sent.append(_result(message))
                files += _files(message)
            elif isinstance(message, AiMessage) and sent and "tool_calls" in sent[-1]:
                _join(sent[-1], message, rules)
            elif not isinstance(message, CustomMessage):
                sent += [*_from_user(files, rules), *_sent(message, rules)]
                files = []
        except ValueError as exc:
            raise InvalidRequestError(f"messages[{index}] cannot be sent to OpenAI's API: {exc}", index=index) from None
    return [*sent, *_from_user(files, rules)]


def to_options(request: ChatRequest, *, strict: bool) -> dict[str, Any]:
    """Return the client's arguments for the tools of *request* and for the format of its answer."""
    options: dict[str, Any] = {}
    if request.tools:
        options["tools"] = [{"type": "function", "function": _function(tool, strict)} for tool in request.tools]
    if isinstance(request.tool_choice, ToolChoice):
        options["tool_choice"] = request.tool_choice.value
    elif request.tool_choice is not None:
        options["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice}}
    if request.response_format is not None:
        options["response_format"] = _format(request.response_format, strict)
    return options


def _sent(message: ChatMessage, rules: Rules) -> list[dict[str, Any]]:
    if isinstance(message, UserMessage) and not message.has_single_text:
        return [message_to_openai(UserMessage(list(map(_with_known_detail, message.contents)), message.name))]
    if not isinstance(message, AiMessage):
        return [message_to_openai(message)]
    calls = message.tool_execution_requests
    if not message.text and not calls:
        return []
    # Attributes may be those of another server, so they are not sent.
    text = message.text or ("" if rules.words is Words.NEVER_NULL else None)
    sent = message_to_openai(AiMessage(text, None, calls))
    return [{**sent, "reasoning_content": reasoning_of(message, rules)} if calls and rules.returns_reasoning else sent]


def _with_known_detail(content: Content | None) -> Content | None:
    """Return *content*; an image with the nearest level of detail that the API has."""
    if isinstance(content, ImageContent) and content.detail_level not in LEVELS:
        return ImageContent(content.image, DetailLevel.HIGH)
    return content


def _join(calls: dict[str, Any], message: AiMessage, rules: Rules) -> None:
    """Merge *message* into *calls*, which has no result yet."""
    for more in _sent(message, rules):
        calls["content"] = "\n\n".join(filter(None, (calls.get("content"), more.get("content")))) or None
        calls["tool_calls"] = [*calls["tool_calls"], *more.get("tool_calls", [])]


def _result(message: ToolExecutionResultMessage) -> dict[str, Any]:
    texts = [content.text for content in message.contents if isinstance(content, TextContent)]
    text = "\n".join(texts) if texts else "The result is in the next user message."
    return message_to_openai(ToolExecutionResultMessage(message.id, message.tool_name, text))


def _files(message: ToolExecutionResultMessage) -> list[dict[str, Any]]:
    files = [_with_known_detail(content) for content in message.contents if not isinstance(content, TextContent)]
    if not files:
        return []
    title = TextContent(f"From the result of the tool {message.tool_name or message.id}:")
    parts: list[dict[str, Any]] = message_to_openai(UserMessage([title, *files]))["content"]
    return parts


def _from_user(parts: list[dict[str, Any]], rules: Rules) -> list[dict[str, Any]]:
    if not parts:
        return []
    before = [] if rules.user_after_result else [message_to_openai(AiMessage("OK"))]
    return [*before, {"role": "user", "content": parts}]


def _function(tool: ToolSpecification, strict: bool) -> dict[str, Any]:
    if not NAME.fullmatch(tool.name):
        raise InvalidRequestError(
            f"The tool name {tool.name!r} is invalid; use 1 to 64 ASCII letters, digits, '_' and '-'."
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": dict(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    return {**function, **_strict(strict)}


def _format(wanted: ResponseFormat, strict: bool) -> dict[str, Any]:
    if wanted.schema is None:
        return {"type": "json_object"}
    schema = {"name": wanted.name, "schema": dict(wanted.schema), **_strict(strict)}
    return {"type": "json_schema", "json_schema": schema}


def _strict(strict: bool) -> Mapping[str, Any]:
    return {"strict": True} if strict else {}
