"""Calls of tools that run in the client: the answer waits for their outputs, and goes on with each of them once."""

import datetime
import threading
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from chatmemory_django.chat.approvals import (
    ApprovalRequiredError,
    Decision,
    NotPendingError,
    Output,
    Resume,
    approving,
)
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import CLIENT, ApprovalRequested, ChatResponse, ToolChoice, UnavailableError
from chatmemory_django.chat.models import Run, ToolApproval
from chatmemory_django.chat.tools import Tool
from chatmemory_django.chat.ui_messages.writing import IS_JSON
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import BusyError
from tests.asgi import run
from tests.database.chat.approvals.stored import Stored
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

LOCATE = ("c1", "locate", '{"precise": true}')
AGAIN = ("c2", "locate", "{}")
LOOK = ("c3", "look", "{}")
PAY = ("c4", "pay", '{"amount": 5}')
PERMISSION = "chatmemory.clear_conversation"


class Site(Stored):
    """An assistant with a tool that runs in the client, one that runs at once, and one that needs an approval."""

    def __init__(self, *answers, approve_by="owner", **options):
        self.ran = []
        self.model = ScriptedModel(*(answers or (calling(LOCATE, text="I look where you are."), "Done.")))
        self.memory_id = str(uuid4())

        def locate(precise: bool = False) -> dict[str, float]:
            """Return where the user is."""
            raise AssertionError

        def look() -> str:
            """Look."""
            self.ran.append("look")
            return "Seen."

        def pay(amount: int) -> str:
            """Pay an amount."""
            self.ran.append(amount)
            return f"Paid {amount}."

        tools = [Tool(locate, runs_in="client"), look, Tool(pay, needs_approval=True, approve_by=approve_by)]
        self.assistant = Assistant(self.model, tools=tools, **options)

    def ask(self, message="Where am I?", **options):
        """Ask, and return the calls for which the answer waits."""
        with pytest.raises(ApprovalRequiredError) as caught:
            self.assistant.chat(self.memory_id, message, **options)
        return caught.value.requests

    def resume(self, *given, **options):
        return self.assistant.chat(self.memory_id, Resume(*given), **options)

    def put_out(self, request, value="In Bergen.", *, is_error=False, **options):
        return self.resume(Output(request.id, value, is_error), **options)

    @property
    def waiting(self):
        return [approval.id for approval, _ in pending_calls(self.conversation, in_client=True)]


@pytest.fixture(params=["late", "early"])
def site(request):
    return Site(persist=request.param)


class TestDeclaring:
    def test_the_model_reads_the_same_as_of_any_tool(self):
        def locate(precise: bool = False) -> None:
            """Return where the user is."""

        assert Tool(locate, runs_in="client").specification == Tool(locate).specification

    @pytest.mark.parametrize("options", [{"needs_approval": True}, {"approve_by": PERMISSION}])
    def test_an_approval_is_for_the_client_to_ask_for(self, options):
        with pytest.raises(ValueError, match="cannot need an approval: let the client ask"):
            Tool(lambda: "", name="x", description="X.", runs_in="client", **options)

    def test_there_are_two_places(self):
        with pytest.raises(ValueError, match="must be 'server' or 'client', not 'browser'"):
            Tool(lambda: "", name="x", description="X.", runs_in="browser")


class TestWaiting:
    def test_the_answer_is_stored_as_far_as_it_has_come_and_the_function_is_not_called(self, site):
        [request] = site.ask()

        assert site.history == [UserMessage("Where am I?"), calling(LOCATE, text="I look where you are.")]
        assert (request.call, request.runs_in) == (calling(LOCATE).tool_execution_requests[0], "client")
        assert site.waiting == [request.id]
        assert pending_calls(site.conversation) == []

    @pytest.mark.parametrize("way", ["stream", "astream", "achat"])
    def test_each_way_of_asking_reports_it(self, site, way):
        if way == "achat":
            with pytest.raises(ApprovalRequiredError, match="for the output of 1 calls of tools: locate"):
                run(site.assistant.achat(site.memory_id, "Where am I?"))
        elif way == "stream":
            *_, answered, last = site.assistant.stream(site.memory_id, "Where am I?")
            assert isinstance(answered, ChatResponse)
            assert (type(last), last.runs_in) == (ApprovalRequested, "client")
        else:

            async def listen():
                return [event async for event in site.assistant.astream(site.memory_id, "Where am I?")]

            assert run(listen())[-1].runs_in == "client"
        assert len(site.waiting) == 1

    def test_the_run_waits_and_is_not_active(self, site):
        site.ask()

        assert Run.objects.values_list("state", "active").get() == (Run.State.WAITING, None)

    def test_calls_beside_it_run_at_once(self):
        site = Site(calling(LOCATE, LOOK), "Done.")

        [request] = site.ask()

        assert [result.text for result in site.results] == ["Seen."]
        assert site.put_out(request) == "Done."

    def test_invalid_arguments_fail_at_once_and_the_client_never_sees_them(self):
        site = Site(calling(("c1", "locate", '{"precise": "very"}')), "Sorry.")

        assert site.assistant.chat(site.memory_id, "Where am I?") == "Sorry."
        assert "The arguments are invalid" in site.results[0].text

    @pytest.mark.parametrize("way", ["again", "regenerate"])
    def test_the_same_question_again_and_a_regeneration_have_the_same_requests_without_the_model(self, site, way):
        [request] = site.ask(client_message_id="q1")

        again = {"again": ("Where am I?", {"client_message_id": "q1"}), "regenerate": (None, {"after": 1})}
        message, options = again[way]
        assert site.ask(message, **options) == (request,)

        assert len(site.model.requests) == 1
        assert site.put_out(request) == "Done."


