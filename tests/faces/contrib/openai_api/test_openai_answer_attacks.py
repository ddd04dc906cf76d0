"""Attacks on completions and responses: hostile input, too much at once, streams that are cut, what is left behind."""

import asyncio
import gc
import json
from typing import Any

import openai
import pytest
from django.test import AsyncClient, Client
from django.utils import timezone
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.guards import Refuse, Rewrite
from chatmemory_django.chat.model import UnavailableError
from chatmemory_django.chat.models import ModelCall, Run, ToolApproval
from chatmemory_django.chat.tools import Tool
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.contrib.openai_api.test_openai_completions import HI, complete
from tests.faces.contrib.openai_api.test_openai_responses import ASKS, WEATHER, output_of, respond
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(transaction=True)

COMPLETIONS, RESPONSES = "/openai/v1/chat/completions", "/openai/v1/responses"
DEEP = "[" * 900 + "]" * 900
LOST = "a" * 32
VALUES = (
    '5', '-1', '1e999', 'NaN', '"x"', '""', '[]', '{}', 'null', 'true', '[null]', '[[]]', '[{}]', '"\\ud800"',
    '"\\u0000"', DEEP, f'{{"a": {DEEP}}}', '9' * 5_000, '{"conversation_id": "a\\nb"}', '{"conversation_id": "é"}',
    '{"conversation_id": 5}', '{"conversation_id": ["a"]}', '{"conversation_id": {"a": 1}}', '{"id": ["a"]}',
    f'{{"conversation_id": "{"x" * 5_000}"}}', '{"type": "json_schema", "json_schema": 5}', '{"format": 5}',
    '{"format": ["x"]}', '{"type": ["x"]}', '{"type": "function", "function": 5}', '{"type": "function", "name": 5}',
    f'{{"format": {{"type": "json_schema", "name": "a", "schema": {{"a": {DEEP}}}}}}}',
    '[{"type": "function", "function": 5}]', '[{"type": "function", "name": "a", "parameters": 5}]',
    '[{"role": ["user"], "content": "x"}]', '[{"role": "user", "content": [{"type": ["text"]}]}]',
    f'[{{"role": "user", "content": {DEEP}}}]', '[{"role": "user", "content": []}]',
    '[{"role": "user", "content": [{"type": "text", "text": ""}]}]',
    '[{"id": {"a": 1}, "role": "user", "content": "x"}]',
    '[{"role": "user", "content": "x"}, {"role": "assistant", "content": 5}, {"role": "user", "content": "x"}]',
    '[{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": "ab"}, {"role": "user", "content": "x"}]',
    '[{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": ["a"], "content": "x"}]',
    '[{"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/x"}]}]',
    '[{"role": "user", "content": [{"type": "input_file", "file_data": "data:application/pdf;base64,!!"}]}]',
    f'[{{"type": "mcp_approval_response", "approval_request_id": "mcpr_{LOST}", "approve": true}}]',
    '[{"type": "mcp_approval_response", "approval_request_id": 5}]',
    f'[{{"type": "item_reference", "id": "msg_{LOST}_0"}}]', '[{"type": ["a"]}]',
    '[{"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"}]',
    '[{"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]}]',
)  # fmt: skip
FIELDS = {
    COMPLETIONS: (
        "messages", "metadata", "response_format", "tools", "tool_choice", "stream", "stream_options", "store", "n",
        "model",
    ),
    RESPONSES: (
        "input", "conversation", "metadata", "text", "tools", "tool_choice", "instructions", "previous_response_id",
        "store", "stream", "background", "model",
    ),
}  # fmt: skip
KINDS = {
    "completion": (COMPLETIONS, {"messages": [HI]}),
    "completion in a conversation": (COMPLETIONS, {"messages": [HI], "metadata": {"conversation_id": "trip"}}),
    "response": (RESPONSES, {"input": "Hi"}),
    "response that is not stored": (RESPONSES, {"input": "Hi", "store": False}),
}
STORED = pytest.mark.parametrize("kind", ["completion in a conversation", "response"])
UNSTORED = pytest.mark.parametrize("kind", ["completion", "response that is not stored"])


@pytest.fixture
def headers(ann) -> dict[str, str]:
    return {"Authorization": f"Bearer {Token.objects.get_or_create(user=ann)[0].key}"}


