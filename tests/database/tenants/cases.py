"""What holds on each site of ``test_tenants``: two tenants, whose users and conversations have the same keys."""

import asyncio
import json
import os
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

import httpx
import pytest
from django.conf import settings as django_settings
from django.contrib.auth import get_user_model
from django.core.asgi import get_asgi_application
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction
from django.http import HttpRequest
from django.test import Client
from django.utils import timezone
from mysite.tenants import thread_context
from rest_framework.authtoken.models import Token

from chatmemory_django.chat import worker as worker_module
from chatmemory_django.chat.models import AnswerChunk, Run, ToolApproval
from chatmemory_django.chat.runs import answers as answers_module
from chatmemory_django.chat.runs import deleting, following, renewals, writing
from chatmemory_django.chat.runs.deleting import Deletion
from chatmemory_django.chat.threads import all_afterwards
from chatmemory_django.chat.worker import Worker
from chatmemory_django.models import Conversation, Message
from tests.database.tenants.assistants import Model, assistant, gates, place, worked
from tests.waiting import wait_until

KIND = os.environ["KIND"]
ACME, GLOBEX = TENANTS = ("acme", "globex")
KEY = "0123456789abcdef0123456789abcdef01234567"
HEADERS = {"Authorization": f"Token {KEY}", "Accept": "text/event-stream"}
TABLES = ("conversation", "message", "chat_run", "chat_answerchunk", "chat_modelcall", "chat_toolapproval")


@contextmanager
def at(tenant: str) -> Iterator[None]:
    with thread_context.enter(tenant):
        yield


@pytest.fixture(scope="session", autouse=True)
def tenants(django_db_blocker) -> Iterator[None]:
    """Create the tenants, and a user of each, who have the same key and the same token, or are the same."""
    with django_db_blocker.unblock():
        before = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0, autoclobber=True)
        if KIND == "rows":
            user()
        else:
            from customers.models import Customer, Domain

            for name in TENANTS:
                Domain.objects.create(domain=f"{name}.localhost", tenant=saved(Customer(schema_name=name)))
                with at(name):
                    if KIND == "schemas" or name == ACME:
                        user()
        yield
        connections.close_all()
        connection.creation.destroy_test_db(before, verbosity=0)


def saved(customer):
    customer.save(verbosity=0)
    return customer


def user() -> None:
    ann = get_user_model().objects.create_user("ann")
    Token.objects.create(user=ann, key=KEY)


@pytest.fixture(params=["object", "function"])
def kind_of_context(request, settings) -> str:
    """Use the context of the page, or a function of the request instead."""
    if request.param == "function":
        settings.CHATMEMORY = with_chat(THREAD_CONTEXT=of_request)
    return request.param


def with_chat(**changed: Any) -> dict[str, Any]:
    """Return the site's settings with those of the chat *changed*."""
    given = django_settings.CHATMEMORY
    return {**given, "CHAT": {**given["CHAT"], **changed}}


def of_request(request: HttpRequest):
    return thread_context.enter(thread_context.capture(request))


