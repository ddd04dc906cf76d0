"""Assistants with a model of Anthropic or Google: tools, typed answers, signed thinking, cancelling, over HTTP."""

import asyncio
import base64
import json
from contextlib import aclosing
from typing import Any

import pydantic
import pytest
from django.contrib.auth.models import User
from msgspec.structs import replace

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import PartialText
from chatmemory_django.db.threads import in_thread
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Message
from tests.faces.chat.http.test_http import Chat, asynchronous, bearer
from tests.faces.chat.server import PATIENCE, ModelServer, Request, Step
from tests.faces.chat.vendors import VENDORS, Vendor, chat_model

pytestmark = pytest.mark.django_db(transaction=True)

SIGNATURE = base64.b64encode(b"signed by the vendor").decode()


class Place(pydantic.BaseModel):
    city: str


@pytest.fixture(params=list(VENDORS))
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return VENDORS[request.param]


def look(where: str) -> str:
    """Look somewhere."""
    return f"Nothing {where}."


def test_a_tool_loop_and_the_next_turn_send_the_signature_back(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.thinking("Hm, where?", SIGNATURE), vendor.call("c1", "look", where="here"))
    vendor.answer(server, vendor.thinking("So, nothing.", SIGNATURE), vendor.text("Nothing is here."))
    vendor.answer(server, vendor.text("Still nothing."))
    assistant = Assistant(chat_model(vendor, server), tools=[look])

    assert assistant.chat("c", "Is anything here?") == "Nothing is here."
    assert assistant.chat("c", "And now?") == "Still nothing."

    sent = [json.dumps(request.body) for request in server.requests]
    assert [text.count(SIGNATURE) for text in sent] == [0, 1, 2]
    assert "Nothing here." in sent[1]
    rows = Message.objects.filter(conversation__memory_id="c").order_by("sequence")
    assert [row.type for row in rows] == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI", "USER", "AI"]
    assert rows[3].metadata["usage"]["output"] == 3


@pytest.mark.parametrize(("first", "second"), [("anthropic", "google"), ("google", "anthropic")])
def test_another_vendor_goes_on_without_the_thinking(first: str, second: str, server: ModelServer) -> None:
    one, other = VENDORS[first], VENDORS[second]
    one.answer(server, one.thinking("A secret thought.", SIGNATURE), one.call("c1", "look", where="here"))
    one.answer(server, one.text("Nothing is here."))
    other.answer(server, other.text("Still nothing."))

    Assistant(chat_model(one, server), tools=[look]).chat("c", "Is anything here?")
    assert Assistant(chat_model(other, server), tools=[look]).chat("c", "And now?") == "Still nothing."

    sent = json.dumps(server.requests[-1].body)
    assert "Nothing here." in sent
    assert "Nothing is here." in sent
    assert SIGNATURE not in sent
    assert "A secret thought." not in sent


def test_only_thinking_that_goes_back_takes_tokens(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.thinking("Hm, hello?", SIGNATURE), vendor.text("Hello."))
    model = chat_model(vendor, server)
    [other] = [chat_model(each, server) for each in VENDORS.values() if each is not vendor]

    answer = model.chat([UserMessage("Hello?")]).ai_message

    assert model.returns_thinking(answer)
    assert not other.returns_thinking(answer)
    assert not model.returns_thinking(replace(answer, text="Hello, Ann."))
    assert not model.returns_thinking(replace(answer, attributes={}))
    assert not model.returns_thinking(AiMessage("Hello."))


def test_a_typed_answer_is_read(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text('{"city": "Paris"}'))

    assert Assistant(chat_model(vendor, server)).chat("c", "Where?", returns=Place) == Place(city="Paris")


def test_a_cancelled_answer_closes_the_call_and_is_not_stored(vendor: Vendor, server: ModelServer) -> None:
    vendor.answer(server, vendor.text("It is three, as always."))
    whole = server.replies.pop()(Request("/v1:streamGenerateContent", {}, {"stream": True}))
    server.reply(*whole.parts[:4], Step.AWAIT_CLIENT)
    assistant = Assistant(chat_model(vendor, server))

    async def cancelled() -> None:
        async with aclosing(assistant.astream("c", "What is 1 + 2?")) as events:
            assert isinstance(await anext(events), PartialText)

    asyncio.run(cancelled())

    assert server.client_has_left.wait(PATIENCE)
    assert not Message.objects.exists()


@asynchronous
async def test_the_chat_over_http_shows_thinking_but_no_signature_and_sends_both_back(
    settings: Any, server: ModelServer
) -> None:
    settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None}}
    ann = await User.objects.acreate_user("ann")
    vendor = VENDORS["anthropic"]
    vendor.answer(server, vendor.thinking("Hm, hello?", SIGNATURE), vendor.text("Hello, Ann."))
    headers = await in_thread(bearer, ann)
    client = Chat(settings, headers, chat_model(vendor, server))  # type: ignore[arg-type]

    streamed = await client.say("Hello")
    assert SIGNATURE not in json.dumps(streamed)
    assert "".join(chunk["delta"] for chunk in streamed if chunk["type"] == "reasoning-delta") == "Hm, hello?"
    await client.say("How are you?")

    assert SIGNATURE not in json.dumps(await client.messages())
    assert [json.dumps(request.body).count(SIGNATURE) for request in server.requests] == [0, 1]