async def ask(headers: dict[str, str], kind: str, **fields: Any) -> Any:
    """Return the response to a request of this *kind*, as an ASGI server has it."""
    where, body = KINDS[kind]
    content = json.dumps({"model": "assistant", **body, **fields})
    return await AsyncClient().post(where, content, content_type="application/json", headers=headers)


async def ask_once_free(headers: dict[str, str], kind: str) -> str:
    """Return a whole stream, once the place of the one before is free."""
    async with asyncio.timeout(60):
        while (response := await ask(headers, kind, stream=True)).status_code == 429:
            gc.collect()  # the test's client keeps responses in circles
            await asyncio.sleep(0.01)
    return await read(response)


async def read(response: Any) -> str:
    assert response.status_code == 200, response.content
    return b"".join([piece async for piece in response.streaming_content]).decode()


class TestHostileInput:
    @pytest.mark.parametrize(
        ("where", "field"), mostly_slow([(where, field) for where in FIELDS for field in FIELDS[where]], one_in=3)
    )
    def test_a_body_is_answered_or_refused_and_then_nothing_is_stored(self, site, headers, where, field):
        site("Hello")
        client = Client(headers=headers)
        key = "messages" if where == COMPLETIONS else "input"

        for value in VALUES:
            fields = {"model": '"assistant"', key: '[{"role": "user", "content": "Hi"}]', field: value}
            body = "{" + ", ".join(f'"{name}": {given}' for name, given in fields.items()) + "}"
            before = Message.objects.count(), Conversation.objects.count()
            response = client.post(where, body.encode(), content_type="application/json")

            assert response.status_code < 500, value[:100]
            if response.status_code >= 400:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
                assert (Message.objects.count(), Conversation.objects.count()) == before, value[:100]

    @pytest.mark.parametrize("body", ["", "null", "[]", '"x"', "1", "{", "{}", "[" * 100_000, '{"model": "\xff"'])
    @pytest.mark.parametrize("where", FIELDS)
    def test_a_body_that_is_no_request_is_refused(self, site, headers, where, body):
        site("Hello")

        response = Client(headers=headers).post(where, body.encode("latin-1"), content_type="application/json")

        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"

    @pytest.mark.parametrize("where", [*FIELDS, f"{RESPONSES}/resp_{LOST}/cancel"])
    def test_nobody_without_a_key_is_answered(self, site, where):
        model = site("Hello")

        for key in ({}, {"Authorization": "Bearer x"}):
            response = Client(headers=key).post(where, "{}", content_type="application/json")
            assert response.json()["error"]["code"] == "invalid_api_key"
        assert model.requests == []


class TestTooMuch:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_user_has_no_more_answers_in_progress_than_may_be(self, site, settings, headers, kind):
        async def test() -> None:
            gate = asyncio.Event()
            site(model=ScriptedModel("Hello you", gate=gate))
            settings.CHATMEMORY["CHAT"] |= {"MAX_ANSWERS": 1, "WAIT_SECONDS": 0}
            first = await ask(headers, kind, stream=True)
            second = await ask(headers, "response" if "conversation" in kind else kind, stream=True)
            assert (second.status_code, second.headers["Retry-After"]) == (429, "5")
            assert second.json()["error"]["code"] == "rate_limit_exceeded"
            gate.set()
            assert "you" in await read(first)
            del first, second
            assert "Hello" in await ask_once_free(headers, kind)

        run(test())

    @UNSTORED
    def test_one_that_fails_does_not_count_any_longer(self, site, settings, headers, kind):
        site(ValueError("x"))
        settings.CHATMEMORY["CHAT"]["MAX_ANSWERS"] = 1

        async def test() -> list[int]:
            return [(await ask(headers, kind, stream=stream)).status_code for stream in (True, False) * 3]

        gc.disable()
        try:
            assert 429 not in run(test())
        finally:
            gc.enable()

    @pytest.mark.parametrize("kind", KINDS)
    def test_questions_have_a_rate(self, site, settings, headers, kind):
        site("Hello")
        settings.CHATMEMORY["CHAT"]["THROTTLE_RATE"] = "1/min"

        async def test() -> list[int]:
            return [(await ask(headers, kind)).status_code for _ in range(2)]

        assert run(test()) == [200, 429]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("stream", [False, True])
    def test_a_budget_is_kept(self, site, settings, headers, kind, stream):
        model = site("Hello")
        settings.CHATMEMORY = {**settings.CHATMEMORY, "BUDGET": {"TOKENS": 0, "PER": "day"}}

        async def test() -> int:
            return (await ask(headers, kind, stream=stream)).status_code

        assert run(test()) == 429
        assert model.requests == []
        assert not Message.objects.exists()

    def test_to_cancel_counts_once(self, client, site, settings):
        site("Hello")
        response = respond(client)
        settings.CHATMEMORY["CHAT"]["READ_THROTTLE_RATE"] = "1/min"

        assert client.responses.cancel(response.id).status == "completed"
        with pytest.raises(openai.RateLimitError):
            client.responses.cancel(response.id)


