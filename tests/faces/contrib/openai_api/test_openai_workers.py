"""OpenAI's client asks a site whose answers workers generate: they know what it wishes, up to the end of the run."""

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest
from django.contrib.auth.models import Permission
from django.core.asgi import get_asgi_application
from rest_framework.authtoken.models import Token

from chatmemory_django.chat import worker as worker_module
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import answers as answers_module
from chatmemory_django.chat.runs import following, writing
from chatmemory_django.messages import TextContent, ToolExecutionResultMessage
from chatmemory_django.models import Message
from tests.asgi import run
from tests.faces.chat.runs.test_workers import with_worker
from tests.faces.chat.scripted import calling
from tests.faces.contrib.openai_api.test_openai_completions import WEATHER as NESTED
from tests.faces.contrib.openai_api.test_openai_responses import ASKS, WEATHER, Person, output_of
from tests.faces.rest.conftest import WRITE

pytestmark = pytest.mark.django_db(transaction=True)

HI = {"role": "user", "content": "Hi"}
INTERVAL = 0.02


@pytest.fixture
def asked(site, settings, ann, monkeypatch):
    """Return a function that asks by OpenAI's client, with a worker at work or without one."""
    key = Token.objects.create(user=ann).key
    for module in (answers_module, following, writing):
        monkeypatch.setattr(module, "INTERVAL", INTERVAL)
    monkeypatch.setattr(worker_module, "POLL", INTERVAL)

    def asked(talk: Any, *, works: bool = True) -> Any:
        settings.CHATMEMORY["CHAT"]["RUNS"] = "worker"

        async def ask() -> Any:
            http_client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=get_asgi_application()))
            base = "http://testserver/openai/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key=key, http_client=http_client, max_retries=0) as client:
                return await talk(client)

        return run(with_worker(ask()) if works else ask())

    return asked


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_tools_are_called_and_their_outputs_go_on(site, asked, stream):
    model = site(calling(ASKS), "Rain.")

    async def respond(client: openai.AsyncOpenAI, input: Any, **options: Any) -> Any:
        options |= {"model": "assistant", "input": input, "tools": [WEATHER]}
        if not stream:
            return await client.responses.create(**options)
        return [event async for event in await client.responses.create(**options, stream=True)][-1].response

    async def talk(client: openai.AsyncOpenAI) -> list[Any]:
        first = await respond(client, "Hi")
        second = await respond(client, [output_of(first.output[0], "rain")], previous_response_id=first.id)
        return [first, second, await client.responses.retrieve(second.id)]

    first, second, again = asked(talk)

    assert (first.output[0].name, first.output[0].arguments) == ("weather", '{"city":"Ulm"}')
    assert [each.output_text.strip() for each in (second, again)] == ["Rain.", "Rain."]
    assert [[tool.name for tool in request.tools] for request in model.requests] == [["weather"]] * 2
    assert model.sent[1][-1] == ToolExecutionResultMessage("c1", "weather", "rain")
    assert [each.asked for each in Run.objects.all()] == ["", ""]


def test_completions_in_a_conversation_have_the_clients_tools_too(site, asked):
    model = site(calling(ASKS), "Rain.")
    named = {"model": "assistant", "tools": [NESTED], "extra_headers": {"X-Conversation-ID": "trip"}}

    async def talk(client: openai.AsyncOpenAI) -> str:
        first = await client.chat.completions.create(messages=[HI], tool_choice="required", **named)
        called = first.choices[0].message
        result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "rain"}
        history = [HI, called.model_dump(exclude_none=True), result]
        stream = await client.chat.completions.create(messages=history, stream=True, **named)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asked(talk).strip() == "Rain."
    assert [request.tool_choice for request in model.requests] == ["required", None]
    assert [row.type for row in Message.objects.order_by("sequence")] == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI"]


def test_instructions_and_the_form_reach_the_worker(site, asked, ann):
    ann.user_permissions.set(Permission.objects.filter(codename=WRITE))
    model = site('{"name": "Ann", "age": 7}')

    async def talk(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.parse(model="assistant", input="Hi", instructions="Be brief.", text_format=Person)

    assert asked(talk).output_parsed == Person(name="Ann", age=7)
    [request] = model.requests
    assert request.messages[-1].contents == (TextContent("Be brief."), TextContent("Hi"))
    assert request.response_format.schema["required"] == ["name", "age"]
    assert not Message.objects.filter(text__contains="brief").exists()


def test_a_response_in_the_background_waits_for_a_worker_with_what_it_needs(site, asked):
    site(calling(ASKS))

    async def ask(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.create(model="assistant", input="Hi", background=True, tools=[WEATHER])

    async def read(client: openai.AsyncOpenAI) -> Any:
        while (found := await client.responses.retrieve(waiting.id)).status in {"queued", "in_progress"}:
            await asyncio.sleep(INTERVAL)
        return found

    waiting = asked(ask, works=False)
    kept = json.loads(Run.objects.get().asked)

    assert (waiting.status, waiting.output) == ("queued", [])
    assert [tool["name"] for tool in kept["wishes"]["tools"]] == ["weather"]
    assert asked(read).output[0].name == "weather"
    assert Run.objects.get().asked == ""


def test_a_response_in_progress_has_what_its_request_had(site, asked, ann):
    ann.user_permissions.set(Permission.objects.filter(codename=WRITE))
    site("Hello")

    async def ask(client: openai.AsyncOpenAI) -> Any:
        options = {"metadata": {"topic": "x"}, "instructions": "Be brief.", "tools": [WEATHER]}
        first = await client.responses.create(model="assistant", input="Hi", background=True, **options)
        return first, await client.responses.retrieve(first.id)

    first, again = asked(ask, works=False)

    assert again.model_dump(exclude={"created_at"}) == first.model_dump(exclude={"created_at"})
    assert (again.background, again.metadata, again.instructions) == (True, {"topic": "x"}, "Be brief.")
    assert [tool.name for tool in again.tools] == ["weather"]


def test_one_that_waits_is_cancelled_without_a_worker(site, asked):
    site("Hello")

    async def talk(client: openai.AsyncOpenAI) -> Any:
        response = await client.responses.create(model="assistant", input="Hi", background=True, tools=[WEATHER])
        return await client.responses.cancel(response.id)

    assert asked(talk, works=False).status == "cancelled"
    assert Run.objects.get().asked == ""


def test_what_is_not_stored_is_answered_without_a_worker(site, asked):
    site("Hello")

    async def talk(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.create(model="assistant", input="Hi", store=False)

    assert asked(talk, works=False).output_text.strip() == "Hello"
    assert not Run.objects.exists()


def test_a_retry_has_the_answer_that_waits_for_a_worker(site, asked):
    model = site("Hello", "More")
    options = {"model": "assistant", "input": "Hi", "extra_headers": {"Idempotency-Key": "5f0c"}}

    async def ask(client: openai.AsyncOpenAI) -> Any:
        first = await client.responses.create(**options, background=True)
        again = await client.responses.create(**options, background=True)
        return first, again

    async def wait(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.create(**options)

    first, again = asked(ask, works=False)

    assert (again.id, again.status) == (first.id, "queued")
    assert asked(wait).output_text == "Hello"
    assert len(model.requests) == Run.objects.count() == 1