class TestOutputs:
    @pytest.mark.parametrize(
        ("value", "text", "attributes"),
        [
            ("In Bergen.", "In Bergen.", {}),
            ("", "", {}),
            ({"lat": 60.4, "lon": 5.3}, '{"lat":60.4,"lon":5.3}', {IS_JSON: True}),
            ([], "[]", {IS_JSON: True}),
            (None, "null", {IS_JSON: True}),
            (False, "false", {IS_JSON: True}),
        ],
    )
    def test_the_model_reads_a_text_as_it_is_and_anything_else_as_json(self, site, value, text, attributes):
        [request] = site.ask()

        assert site.put_out(request, value) == "Done."

        assert site.results == [ToolExecutionResultMessage("c1", "locate", text, attributes=attributes)]
        assert site.model.sent[-1] == site.history[:3]
        assert [type(each) for each in site.history] == [UserMessage, AiMessage, ToolExecutionResultMessage, AiMessage]
        approval = ToolApproval.objects.get()
        assert (approval.approved, approval.state) == (True, "ended")
        assert approval.decided_at is not None

    def test_an_error_is_one_for_the_model(self, site):
        [request] = site.ask()

        assert site.put_out(request, "The user refuses.", is_error=True) == "Done."
        assert site.results == [ToolExecutionResultMessage("c1", "locate", "The user refuses.", is_error=True)]

    @pytest.mark.parametrize("way", ["stream", "achat", "astream"])
    def test_each_way_of_asking_resumes(self, site, way):
        [request] = site.ask()
        resume = Resume(Output(str(request.id), "Bergen"))
        if way == "stream":
            first = next(iter(site.assistant.stream(site.memory_id, resume)))
        elif way == "achat":
            assert run(site.assistant.achat(site.memory_id, resume)) == "Done."
            first = site.results[0]
        else:

            async def listen():
                return [event async for event in site.assistant.astream(site.memory_id, resume)]

            first = run(listen())[0]
        assert first.text == "Bergen"
        assert [each.text for each in site.results] == ["Bergen"]

    def test_a_second_one_is_of_nothing_that_waits(self, site):
        [request] = site.ask()
        site.put_out(request, "First.")

        with pytest.raises(NotPendingError):
            site.put_out(request, "Second.")

        assert [each.text for each in site.results] == ["First."]
        assert len(site.history) == 4

    def test_the_model_is_asked_once_all_are_there_and_each_is_stored_as_it_comes(self):
        site = Site(calling(LOCATE, AGAIN), "Done.")
        first, second = site.ask()

        with pytest.raises(ApprovalRequiredError) as caught:
            site.put_out(second, "2")
        assert [each.id for each in caught.value.requests] == [first.id]
        assert [each.text for each in site.results] == ["2"]
        assert len(site.model.requests) == 1

        assert site.put_out(first, "1") == "Done."
        assert [each.text for each in site.model.sent[-1][-2:]] == ["1", "2"]

    def test_several_come_at_once(self):
        site = Site(calling(LOCATE, AGAIN), "Done.")
        first, second = site.ask()

        assert site.resume(Output(first.id, "1"), Output(second.id, "2")) == "Done."

    def test_if_one_of_them_is_of_nothing_that_waits_none_is_stored(self):
        site = Site(calling(LOCATE, AGAIN), "Done.")
        first, second = site.ask()
        with pytest.raises(ApprovalRequiredError):
            site.put_out(first, "1")

        for wrong in (first.id, uuid4(), "c2", "", None, 7):
            with pytest.raises(NotPendingError):
                site.resume(Output(second.id, "2"), Output(wrong, "?"))

        assert [each.text for each in site.results] == ["1"]
        assert site.waiting == [second.id]

    def test_it_goes_with_a_decision_in_any_order(self):
        for given in (1, -1):
            site = Site(calling(LOCATE, PAY), "Done.")
            located, paid = site.ask()

            both = [Output(located.id, "Bergen"), Decision(paid.id, approved=True)]
            assert site.resume(*both[::given]) == "Done."
            assert site.ran == [5]
            assert sorted(each.text for each in site.results) == ["Bergen", "Paid 5."]

    def test_beside_a_call_that_waits_for_approval_it_is_stored_and_the_answer_waits_on(self):
        site = Site(calling(LOCATE, PAY), "Done.")
        located, paid = site.ask()

        with pytest.raises(ApprovalRequiredError) as caught:
            site.put_out(located)
        assert [each.id for each in caught.value.requests] == [paid.id]
        assert site.resume(Decision(paid.id, approved=False)) == "Done."

    def test_a_decision_is_none_of_an_output_and_an_output_none_of_a_decision(self):
        site = Site(calling(LOCATE, PAY), "Done.")
        located, paid = site.ask()

        for wrong in (Decision(located.id, approved=True), Decision(located.id, approved=False), Output(paid.id, "5")):
            with pytest.raises(NotPendingError):
                site.resume(wrong)

        assert (site.ran, site.results, site.waiting) == ([], [], [located.id])

    def test_without_outputs_there_is_nothing_to_go_on_with(self, site):
        site.ask()

        with pytest.raises(NotPendingError, match="for an output"):
            site.resume()

    def test_if_the_model_fails_the_output_is_stored_and_the_answer_can_go_on(self):
        site = Site(calling(LOCATE), UnavailableError("Away."), "Done.")
        [request] = site.ask()

        with pytest.raises(UnavailableError):
            site.put_out(request, "Bergen")
        assert [each.text for each in site.results] == ["Bergen"]
        assert site.resume() == "Done."

    @pytest.mark.parametrize("value", ["\0", {"\ud800": 1}, float("nan"), {1: 2}, {"deep": None}, object()])
    def test_what_is_no_json_or_cannot_be_stored_is_refused_and_the_call_waits_on(self, site, value):
        if isinstance(value, dict) and "deep" in value:
            for _ in range(25):
                value = {"deep": value}
        [request] = site.ask()

        with pytest.raises(ValueError, match="The output of a call: it"):
            site.put_out(request, value)

        assert (site.results, site.waiting) == ([], [request.id])
        assert site.put_out(request) == "Done."

    def test_an_error_is_a_text(self, site):
        [request] = site.ask()

        with pytest.raises(ValueError, match="must be a text"):
            site.put_out(request, {"code": 1}, is_error=True)

    def test_a_model_and_a_client_alone_do_not_go_on_without_end(self):
        site = Site(calling(LOCATE), max_rounds=3)
        [request] = site.ask()

        with pytest.raises(ApprovalRequiredError) as caught:
            site.put_out(request)
        with pytest.raises(Exception, match="The model called tools in every round"):
            site.put_out(caught.value.requests[0])

        assert [each.tool_choice for each in site.model.requests] == [None, None, ToolChoice.NONE]

    def test_a_tool_that_has_moved_to_the_client_since_its_call_was_approved_is_not_called(self):
        site = Site(calling(PAY), "Done.")
        [request] = site.ask()
        pay = site.assistant.tools["pay"]
        site.assistant.tools["pay"] = Tool(pay.function, runs_in="client")

        assert site.resume(Decision(request.id, approved=True)) == "Done."
        assert site.ran == []
        assert "runs in the user's browser now" in site.results[0].text

    @override_settings(CHATMEMORY={"KEEP_HISTORY": False, "CHAT": {}})
    def test_a_site_without_history_waits_too(self, site):
        [request] = site.ask()

        assert site.put_out(request) == "Done."


