"""Answers that a worker generates, where the settings are so: asked in a request, or by code of the site."""

import asyncio
import json
import sys
from collections.abc import Coroutine
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone, translation
from rest_framework.test import APIClient

from chatmemory_django.chat import orders
from chatmemory_django.chat import started as started_module
from chatmemory_django.chat import worker as worker_module
from chatmemory_django.chat.answers.recall import of_question
from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, Resume
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.checks import check_waiting
from chatmemory_django.chat.costs.ledger import BudgetExceededError
from chatmemory_django.chat.model import ChatModelError, ContextLengthError, ModelTimeoutError, RateLimitError
from chatmemory_django.chat.models import Run, ToolApproval
from chatmemory_django.chat.orders import decided
from chatmemory_django.chat.runs import answers as answers_module
from chatmemory_django.chat.runs import following, leases, writing
from chatmemory_django.chat.runs.answer import InterruptedAnswerError
from chatmemory_django.chat.started import AnswerFailedError, StartedRun
from chatmemory_django.chat.tools import Tool
from chatmemory_django.chat.worker import Worker
from chatmemory_django.db.moments import DatabaseNow
from chatmemory_django.management.commands import run_chatmemory
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import answer_waits
from chatmemory_django.stores.base import BusyError
from tests.asgi import run
from tests.faces.chat.approvals.test_outputs import (
    LOCATE,
    MEMORY_ID,
    PAY,
    answer_of,
    chunks,
    put_out,
    send,
    talk,
)
from tests.faces.chat.http.test_http import ann, bob, chat, no_throttle, user
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.waiting import wait_until