class TestStreamsThatAreCut:
    @UNSTORED
    def test_the_model_is_not_asked_for_what_nobody_keeps(self, site, settings, headers, kind):
        async def test() -> None:
            model = site(model=ScriptedModel("Hello you there", gate=asyncio.Event()))
            settings.CHATMEMORY["CHAT"]["MAX_ANSWERS"] = 1
            response = await ask(headers, kind, stream=True)
            stream = aiter(response.streaming_content)
            while b"Hello" not in await anext(stream):
                pass
            assert model.open_streams == 1
            await stream.aclose()
            response.close()
            async with asyncio.timeout(60):
                while model.open_streams:
                    await asyncio.sleep(0.01)
            del response, stream
            site("Hello")
            settings.CHATMEMORY["CHAT"]["MAX_ANSWERS"] = 1
            assert "Hello" in await ask_once_free(headers, kind)

        run(test())
        assert not Message.objects.exists()
        assert ModelCall.objects.count() == 2

    @STORED
    def test_what_is_stored_goes_on(self, site, headers, kind):
        async def test() -> None:
            gate = asyncio.Event()
            site(model=ScriptedModel("Hello you there", gate=gate))
            stream = aiter((await ask(headers, kind, stream=True)).streaming_content)
            while b"Hello" not in await anext(stream):
                pass
            await stream.aclose()
            gate.set()
            while await Run.objects.filter(active__isnull=False).aexists():
                await asyncio.sleep(0.01)

        run(test())
        assert [row.text for row in Message.objects.order_by("sequence")] == ["Hi", "Hello you there"]


class TestTwoAtOnce:
    @STORED
    def test_the_second_is_refused_for_now(self, site, settings, headers, kind):
        async def test() -> None:
            gate = asyncio.Event()
            site(model=ScriptedModel("Hello you", gate=gate))
            settings.CHATMEMORY["CHAT"]["WAIT_SECONDS"] = 0
            first = await ask(headers, kind, stream=True)
            there = {} if "conversation" in kind else {"conversation": (await Conversation.objects.aget()).memory_id}
            second = await ask(headers, kind, **there)
            assert (second.status_code, second.headers["Retry-After"]) == (409, "1")
            assert "x-should-retry" not in second.headers, "OpenAI's clients try again by themselves"
            gate.set()
            await read(first)

        run(test())
        assert [row.text.strip() for row in Message.objects.order_by("sequence")] == ["Hi", "Hello you"]


class TestGuards:
    @UNSTORED
    def test_see_each_question_of_a_history(self, site, headers, kind):
        model = site("Hello", input_guards=[lambda question: Rewrite(question.single_text.replace("4111", "****"))])
        turns = [{"role": "user", "content": "4111"}, {"role": "assistant", "content": "x"}, HI]

        async def test() -> int:
            return (await ask(headers, kind, messages=turns, input=turns)).status_code

        assert run(test()) == 200
        assert model.sent == [[UserMessage("****"), AiMessage("x"), UserMessage("Hi")]]

    @UNSTORED
    def test_refuse_a_history(self, site, headers, kind):
        def guard(question):
            return Refuse("No numbers.") if "4111" in question.single_text else None

        model = site("Hello", input_guards=[guard])
        turns = [{"role": "user", "content": "4111"}, {"role": "assistant", "content": "x"}, HI]

        async def test() -> Any:
            return await ask(headers, kind, messages=turns, input=turns)

        response = run(test())
        assert (response.status_code, response.json()["error"]["message"]) == (422, "No numbers.")
        assert model.requests == []


