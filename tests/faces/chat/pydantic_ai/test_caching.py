"""Where requests to Anthropic and Bedrock have breakpoints of the prompt cache, in what their clients send."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from benchmarks import wire
from benchmarks.wire import Block
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatRequest, ToolSpecification
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.faces.chat.server import ModelServer
from tests.faces.chat.vendors import Google, chat_model

MOST = 4
LOOK_BACK = 20
"""The places that a vendor looks at from a breakpoint, its own among them."""

FIND = ToolSpecification("find", "Finds a parcel.", {"type": "object", "properties": {}})
TOOLS_AND_SYSTEM = 2
SYSTEM = SystemMessage("Be brief.")


VENDORS = {"anthropic": wire.Anthropic, "bedrock": wire.Bedrock}

Sent = Callable[..., list[Block]]


@pytest.fixture(params=list(VENDORS))
def sent(request: pytest.FixtureRequest) -> Sent:
    """Return what the vendor receives for messages."""
    vendor = VENDORS[request.param]()
    models: dict[str, PydanticAiChatModel] = {}

    def send(
        messages: Sequence[ChatMessage], tools: Sequence[ToolSpecification] = (FIND,), **settings: Any
    ) -> list[Block]:
        model = models.setdefault(repr(settings), PydanticAiChatModel(vendor.model, **settings))
        return ask(vendor, messages, model=model, tools=tools)

    return send


def find(parcel: str) -> str:
    """Find a parcel."""
    return parcel


def ask(vendor: Any, messages: Sequence[ChatMessage], *, tools=(FIND,), model=None) -> list[Block]:
    (model or PydanticAiChatModel(vendor.model)).chat(ChatRequest(messages=[SYSTEM, *messages], tools=tools))
    return list(vendor.blocks())


def turn(number: int, *rounds: int) -> list[ChatMessage]:
    """Return a question, rounds of so many calls, and an answer."""
    messages: list[ChatMessage] = [UserMessage(f"question {number}")]
    for each, calls in enumerate(rounds):
        made = [ToolExecutionRequest(f"c{number}-{each}-{call}", "find", "{}") for call in range(calls)]
        results = [ToolExecutionResultMessage.from_request(call, f"result {call.id}") for call in made]
        messages += [AiMessage(f"Round {each} of {number}.", None, made), *results]
    return [*messages, AiMessage(f"answer {number}")]


def with_context(messages: Sequence[ChatMessage], text: str) -> list[ChatMessage]:
    """Return *messages* with a context in front of the last question."""
    last = max(index for index, each in enumerate(messages) if isinstance(each, UserMessage))
    question = UserMessage([TextContent(text), *messages[last].contents])
    return [*messages[:last], question, *messages[last + 1 :]]


def requests_of(rounds: Sequence[Sequence[int]], *, has_context: bool = True) -> Iterator[list[ChatMessage]]:
    """Yield the messages of each request of a chat, one for each answer and each round of calls."""
    earlier: list[ChatMessage] = []
    for number, each in enumerate(rounds):
        messages = turn(number, *each)
        for index, message in enumerate(messages):
            if isinstance(message, AiMessage):
                now = [*earlier, *messages[:index]]
                yield with_context(now, f"context {number}") if has_context else now
        earlier += messages


CHATS = {
    "no tools": [()] * 4,
    "small rounds": [(1,), (1, 1), (), (2, 1, 1)],
    "rounds of eleven": [(11,), (), (11, 11, 11), (11,), ()],
    "many small rounds": [(1,) * 12, (), (2,) * 9, (1,)],
    "near the edge": [(8,), (9,), (7, 8), (8, 9, 1), (9, 8)],
}
chats = pytest.mark.parametrize("rounds", CHATS.values(), ids=CHATS)


def marked(blocks: Sequence[Block]) -> list[int]:
    return [index for index, block in enumerate(blocks) if block.is_marked]


def prefixes(blocks: Sequence[Block], ends: Iterable[int]) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(block[:2] for block in blocks[: end + 1]) for end in ends}


@chats
def test_there_are_never_more_than_four(sent: Sent, rounds: list[tuple[int, ...]]):
    for messages in requests_of(rounds):
        assert len(marked(sent(messages))) <= MOST


def test_they_are_at_the_tools_the_system_message_before_the_context_and_at_the_end(sent: Sent):
    blocks = sent(with_context([*turn(1), *turn(2), UserMessage("question 3")], "context 3"))

    tools, system, before, end = (blocks[index] for index in marked(blocks))
    assert (tools.place, system.place) == ("tools", "system")
    assert "question 2" in before.text
    assert end == blocks[-1]


@chats
def test_the_context_is_behind_the_one_before_it_while_the_question_is_answered(sent: Sent, rounds):
    for number, messages in enumerate(requests_of(rounds)):
        blocks = sent(messages)
        [context] = [index for index, block in enumerate(blocks) if "context" in block.text]
        before = [index for index in marked(blocks) if index < context and blocks[index].place == "user"]
        assert before or not [block for block in blocks[:context] if block.place == "user"], number


@chats
@pytest.mark.parametrize("has_context", [True, False])
def test_each_request_reads_what_the_one_before_it_wrote(sent: Sent, rounds, has_context: bool):
    """All of it, or what stands in front of its question, whose context is gone."""
    known: set[tuple[tuple[str, str], ...]] = set()
    asked = length = 0
    for messages in requests_of(rounds, has_context=has_context):
        blocks = sent(messages)
        seen = {place for mark in marked(blocks) for place in range(max(0, mark - LOOK_BACK + 1), mark + 1)}
        read = max(map(len, prefixes(blocks, seen) & known), default=0)
        questions = [index for index, block in enumerate(blocks) if "question" in block.text]
        if has_context and len(questions) > asked > 0:
            assert read == max(questions[-2] - 1, TOOLS_AND_SYSTEM)  # but the answer in front of it
        else:
            assert read == length
        known |= prefixes(blocks, marked(blocks))
        asked, length = len(questions), len(blocks)


@chats
def test_what_is_marked_is_stable(sent: Sent, rounds: list[tuple[int, ...]]):
    """The blocks between marks are the same, and so are the marks of the same messages."""
    for messages in requests_of(rounds):
        assert sent(messages) == sent(messages)
    for first, second in pairwise(map(sent, requests_of(rounds, has_context=False))):
        assert [block[:2] for block in second[: len(first)]] == [block[:2] for block in first]


@chats
def test_apart_from_breakpoints_a_request_is_the_same(sent: Sent, rounds: list[tuple[int, ...]]):
    for messages in requests_of(rounds):
        assert [block[:2] for block in sent(messages)] == [block[:2] for block in sent(messages, cache=False)]


def test_without_tools_or_an_earlier_question_there_are_fewer(sent: Sent):
    blocks = sent([UserMessage("question 1")], tools=())

    assert [blocks[index].place for index in marked(blocks)] == ["system", "user"]


def test_a_history_that_begins_with_an_answer_is_sent(sent: Sent):
    assert sent([AiMessage("Hello!"), UserMessage("question 1")])[-1].is_marked


def test_behind_a_document_there_is_none_at_bedrock(sent: Sent, request: pytest.FixtureRequest):
    pdf = UserMessage([TextContent("question 0"), PdfFileContent(PdfFile(base64_data="JVBERi0xLjQK"))])
    is_anthropic = "anthropic" in request.node.name

    blocks = sent([pdf, AiMessage("answer"), UserMessage("question 1")])

    assert len(marked(blocks)) == (MOST if is_anthropic else MOST - 1)
    assert blocks[-1].is_marked
    assert len(marked(sent([pdf]))) == (TOOLS_AND_SYSTEM + 1 if is_anthropic else TOOLS_AND_SYSTEM)


@pytest.mark.parametrize("value", [False, True, "5m"])
def test_what_the_site_has_set_wins(sent: Sent, value: bool | str):
    messages = [*turn(1), UserMessage("question 2")]

    assert (len(marked(sent(messages, cache=value))) > 0) is bool(value)
    own = {"anthropic_cache_instructions": value, "bedrock_cache_instructions": value}
    blocks = sent(messages, **own)
    assert [blocks[index].place for index in marked(blocks)] == (["system"] if value else [])


@pytest.mark.parametrize("name", ["us.meta.llama3-3-70b-instruct-v1:0", "mistral.mistral-large-2407-v1:0"])
def test_models_of_bedrock_without_a_cache_have_none(name: str):
    vendor = wire.Bedrock(name)
    ask(vendor, [*turn(1), UserMessage("question 2")])

    assert "cachePoint" not in json.dumps(vendor.body)


def test_nova_has_none_at_its_tools():
    blocks = ask(wire.Bedrock("us.amazon.nova-pro-v1:0"), [*turn(1), UserMessage("question 2")])

    assert [blocks[index].place for index in marked(blocks)] == ["system", "user", "user"]


def test_vendors_that_cache_by_themselves_have_none(server: ModelServer):
    Google().answer(server, Google.text("Yes."))
    messages = [SYSTEM, *turn(1), UserMessage("question 2")]
    chat_model(Google(), server).chat(ChatRequest(messages=messages, tools=[FIND]))

    assert "cache" not in json.dumps(server.requests[-1].body)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("make", VENDORS.values(), ids=VENDORS)
def test_the_context_of_an_assistant_is_behind_the_third(make: Callable[[], Any]):
    vendor = make()
    model = PydanticAiChatModel(vendor.model)
    assistant = Assistant(
        model, system_message="Be brief.", tools=[find], context=lambda question: f"context {question}"
    )
    for number in range(3):
        assistant.chat("caching", f"question {number}")

    blocks = list(vendor.blocks())
    *_, before, end = (blocks[index].text for index in marked(blocks))
    assert len(marked(blocks)) == MOST
    assert "question 1" in before
    assert "question 2" in end
    assert ["context" in block.text for block in blocks[-2:]] == [True, False]
    assert not any("context" in block.text for block in blocks[:-2])
