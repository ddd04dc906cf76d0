"""Answers whose client just goes: the owner's next question stops them or waits for them, and is not always refused."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application

from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import answers as answers_module
from chatmemory_django.chat.runs import following, leases, renewals, writing
from chatmemory_django.chat.runs.answer import Answer
from chatmemory_django.chat.runs.answers import Answers
from chatmemory_django.chat.runs.leases import BusyError
from chatmemory_django.chat.runs.streams import Maker
from tests.faces.chat.http.test_http import (
    Chat,
    _joined,
    ann,
    asynchronous,
    bob,
    chat,
    chunks,
    no_throttle,
    text_of,
    user,
)
from tests.faces.chat.scripted import Saying, ScriptedModel, calling

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    is_slow = request.node.get_closest_marker("slow") is not None
    for module, name, seconds in (
        (renewals, "RENEW", 0.02),
        (answers_module, "INTERVAL", 0.02),
        (following, "INTERVAL", 0.02),
        (writing, "INTERVAL", 0.02),
        (following, "LISTEN", 0.05),
        (answers_module, "LEFT_AFTER", 1.0 if is_slow else 0.1),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pause of the machine count as silence."""
    monkeypatch.setattr(answers_module, "LEFT_AFTER", PATIENCE)


async def until_heard() -> None:
    """Wait until it is noted that somebody listens, which was so long ago that the answer would be left."""
    await Run.objects.aupdate(listened_at=leases.before(2 * PATIENCE))
    while not await Run.objects.filter(listened_at__gt=leases.before(PATIENCE)).aexists():
        await asyncio.sleep(0.01)


@asynccontextmanager
async def left(client: Chat, text: str = "Count.", name: str | None = "u1", chunk: str = "one") -> AsyncIterator[None]:
    """Ask something, and close the connection as soon as the *chunk* has come, as assistant-ui's Stop does."""
    headers = {"host": "localhost", **client._headers}
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/api/chat", "query_string": b""}
    scope["headers"] = [(each.lower().encode(), value.encode()) for each, value in headers.items()]
    server = ApplicationCommunicator(get_asgi_application(), scope)
    body = json.dumps({"id": "c", "message": user(text, name) | {"id": name}}).encode()
    await server.send_input({"type": "http.request", "body": body})
    seen = b""
    while chunk.encode() not in seen:
        seen += (await server.receive_output(PATIENCE)).get("body", b"")
    await server.send_input({"type": "http.disconnect"})
    await server.wait(PATIENCE)
    yield
    await client.post({}, "/c/stop")


def held(*answers: Any) -> ScriptedModel:
    """Return a model whose first answer has no end."""
    model = ScriptedModel("one two three", *(answers or ["Yes."]), gate=asyncio.Event())
    begin = model._next

    def next_(request: Any) -> Any:
        if model.requests and model.gate is not None:
            model.gate = None
        return begin(request)

    model._next = next_
    return model


def states() -> list[str]:
    return list(Run.objects.order_by("created_at").values_list("state", flat=True))


class TestStop:
    def test_the_next_question_stops_it_and_keeps_what_has_come(self, chat):
        @asynchronous
        async def test() -> None:
            client = chat(held())
            async with left(client):
                found = await client.say("And now?")
            assert text_of(found) == "Yes. "
            assert await client.texts() == ["Count.", "one ", "And now?", "Yes."]
            assert (await client.messages())[1]["metadata"]["partial"] is True

        test()

        assert states() == ["stopped", "done"]

    @asynchronous
    async def test_an_edit_of_the_same_question_stops_it(self, chat):
        client = chat(held())

        async with left(client):
            assert text_of(await client.say("Count better.", "u1")) == "Yes. "

        assert await client.texts() == ["Count better.", "Yes."]

    @pytest.mark.parametrize("name", ["u1", None])
    @asynchronous
    async def test_what_may_be_about_that_answer_does_not(self, chat, name):
        client = chat(held())

        async with left(client, name=name):
            refused = [
                await client.post({"id": "c", "message": user("Count.", name) | {"id": name}}),
                await client.post({"id": "c", "messages": [user("Count.", name)], "trigger": "regenerate-message"}),
            ]

        assert [each.status_code for each in refused] == [409, 409]
        assert len(client.model.requests) == 1

    def test_a_tool_that_runs_then_runs_once_and_its_result_is_kept(self, chat):
        may_end, ended, runs = threading.Event(), threading.Event(), []

        def send_mail() -> str:
            """Do it."""
            runs.append(1)
            assert may_end.wait(PATIENCE)
            ended.set()
            return "Sent."

        @asynchronous
        async def test() -> None:
            client = chat(ScriptedModel(calling(("1", "send_mail", "{}")), "Yes."), tools=[send_mail])
            async with left(client, chunk="tool-input-available"):
                while not runs:
                    await asyncio.sleep(0.01)
                assert text_of(await client.say("And now?")) == "Yes. "
                may_end.set()
                assert await asyncio.to_thread(ended.wait, PATIENCE)
            again = await client.say("Count.", "u1")
            assert again[-1]["type"] == "finish"

        test()

        assert len(runs) == 1
        assert states()[:2] == ["stopped", "done"]

    @asynchronous
    async def test_one_of_another_process_is_stopped_there(self, chat, ann):
        elsewhere, client, chat_id = Answers(), chat("Yes."), str(uuid4())
        is_made = asyncio.Event()

        async def make(answer: Answer) -> None:
            is_made.set()
            await asyncio.Event().wait()

        answer = await elsewhere.begin(Maker(chat_id, str(ann.pk), uuid4().hex), Saying("Bye.", make), wait=0)
        await is_made.wait()

        assert text_of(await client.say("Hi.", chat_id=chat_id)) == "Yes. "
        assert answer.is_stopping

    @asynchronous
    async def test_one_that_does_not_end_is_409_in_the_end(self, chat, ann, monkeypatch):
        monkeypatch.setattr(answers_module, "STOP_SECONDS", 0.1)
        here, may_end = Answers(), asyncio.Event()

        async def make(answer: Answer) -> None:
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    stops.append(1)

        stops: list[int] = []
        maker = Maker("c", str(ann.pk), uuid4().hex)
        await here.begin(maker, Saying("Bye.", make), wait=0)

        try:
            with pytest.raises(BusyError):
                await here.begin(maker._replace(answer_id=uuid4().hex), Saying("Hi."), wait=0, left="stop")
            assert stops == [1]
        finally:  # otherwise, a failure would never end, and its last write meet the next test
            may_end.set()
            await here.stop(maker)