__all__ = ["ann", "bob", "chat", "no_throttle", "talk"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

T = TypeVar("T")

left_in = leases.left

TOO_LONG = "Your message is too long for the model, with what was written before. Send a shorter one."


@pytest.fixture(autouse=True)
def for_workers(no_throttle, settings, monkeypatch):
    settings.CHATMEMORY["CHAT"]["RUNS"] = "worker"
    for module in (answers_module, following, writing):
        monkeypatch.setattr(module, "INTERVAL", 0.02)
    monkeypatch.setattr(started_module, "INTERVAL", 0.02)
    monkeypatch.setattr(worker_module, "POLL", 0.02)
    monkeypatch.setattr(worker_module, "DECIDED_EVERY", 0.02)


async def with_worker(asking: Coroutine[None, None, T]) -> T:
    """Return what *asking* returns, while a worker is at work."""
    worker = Worker(["default"])
    working = asyncio.create_task(worker.work())
    try:
        return await asyncio.wait_for(asking, 120)
    finally:
        worker.end()
        await working


def work_off() -> None:
    """Do all that waits, as a task does."""
    run(Worker(["default"]).work_off())


def client_of(owner) -> APIClient:
    client = APIClient()
    client.force_authenticate(owner)
    return client


def text_of(events: list[dict]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "text-delta").strip()


def history() -> list[str]:
    return [row.text for row in Conversation.objects.get().history()]


class TestAsked:
    def test_the_request_stores_the_question_and_the_worker_answers(self, chat):
        events = run(with_worker(chat("Hello, Ann.").say("Hi.")))

        assert text_of(events) == "Hello, Ann."
        assert history() == ["Hi.", "Hello, Ann."]
        one = Run.objects.get()
        assert (one.state, one.question, one.asked) == ("done", 1, "")

    def test_the_functions_of_the_site_are_called_by_the_worker_without_a_request(self, chat):
        called = []

        def system(owner, request):
            called.append((owner.username, request, translation.get_language()))
            return "Be brief."

        async def context(question, request=None):
            called.append((question.single_text, request))
            return "It rains."

        client = chat("Hello.", system_message=system, context=context)

        async def ask():
            return await chunks(await client.post({"id": "c", "messages": [user("Hi.")]}, **{"Accept-Language": "de"}))

        assert text_of(run(with_worker(ask()))) == "Hello."
        assert called == [("ann", None, "de"), ("Hi.", None)]
        [sent] = client.model.sent
        assert [each.type for each in sent] == ["SYSTEM", "USER"]
        assert text_of(run(with_worker(client.say("And now?")))) == "Hello."
        assert [each.type for each in client.model.sent[1]] == ["SYSTEM", "USER", "AI", "USER"]

    def test_the_worker_makes_the_tools_recalls_and_shows_the_days(self, chat, ann):
        def look() -> str:
            """Look."""
            return "nothing"

        get_chat_memory("old", owner=ann).add(UserMessage("I am allergic to hazelnuts"))
        client = chat("Yes.", tools=lambda owner: [look], context=of_question(), dates=True)

        assert text_of(run(with_worker(client.say("Are there hazelnuts?")))) == "Yes."

        [request] = client.model.requests
        day, quoted, question = (each.text for each in request.messages[0].contents)
        assert [tool.name for tool in request.tools] == ["look"]
        assert day.startswith("[20")
        assert "allergic" in quoted
        assert question == "Are there hazelnuts?"

    def test_after_a_pause_the_worker_sends_what_is_sent_later(self, chat):
        options = {"max_messages": 20, "evict_to": 4, "idle": timedelta(minutes=5)}
        client = chat("Yes.", memory=MessageWindowChatMemory, memory_options=options)
        for number in range(4):
            run(with_worker(client.say(f"Question {number}")))
        Conversation.objects.update(updated_at=timezone.now() - timedelta(minutes=6))

        for number in range(4, 6):
            run(with_worker(client.say(f"Question {number}")))

        before, first, second = client.model.sent[-3:]
        assert len(before) == 7
        assert [each.single_text for each in first[::2]] == ["Question 2", "Question 3", "Question 4"]
        assert second[: len(first)] == first

    def test_a_function_that_returns_the_assistant_is_given_what_was_asked(self, chat, settings, ann):
        client, given = chat("Hello."), []

        def assistant(request=None, asked=None):
            given.append((request is None, asked.id, asked.user, asked.body, asked.message.single_text))
            return client.assistant

        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = assistant

        run(with_worker(client.say("Hi.", model="small")))

        assert given == [(False, "c", ann, {"model": "small"}, "Hi."), (True, "c", ann, {"model": "small"}, "Hi.")]

    def test_what_is_kept_of_the_request_is_gone_with_the_end(self, chat):
        client = chat("Hello.")

        async def ask():
            response = await client.post({"id": "c", "messages": [user("Hi.")]})
            asked = json.loads((await Run.objects.aget()).asked)
            return asked, await with_worker(chunks(response))

        asked, _ = run(ask())

        assert asked["chat_id"] == "c"
        assert Run.objects.get().asked == ""

    def test_a_program_that_accepts_only_json_gets_the_message_or_the_error(self, chat):
        client = chat("Hello.", ChatModelError("It is down."))

        async def ask(text: str):
            return await client.post({"id": "c", "messages": [user(text)]}, Accept="application/json")

        good, bad = run(with_worker(ask("Hi."))), run(with_worker(ask("And now?")))

        assert good.status_code == 200
        assert good.json()["message"]["parts"][-1]["text"] == "Hello."
        assert (bad.status_code, bad.json()["detail"]) == (502, "The model gave no answer. Try again.")

    @pytest.mark.parametrize(
        ("error", "status", "text"),
        [
            (ContextLengthError("No."), 422, TOO_LONG),
            (RateLimitError("No."), 503, "The model has too much to do. Try again in a moment."),
            (ModelTimeoutError("60 s"), 504, "The model took too long. Try again."),
        ],
    )
    @pytest.mark.parametrize("runs", ["request", "worker"])
    def test_its_error_has_the_same_status_and_text_whichever_process_calls_the_model(
        self, chat, settings, runs, error, status, text
    ):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": {**settings.CHATMEMORY["CHAT"], "RUNS": runs}}
        client = chat(error)
        ask = client.post({"id": "c", "messages": [user("Hi.")]}, Accept="application/json")

        bad = run(with_worker(ask) if runs == "worker" else ask)

        assert (bad.status_code, bad.json()["status"], bad.json()["detail"]) == (status, status, text)

    def test_what_is_refused_is_refused_in_the_request(self, chat, settings):
        client = chat("Hello.", memory_options={"max_messages": 5})
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 0, "PER": "day"}

        response = run(client.post({"id": "c", "messages": [user("Hi.")]}))

        assert response.status_code == 429
        assert not Conversation.objects.exists()

    def test_the_same_question_again_is_answered_without_a_worker_once_it_is_stored(self, chat):
        client = chat("Hello.", "Hello again.")
        run(with_worker(client.say("Hi.", "m1")))

        assert text_of(run(client.say("Hi.", "m1"))) == "Hello."
        assert text_of(run(with_worker(client.regenerate()))) == "Hello again."
        assert history() == ["Hi.", "Hello again."]

    @pytest.mark.slow  # nobody may have left it: that takes LEFT_AFTER
    def test_another_question_waits_for_its_turn_also_where_no_worker_is_there(self, chat):
        client = chat("Hello.")

        async def ask():
            first = await client.post({"id": "c", "messages": [user("Hi.")]})
            listening = asyncio.create_task(chunks(first))
            second = await client.post({"id": "c", "messages": [user("And now?")]})
            return second.status_code, await with_worker(listening)

        status, events = run(ask())

        assert status == 409
        assert text_of(events) == "Hello."

    def test_one_that_waits_is_stopped_at_once(self, chat):
        client = chat("Hello.")

        async def stop():
            listening = asyncio.create_task(client.say("Hi."))
            while not await Run.objects.filter(state="asked").aexists():
                await asyncio.sleep(0.01)
            await asyncio.wait_for(client.post({}, "/c/stop"), 60)
            return await asyncio.wait_for(listening, 60)

        run(stop())

        assert (Run.objects.get().state, Run.objects.get().asked) == ("stopped", "")
        work_off()
        assert history() == ["Hi."]

    def test_one_is_stopped_whose_worker_dies_without_another_one(self, chat):
        client = chat("Hello.")

        async def stop():
            listening = asyncio.create_task(client.say("Hi."))
            while not await Run.objects.filter(state="asked").aupdate(state="running", lease=DatabaseNow()):
                await asyncio.sleep(0.01)
            stopping = asyncio.create_task(client.post({}, "/c/stop"))
            while not await Run.objects.filter(is_stopping=True).aupdate(lease=leases.before(60)):
                await asyncio.sleep(0.01)
            await asyncio.wait_for(stopping, 60)
            return await asyncio.wait_for(listening, 60)

        assert run(stop())[-1]["type"] == "abort"
        assert Run.objects.get().state == "stopped"

    @pytest.mark.parametrize("gone", ["stream", "context"])
    def test_one_that_cannot_be_read_keeps_no_other_one_waiting(self, chat, settings, monkeypatch, caplog, gone):
        settings.CHATMEMORY["CHAT"] |= {"ASSISTANT": assistant, "THREAD_CONTEXT": f"{__name__}.Contexts"}
        monkeypatch.setattr(assistant, "model", ScriptedModel("Hello."))
        [broken, *others] = [assistant.start(name, "Hi.").id for name in "abcd"]

        def decoded(maker, pieces):
            if gone == "stream" and maker.answer_id == broken.hex:
                raise ValueError("The key is gone.")
            return list(pieces)

        monkeypatch.setattr(answers_module, "decoded", decoded)
        monkeypatch.setattr(worker_module.random, "shuffle", lambda found: found)
        Run.objects.filter(pk=broken).update(context="gone" if gone == "context" else "")

        work_off()

        assert [StartedRun(each).state for each in others] == ["done"] * 3
        assert StartedRun(broken).state == ("failed" if gone == "stream" else "asked")

    def test_those_whose_context_is_gone_keep_no_other_one_waiting_however_many_they_are(
        self, settings, monkeypatch, caplog
    ):
        settings.CHATMEMORY["CHAT"] |= {"ASSISTANT": assistant, "THREAD_CONTEXT": f"{__name__}.Contexts"}
        monkeypatch.setattr(assistant, "model", ScriptedModel("Hello."))
        [*broken, last] = [assistant.start(name, "Hi.").id for name in "abcdef"]
        for index, each in enumerate(broken):
            Run.objects.filter(pk=each).update(context="gone" if index % 2 else "gone, too")
        looks = []
        monkeypatch.setattr(leases, "left", lambda *given: looks.append(given) or left_in(*given))

        run(Worker(["default"], concurrency=2).work_off())

        assert StartedRun(last).state == "done"
        assert {StartedRun(each).state for each in broken} == {"asked"}
        assert len(looks) < 6

    def test_a_context_that_was_gone_is_tried_again(self, settings, monkeypatch, caplog):
        settings.CHATMEMORY["CHAT"] |= {"ASSISTANT": assistant, "THREAD_CONTEXT": f"{__name__}.Contexts"}
        monkeypatch.setattr(assistant, "model", ScriptedModel("Hello."))
        monkeypatch.setattr(worker_module, "CONTEXTS_EVERY", 0.1)
        one = assistant.start("c", "Hi.")
        Run.objects.update(context="gone")

        async def come_back():
            while "There is no such tenant" not in caplog.text:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(Contexts, "gone", ())
            return await one.aresult()

        assert run(with_worker(come_back())) == "Hello."

    @pytest.mark.parametrize("where", ["model", "context", "title"])
    def test_sys_exit_in_code_of_the_site_ends_the_run_and_not_the_worker(self, chat, caplog, where):
        async def leave(question, answer=None):
            sys.exit(1)

        async def context(question, request=None):
            sys.exit(1)

        class Leaving(ScriptedModel):
            async def do_astream(self, request):
                sys.exit(1)
                yield

        model = Leaving("Hello.") if where == "model" else ScriptedModel("Hello.")
        client = chat(model, **{"title": {"title": leave}, "context": {"context": context}}.get(where, {}))

        async def ask():
            failed = await client.say("Hi.")
            again = chat("Hello.")
            return failed, await again.say("And now?")

        failed, events = run(with_worker(ask()))

        assert failed[-1]["type"] == ("finish" if where == "title" else "error")
        assert text_of(events) == "Hello."
        states = [each.state for each in Run.objects.order_by("created_at")]
        assert states == ["done" if where == "title" else "failed", "done"]

    def test_W036_who_waits_for_a_worker_in_vain_is_in_the_log_too(self, chat, monkeypatch, caplog):
        monkeypatch.setattr(following, "LONG_WAIT", 0.05)
        monkeypatch.setattr("chatmemory_django.chat.checks.WAITING_SECONDS", 0)
        client = chat("Hello.")

        async def wait():
            listening = asyncio.create_task(client.say("Hi."))
            while "run_chatmemory" not in caplog.text:
                await asyncio.sleep(0.01)
            [warning] = await sync_to_async(check_waiting)(databases=["default"])
            await with_worker(listening)
            return warning

        assert run(wait()).id == "chatmemory.W036"
        assert check_waiting(databases=["default"]) == []

    def test_an_assistant_that_is_gone_ends_the_run(self, chat, settings, caplog):
        client = chat("Hello.")

        async def ask():
            response = await client.post({"id": "c", "messages": [user("Hi.")]})
            settings.CHATMEMORY["CHAT"]["ASSISTANT"] = None
            return await with_worker(chunks(response))

        events = run(ask())

        assert events[-1] == {"type": "error", "errorText": "This chat has no assistant."}
        assert Run.objects.get().state == "failed"
        assert 'Set CHATMEMORY["CHAT"]["ASSISTANT"]' in caplog.text

    def test_the_site_hears_that_an_answer_waits(self, chat):
        heard = []

        def hear(sender, memory_id, context, using, **kwargs):
            heard.append((sender, memory_id.partition(":")[2], context, using))

        answer_waits.connect(hear)
        try:
            run(with_worker(chat("Hello.").say("Hi.")))
        finally:
            answer_waits.disconnect(hear)

        assert heard == [(Run, "c", "", "default")]

    def test_what_is_kept_is_stored_as_texts_are(self, chat):
        run(chat("Hello.").post({"id": "c", "messages": [user("Hi.")]}))

        with connection.cursor() as cursor:
            cursor.execute("SELECT asked FROM chatmemory_chat_run")
            [(stored,)] = cursor.fetchall()
        assert stored.startswith("enc") is apps.is_installed("chatmemory_django.contrib.encryption")

    def test_a_look_for_what_waits_is_one_statement(self, chat, django_assert_num_queries):
        run(chat("Hello.").post({"id": "c", "messages": [user("Hi.")]}))

        with django_assert_num_queries(1):
            assert len(leases.left("default", 20)) == 1
        with django_assert_num_queries(1):
            assert decided("default", 20) == []

    def test_what_waits_is_counted_now_and_then_however_often_it_looks_for_decisions(self, monkeypatch):
        counts, looks = [], []

        class Observer:
            def note(self, event, /, **values):
                counts.extend([values] if event == "asked" else [])

        monkeypatch.setattr("chatmemory_django.observing.observers", [Observer()])
        monkeypatch.setattr(worker_module, "DECIDED_EVERY", 60)
        monkeypatch.setattr(worker_module, "decided", lambda *given: looks.append(given) or [])
        worker = Worker(["default"])

        run(worker.work_off())
        run(worker.work_off())

        assert (len(looks), counts) == (2, [{"database": "default", "count": 0}])