class TestWhoAndHowLong:
    def test_nobody_but_the_owner_sends_it(self, site):
        users = get_user_model().objects
        ann, bob = users.create_user("ann"), users.create_user("bob")
        [request] = site.ask(owner=ann)

        with pytest.raises(PermissionDenied):
            site.put_out(request, owner=bob)
        assert site.results == []
        assert site.put_out(request, owner=ann) == "Done."

    def test_that_of_another_conversation_is_none(self, site):
        [request] = site.ask()
        other = Site()
        other.ask()

        with pytest.raises(NotPendingError):
            other.put_out(request)
        assert site.results == other.results == []

    def test_after_its_time_the_model_learns_that_there_is_none(self, site):
        [request] = site.ask()
        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(days=2))

        with pytest.raises(NotPendingError):
            site.put_out(request)
        assert site.waiting == []
        assert site.resume() == "Done."
        assert [(each.text, each.is_error) for each in site.results] == [(approving.NO_OUTPUT, True)]

    def test_forgotten_with_the_message(self, site):
        site.ask()

        get_chat_memory(site.memory_id).remove(2)

        assert not ToolApproval.objects.exists()


class TestTheNextQuestion:
    @pytest.mark.parametrize("persist", ["late", "early"])
    @pytest.mark.parametrize("options", [{}, {"client_message_id": "q2"}])
    def test_gives_it_up_and_the_model_learns_it(self, persist, options):
        site = Site(calling(LOCATE), "All right.", persist=persist)
        [request] = site.ask()

        assert site.assistant.chat(site.memory_id, "Never mind.", **options) == "All right."

        assert [(each.text, each.is_error) for each in site.results] == [(approving.NO_OUTPUT, True)]
        assert site.model.sent[-1][-2].text == approving.NO_OUTPUT
        with pytest.raises(NotPendingError):
            site.put_out(request)

    def test_gives_up_only_what_waits_for_the_client_beside_what_waits_for_others(self):
        ann = get_user_model().objects.create_user("ann")
        site = Site(calling(LOCATE, PAY), "All right.", approve_by=PERMISSION)
        site.ask(owner=ann)

        assert site.assistant.chat(site.memory_id, "Never mind.", owner=ann) == "All right."

        _, answer, located, waits, _ = site.model.sent[-1]
        assert [call.name for call in answer.tool_execution_requests] == ["locate", "pay"]
        assert (located.text, waits.text) == (approving.NO_OUTPUT, approving.WAITS)

    def test_what_others_decide_meanwhile_begins_an_answer_that_knows_of_the_wait(self):
        """The client's call then waits on, and its output begins one, too."""
        users = get_user_model().objects
        ann, clerk = users.create_user("ann"), users.create_user("clerk")
        app, codename = PERMISSION.split(".")
        clerk.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        site = Site(calling(PAY), calling(LOCATE), "It is paid.", "You are in Bergen.", approve_by=PERMISSION)
        [paid] = site.ask("Pay 5.", owner=ann)
        [located] = site.ask(owner=ann)

        decided = Resume(Decision(paid.id, approved=True), by=users.get(pk=clerk.pk))
        assert site.assistant.chat(site.memory_id, decided, owner=ann) == "It is paid."
        assert approving.WAITS_FOR_CLIENT in [getattr(each, "text", "") for each in site.model.sent[-1]]

        assert site.put_out(located, owner=ann) == "You are in Bergen."
        assert [each.text for each in site.results] == ["Paid 5.", "In Bergen."]