class TestOthers:
    @pytest.mark.slow
    @asynchronous
    async def test_with_wait_the_next_question_waits_for_it(self, chat, settings):
        settings.CHATMEMORY["CHAT"]["LEFT"] = "wait"
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two three", "Yes.", gate=gate))

        async with left(client):
            asked = asyncio.create_task(client.say("And now?"))
            await asyncio.sleep(2.5 * answers_module.LEFT_AFTER)
            assert not asked.done()
            gate.set()
            assert text_of(await asked) == "Yes. "

        assert await client.texts() == ["Count.", "one two three", "And now?", "Yes."]

    @pytest.mark.slow
    @asynchronous
    async def test_with_wait_a_retry_gets_the_answer_that_it_was_given(self, chat, settings):
        settings.CHATMEMORY["CHAT"]["LEFT"] = "wait"
        gate = asyncio.Event()
        client = chat(ScriptedModel("one two three", gate=gate))

        async with left(client):
            asked = asyncio.create_task(client.say("Count.", "u1"))
            await asyncio.sleep(1.5 * answers_module.LEFT_AFTER)
            gate.set()
            assert text_of(await asked) == "one two three"

        assert len(client.model.requests) == 1

    @asynchronous
    async def test_with_refuse_it_is_409(self, chat, settings):
        settings.CHATMEMORY["CHAT"]["LEFT"] = "refuse"
        client = chat(held())

        async with left(client):
            await asyncio.sleep(1.5 * answers_module.LEFT_AFTER)
            assert (await client.post({"id": "c", "message": user("And now?")})).status_code == 409


@pytest.mark.usefixtures("long")
class TestListeners:
    """While somebody listens, the next question is refused, wherever that is."""

    @asynchronous
    async def test_a_second_tab_of_the_same_process(self, chat):
        client = chat(held())

        async with left(client):
            listening = asyncio.create_task(_chunks_of(await client.get("/c/stream")))
            await until_heard()
            assert (await client.post({"id": "c", "message": user("And now?")})).status_code == 409
            await client.post({}, "/c/stop")
            await listening

    @asynchronous
    async def test_one_of_another_process(self, chat, ann, monkeypatch):
        client, elsewhere = chat(held()), Answers()

        async with left(client):
            listening = asyncio.create_task(_joined(elsewhere.listen(await elsewhere.find(f"{ann.pk}:c", str(ann.pk)))))
            await until_heard()
            assert (await client.post({"id": "c", "message": user("And now?")})).status_code == 409
            listening.cancel()
            monkeypatch.setattr(answers_module, "LEFT_AFTER", 0.1)
            assert text_of(await client.say("And now?")) == "Yes. "

    @asynchronous
    async def test_a_client_that_waits_for_json(self, chat):
        client = chat(held())
        waiting = asyncio.create_task(client.post({"id": "c", "message": user("Go.")}, Accept="application/json"))
        while not client.model.requests:
            await asyncio.sleep(0.01)

        await until_heard()

        assert (await client.post({"id": "c", "message": user("And now?")})).status_code == 409
        await client.post({}, "/c/stop")
        await waiting

    @asynchronous
    async def test_python_code_that_has_asked(self, chat, ann):
        may_end, is_called = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            """Do it."""
            is_called.set()
            await may_end.wait()
            return "Done."

        client = chat(calling(("1", "wait", "{}")), "Yes.", tools=[wait])
        memory_id = str(uuid4())
        asked = asyncio.create_task(client.assistant.achat(memory_id, "Go.", owner=ann))
        await is_called.wait()

        await until_heard()

        assert (await client.post({"id": memory_id, "message": user("And now?")})).status_code == 409
        may_end.set()
        assert await asked == "Yes."

    @asynchronous
    async def test_a_page_that_is_loaded_again_goes_on_listening(self, chat):
        client = chat(held())

        async with left(client):
            listening = asyncio.create_task(_chunks_of(await client.get("/c/stream")))
            await until_heard()
            assert (await client.post({"id": "c", "message": user("And now?")})).status_code == 409
            await client.post({}, "/c/stop")
            assert text_of(await listening) == "one "


async def _chunks_of(response: Any) -> list[dict]:
    return await chunks(response)
