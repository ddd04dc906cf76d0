"""All that clients of OpenAI's API are sent is what the types in OpenAI's package describe, and nothing else."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from openai.types import ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.model import (
    BrokenStreamError,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
)
from chatmemory_django.chat.tools import Tool
from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.messages import AiMessage
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.faces.contrib.openai_api.test_openai_completions import WEATHER as NESTED
from tests.faces.contrib.openai_api.test_openai_responses import ASKS, WEATHER, Thoughtful

pytestmark = pytest.mark.django_db(transaction=True)

OBJECTS: dict[str, TypeAdapter[Any]] = {
    "chat.completion": TypeAdapter(ChatCompletion),
    "chat.completion.chunk": TypeAdapter(ChatCompletionChunk),
    "response": TypeAdapter(Response),
    "model": TypeAdapter(Model),
}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LISTS = {"models": TypeAdapter(list[Model]), "input_items": TypeAdapter(ResponseItemList)}
UNKNOWN = {"store", "reasoning_content"}
"""What the package's types lack: the first is in OpenAI's description, the second in other vendors' completions."""


class CutShort(ScriptedModel):
    """Ends each answer for a *reason* other than its end."""

    def __init__(self, reason: FinishReason) -> None:
        super().__init__("Hello")
        self.reason = reason

    def _events(self, answer):
        yield PartialText("Hello")
        yield ChatResponse(AiMessage("Hello"), ChatResponseMetadata(finish_reason=self.reason))


def pay() -> str:
    """Pay."""
    return "Paid."


MODELS = {
    "text": lambda: ScriptedModel("Hello you"),
    "thoughts": lambda: Thoughtful("Hello you"),
    "calls of the client's tools": lambda: ScriptedModel(calling(ASKS, ("c2", "weather", "{}"), text="Let me see.")),
    "calls that wait": lambda: ScriptedModel(calling(("c1", "pay", "{}")), "Done."),
    "calls of the site's tools": lambda: ScriptedModel(calling(("c1", "look", "{}")), "Done."),
    "too long": lambda: CutShort(FinishReason.LENGTH),
    "filtered": lambda: CutShort(FinishReason.CONTENT_FILTER),
    "broken": lambda: ScriptedModel(BrokenStreamError("x"), words_before_error=2),
    "refused": lambda: ScriptedModel(ValueError("x")),
}


def known(value: Any) -> Iterator[set[str]]:
    """Yield the keys of *value*, at any depth, that its type does not have."""
    if isinstance(value, BaseModel):
        yield set(value.model_extra or {})
        value = list(vars(value).values())
    for each in value if isinstance(value, list) else ():
        yield from known(each)


def check(given: dict[str, Any]) -> str:
    """Check an object or an event against its type, and return which one it is."""
    if "error" in given and "object" not in given:
        found, kind = ErrorObject.model_validate(given["error"], strict=True), "error"
    else:
        kind = given.get("object") or given["type"]
        adapter = OBJECTS[kind] if "object" in given else EVENT
        found = adapter.validate_json(json.dumps(given), strict=True)
    assert set().union(*known(found)) <= UNKNOWN, kind
    return kind


@pytest.fixture
def post(site, ann):
    """Return a function that posts to a path, and returns what came: one object, or the events of a stream."""
    client = Client(headers={"Authorization": f"Bearer {Token.objects.create(user=ann).key}"})

    def look() -> str:
        """Look."""
        return "nothing"

    def post(model: str, where: str, **body: Any) -> list[dict[str, Any]]:
        site(model=MODELS[model](), tools=[look, Tool(pay, needs_approval=True)])
        content = {"model": "assistant", **body}
        response = client.post(f"/openai/v1/{where}", json.dumps(content), content_type="application/json")
        lines = response.content.decode().split("\n")
        if response.headers["Content-Type"] == "application/json":
            return [response.json()]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        named = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        events = [json.loads(each) for each in data if each != "[DONE]"]
        assert named in ([], [event.get("type") for event in events])
        return events

    yield post
    asyncio.run(close_thread_sensitive())


WAYS = [(stored, stream) for stored in (True, False) for stream in (True, False)]


@pytest.mark.parametrize("model", MODELS)
class TestAnswers:
    def test_completions_are_of_the_type(self, post, model):
        for stored, stream in WAYS:
            options = {"stream_options": {"include_usage": True}} if stream else {}
            asked = {"messages": [{"role": "user", "content": "Hi"}], "tools": [NESTED], **options}

            kinds = {check(each) for each in post(model, "chat/completions", store=stored, stream=stream, **asked)}

            assert kinds <= {"chat.completion.chunk" if stream else "chat.completion", "error"}
            assert ("error" in kinds) == (model in {"broken", "refused"})

    def test_responses_are_of_the_type(self, post, model):
        ends = {"too long": "incomplete", "filtered": "incomplete", "broken": "failed"}
        for stored, stream in WAYS:
            found = post(model, "responses", input="Hi", tools=[WEATHER], store=stored, stream=stream)

            kinds = [check(each) for each in found]

            if stream and model != "refused":
                assert kinds[-1] == f"response.{ends.get(model, 'completed')}"
            elif not stream:
                assert kinds == ["error" if model in {"broken", "refused"} else "response"]


@pytest.mark.parametrize("model", ["text", "thoughts", "calls of the client's tools", "calls that wait", "too long"])
def test_what_is_stored_is_of_the_type(post, ann, model):
    [response] = post(model, "responses", input="Hi", tools=[WEATHER])
    client = Client(headers={"Authorization": f"Bearer {Token.objects.get(user=ann).key}"})
    path = f"/openai/v1/responses/{response['id']}"

    assert check(client.get(path).json()) == "response"
    stream = client.get(path, {"stream": "true"}).content.decode().split("\n")
    assert {check(json.loads(line.removeprefix("data: "))) for line in stream if line.startswith("data: ")}
    assert check(client.post(f"{path}/cancel").json()) == "response"
    [item] = LISTS["input_items"].validate_python(client.get(f"{path}/input_items").json()).data
    assert item.type == "message"
    assert client.delete(path).json() == {"id": response["id"], "object": "response", "deleted": True}
    assert check(client.get(path).json()) == "error"


def test_models_are_of_the_type(client, site):
    site("Hello")

    LISTS["models"].validate_python([each.to_dict() for each in client.models.list()], strict=True)
    assert check(client.models.retrieve("assistant").to_dict()) == "model"
