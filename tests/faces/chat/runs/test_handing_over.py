"""The end of an ASGI server, at which its answers in progress are handed over."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth import get_user_model
from django.core.asgi import get_asgi_application

from chatmemory_django.chat.asgi import handing_over
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs.answer import Answer
from chatmemory_django.chat.runs.answers import HAND_OVER, Answers
from chatmemory_django.chat.runs.streams import Maker
from tests.asgi import run
from tests.faces.chat.http.test_http import ann, asynchronous, bob, chat, no_throttle, slow, under_way
from tests.faces.chat.scripted import Saying

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""

INTERRUPTED = {"type": "error", "errorText": "The answer was interrupted. Try again."}


async def states() -> list[str]:
    return [run.state async for run in Run.objects.all()]


@asynccontextmanager
async def serving() -> AsyncIterator[ApplicationCommunicator]:
    """Yield a server's connection to the lifespan of the site, which is ended in the end."""
    server = ApplicationCommunicator(handing_over(get_asgi_application()), {"type": "lifespan"})
    await server.send_input({"type": "lifespan.startup"})
    assert await server.receive_output(PATIENCE) == {"type": "lifespan.startup.complete"}
    yield server
    await server.send_input({"type": "lifespan.shutdown"})
    assert await server.receive_output(PATIENCE) == {"type": "lifespan.shutdown.complete"}
    await server.wait()


@asynchronous
async def test_the_answers_of_requests_are_handed_over(chat):
    client = chat(slow())

    async with under_way(client) as asked:
        async with serving():
            assert await states() == ["running"]

        assert await states() == ["asked"]
        assert (await asked)[-1] == INTERRUPTED


@asynchronous
async def test_answers_that_code_of_the_site_has_started_are_handed_over(chat):
    client = chat(slow())

    async with serving():
        await client.assistant.astart("c", "Go.")
        assert await states() == ["running"]

    assert await states() == ["asked"]


@asynchronous
async def test_a_server_without_answers_ends():
    async with serving():
        pass

    assert await states() == []


@asynchronous
async def test_requests_are_djangos(chat):
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/nothing/",
        "query_string": b"",
        "headers": [(b"host", b"a.test")],
    }
    request = ApplicationCommunicator(handing_over(get_asgi_application()), scope)
    await request.send_input({"type": "http.request"})

    assert (await request.receive_output(PATIENCE))["type"] == "http.response.start"
    await request.wait(PATIENCE)  # a request that is cut off leaves its file of Django's open


class SlowlyStored(Saying):
    """The work of an answer whose end is stored once the test lets it."""

    is_ending, may_end = threading.Event(), threading.Event()

    def end(self, answer: Answer) -> str:
        self.is_ending.set()
        assert self.may_end.wait(PATIENCE)
        return super().end(answer)


def test_an_answer_that_begins_meanwhile_is_handed_over_and_interrupted_once():
    """The request of a server that does not wait for its clients, for example."""
    closed: list[str] = []

    async def until_the_end(answer: Answer) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5 * HAND_OVER)  # as a connection to a model is closed
            closed.append(answer.maker.memory_id)

    async def end() -> None:
        answers, owner = Answers(), await get_user_model().objects.acreate_user("ann")
        first, second = (Maker(name, str(owner.pk), uuid4().hex) for name in ("one", "two"))
        await answers.begin(first, SlowlyStored("", until_the_end), wait=0)
        handing = asyncio.create_task(answers.hand_over())
        await asyncio.to_thread(SlowlyStored.is_ending.wait, PATIENCE)
        await answers.begin(second, Saying("", until_the_end), wait=0)
        SlowlyStored.may_end.set()
        await asyncio.wait_for(handing, PATIENCE)

    run(end())

    assert closed[:1] == ["one"]
    assert {run.state for run in Run.objects.all()} == {"asked"}
