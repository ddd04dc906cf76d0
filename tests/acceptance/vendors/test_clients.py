"""What the vendors' own clients make of the server's answers, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, InvalidRequestError, ToolSpecification
from chatmemory_django.messages import SystemMessage, UserMessage
from tests.acceptance.vendors.clients import MODELS
from tests.acceptance.vendors.rules import SYSTEM, VENDORS, Violation
from tests.acceptance.vendors.server import Vendors, vendors
from tests.acceptance.vendors.wire import Answer

ASKED = ChatRequest(
    messages=(SystemMessage(f"{SYSTEM} Be brief."), UserMessage("Where is it?")),
    tools=(ToolSpecification("look", "Look somewhere."),),
)
CALLS = (("abcdefgh1", "look", '{"where": "here"}'), ("abcdefgh2", "look", "{}"))
THINKING = {"responses", "anthropic", "gemini", "bedrock-claude", "deepseek", "moonshot"}
"""The vendors whose API returns what a model has thought."""


def streamed(model: ChatModel, asked: ChatRequest) -> ChatEvent:
    return list(model.stream(asked))[-1]


each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model[0]}-{model[1].__name__}")
whole_and_streamed = pytest.mark.parametrize("ask", [ChatModel.chat, streamed])


@pytest.fixture
def server() -> Iterator[Vendors]:
    with vendors() as server:
        yield server


@each_model
@whole_and_streamed
def test_an_answer_is_read_as_it_was_sent(server: Vendors, model, ask):
    vendor, client = model
    server.script = lambda name, asked: Answer("Let me look. 🕛", CALLS, "I have to look.")

    response = ask(client(vendor, server), ASKED)

    message, usage = response.ai_message, response.metadata.token_usage
    assert message.text == "Let me look. 🕛"
    calls = [(call.id, call.name, json.loads(call.arguments or "")) for call in message.tool_execution_requests]
    assert calls == [(id_, name, json.loads(arguments)) for id_, name, arguments in CALLS]
    assert message.thinking == ("I have to look." if vendor in THINKING else None)
    assert (usage.input, usage.output) == (12, 3)
    assert server.refused == []


@each_model
@whole_and_streamed
def test_a_refusal_is_an_error_of_the_request(server: Vendors, model, ask, monkeypatch: pytest.MonkeyPatch):
    vendor, client = model
    monkeypatch.setitem(VENDORS[vendor].rules, "no words", lambda asked: iter(["there is a word"]))

    with pytest.raises(InvalidRequestError):
        ask(client(vendor, server), ASKED)

    [(name, violation, _)] = server.refused
    assert (name, violation) == (vendor, Violation("no words", "there is a word"))