class TestWhatIsLeft:
    def test_an_expired_conversation_is_compared_with_no_history(self, client, site):
        site("Hello")
        place = {"extra_headers": {"X-Conversation-ID": "trip"}}
        complete(client, HI, **place)
        Conversation.objects.update(expires_at=timezone.now())

        for answer in ("Hello", "Another"):
            with pytest.raises(openai.NotFoundError):
                complete(client, HI, {"role": "assistant", "content": answer}, HI, **place)

    def test_a_response_is_what_its_run_has_added_whatever_comes_later(self, client, site):
        site("One", "Two", "Three")
        first = respond(client, "First")
        second = respond(client, "Second", previous_response_id=first.id)
        branch = respond(client, "Other", previous_response_id=first.id)
        client.responses.delete(branch.id)
        get_chat_memory(first.conversation.id).add(UserMessage("By hand"), AiMessage("Of a colleague"))

        for each in (first, second):
            assert client.responses.retrieve(each.id).output == each.output
        client.responses.delete(second.id)

        assert client.responses.retrieve(first.id).output == first.output
        assert Run.objects.count() == 1
        assert Message.objects.count() == 8, "messages stay"

    def test_one_that_failed_has_nothing_of_a_later_answer_without_a_run(self, client, site, ann):
        site(UnavailableError("The model is away."), "Two")
        with pytest.raises(openai.APIStatusError):
            respond(client, "First")
        run, conversation = Run.objects.get(), Conversation.objects.get()
        chat_settings().ASSISTANT.chat(conversation.memory_id, "Second", owner=ann)

        response = client.responses.retrieve(f"resp_{run.id.hex}")

        assert (response.status, response.output) == ("failed", [])

    def test_a_call_is_not_answered_by_the_run_that_follows(self, client, site):
        def add(one: int, two: int) -> int:
            """Add two numbers."""
            return one + two

        site(calling(ASKS), calling(("c2", "add", '{"one": 1, "two": 2}')), "Rain.", tools=[add])
        first = respond(client, tools=[WEATHER])
        second = respond(client, [output_of(first.output[0], "rain")], previous_response_id=first.id, tools=[WEATHER])
        items = client.responses.input_items.list(second.id).data
        client.responses.delete(second.id)

        assert [item.output for item in items] == ["rain"], "what the site's own tool returned was no input"
        assert [item.type for item in client.responses.retrieve(first.id).output] == ["function_call"]

    def test_a_call_is_decided_in_the_conversation_of_a_response_that_was_dropped(self, client, site):
        paid = []

        def pay() -> str:
            """Pay."""
            paid.append(1)
            return "Paid."

        site(calling(("c1", "pay", "{}")), "Done.", tools=[Tool(pay, needs_approval=True)])
        first = respond(client)
        client.responses.delete(first.id)
        answer = {"type": "mcp_approval_response", "approval_request_id": first.output[0].id, "approve": True}

        with pytest.raises(openai.NotFoundError):
            respond(client, [answer], previous_response_id=first.id)
        assert respond(client, [answer], conversation=first.conversation.id).output_text.strip() == "Done."
        assert paid == [1]

    def test_nothing_is_left_of_a_conversation_that_is_deleted_but_what_it_cost(self, client, site):
        site(calling(ASKS), "Rain.")
        first = respond(client, "First", tools=[WEATHER])
        respond(client, [output_of(first.output[0], "rain")], previous_response_id=first.id, tools=[WEATHER])

        client.conversations.delete(first.conversation.id)

        for attempt in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(openai.NotFoundError):
                attempt(first.id)
        for table in (Conversation, Message, Run, ToolApproval):
            assert not table.objects.exists()
        assert ModelCall.objects.filter(conversation=None).count() == 2

    @UNSTORED
    def test_nothing_is_kept_of_what_is_not_stored(self, site, headers, kind):
        site("Hello")

        async def test() -> None:
            assert (await ask(headers, kind, metadata={"topic": "x"})).status_code == 200

        run(test())
        for table in (Conversation, Message, Run, ToolApproval):
            assert not table.objects.exists()
        assert ModelCall.objects.get().conversation_id is None


def test_another_model_is_not_asked_by_a_name_that_is_none(client, site):
    site("Hello")

    for name in ("gpt-5", "", "assistant ", "../assistant", "x" * 5_000):
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model=name, messages=[HI])
        assert (caught.value.code, len(str(caught.value)) < 500) == ("model_not_found", True)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model=name, input="Hi")
    assert complete(client).model == "assistant"
