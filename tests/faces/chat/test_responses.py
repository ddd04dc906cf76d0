"""A site's own views, whose response is an assistant's answer."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.db import connection, connections, transaction
from django.test import AsyncClient, Client
from django.urls import path
from django.views.decorators.cache import cache_control
from django.views.decorators.gzip import gzip_page

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import (
    ContentFilterError,
    InvalidRequestError,
    ModelTimeoutError,
    RateLimitError,
    UnavailableError,
)
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import Image, ImageContent, TextContent, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import messages_added
from tests.asgi import leave, run
from tests.estimators import WORDS
from tests.faces.chat.http.test_http import parsed
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)


class Site:
    """A site with a view of its own; *view* makes its response of the request."""

    def __init__(self, monkeypatch, settings, *, is_async: bool, is_asgi: bool) -> None:
        self.is_async, self.is_asgi = is_async, is_asgi
        self.model = ScriptedModel("On its way.", "Tomorrow.")
        self.assistant = Assistant(self.model)
        self.joined: Callable[[Any], bytes] = b"".join
        self.options: dict[str, Any] = {}
        self.message: UserMessage | None = None
        self.decorated: Callable[[Any], Any] = lambda view: view
        self.user: User | None = User.objects.create_user("ann")
        urls = ModuleType("own_urls")
        urls.urlpatterns = []  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "own_urls", urls)
        settings.ROOT_URLCONF = "own_urls"
        self.urls = urls

    def serve(self) -> None:
        """Let the site have the view."""

        def answer(request, memory_id):
            message = self.message or request.POST["message"]
            return self.assistant.response(request, memory_id, message, **self.options)

        async def aanswer(request, memory_id):
            message = self.message or request.POST["message"]
            return await self.assistant.aresponse(request, memory_id, message, **self.options)

        view = aanswer if self.is_async else answer
        self.urls.urlpatterns[:] = [path("<path:memory_id>", self.decorated(view))]  # type: ignore[attr-defined]

    def answered(self, text: str = "Where is it?", memory_id: str = "c", **headers: str) -> tuple[Any, str]:
        """Send a question; return the response and its body."""
        self.serve()
        return run(self._asked(text, f"/{memory_id}", headers))

    async def _asked(self, text: str, address: str, headers: dict[str, str]) -> tuple[Any, str]:
        client: Any = (AsyncClient if self.is_asgi else Client)()
        if self.user is not None:
            await client.aforce_login(self.user)
        if not self.is_asgi:
            return await sync_to_async(self._read)(client, text, address, headers)
        response = await client.post(address, {"message": text}, headers=headers)
        assert response.is_async or response.status_code != 200
        return response, (await self._whole(response)).decode()

    async def _whole(self, response: Any) -> bytes:
        return self.joined([piece async for piece in response] if response.is_async else list(response))

    def _read(self, client: Client, text: str, address: str, headers: dict[str, str]) -> tuple[Any, str]:
        response = client.post(address, {"message": text}, headers=headers)
        assert not response.is_async
        return response, self.joined(list(response)).decode()


KINDS = {"a sync view under WSGI": (False, False), "a sync view under ASGI": (False, True)}
KINDS |= {"an async view under ASGI": (True, True), "an async view under WSGI": (True, False)}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def site(request, monkeypatch, settings) -> Site:
    is_async, is_asgi = request.param
    return Site(monkeypatch, settings, is_async=is_async, is_asgi=is_asgi)


class TestAnAnswer:
    def test_is_plain_text_that_no_browser_takes_for_anything_else(self, site):
        response, body = site.answered()

        assert (response.status_code, body) == (200, "On its way. ")
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert (response["Cache-Control"], response["X-Accel-Buffering"]) == ("no-store", "no")
        assert response["Vary"].startswith("Accept")

    def test_is_stored_for_the_user_and_remembered(self, site):
        site.answered()
        site.answered("And when?")

        assert Conversation.objects.get().owner == site.user
        assert [row.text for row in Message.objects.order_by("sequence")] == [
            *("Where is it?", "On its way.", "And when?", "Tomorrow."),
        ]

    def test_is_server_sent_events_if_they_are_preferred(self, site):
        site.assistant.model = ScriptedModel("One\nand\r\ntwo")

        response, body = site.answered(accept="text/event-stream, text/plain;q=0.5")

        assert (response["Content-Type"], response["Vary"][:6]) == ("text/event-stream", "Accept")
        assert body == "data: One\ndata: and\ndata: two \n\nevent: end\ndata:\n\n"

    @pytest.mark.parametrize("accept", ["*/*", "application/json", "text/plain, text/event-stream"])
    def test_is_text_if_they_are_not(self, site, accept):
        assert site.answered(accept=accept)[0]["Content-Type"] == "text/plain; charset=utf-8"

    def test_is_the_stream_of_the_ai_sdk_if_the_view_asks_for_it(self, site):
        site.options = {"protocol": "ui"}

        response, body = site.answered()

        assert response["X-Vercel-AI-UI-Message-Stream"] == "v1"
        chunks = parsed(body)
        assert "".join(each.get("delta", "") for each in chunks) == "On its way. "
        assert chunks[0]["messageId"] == Message.objects.get(type="AI").client_message_id

    def test_after_tools_is_a_paragraph_of_its_own(self, site):
        def look() -> str:
            """Look."""
            return "Hamburg"

        site.assistant = Assistant(
            ScriptedModel(calling(("c1", "look", "{}"), text="Let me see."), "Hamburg."), tools=[look]
        )

        assert site.answered()[1] == "Let me see. \n\nHamburg. "

    @pytest.mark.parametrize("approve_by", ["owner", "auth.change_user"])
    def test_asks_for_an_approval(self, site, approve_by):
        def pay() -> str:
            """Pay."""

        site.assistant = Assistant(
            ScriptedModel(calling(("c1", "pay", "{}"), text="I pay.")),
            tools=[Tool(pay, needs_approval=True, approve_by=approve_by)],
        )
        site.options = {"protocol": "ui"}

        chunks = parsed(site.answered()[1])

        assert "tool-approval-request" in [each["type"] for each in chunks]
        assert ("waitsForOthers" in chunks[-1]["messageMetadata"]) == (approve_by != "owner")

    def test_that_was_stored_before_comes_again(self, site):
        site.options = {"client_message_id": "m1"}

        assert [site.answered()[1].strip() for _ in range(2)] == ["On its way."] * 2
        assert len(site.model.sent) == 1

    def test_of_an_owner_who_is_given_needs_no_user(self, site):
        site.user, site.options = None, {"owner": None}

        assert site.answered()[1] == "On its way. "
        assert Conversation.objects.get().owner is None

    def test_comes_in_pieces_of_which_none_is_empty(self, site):
        site.joined = b"|".join

        assert site.answered()[1] == "On |its |way. "


class TestBeforeItBegins:
    def test_who_is_not_signed_in_is_refused(self, site):
        site.user = None

        response, body = site.answered()

        assert (response.status_code, body) == (401, "Sign in to chat.")
        assert not Conversation.objects.exists()

    def test_a_foreign_conversation_is_404_and_the_model_is_not_called(self, site):
        get_chat_memory("c", owner=User.objects.create_user("bob")).add(UserMessage("Mine"))

        response, body = site.answered()

        assert (response.status_code, body, site.model.sent) == (404, "There is no such chat.", [])

    @pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
    def test_a_text_that_cannot_be_stored_is_400_and_the_model_is_not_called(self, site, text):
        site.message = UserMessage(text)

        assert (site.answered()[0].status_code, site.model.sent) == (400, [])
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("memory_id", ["a%00b", "a" * 256])
    def test_an_id_that_no_conversation_can_have_is_404(self, site, memory_id):
        response, body = site.answered(memory_id=memory_id)

        assert (response.status_code, body, site.model.sent) == (404, "There is no such chat.", [])

    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (RateLimitError, 503),
            (ModelTimeoutError, 504),
            (UnavailableError, 502),
            (ContentFilterError, 422),
        ],
    )
    @pytest.mark.parametrize("protocol", ["text", "sse", "ui"])
    def test_an_error_of_the_model_has_a_status(self, site, error, status, protocol):
        site.assistant.model = ScriptedModel(error("secret"))
        site.options = {"protocol": protocol}

        response, body = site.answered()

        assert (response.status_code, "secret" in body) == (status, False)
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert "X-Vercel-AI-UI-Message-Stream" not in response

    def test_a_question_that_is_too_long_is_413_and_nothing_is_stored(self, site):
        small = {"max_tokens": 20, "token_count_estimator": WORDS}
        site.assistant = Assistant(site.model, memory=TokenWindowChatMemory, memory_options=small)

        assert site.answered("word " * 100)[0].status_code == 413
        assert not Message.objects.exists()

    def test_a_file_that_the_models_server_rejects_is_the_reason_that_is_shown(self, site):
        site.assistant.model = ScriptedModel(InvalidRequestError("secret"))
        site.message = UserMessage([TextContent("Look."), ImageContent(Image(url="https://example.org/a.png"))])

        response, body = site.answered()

        assert response.status_code == 422
        assert body == "The model does not take this file. Send your message without it."

    def test_a_budget_that_is_used_up_is_429(self, site, settings):
        settings.CHATMEMORY = {"BUDGET": {"TOKENS": 1, "PER": "day"}}
        site.answered()

        response, _body = site.answered()

        assert response.status_code == 429
        assert int(response["Retry-After"]) > 0

    def test_while_another_answer_is_in_progress_it_is_409(self, site):
        site.options = {"client_message_id": "m1"}
        site.assistant = Assistant(site.model, tools=[Tool(lambda: "", name="x", description="x")], persist="early")
        taken = leases.take("default", "c", site.user.pk, uuid4())

        response, _body = site.answered()

        leases.end(taken, leases.State.DONE)
        assert (response.status_code, response["Retry-After"]) == (409, "1")

    def test_what_the_chat_does_not_explain_is_djangos(self, site):
        site.assistant.model = ScriptedModel(ZeroDivisionError("secret"))

        with pytest.raises(ZeroDivisionError):
            site.answered()


class TestLater:
    def test_a_text_breaks_off(self, site):
        site.assistant.model = ScriptedModel(UnavailableError("secret"), words_before_error=2)
        if site.is_async and not site.is_asgi:  # complete before anything is sent
            assert site.answered()[0].status_code == 502
            return

        with pytest.raises(UnavailableError):
            site.answered()

    @pytest.mark.parametrize(
        ("protocol", "end"),
        [
            ("sse", "data: word1 \n\nevent: error\ndata: The model gave no answer. Try again.\n\n"),
            ("ui", 'data: {"type":"error","errorText":"The model gave no answer. Try again."}\n\ndata: [DONE]\n\n'),
        ],
    )
    def test_a_stream_of_events_ends_with_the_error(self, site, protocol, end, caplog):
        site.assistant.model = ScriptedModel(UnavailableError("secret"), words_before_error=2)
        site.options = {"protocol": protocol}

        response, body = site.answered()

        assert (response.status_code, body.endswith(end)) == (200, True)
        assert "An answer in the conversation 'c' failed with UnavailableError." in caplog.text
        assert "secret" not in caplog.text + body


class TestTransactions:
    @pytest.fixture
    def atomic_requests(self, monkeypatch) -> None:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)

    @pytest.fixture(params=["a sync view under WSGI", "a sync view under ASGI"])
    def site(self, request, monkeypatch, settings) -> Site:
        is_async, is_asgi = KINDS[request.param]
        return Site(monkeypatch, settings, is_async=is_async, is_asgi=is_asgi)

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_with_atomic_requests_the_answer_is_outside_of_the_views(self, site, atomic_requests, persist):
        inside: list[bool] = []

        def look() -> str:
            """Look."""
            inside.append(connection.in_atomic_block)
            return "Hamburg"

        model = ScriptedModel(calling(("c1", "look", "{}")), "Hamburg.")
        site.assistant = Assistant(model, tools=[look], persist=persist)

        def in_transaction(view):
            def wrapped(request, memory_id):
                inside.append(connection.in_atomic_block)
                return view(request, memory_id)

            return wrapped

        site.decorated = in_transaction
        assert site.answered()[1] == "Hamburg. "

        assert inside == [True, False]
        assert Message.objects.filter(is_complete=True).count() == 4

    def test_an_answer_that_breaks_off_leaves_what_its_tools_did(self, site, atomic_requests):
        def look() -> str:
            """Look."""
            return "Hamburg"

        model = ScriptedModel(calling(("c1", "look", "{}"), text="So."), UnavailableError("x"), words_before_error=1)
        site.assistant = Assistant(model, tools=[look])

        with pytest.raises(UnavailableError):
            site.answered()

        assert [row.type for row in Message.objects.order_by("sequence")] == ["USER", "AI", "TOOL_EXECUTION_RESULT"]

    def test_what_the_view_wrote_before_is_there(self, site, atomic_requests):
        def creating(view):
            def wrapped(request, memory_id):
                Conversation.objects.create(memory_id=memory_id, owner=request.user, title="Parcels")
                return view(request, memory_id)

            return wrapped

        site.decorated = creating
        assert site.answered()[1] == "On its way. "

        assert (Conversation.objects.get().title, Message.objects.count()) == ("Parcels", 2)

    def test_a_transaction_of_the_views_own_has_ended_too(self, site):
        site.decorated = transaction.atomic

        assert site.answered()[1] == "On its way. "
        assert Message.objects.count() == 2


def test_decorators_of_the_view_change_the_response(monkeypatch, settings):
    site = Site(monkeypatch, settings, is_async=False, is_asgi=True)
    site.assistant.model = ScriptedModel("word " * 500)
    site.decorated = lambda view: gzip_page(cache_control(private=True)(view))

    client = AsyncClient()

    async def asked():
        await client.aforce_login(site.user)
        return await client.post("/c", {"message": "x"}, headers={"accept-encoding": "gzip"})

    site.answered()
    site.assistant.model = ScriptedModel("word " * 500)
    response = run(asked())

    assert response["Content-Encoding"] == "gzip"
    assert "private" in response["Cache-Control"]


def test_a_client_that_leaves_cancels_it_and_nothing_is_stored(monkeypatch, settings):
    site = Site(monkeypatch, settings, is_async=True, is_asgi=True)

    async def left():
        client = AsyncClient()
        await client.aforce_login(site.user)
        response = await client.post("/c", {"message": "x"})
        pieces = response.streaming_content
        async for piece in pieces:
            if piece:
                break
        await pieces.aclose()
        await response._iterator.aclose()

    site.answered()
    site.assistant.model = ScriptedModel("One two three")
    count = Message.objects.count()
    run(left())

    assert Message.objects.count() == count


class Tenant:
    """What a middleware sets on the connection of a request, until that has its response, and ``THREAD_CONTEXT``."""

    def __init__(self) -> None:
        self._here = threading.local()

    def name(self) -> str:
        return getattr(self._here, "name", "")

    def capture(self, request) -> str:
        return "acme"

    @contextmanager
    def enter(self, name: str):
        before, self._here.name = self.name(), name
        try:
            yield
        finally:
            self._here.name = before


TENANT = Tenant()


def tenant_middleware(get_response):
    def middleware(request):
        with TENANT.enter("acme"):
            return get_response(request)

    return middleware


@pytest.mark.parametrize("persist", ["late", "early"])
def test_an_answer_belongs_to_the_tenant_whose_middleware_has_ended_before_it(site, settings, persist):
    settings.MIDDLEWARE = [f"{__name__}.tenant_middleware", *settings.MIDDLEWARE]
    settings.CHATMEMORY = {"CHAT": {"THREAD_CONTEXT": TENANT}}
    seen: list[tuple[str, str]] = []

    def look() -> str:
        """Look."""
        seen.append(("tool", TENANT.name()))
        return "Hamburg"

    async def find() -> str:
        """Find."""
        seen.append(("async tool", await sync_to_async(TENANT.name)()))
        return "Hamburg"

    def title(question, answer) -> str:
        seen.append(("title", TENANT.name()))
        return "Parcels"

    def stored(**kwargs) -> None:
        seen.append(("stored", TENANT.name()))

    calls = calling(("c1", "look", "{}"), *([("c2", "find", "{}")] if site.is_asgi else []), text="So.")
    site.assistant = Assistant(ScriptedModel(calls, "In Hamburg."), tools=[look, find], title=title, persist=persist)
    messages_added.connect(stored)
    try:
        assert site.answered()[1].split() == ["So.", "In", "Hamburg."]
    finally:
        messages_added.disconnect(stored)

    assert {what for what, _ in seen} >= {"tool", "title", "stored"}
    assert {tenant for _, tenant in seen} == {"acme"}


@pytest.mark.parametrize("kind", ["a sync view under WSGI", "an async view under ASGI"])
def test_who_leaves_an_answer_lets_it_end_for_its_tenant(monkeypatch, settings, kind):
    is_async, is_asgi = KINDS[kind]
    site = Site(monkeypatch, settings, is_async=is_async, is_asgi=is_asgi)
    site.answered()
    settings.MIDDLEWARE = [f"{__name__}.tenant_middleware", *settings.MIDDLEWARE]
    settings.CHATMEMORY = {"CHAT": {"THREAD_CONTEXT": TENANT}}
    seen: list[str] = []

    def stored(**kwargs) -> None:
        seen.append(TENANT.name())

    def left(client: Client) -> None:
        response = client.post("/d", {"message": "x"})
        next(iter(response.streaming_content))
        response._iterator.close()

    async def aleft() -> None:
        client: Any = (AsyncClient if is_asgi else Client)()
        await client.aforce_login(site.user)
        if not is_asgi:
            return await sync_to_async(left)(client)
        response = await client.post("/d", {"message": "x"})
        await anext(response.streaming_content)
        await response._iterator.aclose()
        await asyncio.sleep(0)  # it is closed in the loop, and soon
        return await all_afterwards()

    site.assistant = Assistant(ScriptedModel("One two three"), keep_partial=True)
    messages_added.connect(stored)
    try:
        run(aleft())
    finally:
        messages_added.disconnect(stored)

    assert seen == ["acme"]


@pytest.mark.parametrize("is_async", [True, False])
def test_a_client_that_goes_while_it_is_sent_a_piece_ends_the_answer(monkeypatch, settings, is_async):
    """Django stops reading then, and closes no asynchronous generator."""
    site = Site(monkeypatch, settings, is_async=is_async, is_asgi=True)
    site.options, site.message = {"owner": site.user}, UserMessage("x")
    site.serve()
    model = ScriptedModel(calling(("c1", "look", "{}")), "In Hamburg, I think.")
    site.assistant = Assistant(model, tools=[look])

    async def served():
        await leave(get_asgi_application(), "/d")
        await all_afterwards()
        return await sync_to_async(list)(
            Run.objects.filter(conversation__memory_id="d").values_list("state", flat=True)
        )

    gc.disable()  # as that would end it, at some time
    try:
        states = run(served())  # seen in the loop, which ends it, too
    finally:
        gc.enable()

    assert states == ["stopped"]


def look() -> str:
    """Look."""
    return "Hamburg"


def failing_middleware(get_response):
    def middleware(request):
        get_response(request)
        raise ValueError("The session was deleted.")

    return middleware


def test_a_response_that_is_dropped_leaves_no_answer_in_progress(site, settings):
    settings.MIDDLEWARE = [f"{__name__}.failing_middleware", *settings.MIDDLEWARE]
    site.options, site.message = {"owner": site.user, "persist": "early"}, UserMessage("x")
    site.assistant = Assistant(ScriptedModel("In Hamburg, I think."), tools=[look])
    site.serve()

    async def dropped() -> list[str]:
        client: Any = (AsyncClient if site.is_asgi else Client)(raise_request_exception=False)
        if site.is_asgi:
            await client.get("/c")
        else:
            await sync_to_async(client.get)("/c")
        await asyncio.sleep(0)  # the event loop closes it
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        return await sync_to_async(list)(Run.objects.values_list("state", flat=True))

    gc.disable()
    try:
        states = run(dropped())
    finally:
        gc.enable()

    is_whole = site.is_async and not site.is_asgi
    assert states == ["done" if is_whole else "stopped"]
