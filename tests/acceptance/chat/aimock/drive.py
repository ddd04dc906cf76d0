"""OpenAiChatModel against aimock, an independent server of OpenAI's API; ``.ci/aimock`` starts both."""

import os
from typing import Any

import pytest

from chatmemory_django.chat.model import (
    AuthenticationError,
    BrokenStreamError,
    ChatModelError,
    ChatRequest,
    ContextLengthError,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    RateLimitError,
    ResponseFormat,
    ToolSpecification,
    UnavailableError,
)
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.messages import (
    AiMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.faces.chat.conftest import Way, stream, way
from tests.faces.chat.openai.test_openai_requests import IMAGE, SCHEMA

__all__ = ["stream", "way"]  # fixtures

WEATHER = ToolSpecification(
    "get_weather", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}}
)
CALLS = (
    ToolExecutionRequest("call_1", "get_weather", '{"city":"Vienna"}'),
    ToolExecutionRequest("call_2", "get_weather", '{"city":"Graz"}'),
)


@pytest.fixture(params=["/v1", "/api/v1"], ids=["OpenAI", "OpenRouter"])
def model(request: pytest.FixtureRequest) -> OpenAiChatModel:
    # At OpenRouter's address aimock imitates OpenRouter.
    return model_at(request.param)


def model_at(path: str = "/v1", **options: Any) -> OpenAiChatModel:
    return OpenAiChatModel("gpt-5", base_url=os.environ["AIMOCK_URL"] + path, api_key="k", max_retries=0, **options)


def test_a_text_answer_has_its_usage(model: OpenAiChatModel, way: Way):
    response = way.ask(model, [UserMessage("Say hello.")])

    assert response.ai_message == AiMessage("Hello, 🌍! How are you today?")
    assert response.metadata.finish_reason is FinishReason.STOP
    assert response.metadata.model_name == "gpt-5"
    usage = response.metadata.token_usage
    assert usage is not None
    assert (usage.input, usage.output, usage.total) == (9, 8, 17)


def test_a_text_is_streamed_in_pieces(model: OpenAiChatModel, stream: Way):
    events = stream.events(model, [UserMessage("Say hello.")])[:-1]

    assert len(events) > 5
    assert "".join(event.text for event in events if isinstance(event, PartialText)) == "Hello, 🌍! How are you today?"


def test_thinking_precedes_the_text(model: OpenAiChatModel, way: Way):
    events = way.events(model, [UserMessage("Think first.")])

    assert events[-1].ai_message == AiMessage("42", "Six times seven.")  # type: ignore[union-attr]
    if way.is_stream:
        assert [type(event) for event in events[:-1]] == [PartialThinking] * 4 + [PartialText]


def test_tools_are_called_and_their_results_answered(model: OpenAiChatModel, way: Way):
    question = UserMessage("How is the weather?")

    asked = way.ask(model, ChatRequest(messages=(question,), tools=(WEATHER,)))
    results = [
        ToolExecutionResultMessage.from_request(call, text) for call, text in zip(CALLS, ["sun", "rain"], strict=True)
    ]
    answered = way.ask(model, ChatRequest(messages=(question, asked.ai_message, *results), tools=(WEATHER,)))

    assert asked.ai_message == AiMessage("Let me see.", None, CALLS)
    assert asked.metadata.finish_reason is FinishReason.TOOL_EXECUTION
    assert answered.ai_message == AiMessage("Sunny in Vienna, rain in Graz.")


def test_tool_calls_are_streamed_in_pieces(model: OpenAiChatModel, stream: Way):
    events = stream.events(model, ChatRequest(messages=(UserMessage("How is the weather?"),), tools=(WEATHER,)))

    pieces = [event for event in events if isinstance(event, PartialToolCall)]
    for place, call in enumerate(CALLS):
        first, *others = [piece for piece in pieces if piece.index == place]
        assert (first.id, first.name) == (call.id, call.name)
        assert others
        assert {(piece.id, piece.name) for piece in others} == {(None, None)}
        assert first.arguments + "".join(piece.arguments for piece in others) == call.arguments


def test_json_can_be_requested(model: OpenAiChatModel, way: Way):
    request = ChatRequest(
        messages=(UserMessage("Make up a person."),), response_format=ResponseFormat(SCHEMA, "person")
    )

    assert way.ask(model, request).ai_message.text == '{"name": "Ann"}'


def test_an_image_is_sent(model: OpenAiChatModel, way: Way):
    question = UserMessage([TextContent("What is in the picture?"), IMAGE])

    assert way.ask(model, [question]).ai_message.text == "A red dot."


def test_an_answer_cut_at_the_token_limit_has_finish_reason_length(model: OpenAiChatModel, way: Way):
    assert way.ask(model, [UserMessage("Be long.")]).metadata.finish_reason is FinishReason.LENGTH


def test_an_interrupted_stream_raises(stream: Way):
    with pytest.raises(BrokenStreamError):
        stream.events(model_at(), [UserMessage("Be cut off.")])


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ContextLengthError),
        (401, AuthenticationError),
        (429, RateLimitError),
        (503, UnavailableError),
    ],
)
def test_an_error_status_raises(way: Way, status: int, error: type[ChatModelError]):
    with pytest.raises(error) as caught:
        way.ask(model_at(), [UserMessage(f"Fail {status}.")])

    if isinstance(caught.value, RateLimitError):
        assert caught.value.retry_after == 7