class TestDecided:
    def test_a_decision_by_the_chat_runs_the_call_in_the_worker(self, talk):
        client = talk(calling(PAY, text="I pay."), "Done.")
        run(with_worker(client.ask("Pay!")))
        answer = run(answer_of(client))
        [part] = [each for each in answer["parts"] if each["type"] == "tool-pay"]
        part |= {"state": "approval-responded", "approval": {**part["approval"], "approved": True}}

        async def decide():
            return await chunks(await send(client, answer))

        events = run(with_worker(decide()))

        assert text_of(events) == "Done."
        assert history() == ["Pay!", "I pay.", "Paid 5.", "Done."]
        assert [each.state for each in Run.objects.order_by("created_at")] == ["waiting", "done"]

    def test_an_output_of_the_browser_goes_on_in_the_worker(self, talk):
        client = talk(calling(LOCATE, text="I look."), "Done.")
        run(with_worker(client.ask()))

        async def put():
            return await chunks(await send(client, put_out(await answer_of(client))))

        assert text_of(run(with_worker(put()))) == "Done."
        assert history() == ["Where am I?", "I look.", '{"lat":60.4,"lon":5.3}', "Done."]

    @pytest.mark.parametrize("runs", ["worker", "web"])
    @pytest.mark.parametrize("kind", ["decision", "output"])
    def test_the_second_of_two_that_are_the_same_is_refused(self, talk, settings, runs, kind):
        settings.CHATMEMORY["CHAT"]["RUNS"] = runs
        client = talk(calling(PAY if kind == "decision" else LOCATE, text="I look."), "Done.")
        run(with_worker(client.ask("Go!")))
        answer = run(answer_of(client))
        part = answer["parts"][-1]
        if kind == "output":
            answer = put_out(answer)
        else:
            part |= {"state": "approval-responded", "approval": {**part["approval"], "approved": True}}

        async def twice():
            return await chunks(await send(client, answer)), await send(client, answer)

        events, second = run(with_worker(twice()))

        assert text_of(events) == "Done."
        assert (second.status_code, second.content) == (
            409,
            b"Nothing waits here any more. Load the conversation again.",
        )

    @pytest.mark.parametrize("every", [0.02, 3600])
    def test_a_decision_by_rest_goes_on_by_itself(self, talk, ann, monkeypatch, every):
        monkeypatch.setattr(orders, "JUST_NOW", 0.2)
        monkeypatch.setattr(worker_module, "DECIDED_EVERY", every)
        client = talk(calling(PAY, text="I pay."), "Done.")
        run(with_worker(client.ask("Pay!")))
        approval = ToolApproval.objects.get()
        path = f"/api/conversations/{MEMORY_ID}/approvals/"

        decided = client_of(ann).post(path, {"id": str(approval.pk), "approved": True}, format="json")

        assert decided.status_code == 204, decided.content
        work_off()
        assert history() == ["Pay!", "I pay.", "Paid 5.", "Done."]

    def test_one_that_cannot_go_on_is_tried_once(self, talk, settings, caplog):
        client = talk(calling(PAY, text="I pay."), "Done.")
        run(with_worker(client.ask("Pay!")))
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 0, "PER": "day"}
        earlier = ToolApproval.objects.get().requested_at - timedelta(minutes=1)
        ToolApproval.objects.update(approved=True, decided_at=earlier)

        async def look_often():
            await asyncio.sleep(0.5)

        run(with_worker(look_often()))

        assert [each.state for each in Run.objects.order_by("created_at")] == ["waiting", "failed"]
        assert ToolApproval.objects.get().state == "waiting"

    def test_one_whose_context_is_gone_keeps_no_other_one_waiting(self, talk, settings, monkeypatch, caplog):
        monkeypatch.setattr(orders, "JUST_NOW", 0)
        client = talk(calling(PAY), calling(PAY), "Done.")
        for chat_id in (MEMORY_ID, str(uuid4())):
            run(with_worker(client.say("Pay!", chat_id=chat_id)))
        settings.CHATMEMORY["CHAT"]["THREAD_CONTEXT"] = f"{__name__}.Contexts"
        gone = Run.objects.earliest("created_at")
        Run.objects.filter(pk=gone.pk).update(context="gone")
        for approval in ToolApproval.objects.all():
            is_first = approval.conversation_id == gone.conversation_id
            earlier = approval.requested_at - timedelta(minutes=2 if is_first else 1)
            ToolApproval.objects.filter(pk=approval.pk).update(approved=True, decided_at=earlier)

        work_off()

        assert [each.state for each in Run.objects.order_by("created_at")] == ["waiting", "waiting", "done"]
        assert "There is no such tenant" in caplog.text