@pytest.fixture(autouse=True)
def alone(tenants: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run quickly, leave nothing, and look whether anything was stored at no tenant."""
    monkeypatch.setattr(renewals, "RENEW", 0.02)
    for module in (answers_module, following, writing):
        monkeypatch.setattr(module, "INTERVAL", 0.02)
    worked.clear()
    yield
    for each in (*renewals.Renewal.running, *Deletion.running):
        each.stop()
    if KIND == "shared":
        with connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"SELECT count(*) FROM public.chatmemory_{table}")
                assert cursor.fetchone() == (0,), table
    for tenant in TENANTS:
        with at(tenant):
            Conversation.objects.all().delete()
            AnswerChunk.objects.all().delete()


def asynchronous(test: Callable[..., Coroutine]) -> Callable:
    @wraps(test)
    def wrapper(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return wrapper


def body(text: str, chat_id: str = "same") -> dict:
    message = {"id": uuid.uuid4().hex[:16], "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": chat_id, "message": message}


async def send(tenant: str, method: str, path: str, **options: object) -> httpx.Response:
    transport = httpx.ASGITransport(get_asgi_application())
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{tenant}.localhost") as client:
        return await client.request(method, f"/api/{path}", headers=HEADERS, timeout=60, **options)


def text_of(content: bytes) -> str:
    events = [json.loads(each.removeprefix("data: ")) for each in content.decode().split("\n\n")[:-2]]
    assert not [each for each in events if each["type"] == "error"], events
    return "".join(each["delta"] for each in events if each["type"] == "text-delta")


async def say(tenant: str, text: str, chat_id: str = "same") -> str:
    response = await send(tenant, "POST", "chat", json=body(text, chat_id))
    assert response.status_code == 200, response.text
    return text_of(response.content)


async def say_all(tenant: str, texts: Sequence[str]) -> str:
    answer = [await say(tenant, text) for text in texts][-1]
    await all_afterwards()
    return answer


def say_by_wsgi(tenant: str, text: str, chat_id: str = "same") -> str:
    client = Client(headers={**HEADERS, "Host": f"{tenant}.localhost"})
    response = client.post("/api/chat", json.dumps(body(text, chat_id)), content_type="application/json")
    assert response.status_code == 200, response.content
    return text_of(response.content if not response.streaming else b"".join(response))


@asynccontextmanager
async def waiting(tenant: str, chat_id: str = "same"):
    """Let an answer wait for its gate."""
    name = f"wait {uuid.uuid4().hex}"
    asked = asyncio.create_task(say(tenant, name, chat_id))

    def has_begun() -> bool:
        with at(tenant):
            return AnswerChunk.objects.filter(data__contains="one ").exists()

    assert await asyncio.to_thread(left(lambda: wait_until(has_begun)))
    try:
        yield asked, gates[name]
    finally:
        gates[name].set()


def left(function: Callable[[], object]) -> Callable[[], object]:
    def call() -> object:
        try:
            return function()
        finally:
            connections.close_all()

    return call


async def in_thread(function: Callable[[], object]) -> object:
    return await asyncio.to_thread(left(function))


def count(tenant: str, model: type) -> int:
    with at(tenant):
        return model.objects.count()


class TestAnswers:
    @pytest.mark.parametrize("server", ["asgi", "wsgi"])
    def test_a_secret_of_one_is_not_sent_at_the_other(self, server, kind_of_context):
        def ask(tenant: str, text: str) -> str:
            return asyncio.run(say_all(tenant, [text])) if server == "asgi" else say_by_wsgi(tenant, text)

        assert ask(ACME, "Secret of acme: 4711") == '["Secret of acme: 4711"]'
        assert ask(GLOBEX, "recall") == '["recall"]'
        assert ask(ACME, "recall") == '["Secret of acme: 4711", "recall"]'

        assert [count(each, Message) for each in TENANTS] == [4, 2]
        assert {what for what, _ in worked} >= {"stream", "context", "title"}
        assert Counter(where for _, where in worked)[GLOBEX] == 3

    @pytest.mark.parametrize("server", ["asgi", "wsgi"])
    def test_each_part_works_at_the_tenant(self, server, kind_of_context):
        for tenant in TENANTS:
            worked.clear()
            texts = ("one", "two", "three", "four", "five", "six", "tool where awhere")
            if server == "asgi":
                answer = asyncio.run(say_all(tenant, texts))
            else:
                answer = [say_by_wsgi(tenant, text) for text in texts][-1]
            assert answer == f"{tenant} {tenant}"

            expected = {"stream", "context", "title", "summary", "tool", "async tool"}
            assert {what for what, _ in worked} == expected
            assert {where for _, where in worked} == {tenant}
            with at(tenant):
                assert Conversation.objects.get().title == tenant
                assert {run.context for run in Run.objects.all()} == {tenant if kind_of_context == "object" else ""}

    @pytest.mark.parametrize("view", ["own", "aown"])
    @pytest.mark.parametrize("server", ["asgi", "wsgi"])
    def test_the_answer_of_a_view_is_made_at_the_tenant(self, server, view, kind_of_context):
        for tenant in TENANTS:
            worked.clear()
            path = f"{view}/{tenant}?text=tool where awhere"
            if server == "asgi":
                answer = asyncio.run(send(tenant, "GET", path)).content
            else:
                response = Client(headers={"Host": f"{tenant}.localhost"}).get(f"/api/{path}")
                answer = b"".join(response)

            assert answer.decode().strip() == f"{tenant} {tenant}"
            assert {what for what, _ in worked} == {"stream", "context", "title", "tool", "async tool"}
            assert {where for _, where in worked} == {tenant}
            with at(tenant):
                conversation = Conversation.objects.get()
                assert (conversation.title, conversation.next_sequence) == (tenant, 6)

    @asynchronous
    async def test_many_chats_at_both(self):
        asked = [(TENANTS[number % 2], f"chat {number // 2}") for number in range(20)]

        placed = await asyncio.gather(*(say(tenant, "tool where awhere", name) for tenant, name in asked))
        answer = await asyncio.gather(*(say(tenant, f"Of {tenant}", name) for tenant, name in asked))

        assert placed == [f"{tenant} {tenant}" for tenant, _ in asked]
        assert answer == [json.dumps(["tool where awhere", f"Of {tenant}"]) for tenant, _ in asked]
        assert {await in_thread(lambda each=each: count(each, Conversation)) for each in TENANTS} == {10}

    @asynchronous
    async def test_models_that_do_not_stream_are_asked_at_the_tenant(self, monkeypatch):
        monkeypatch.delattr(Model, "do_stream")

        assert await say(GLOBEX, "Hi.") == "Yes."

        assert ("chat", GLOBEX) in worked

    @asynchronous
    async def test_an_approved_call_runs_at_the_tenant_who_ever_decides(self):
        for tenant in TENANTS:
            assert await say(tenant, "tool approved") == ""
        memory_id = await in_thread(lambda: first(GLOBEX, Conversation).memory_id)
        path = f"conversations/{memory_id}/approvals/"
        [approval] = (await send(GLOBEX, "GET", path, params={})).json()["results"]

        decided = await send(GLOBEX, "POST", path, json={"id": approval["id"], "approved": True})

        assert decided.status_code == 204, decided.text
        assert await in_thread(lambda: wait_until(lambda: ("approved tool", GLOBEX) in worked))
        assert await in_thread(lambda: wait_until(lambda: last_text(GLOBEX) == GLOBEX))
        assert {where for what, where in worked if what == "approved tool"} == {GLOBEX}


def first(tenant: str, model: type):
    with at(tenant):
        return model.objects.first()


def last_text(tenant: str) -> str:
    with at(tenant):
        return Message.objects.order_by("sequence").last().text


class TestStreams:
    @pytest.mark.parametrize("loop", ["same", "another"])
    def test_who_comes_back_reads_their_own(self, loop, kind_of_context):
        def elsewhere(work: Coroutine) -> Coroutine:
            """Run in this event loop, or in another one, as in another process."""
            return work if loop == "same" else asyncio.to_thread(asyncio.run, work)

        @asynchronous
        async def test() -> None:
            async with waiting(ACME) as (asked, gate):
                at_other = await elsewhere(send(GLOBEX, "GET", "chat/same/stream"))
                assert at_other.status_code == 204
                resumed = asyncio.create_task(elsewhere(send(ACME, "GET", "chat/same/stream")))
                async with waiting(GLOBEX) as (other, other_gate):
                    other_gate.set()
                    assert "one " in await other
                gate.set()
                assert text_of((await resumed).content) == await asked

        test()

    @pytest.mark.parametrize("loop", ["same", "another"])
    def test_a_stop_at_one_stops_nothing_at_the_other(self, loop, kind_of_context):
        async def stop(tenant: str) -> bool:
            work = send(tenant, "POST", "chat/same/stop")
            response = await (work if loop == "same" else asyncio.to_thread(asyncio.run, work))
            return response.json()["stopped"]

        @asynchronous
        async def test() -> None:
            async with waiting(ACME) as (asked, _):
                assert not await stop(GLOBEX)
                async with waiting(GLOBEX) as (other, other_gate):
                    assert await stop(ACME)
                    assert await asked == "one "
                    assert not other.done()
                    other_gate.set()
                    assert (await other).startswith('one ["wait')

        test()
        with at(ACME):
            assert [run.state for run in Run.objects.all()] == ["stopped"]

    @asynchronous
    async def test_runs_with_the_same_key_are_apart(self):
        """As those of a schema that was cloned meanwhile."""
        if KIND == "rows":
            pytest.skip("Their keys are unique")
        async with waiting(ACME) as (asked, gate):
            await in_thread(copy_run)
            stopped = asyncio.create_task(send(GLOBEX, "POST", "chat/same/stop"))
            assert await in_thread(lambda: wait_until(lambda: first(GLOBEX, Run).is_stopping))
            assert not (await in_thread(lambda: first(ACME, Run))).is_stopping
            assert not asked.done()
            gate.set()
            assert (await asked).startswith('one ["wait')
            await in_thread(end_copy)
            await stopped

    @asynchronous
    async def test_the_runs_of_each_are_renewed(self, kind_of_context):
        async with waiting(ACME) as (_, gate), waiting(GLOBEX) as (_, other_gate):
            for tenant in TENANTS:
                lease = (await in_thread(lambda t=tenant: first(t, Run))).lease
                assert await in_thread(lambda t=tenant, b=lease: wait_until(lambda: first(t, Run).lease > b))
            assert len(renewals.Renewal.running) == 1
            gate.set()
            other_gate.set()
        assert await in_thread(lambda: wait_until(lambda: not renewals.Renewal.running))

    def test_ended_streams_of_each_are_deleted(self, kind_of_context, monkeypatch):
        monkeypatch.setattr(deleting, "KEEP", 0.2)
        deleting.deletion.cache_clear()
        try:
            for tenant in TENANTS:
                asyncio.run(say(tenant, "Hi."))
            assert wait_until(lambda: not Deletion.running)
            assert {count(tenant, AnswerChunk) for tenant in TENANTS} == {0}
        finally:
            deleting.deletion.cache_clear()

    @asynchronous
    async def test_a_tenant_that_is_gone_delays_no_other(self, monkeypatch, caplog):
        async with waiting(ACME) as (asked, gate):
            enter = type(thread_context).enter

            def broken(self: object, tenant: str):
                if tenant == ACME:
                    raise DatabaseError("This tenant is gone.")
                return enter(self, tenant)

            with monkeypatch.context() as patched:
                patched.setattr(type(thread_context), "enter", broken)
                assert "one " in await long_one(GLOBEX)
                assert not asked.done()
            gate.set()
            assert (await asked).startswith('one ["wait')
        assert caplog.text.count("could not be written; the next writes try again") == 1


def copy_run() -> None:
    run = first(ACME, Run)
    with at(GLOBEX):
        ann = get_user_model().objects.get()
        conversation = Conversation.objects.create(memory_id=f"{ann.pk}:same", owner=ann)
        moments = dict.fromkeys(["lease", "listened_at", "created_at"], run.lease)
        Run.objects.create(
            pk=run.pk, conversation=conversation, active=conversation.pk, fence=1, next_sequence=1, **moments
        )
    threading.Thread(target=left(keep_alive), daemon=True).start()


def keep_alive() -> None:
    with at(GLOBEX):
        while Run.objects.filter(active__isnull=False).exists():
            renewals.renew_leases("default", [Run.objects.get().pk])


def end_copy() -> None:
    with at(GLOBEX):
        Run.objects.update(active=None, state="done")


async def long_one(tenant: str) -> str:
    async with waiting(tenant) as (asked, gate):
        await asyncio.sleep(0.1)  # some writes
        gate.set()
        return await asked


class TestContexts:
    @pytest.mark.parametrize("where", ["enter", "exit", "capture"])
    def test_their_errors_end_the_request(self, where, monkeypatch, caplog):
        @contextmanager
        def enter(self: object, tenant: str) -> Iterator[None]:
            if where == "enter":
                raise ValueError("Broken.")
            with own(self, tenant):
                yield
            raise ValueError("Broken.")

        def capture(self: object, request: HttpRequest) -> str:
            raise ValueError("Broken.")

        own = type(thread_context).enter
        with monkeypatch.context() as patched:
            if where == "capture":
                patched.setattr(type(thread_context), "capture", capture)
            else:
                patched.setattr(type(thread_context), "enter", enter)
            with pytest.raises(ValueError, match="Broken"):
                say_by_wsgi(ACME, "Hi.")

        assert [count(each, Message) for each in TENANTS] == [0, 0]
        assert say_by_wsgi(ACME, "Hi.") == '["Hi."]'

    @asynchronous
    async def test_they_may_be_transactions(self, monkeypatch):
        """As for SET LOCAL."""

        @contextmanager
        def enter(self: object, tenant: str) -> Iterator[None]:
            with own(self, tenant), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL application_name = 'chat'")
                yield

        own = type(thread_context).enter
        monkeypatch.setattr(type(thread_context), "enter", enter)
        assert await say(ACME, "tool where awhere") == f"{ACME} {ACME}"
        async with waiting(ACME, "other") as (asked, gate):
            lease = (await in_thread(lambda: last_run(ACME))).lease
            assert await in_thread(lambda: wait_until(lambda: last_run(ACME).lease > lease))
            gate.set()
            await asked

    def test_no_thread_is_left_in_one(self):
        asyncio.run(say(ACME, "tool where awhere"))
        from chatmemory_django.db import threads

        for executor in (threads.background(), threads._slow()):
            for found in [executor.submit(left(place)) for _ in range(64)]:
                assert found.result() in {"public", "", None}


def last_run(tenant: str) -> Run:
    with at(tenant):
        return Run.objects.order_by("created_at").last()


class TestElsewhere:
    @asynchronous
    async def test_rest_follows_the_request(self):
        await say(ACME, "Hi.")

        found = {tenant: (await send(tenant, "GET", "conversations/")).json()["results"] for tenant in TENANTS}

        assert {tenant: len(each) for tenant, each in found.items()} == {ACME: 1, GLOBEX: 0}

    def test_an_assistant_of_ones_own_views_shows_that_it_is_alive(self):
        """Its request shows where."""
        request = HttpRequest()
        request.META["HTTP_HOST"] = f"{GLOBEX}.localhost"
        name = f"wait {uuid.uuid4().hex}"
        with at(GLOBEX):
            ann = get_user_model().objects.get()
            request.tenant = connection.tenant if KIND != "rows" else None
            events = assistant.stream("own", name, owner=ann, request=request, persist="early")
            next(events)
            before = Run.objects.get().lease
            assert wait_until(lambda: Run.objects.get().lease > before)
            gates[name].set()
            assert list(events)
            assert Run.objects.get().state == "done"

    def test_the_mcp_server_has_no_middleware(self):
        pytest.importorskip("mcp")
        from chatmemory_django.contrib.mcp import get_mcp_app

        asyncio.run(say(ACME, "Teapot"))
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "search_conversations", "arguments": {"query": "teapot"}},
        }

        async def ask(tenant: str) -> str:
            transport = httpx.ASGITransport(get_mcp_app())
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{tenant}.localhost") as client:
                headers = {"Authorization": f"Bearer {KEY}", "Accept": "application/json, text/event-stream"}
                return (await client.post("/", json=call, headers=headers)).text

        assert "eapot" in asyncio.run(ask(ACME)).replace('"query"', "")
        assert "eapot" not in asyncio.run(ask(GLOBEX))

    def test_commands_run_for_each(self, capsys):
        for tenant in TENANTS:
            asyncio.run(say(tenant, "Hi."))
        with at(ACME):
            Run.objects.update(ended_at="2020-01-01T00:00:00Z")

        if KIND == "rows":
            with as_a_role_that_sees_all_rows():
                call_command("prune_chatmemory")
        else:
            call_command("all_tenants_command", "prune_chatmemory", no_public=True)

        assert [count(tenant, Run) for tenant in TENANTS] == [0, 1]
        assert capsys.readouterr().out.count("Erased 0 idle") == 1 + (KIND != "rows")


class TestWorkers:
    @pytest.fixture
    def worker(self, settings, monkeypatch) -> Callable[[], Worker]:
        """Let workers generate the answers; they look at each tenant."""
        monkeypatch.setattr(worker_module, "POLL", 0.02)
        monkeypatch.setattr(worker_module, "DECIDED_EVERY", 0.02)
        settings.CHATMEMORY = with_chat(RUNS="worker")
        return lambda: Worker(["default"], lambda: TENANTS)

    def test_one_worker_answers_each_at_its_tenant(self, worker):
        async def ask_all() -> list[str]:
            one = worker()
            working = asyncio.create_task(one.work())
            answered = await asyncio.gather(*(say(tenant, "tool where awhere") for tenant in TENANTS))
            one.end()
            await working
            return answered

        assert asyncio.run(asyncio.wait_for(ask_all(), 60)) == ["acme acme", "globex globex"]
        assert {where for _, where in worked} == set(TENANTS)
        assert [count(each, Message) for each in TENANTS] == [5, 5]
        for tenant in TENANTS:
            with at(tenant):
                assert (Run.objects.get().state, Run.objects.get().context) == ("done", tenant)

    def test_it_goes_on_where_a_process_has_died_and_where_somebody_has_decided(self, worker):
        def ask(tenant: str, text: str) -> None:
            request = HttpRequest()
            request.META["HTTP_HOST"] = f"{tenant}.localhost"
            with at(tenant):
                request.tenant = connection.tenant if KIND != "rows" else None
                assistant.start(f"{tenant}:own", text, owner=get_user_model().objects.get(), request=request)

        async def work_off() -> None:
            await worker().work_off()

        ask(ACME, "tool where")
        assert wait_until(lambda: not renewals.Renewal.running)  # none may come after this
        with at(ACME):
            Run.objects.update(state="running", lease="2020-01-01T00:00:00Z")
        ask(GLOBEX, "tool approved")
        asyncio.run(asyncio.wait_for(work_off(), 60))
        with at(GLOBEX):
            assert Run.objects.get().state == "waiting"
            ToolApproval.objects.update(approved=True, decided_at=timezone.now() - timedelta(minutes=1))
        worked.clear()

        asyncio.run(asyncio.wait_for(work_off(), 60))

        assert ("approved tool", GLOBEX) in worked
        assert {where for _, where in worked} == {GLOBEX}
        for tenant in TENANTS:
            with at(tenant):
                assert Message.objects.order_by("sequence").last().text == tenant
                assert Run.objects.order_by("created_at").last().state == "done"


@contextmanager
def as_a_role_that_sees_all_rows() -> Iterator[None]:
    before = connection.settings_dict["USER"]
    connection.close()
    connection.settings_dict["USER"] = "postgres"
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["USER"] = before
