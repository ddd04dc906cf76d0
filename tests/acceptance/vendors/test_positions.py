"""Which message a vendor names when it refuses a request, found in what its own client has sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatRequest, InvalidRequestError, ToolSpecification
from chatmemory_django.chat.pydantic_ai.positions import PLACE
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.acceptance.vendors import foreign
from tests.acceptance.vendors.clients import BY_PYDANTIC_AI, by_pydantic_ai
from tests.acceptance.vendors.rules import VENDORS
from tests.acceptance.vendors.server import Vendors, vendors
from tests.acceptance.vendors.wire import Answer

CALLS = [
    ToolExecutionRequest("abcdefgh1", "look", '{"where": "four"}'),
    ToolExecutionRequest("abcdefgh2", "look", "{}"),
]
PICTURE = ToolExecutionRequest("abcdefgh3", "look", "{}")
LOOK = ToolSpecification("look", "Look somewhere.")


@pytest.fixture
def server() -> Iterator[Vendors]:
    with vendors() as server:
        yield server


def refused(server: Vendors, monkeypatch: pytest.MonkeyPatch, vendor: str, messages: Sequence[ChatMessage]) -> Any:
    """Yield each part of the request for *messages*, and the position of that to which a refusal of it is assigned."""
    model, request = by_pydantic_ai(vendor, server), ChatRequest(messages=tuple(messages), tools=(LOOK,))
    model.chat(request)
    body = dict(server.last)
    name = next(each for each in ("messages", "contents", "input") if each in body)
    for number, message in enumerate(body[name]):
        inner = "parts" if name == "contents" else "content"
        parts = message.get(inner) if isinstance(message.get(inner), list) and name != "input" else None
        for at, part in enumerate(parts or [message]):
            place = f"{name}[{number}].{inner}[{at}]" if name == "contents" else f"{name}.{number}.{inner}.{at}"
            place = place if parts else f"{name}[{number}].{inner}"
            monkeypatch.setitem(VENDORS[vendor].rules, "no words", lambda asked, place=place: iter([f"{place} is bad"]))
            with pytest.raises(InvalidRequestError) as caught:
                model.chat(request)
            yield json.dumps(part), caught.value.index


def history(vendor: str) -> list[ChatMessage]:
    """Return a conversation in which each message has a word of its own, that at which it is."""
    files = [foreign.FILES[kind] for kind in sorted(VENDORS[vendor].files)]
    return [
        SystemMessage("word0"),
        UserMessage("word1"),
        AiMessage("word2", None, CALLS),
        ToolExecutionResultMessage("abcdefgh1", "look", "word3"),
        ToolExecutionResultMessage("abcdefgh2", "look", "word4"),
        AiMessage("word5"),
        UserMessage([TextContent("word6"), *files, TextContent("word6")]),
        AiMessage("word7"),
        UserMessage("word8"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("vendor", BY_PYDANTIC_AI)
def test_each_part_of_a_request_is_assigned_to_its_message(server: Vendors, monkeypatch, vendor):
    messages = history(vendor)

    found = list(refused(server, monkeypatch, vendor, messages))

    assert {index for _, index in found} >= {*range(1, len(messages))}
    for part, index in found:
        words = [number for number in range(len(messages)) if f"word{number}" in part]
        assert words in ([], [index])


@pytest.mark.slow
@pytest.mark.parametrize("vendor", BY_PYDANTIC_AI)
def test_what_may_be_of_another_message_is_assigned_to_none(server: Vendors, monkeypatch, vendor):
    """A file of a result may stand beside it, and a user's message behind a result in the same one."""
    contents = [TextContent("word3"), foreign.FILES["image"]] if "image" in VENDORS[vendor].files else "word3"
    messages = [
        *history(vendor)[:3],
        ToolExecutionResultMessage("abcdefgh1", "look", contents),
        ToolExecutionResultMessage("abcdefgh2", "look", "word4"),
        UserMessage("word5"),
        UserMessage([TextContent("word6"), *(foreign.FILES[kind] for kind in sorted(VENDORS[vendor].files))]),
    ]
    monkeypatch.setitem(VENDORS, vendor, replace(VENDORS[vendor], rules={}))

    for part, index in refused(server, monkeypatch, vendor, messages):
        words = [number for number in range(len(messages)) if f"word{number}" in part]
        assert index is None or words in ([], [index])


@pytest.mark.django_db
@pytest.mark.slow
@pytest.mark.parametrize("vendor", BY_PYDANTIC_AI)
def test_what_the_vendor_has_answered_counts_as_it_is_sent_again(server: Vendors, monkeypatch, vendor):
    server.script = lambda name, asked: Answer("Well.", thinking="Hm.")
    assistant = Assistant(by_pydantic_ai(vendor, server))
    for number in range(3):
        assistant.chat("c", f"word{number}")
    name = next(each for each in ("messages", "contents", "input") if each in server.last)
    last = len(server.last[name]) - 1
    monkeypatch.setitem(VENDORS[vendor].rules, "no words", lambda asked: iter([f"{name}[{last}].content is bad"]))

    with pytest.raises(InvalidRequestError) as caught:
        assistant.chat("c", "word3")

    assert caught.value.sequence == 5
    assert "It is about the message 5 of the conversation." in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("messages.3.content.1.text: must be non-empty", ("3", "1")),  # Anthropic
        ("messages: text content blocks must be non-empty", None),
        ("The text field in the ContentBlock object at messages.3.content.0 is blank.", ("3", "0")),  # Bedrock
        ("* GenerateContentRequest.contents[3].parts[1].data: required oneof field must have one value", ("3", "1")),
        ("* GenerateContentRequest.contents: contents is not specified", None),
        ("{'detail': [{'loc': ['body', 'messages', 3, 'user', 'content'], 'msg': 'no'}]}", ("3", None)),  # Mistral
        ("{'message': \"Invalid 'input[3].call_id': string too long.\", 'param': 'input[3].call_id'}", ("3", None)),
        ("Invalid value for 'messages.[3].content': expected a string", ("3", None)),  # OpenAI
        ("At most 100 messages: 101 were given", None),
    ],
)
def test_how_vendors_name_a_message(text: str, place: tuple[str, str | None] | None):
    found = PLACE.search(text)

    assert (found and found.groups()) == place