class TestCommand:
    def test_once_fails_where_the_database_is_away(self, monkeypatch, caplog):
        def left(*given):
            raise OperationalError("connection refused")

        monkeypatch.setattr(leases, "left", left)

        with pytest.raises(CommandError, match=r"'default' is not known: OperationalError\(.connection"):
            call_command("run_chatmemory", "--once")

    def test_once_fails_where_the_contexts_are_not_known(self, caplog):
        with pytest.raises(CommandError, match="In which contexts answers wait is not known: ZeroDivisionError"):
            call_command("run_chatmemory", "--once", "--contexts", f"{__name__}.no_contexts")

    def test_it_waits_at_its_start_for_a_database_that_is_locked_and_once_does_not(self, monkeypatch, capsys):
        checked: list[bool] = []

        def check(self):
            checked.append(True)
            if len(checked) % 2:
                raise OperationalError("database is locked")

        monkeypatch.setattr(run_chatmemory.Command, "check", check)
        monkeypatch.setattr(run_chatmemory, "PAUSE", 0)
        monkeypatch.setattr(Worker, "work", Worker.work_off)

        call_command("run_chatmemory", skip_checks=False)

        assert "waits for a database: database is locked" in capsys.readouterr().err
        assert len(checked) == 2
        with pytest.raises(CommandError, match="database is locked"):
            call_command("run_chatmemory", "--once", skip_checks=False)
        call_command("run_chatmemory", "--once", "--skip-checks")
        assert len(checked) == 3


