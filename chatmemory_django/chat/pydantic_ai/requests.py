"""The content of requests: messages, tools, the format of the answer, and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from chatmemory_django.chat.model import ChatRequest, InvalidRequestError, ResponseFormat, ToolChoice
from chatmemory_django.chat.outgoing import STRICTEST, Rules, Words, reasoning_of
from chatmemory_django.chat.pydantic_ai.caching import with_breakpoints
from chatmemory_django.chat.pydantic_ai.kept import to_response
from chatmemory_django.formats.pydantic_ai import from_message
from chatmemory_django.messages import AiMessage, ChatMessage, CustomMessage, ToolExecutionResultMessage, UserMessage

CLAUDE = "anthropic"
"""pydantic-ai's name of what knows the thinking of Claude, on Bedrock, too."""

BEDROCK_FIELDS = "bedrock_additional_model_requests_fields"

ANY_OBJECT = ResponseFormat({"type": "object"})


def to_arguments(request: ChatRequest, model: Model, settings: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Return pydantic-ai's arguments for *request*; its own values replace those of *settings*."""
    parameters = to_parameters(request, model)
    messages = model.prepare_messages(to_messages(request.messages, model, rules), parameters)
    defaults = {**(model.settings or {}), **settings}
    if model.canonical_system == CLAUDE and _goes_on_for_another(messages):
        defaults = _without_thinking(defaults)
    arguments = {
        "model": model,
        "messages": messages,
        "model_request_parameters": parameters,
        "model_settings": to_settings(request, defaults),
    }
    return with_breakpoints(arguments)


def to_messages(messages: Iterable[ChatMessage], model: Model, rules: Rules = STRICTEST) -> list[ModelMessage]:
    """
    Return *messages* as they are sent; raise ``InvalidRequestError`` for the first that cannot be sent.

    Custom messages are left out, and so are AI messages without text and calls. Vendors expect the results of all calls
    of an answer in one message, so everything between two answers becomes one request.
    """
    sent: list[ModelMessage] = []
    for index, message in enumerate(messages):
        for each in to_model_messages(message, model, rules, index):
            if sent and isinstance(each, ModelRequest) and isinstance(sent[-1], ModelRequest):
                sent[-1] = ModelRequest([*sent[-1].parts, *each.parts])
            else:
                sent.append(each)
    return sent


def to_parameters(request: ChatRequest, model: Model) -> ModelRequestParameters:
    """Return the tools of *request*, and the format of its answer."""
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters))
        for tool in request.tools
    ]
    if request.response_format is None:
        return ModelRequestParameters(function_tools=tools)
    wanted = request.response_format if request.response_format.schema is not None else ANY_OBJECT
    return ModelRequestParameters(
        function_tools=tools,
        output_mode="native" if wanted is not ANY_OBJECT and _takes_schemas(model, bool(tools)) else "prompted",
        output_object=OutputObjectDefinition(json_schema=dict(wanted.schema or {}), name=wanted.name),
    )


def to_settings(request: ChatRequest, defaults: Mapping[str, Any]) -> ModelSettings:
    """Return the settings of *request*, and the others of *defaults*."""
    choice = request.tool_choice
    own = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_output_tokens,
        "stop_sequences": list(request.stop_sequences) or None,
        "tool_choice": choice.value if isinstance(choice, ToolChoice) else [choice] if choice else None,
    }
    found = {**defaults, **{name: value for name, value in own.items() if value is not None}}
    return cast("ModelSettings", found)


def to_model_messages(message: ChatMessage, model: Model, rules: Rules, index: int) -> list[ModelMessage]:
    """Return *message*, that at *index*, as it is sent alone."""
    match message:
        case CustomMessage():
            return []
        case AiMessage():
            if (response := to_response(message, model, rules)) is not None:
                return [response]
            calls = message.tool_execution_requests
            if not message.text and not calls:
                return []
            # Another vendor could not check the thinking, or would read it as a text.
            thinking = reasoning_of(message, rules) if calls and rules.returns_reasoning else None
            message = AiMessage(message.text or ("" if rules.words is Words.NEVER_NULL else None), thinking, calls)
    made = from_message(message)
    if isinstance(message, UserMessage | ToolExecutionResultMessage):
        content = made[0]["parts"][0]["content"] if made else []
        if isinstance(content, list) and len(content) < len(message.contents):
            raise InvalidRequestError(
                f"messages[{index}] has a file without its content, its URL or its type; give them.", index=index
            )
    return ModelMessagesTypeAdapter.validate_python(made)


def _goes_on_for_another(messages: Sequence[ModelMessage]) -> bool:
    """Return whether *messages* end with results of calls before which the model has not thought itself."""
    if not messages or not any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
        return False
    *_, first = takewhile(lambda each: isinstance(each, ModelResponse), reversed(messages[:-1]))
    return not isinstance(first.parts[0], ThinkingPart)


def _without_thinking(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return *settings* by which Claude does not think: if it did, it would refuse calls without its thoughts."""
    found = {name: value for name, value in settings.items() if name not in {"thinking", "anthropic_thinking"}}
    fields = dict(settings.get(BEDROCK_FIELDS) or {})
    if fields.pop("thinking", None):
        found[BEDROCK_FIELDS] = fields
    return {**found, "thinking": False} if "thinking" in settings else found


def _takes_schemas(model: Model, has_tools: bool) -> bool:
    """Return whether the vendor makes the answer match a schema; otherwise the prompt asks for it."""
    try:
        profile: Mapping[str, Any] = model.profile
    except NotImplementedError:  # several models, as in a FallbackModel
        return False
    if has_tools and model.system.startswith("google") and not profile.get("google_supports_tool_combination", False):
        return False
    return bool(profile.get("supports_json_schema_output", False))
