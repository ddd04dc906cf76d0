"""Without a tokenizer, it is estimated what a call used whose model reported nothing; a refused one used nothing."""

import base64

import httpx2
import openai
import pytest

from chatmemory_django.chat.costs.estimates import Estimate, is_refusal, parts_of
from chatmemory_django.chat.model import (
    BrokenStreamError,
    ChatRequest,
    ContextLengthError,
    ModelTimeoutError,
    ResponseFormat,
    TokenUsage,
    ToolSpecification,
    UnavailableError,
)
from chatmemory_django.messages import Image, ImageContent, TextContent, UserMessage

REQUEST = httpx2.Request("POST", "https://vendor.example")


def estimated(*messages: UserMessage, arrived: str = "", **options: object) -> TokenUsage:
    estimate = Estimate()
    estimate.sends(parts_of(ChatRequest(messages=messages, **options)))  # type: ignore[arg-type]
    estimate.arrived(arrived)
    return estimate.usage()


def status(code: int) -> openai.APIStatusError:
    return openai.APIStatusError("x", response=httpx2.Response(code, request=REQUEST), body=None)


def caused(error: Exception, *causes: Exception) -> Exception:
    """Return *error*, which the first of *causes* has caused, which the next has caused."""
    effect = error
    for cause in causes:
        effect.__cause__ = cause
        effect = cause
    return error


class TestEstimate:
    def test_four_bytes_of_text_are_a_token_and_a_message_takes_four_more(self):
        assert estimated(UserMessage("x" * 40), arrived="y" * 41) == TokenUsage(14, 11, 25)
        assert estimated(UserMessage("智" * 40)) == TokenUsage(34, 0, 34)

    def test_tools_and_the_format_of_the_answer_are_sent_too(self):
        schema = {"type": "object", "properties": {f"name{number}": {} for number in range(40)}}
        hi = UserMessage("hi")

        assert estimated(hi, tools=(ToolSpecification("look", "Looks.", schema),)).input > 100
        assert estimated(hi, response_format=ResponseFormat(schema)).input > 100
        assert estimated(hi, response_format=ResponseFormat()).input == 5

    def test_a_file_takes_what_its_kind_takes_not_the_length_of_its_data(self):
        data = base64.b64encode(bytes(3_000_000)).decode()
        image = ImageContent(Image(base64_data=data, mime_type="image/png"))

        assert 50 < estimated(UserMessage([TextContent("look"), image])).input < 2_000

    def test_half_a_character_is_counted(self):
        assert estimated(UserMessage("hi"), arrived="\ud83d").output == 1

    def test_what_is_sent_is_looked_at_only_when_it_is_needed(self):
        estimate = Estimate()
        estimate.sends(pytest.fail("It was.") for _ in "x")
        estimate.arrived("y")

        assert estimate.is_answered

    def test_nothing_is_known_of_a_call_without_parts(self):
        assert Estimate().usage() == TokenUsage()


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("x"),
        UnavailableError("x"),
        status(400),
        status(429),
        status(503),
        caused(openai.APIConnectionError(request=REQUEST), httpx2.ConnectError("x")),
        caused(ModelTimeoutError("x"), openai.APITimeoutError(REQUEST), httpx2.ConnectTimeout("x")),
        ConnectionRefusedError(),
    ],
)
def test_a_vendor_that_was_not_reached_or_refused_did_no_work(error: Exception) -> None:
    assert is_refusal(error)


@pytest.mark.parametrize(
    "error",
    [
        BrokenStreamError("x"),
        caused(ModelTimeoutError("x"), openai.APITimeoutError(REQUEST), httpx2.ReadTimeout("x")),
        caused(openai.APIConnectionError(request=REQUEST), httpx2.ReadError("x")),
        ValueError("x"),
        GeneratorExit(),
    ],
)
def test_of_any_other_end_nobody_knows_so_it_counts(error: BaseException) -> None:
    assert not is_refusal(error)