def no_contexts():
    raise ZeroDivisionError


assistant = Assistant(ScriptedModel("Hello."))


class Contexts:
    """A ``THREAD_CONTEXT`` with tenants that are gone."""

    gone = ("gone", "gone, too")

    @staticmethod
    def capture(request):
        return ""

    @classmethod
    @contextmanager
    def enter(cls, text):
        if text in cls.gone:
            raise RuntimeError("There is no such tenant.")
        yield


class TestStarted:
    @pytest.fixture(params=["web", "worker"])
    def runs(self, request, settings, monkeypatch):
        settings.CHATMEMORY["CHAT"] |= {"RUNS": request.param, "ASSISTANTS": {"one": f"{__name__}.assistant"}}
        monkeypatch.setattr(assistant, "model", ScriptedModel("Hello."))
        return request.param

    def finish(self, runs: str) -> None:
        if runs == "worker":
            work_off()
        assert wait_until(lambda: not Run.objects.filter(active__isnull=False).exists())

    def test_it_can_be_awaited_by_its_id(self, runs, ann):
        one = assistant.start("c", "Hi.", owner=ann)
        self.finish(runs)

        later = StartedRun(str(one.id))
        assert later.result(timeout=60) == "Hello."
        assert run(later.aresult(timeout=60)) == "Hello."
        assert later.state == "done"
        assert text_of(parsed("".join(later.stream()))) == "Hello."
        assert Conversation.objects.get().assistant == "one"

    def test_the_same_message_again_has_the_stored_answer(self, runs):
        for _ in range(2):
            one = assistant.start("c", "Hi.", client_message_id="m1")
            self.finish(runs)
            assert one.result(timeout=60) == "Hello."

        assert len(assistant.model.requests) == 1
        assert history() == ["Hi.", "Hello."]

    def test_who_waits_for_it_listens_so_that_no_other_question_stops_it(self, settings):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = assistant
        one = assistant.start("c", "Hi.")
        Run.objects.update(listened_at=leases.before(60))

        with pytest.raises(TimeoutError):
            one.result(timeout=0)

        assert leases.unheard("default", "c", None)[1] < 5

    def test_it_can_be_watched_and_stopped(self, runs, monkeypatch):
        gate = asyncio.Event()
        monkeypatch.setattr(assistant, "model", ScriptedModel("Hello Ann.", gate=gate))

        async def stop():
            one = await assistant.astart("c", "Hi.")
            pieces = one.astream()
            if runs == "worker":
                assert await sync_to_async(lambda: one.state)() == "asked"
            else:
                assert '"start"' in await anext(pieces)
            with pytest.raises(TimeoutError):
                await one.aresult(timeout=0.1)
            await one.astop()
            with pytest.raises(InterruptedAnswerError):
                await one.aresult(timeout=60)
            return "".join([piece async for piece in pieces])

        run(stop())

        assert Run.objects.get().state == "stopped"

    def test_what_is_refused_is_raised_at_once(self, runs, settings, ann):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 0, "PER": "day"}
        with pytest.raises(BudgetExceededError):
            assistant.start("c", "Hi.", owner=ann)
        assert not Conversation.objects.exists()

    def test_one_at_a_time(self, settings):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = assistant
        assistant.start("c", "Hi.")
        with pytest.raises(BusyError):
            assistant.start("c", "And now?")

    def test_an_answer_that_fails_and_one_that_waits_are_exceptions(self, runs, monkeypatch, caplog):
        monkeypatch.setattr(assistant, "model", ScriptedModel(ChatModelError("It is down.")))
        failing = assistant.start("c", "Hi.")
        self.finish(runs)
        with pytest.raises(AnswerFailedError, match="The model gave no answer"):
            failing.result(timeout=60)

        def pay(amount: int) -> str:
            """Pay an amount."""

        tool = Tool(pay, needs_approval=True)
        monkeypatch.setattr(assistant, "model", ScriptedModel(calling(PAY)))
        monkeypatch.setattr(assistant, "tools", {"pay": tool})
        waiting = assistant.start("d", "Pay!")
        self.finish(runs)
        with pytest.raises(ApprovalRequiredError) as caught:
            waiting.result(timeout=60)
        assert caught.value.requests[0].call.name == "pay"

        monkeypatch.setattr(assistant, "model", ScriptedModel("Not paid."))
        assistant.chat("d", Resume(*(Decision(each.id, False) for each in caught.value.requests)))
        assert waiting.result(timeout=60) == "Not paid."

    def test_none_begins_in_a_transaction_which_it_might_wait_for_without_end(self, runs, ann):
        with transaction.atomic():
            assistant.chat_memory("c", ann).add(UserMessage("Tea?"))
            with pytest.raises(TransactionManagementError, match=r"'default'.*on_commit"):
                assistant.start("c", "Hi.", owner=ann)

        assert not Run.objects.exists()

    def test_an_assistant_that_the_settings_do_not_name_has_no_runs(self, settings):
        with pytest.raises(ImproperlyConfigured, match="by its name"):
            Assistant(ScriptedModel("Hello.")).start("c", "Hi.")

    def test_a_run_that_was_never_there(self):
        from chatmemory_django.stores.base import ConversationErasedError

        with pytest.raises(ConversationErasedError):
            StartedRun(uuid4()).result()


def parsed(text: str) -> list[dict]:
    return [json.loads(each.removeprefix("data: ")) for each in text.split("\n\n") if each.startswith("data: {")]
