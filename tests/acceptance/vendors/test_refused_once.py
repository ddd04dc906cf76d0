"""Histories that random ones have found to be refused, each as short as it can be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.acceptance.vendors import foreign
from tests.acceptance.vendors.clients import MODELS, by_openai, by_pydantic_ai
from tests.acceptance.vendors.histories import picture
from tests.acceptance.vendors.server import Vendors, vendors
from tests.acceptance.vendors.turns import Asked
from tests.acceptance.vendors.wire import Answer

pytestmark = pytest.mark.django_db

window = partial(MessageWindowChatMemory, max_messages=20)


@pytest.fixture
def server() -> Iterator[Vendors]:
    with vendors() as server:
        yield server


def called(*ids: str) -> AiMessage:
    return AiMessage(None, tool_execution_requests=[ToolExecutionRequest(each, "look", "{}") for each in ids])


def result(id_: str, *files: str) -> ToolExecutionResultMessage:
    return ToolExecutionResultMessage(id_, "look", [TextContent("noon"), *(foreign.FILES[each] for each in files)])


HELLO, WELL = UserMessage("Hello."), AiMessage("Well.")
HEARD = UserMessage([TextContent("Listen!"), foreign.FILES["audio"]])


@pytest.mark.parametrize(
    ("vendor", "client", "history"),
    [
        pytest.param("responses", by_pydantic_ai, [HEARD, WELL], id="audio before, at OpenAI's responses"),
        pytest.param(
            "mistral",
            by_pydantic_ai,
            [HELLO, called("a"), result("a", "image"), WELL],
            id="an image in a result, at Mistral",
        ),
        pytest.param(
            "bedrock-nova",
            by_pydantic_ai,
            [HELLO, called("a", "b"), result("a", "pdf"), result("b"), WELL],
            id="a PDF in the first of two results, at Bedrock",
        ),
        pytest.param(
            "anthropic",
            by_pydantic_ai,
            [HELLO, called("a"), result("a")],
            id="results of another vendor's calls before the question, at Claude, which thinks",
        ),
        pytest.param(
            "bedrock-claude",
            by_pydantic_ai,
            [HELLO, called("a"), result("a")],
            id="results of another vendor's calls before the question, at Bedrock's Claude, which thinks",
        ),
        pytest.param(
            "llama3.1",
            by_openai,
            [HELLO, called("a", "b"), result("a"), result("b"), WELL],
            id="two calls in an answer, at Llama 3.1",
        ),
        pytest.param("gemma3", by_openai, [HELLO, called("a"), result("a"), WELL], id="a call, at Gemma 3"),
        pytest.param("cohere", by_openai, [HELLO, called("a"), result("a"), WELL], id="a call, at Cohere"),
    ],
)
def test_a_question_is_answered_behind(server: Vendors, vendor: str, client, history: list[ChatMessage]):
    assistant = Assistant(client(vendor, server), memory=window)
    assistant.chat_memory("chat").add(*history)

    assert assistant.chat("chat", "And now?") == "Well."


@pytest.mark.parametrize("vendor", ["anthropic", "bedrock-claude"])
def test_a_blank_answer_behind_a_thought_does_not_leave_the_thought_alone(server: Vendors, vendor: str):
    assistant = Assistant(by_pydantic_ai(vendor, server), memory=window)
    server.script = lambda name, asked: Answer("\n\n", thinking="Hm.")
    assistant.chat("chat", "Hello.")
    server.script = lambda name, asked: Answer("Well.", thinking="Hm.")

    assert assistant.chat("chat", "And now?") == "Well."


def test_a_reasoning_that_is_in_a_memory_twice_is_sent_once(server: Vendors):
    assistant = Assistant(by_pydantic_ai("responses", server), memory=window)
    server.script = lambda name, asked: Answer("Well.", thinking="Hm.")
    assistant.chat("chat", "Hello.")
    memory = assistant.chat_memory("chat")
    memory.add(*memory.messages())

    assert assistant.chat("chat", "And now?") == "Well."


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model[0]}-{model[1].__name__}")
def test_a_tool_may_return_a_file_in_the_present_turn(server: Vendors, model):
    vendor, client = model
    server.script = takes_pictures

    assert Assistant(client(vendor, server), memory=window, tools=[picture]).chat("chat", "Show me.") == "There it is."


def takes_pictures(vendor: str, asked: Asked) -> Answer:
    if any(turn.role == "assistant" for turn in asked.turns):
        return Answer("There it is.", thinking="Hm.")
    return Answer(None, (("abcdefgh1", "picture", '{"where": "here"}'),), "Hm.")