class TestRaces:
    def test_of_many_tabs_that_send_one_at_once_one_is_stored(self, site):
        [request] = site.ask()
        outcomes, barrier = [], threading.Barrier(4)

        def send(number):
            barrier.wait()
            try:
                outcomes.append(site.put_out(request, f"{number}"))
            except (NotPendingError, BusyError) as exc:
                outcomes.append(type(exc))
            finally:
                connection.close()

        threads = [threading.Thread(target=send, args=[number]) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

        assert outcomes.count("Done.") == 1
        assert len(site.results) == 1
        assert len(site.history) == 4

    def test_one_that_is_not_stored_waits_on(self, site, monkeypatch):
        [request] = site.ask()
        monkeypatch.setattr(approving, "end", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            site.put_out(request)
        monkeypatch.undo()

        assert (site.results, site.waiting) == ([], [request.id])
        assert site.put_out(request) == "Done."

    def test_who_is_late_for_another_question_stores_nothing(self, site):
        """The next question comes between the moment in which an output is accepted and that in which it is stored."""
        [request] = site.ask()
        conversations = Conversation.objects.all()
        claimed = approving.claim(conversations, site.memory_id, outputs=[Output(request.id, "Bergen")])

        site.assistant.chat(site.memory_id, "Never mind.")

        with pytest.raises(NotPendingError):
            approving.end(claimed, claimed.ended[0].approval)


def test_what_is_stored_of_it_is_a_message_and_a_row_without_text(site):
    [request] = site.ask()
    site.put_out(request, "In Bergen.")

    assert Message.objects.filter(text__contains="Bergen").count() == 1
    assert "Bergen" not in str(ToolApproval.objects.values().get())
    assert ToolApproval.objects.get().approve_by == CLIENT
