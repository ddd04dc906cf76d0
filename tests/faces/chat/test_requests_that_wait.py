"""The resources that a request holds while it waits for an answer, and what an interrupted one leaves."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatModel, ChatRequest, ChatResponse
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer
from chatmemory_django.chat.runs.answers import answers
from chatmemory_django.chat.runs.leases import Taken
from chatmemory_django.chat.runs.streams import Maker
from chatmemory_django.messages import AiMessage
from tests.asgi import run
from tests.faces.chat.scripted import Saying

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30
"""Seconds after which a test gives up waiting."""

ACCEPTS = pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])


class HeldModel(ChatModel):
    """Answers once the test lets it."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        return ChatResponse(AiMessage("Hello!"))

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        self.is_asked.set()
        await self.may_answer.wait()
        return self.do_chat(request)


class Held(Saying):
    """The work of an answer whose beginning takes until the test lets it end."""

    has_begun, may_return = threading.Event(), threading.Event()

    def begin(self, answer: Answer) -> None:
        self.has_begun.set()
        assert self.may_return.wait(PATIENCE)


class UsesDatabase(MiddlewareMixin):
    """Middleware that queries the database before the view and after it."""

    def process_request(self, request: HttpRequest) -> None:
        User.objects.exists()

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        User.objects.exists()
        return response


@pytest.fixture
def token() -> str:
    return Token.objects.create(user=User.objects.create_user("ann")).key


@pytest.fixture
def model(settings) -> HeldModel:
    model = HeldModel()
    settings.CHATMEMORY = {"CHAT": {"THROTTLE_RATE": None, "ASSISTANT": Assistant(model)}}
    return model


@pytest.fixture
def connected() -> Iterator[list[BaseDatabaseWrapper]]:
    """Record all connections that are opened."""
    found: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **_: object) -> None:
        found.append(connection)

    connection_created.connect(note)
    yield found
    connection_created.disconnect(note)


@asynccontextmanager
async def asked(token: str, accept: str, chat_id: str = "c") -> AsyncIterator[ApplicationCommunicator]:
    """Send a request through Django's whole handler, with a thread of its own as under a server."""
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "Hi."}]}
    headers = {"host": "localhost", "authorization": f"Bearer {token}", "accept": accept}
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/api/chat", "query_string": b""}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    communicator = ApplicationCommunicator(get_asgi_application(), scope)
    body = json.dumps({"id": chat_id, "message": message}).encode()
    await communicator.send_input({"type": "http.request", "body": body})
    yield communicator
    await communicator.wait(PATIENCE)


async def begun(communicator: ApplicationCommunicator, accept: str) -> None:
    """Wait for the first piece of a stream; by then the middleware has finished with the response."""
    if accept != "application/json":
        for _ in range(2):
            await communicator.receive_output(PATIENCE)


async def of_others() -> None:
    """Wait until all other tasks have ended."""
    async with asyncio.timeout(PATIENCE):
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.gather(*others)


async def held(connections: list[BaseDatabaseWrapper]) -> list[BaseDatabaseWrapper]:
    """Return the *connections* that threads of requests keep open."""
    for _ in range(10 * PATIENCE):
        if not (found := held_now(connections)):
            break
        await asyncio.sleep(0.1)
    return found


def held_now(connections: list[BaseDatabaseWrapper]) -> list[BaseDatabaseWrapper]:
    """Return the *connections* that threads of requests have open; answers briefly use some of their own."""
    background = {thread.ident for thread in threading.enumerate() if thread.name.startswith("chatmemory")}
    here = threading.get_ident()
    return [
        each for each in connections if each.connection is not None and each._thread_ident not in {here, *background}
    ]


def test_a_request_holds_no_connection_while_it_waits_for_another_answer(
    settings, token, model, connected, monkeypatch
):
    settings.CHATMEMORY["CHAT"]["WAIT_SECONDS"] = PATIENCE
    is_busy, take = threading.Event(), leases.take

    def noted(*args, **options) -> Taken | float:
        taken = take(*args, **options)
        if not isinstance(taken, Taken):
            is_busy.set()
        return taken

    monkeypatch.setattr(leases, "take", noted)

    async def ask() -> list[BaseDatabaseWrapper]:
        async with asked(token, "text/event-stream"), asked(token, "text/event-stream"):
            assert await asyncio.to_thread(is_busy.wait, PATIENCE)
            found = await held(connected)
            model.may_answer.set()
        await of_others()
        return found

    assert run(ask()) == []


@ACCEPTS
def test_a_request_holds_no_connection_while_its_answer_is_generated(settings, token, model, connected, accept):
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.UsesDatabase"]

    async def ask() -> list[BaseDatabaseWrapper]:
        async with asked(token, accept) as communicator:
            await asyncio.wait_for(model.is_asked.wait(), PATIENCE)
            await begun(communicator, accept)
            found = await held(connected)
            model.may_answer.set()
        await of_others()
        return found

    assert run(ask()) == []
    assert len(connected) > 1


def test_a_client_that_disconnects_as_its_answer_begins_leaves_no_orphaned_answer(model):
    maker = Maker("c", str(User.objects.create_user("ann").pk), uuid4().hex)
    made = []

    async def make(answer: Answer) -> None:
        made.append(answer.maker)

    async def drop() -> None:
        beginning = asyncio.create_task(answers().begin(maker, Held("Bye.", make), wait=0))
        assert await asyncio.to_thread(Held.has_begun.wait, PATIENCE)
        beginning.cancel()
        with suppress(asyncio.CancelledError):
            await beginning
        Held.may_return.set()
        await of_others()

    run(drop())

    assert made == [maker]
    assert not Run.objects.exists()


def test_a_stream_has_no_thread_of_its_own(token, model):
    async def listen() -> None:
        async with asked(token, "text/event-stream") as communicator:
            await asyncio.wait_for(model.is_asked.wait(), PATIENCE)
            await begun(communicator, "text/event-stream")
            async with asyncio.timeout(PATIENCE):
                while of_requests():
                    await asyncio.sleep(0.01)
            model.may_answer.set()
        await of_others()

    before = set(threading.enumerate())

    def of_requests() -> list[threading.Thread]:
        background = ("chatmemory", "asyncio")
        return [each for each in threading.enumerate() if each not in before and not each.name.startswith(background)]

    run(listen())


def test_stopping_a_json_answer_before_its_first_word_is_not_a_server_error(token, model):
    async def ask() -> int:
        async with asked(token, "application/json") as communicator:
            await asyncio.wait_for(model.is_asked.wait(), PATIENCE)
            [answer] = answers()._made.values()
            answer.stop()
            started = await communicator.receive_output(PATIENCE)
        await of_others()
        return int(started["status"])

    assert run(ask()) == 409
