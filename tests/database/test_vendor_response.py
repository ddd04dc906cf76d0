"""Thinking with its signature: stored with the answer, for its vendor alone."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, FunctionModel

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatResponse, PartialText
from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import fork
from chatmemory_django.provider import get_chat_memory

pytestmark = pytest.mark.django_db(transaction=True)

SIGNATURE = "c2lnbmVk"


class Thinker:
    """A vendor's model: it thinks, calls a tool in its first answer, and wants its signatures back."""

    def __init__(self, vendor: str = "one") -> None:
        self.asked: list[list[ModelMessage]] = []
        self.model = FunctionModel(self._answer, model_name="thinker")
        self.model._system = vendor

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(messages)
        thought = ThinkingPart("Hm, a secret thought.", signature=SIGNATURE, provider_name=self.model.system)
        asks = bool(info.function_tools) and not any(isinstance(each, ToolReturnPart) for each in messages[-1].parts)
        made = ToolCallPart("look", {"where": "here"}, "c1") if asks else TextPart(f"Answer {len(self.asked)}.")
        return ModelResponse([thought, made], provider_name=self.model.system)

    def signatures(self, call: int = -1) -> list[str | None]:
        """Return the signatures that came back with a request."""
        parts = [part for message in self.asked[call] for part in message.parts]
        return [part.signature for part in parts if isinstance(part, ThinkingPart)]


@pytest.fixture
def thinker() -> Iterator[Thinker]:
    return Thinker()


def look(where: str) -> str:
    """Look somewhere."""
    return f"Nothing {where}."


def test_signed_thinking_goes_back_in_the_tool_loop_and_in_the_next_turn(thinker: Thinker) -> None:
    assistant = Assistant(PydanticAiChatModel(thinker.model), tools=[look])

    assert assistant.chat("c", "Is anything there?") == "Answer 2."
    assert thinker.signatures() == [SIGNATURE]
    assert assistant.chat("c", "And now?") == "Answer 4."

    assert thinker.signatures() == [SIGNATURE] * 3
    thoughts = [part for message in thinker.asked[-1] for part in message.parts if isinstance(part, ThinkingPart)]
    assert {part.content for part in thoughts} == {"Hm, a secret thought."}
    stored = [row.chat_message for row in Conversation.objects.get(memory_id="c").messages.order_by("sequence")]
    assert [type(message) for message in stored[:4]] == [
        UserMessage,
        AiMessage,
        ToolExecutionResultMessage,
        AiMessage,
    ]


def test_it_does_not_go_to_another_vendor(thinker: Thinker) -> None:
    Assistant(PydanticAiChatModel(thinker.model)).chat("c", "Hello")
    other = Thinker("two")

    Assistant(PydanticAiChatModel(other.model)).chat("c", "And you?")

    assert other.signatures() == []
    assert "secret thought" not in str(other.asked)
    assert "Answer 1." in str(other.asked)


@pytest.mark.parametrize(
    "change",
    [
        lambda message: AiMessage("Another.", message.thinking, (), message.attributes),
        lambda message: AiMessage(message.text, message.thinking, (), {}),
        lambda message: AiMessage(message.text, message.thinking, (), {VENDOR_ATTRIBUTE: "nonsense"}),
        lambda message: AiMessage(message.text, message.thinking, (), {VENDOR_ATTRIBUTE: {"kind": "response"}}),
        lambda message: AiMessage(
            message.text, message.thinking, (), {VENDOR_ATTRIBUTE: {"kind": "request", "parts": [{"a": "b"}]}}
        ),
    ],
    ids=["text", "nothing kept", "no object", "no parts", "no response"],
)
def test_it_does_not_go_back_with_a_message_that_was_changed(thinker: Thinker, change: Any) -> None:
    model = PydanticAiChatModel(thinker.model)
    answer = model.chat(UserMessage("Hello")).ai_message
    assert answer.attributes[VENDOR_ATTRIBUTE]["parts"][0]["signature"] == SIGNATURE

    model.chat(UserMessage("Hello"), change(answer), UserMessage("And now?"))

    assert thinker.signatures() == []
    assert "secret thought" not in str(thinker.asked[-1])


def test_an_answer_that_the_message_holds_completely_is_not_kept_twice() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([TextPart("Hello."), ToolCallPart("look", "{}", "c1")])

    message = PydanticAiChatModel(FunctionModel(answer)).chat(UserMessage("Hi")).ai_message

    assert message.attributes == {}


def test_it_goes_with_the_message_when_that_is_removed(thinker: Thinker) -> None:
    Assistant(PydanticAiChatModel(thinker.model)).chat("c", "Hello")
    row = Message.objects.get(conversation__memory_id="c", type="AI")
    assert SIGNATURE in row.payload

    get_chat_memory("c").remove(row.sequence)

    row.refresh_from_db()
    assert row.payload is None
    Assistant(PydanticAiChatModel(thinker.model)).chat("c", "And now?")
    assert thinker.signatures() == []


def test_a_fork_has_it(thinker: Thinker) -> None:
    assistant = Assistant(PydanticAiChatModel(thinker.model))
    assistant.chat("c", "Hello")

    fork(Conversation.objects.get(memory_id="c"), "d")
    assistant.chat("d", "And now?")

    assert thinker.signatures() == [SIGNATURE]


def test_rest_and_the_admin_do_not_show_it(thinker: Thinker, client: Client) -> None:
    owner = User.objects.create_superuser("ann", password="x")
    Assistant(PydanticAiChatModel(thinker.model)).chat("c", "Hello", owner=owner)
    conversation = Conversation.objects.get(memory_id="c")
    sequence = conversation.messages.get(type="AI").sequence
    client.force_login(owner)

    admin = f"/admin/chatmemory/conversation/{conversation.pk}"
    pages = [
        "/api/conversations/c/messages/?as=langchain4j",
        "/api/conversations/c/messages/",
        "/api/conversations/c/messages/?media=inline",
        f"/api/conversations/c/messages/{sequence}/",
        "/api/conversations/c/memory/",
        f"{admin}/change/",
        f"{admin}/messages/{sequence}/",
        "/api/chat/c/messages",
    ]
    shown = {page: client.get(page) for page in pages}

    assert [page for page, response in shown.items() if SIGNATURE in _text(response)] == []
    assert [page for page, response in shown.items() if VENDOR_ATTRIBUTE in _text(response)] == []
    assert sum("Answer 1." in _text(response) for response in shown.values()) >= 4
    messages = [row["message"] for row in json.loads(shown[pages[0]].content)["results"]]
    assert {"type": "AI", "text": "Answer 1.", "thinking": "Hm, a secret thought."} in messages


def test_the_stream_of_an_assistant_has_no_signature_in_its_pieces() -> None:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
        yield {0: _thinking("Hm.")}
        yield {0: _thinking(signature=SIGNATURE)}
        yield "Hello"
        yield " there."

    assistant = Assistant(PydanticAiChatModel(FunctionModel(stream_function=answer)))
    *pieces, response = assistant.stream("c", "Hi")

    assert "".join(each.text for each in pieces if isinstance(each, PartialText)) == "Hello there."
    assert SIGNATURE not in str(pieces)
    assert isinstance(response, ChatResponse)
    assert SIGNATURE in str(response.ai_message.attributes)
    assert SIGNATURE in Message.objects.get(conversation__memory_id="c", type="AI").payload


def _thinking(content: str | None = None, signature: str | None = None) -> Any:
    return DeltaThinkingPart(content=content, signature=signature)


def _text(response: Any) -> str:
    content = b"".join(response.streaming_content) if response.streaming else response.content
    return str(content.decode())
