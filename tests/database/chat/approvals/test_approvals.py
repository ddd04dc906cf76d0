"""Calls of tools that need an approval: the answer waits, and what is approved runs once, exactly as it is stored."""

import asyncio
import datetime
import threading
from contextlib import closing
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, NotPendingError, Resume, approving
from chatmemory_django.chat.approvals.resuming import DECIDED, end_waiting
from chatmemory_django.chat.approvals.waiting import EXPIRED, UNKNOWN, pending_calls, shown_approvals
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ApprovalRequested, ChatResponse, InvalidRequestError, UnavailableError
from chatmemory_django.chat.models import Run, ToolApproval
from chatmemory_django.chat.runs.leases import DEAD_AFTER
from chatmemory_django.chat.runs.tables import before
from chatmemory_django.chat.tools import Tool
from chatmemory_django.chat.ui_messages import to_ui_messages
from chatmemory_django.core.tool_calls import NOT_ACCEPTED, repair_tools, tool_answers
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import BusyError, LeaseLostError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from tests.asgi import run
from tests.database.chat.approvals.stored import Stored
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

PAY = ("c1", "pay", '{"amount": 5}')
LOOK = ("c2", "look", "{}")
DOWN = UnavailableError("The model's server cannot be reached.")


class Site(Stored):
    """An assistant with a tool that needs an approval, and what it has paid."""

    def __init__(self, *answers, needs_approval=True, approve_by="owner", **options):
        self.paid = []
        self.during = None
        self.model = ScriptedModel(*(answers or (calling(PAY, text="I pay."), "Done.")))
        self.memory_id = str(uuid4())
        self.options = options

        def pay(amount: int) -> str:
            """Pay an amount."""
            self.paid.append(amount)
            if self.during is not None:
                self.during()
            return f"Paid {amount}."

        def look() -> str:
            """Look."""
            return "Seen."

        tool = Tool(pay, needs_approval=needs_approval, approve_by=approve_by)
        self.assistant = Assistant(self.model, tools=[tool, look], **options)

    def ask(self, message="Pay 5.", **options):
        """Ask, and return the calls for which the answer waits."""
        with pytest.raises(ApprovalRequiredError) as caught:
            self.assistant.chat(self.memory_id, message, **options)
        return caught.value.requests

    def decide(self, request, approved=True, reason="", by=None, **options):
        return self.assistant.chat(self.memory_id, Resume(Decision(request.id, approved, reason), by=by), **options)

    def record(self, request, approved=True, by=None):
        """Decide as REST does, where nothing runs."""
        approving.decide(Conversation.objects.all(), self.memory_id, [Decision(request.id, approved)], by)

    def die_while_it_runs(self, request):
        """Approve a call, and let the process that runs it die; another one has taken the conversation since."""
        self.record(request)
        approving.claim(Conversation.objects.all(), self.memory_id)
        Conversation.objects.update(fence=F("fence") + 1)

    @property
    def pending(self):
        return pending_calls(self.conversation)


@pytest.fixture(params=["late", "early"])
def site(request):
    return Site(persist=request.param)


class TestAsking:
    def test_the_answer_is_stored_as_far_as_it_has_come_and_nothing_runs(self, site):
        [request] = site.ask()

        assert site.paid == []
        assert site.history == [UserMessage("Pay 5."), calling(PAY, text="I pay.")]
        assert request.call == calling(PAY).tool_execution_requests[0]
        assert [(approval.id, call) for approval, call in site.pending] == [(request.id, request.call)]

    def test_the_question_is_complete_once_the_answer_has_ended(self, site):
        [request] = site.ask()
        assert Message.objects.incomplete().get().text == "Pay 5."

        site.decide(request)

        assert not Message.objects.incomplete().exists()

    @pytest.mark.parametrize("way", ["again", "regenerate"])
    def test_the_same_question_again_and_a_regeneration_have_the_same_requests_without_the_model(self, site, way):
        [request] = site.ask(client_message_id="q1")

        again = {"again": ("Pay 5.", {"client_message_id": "q1"}), "regenerate": (None, {"after": 1})}
        message, options = again[way]
        assert site.ask(message, **options) == (request,)

        assert len(site.model.requests) == 1
        assert site.decide(request) == "Done."
        assert site.paid == [5]

    @pytest.mark.parametrize("is_decided", [False, True])
    def test_so_has_one_whose_branch_an_edit_has_left(self, is_decided):
        site = Site(calling(PAY), "Edited.", "Done.")
        [request] = site.ask(client_message_id="q1")
        if is_decided:
            site.record(request)
        assert site.assistant.chat(site.memory_id, "Edit.", client_message_id="q1") == "Edited."

        if is_decided:
            assert site.assistant.chat(site.memory_id, "Pay 5.", client_message_id="q1") == "Done."
        else:
            assert site.ask(client_message_id="q1") == (request,)
            assert site.decide(request) == "Done."

        assert site.paid == [5]
        assert [type(each) for each in site.history] == [UserMessage, AiMessage, ToolExecutionResultMessage, AiMessage]

    @pytest.mark.parametrize("way", ["stream", "astream", "achat"])
    def test_each_way_of_asking_reports_that_the_answer_waits(self, site, way):
        if way == "achat":
            with pytest.raises(ApprovalRequiredError, match="1 calls of tools: pay"):
                run(site.assistant.achat(site.memory_id, "Pay 5."))
        elif way == "stream":
            *_, answered, last = site.assistant.stream(site.memory_id, "Pay 5.")
            assert isinstance(answered, ChatResponse)
            assert isinstance(last, ApprovalRequested)
        else:

            async def listen():
                return [event async for event in site.assistant.astream(site.memory_id, "Pay 5.")]

            assert isinstance(run(listen())[-1], ApprovalRequested)
        assert len(site.pending) == 1

    def test_a_request_is_reported_once_it_is_stored(self, site):
        with closing(site.assistant.stream(site.memory_id, "Pay 5.")) as events:
            for event in events:
                if isinstance(event, ApprovalRequested):
                    assert ToolApproval.objects.filter(pk=event.id).exists()
                    return
        raise AssertionError

    def test_calls_beside_it_run_at_once_and_their_results_are_stored(self):
        site = Site(calling(PAY, LOOK), "Done.")

        [request] = site.ask()

        assert [result.text for result in site.results] == ["Seen."]
        assert site.decide(request) == "Done."
        assert sorted(result.text for result in site.results) == ["Paid 5.", "Seen."]
        assert repair_tools(site.history) == site.history

    def test_a_call_of_a_later_round_waits_too(self):
        site = Site(calling(LOOK), calling(PAY), "Done.")

        [request] = site.ask()

        assert site.decide(request) == "Done."

    def test_a_function_of_the_arguments_decides_which_calls_need_one(self):
        site = Site(calling(PAY, ("c2", "pay", '{"amount": 50}')), "Done.", needs_approval=lambda amount: amount > 10)

        [request] = site.ask()

        assert (request.call.id, site.paid) == ("c2", [5])

    def test_a_function_that_fails_asks(self):
        site = Site(needs_approval=lambda amount: 1 / 0)

        assert len(site.ask()) == 1

    def test_invalid_arguments_are_not_asked_for(self):
        site = Site(calling(("c1", "pay", '{"amount": "much"}')), "Sorry.")

        assert site.assistant.chat(site.memory_id, "Pay much.") == "Sorry."
        assert not ToolApproval.objects.exists()

    def test_calls_without_ids_get_some_since_their_results_are_stored_apart(self):
        twice = calling((None, "pay", '{"amount": 1}'), (None, "pay", '{"amount": 2}'))
        site = Site(twice, "Done.")
        first, second = site.ask()

        with pytest.raises(ApprovalRequiredError):
            site.decide(second)
        site.decide(first, approved=False)

        assert site.paid == [2]
        texts = {result.id: result.text for result in site.results}
        assert texts == {"call-1-1": "Paid 2.", "call-1-0": approving.DENIED}

    def test_what_is_neither_true_nor_a_function_is_refused(self):
        async def ask(amount: int) -> bool:
            return True

        for wrong in ("yes", None, ask):
            with pytest.raises(TypeError, match="needs_approval must be True, False, or a function that is not async"):
                Tool(lambda: "", name="x", description="X.", needs_approval=wrong)

    def test_a_store_that_cannot_keep_approvals_is_refused_at_once(self):
        memory = MessageWindowChatMemory(max_messages=5, store=InMemoryChatMemoryStore())
        site = Site(memory=lambda **options: memory)

        with pytest.raises(TypeError, match="Approvals of tools are kept by DjangoChatMemoryStore only"):
            site.assistant.chat("1", "Pay 5.")


class TestDeciding:
    def test_an_approved_call_runs_with_the_stored_arguments_and_the_model_answers(self, site):
        [request] = site.ask()

        assert site.decide(request) == "Done."

        assert site.paid == [5]
        assert [type(each) for each in site.history] == [UserMessage, AiMessage, ToolExecutionResultMessage, AiMessage]
        assert site.model.sent[-1] == site.history[:3]
        approval = ToolApproval.objects.get()
        assert (approval.approved, approval.state, approval.decided_by) == (True, "ended", "")

    @pytest.mark.parametrize("way", ["stream", "achat", "astream"])
    def test_each_way_of_asking_resumes(self, site, way):
        [request] = site.ask()
        resume = Resume(Decision(str(request.id), approved=True))
        if way == "stream":
            events = list(site.assistant.stream(site.memory_id, resume))
        elif way == "achat":
            assert run(site.assistant.achat(site.memory_id, resume)) == "Done."
            events = [site.results[-1]]
        else:

            async def listen():
                return [event async for event in site.assistant.astream(site.memory_id, resume)]

            events = run(listen())
        assert events[0].text == "Paid 5."
        assert site.paid == [5]
        assert site.history[-1] == AiMessage("Done.")

    def test_a_denied_call_does_not_run_and_the_model_reads_the_reason(self, site):
        [request] = site.ask()

        assert site.decide(request, approved=False, reason="Too much.") == "Done."

        assert site.paid == []
        assert site.results[0].text == f"{approving.DENIED} The reason: Too much."
        assert site.results[0].is_error

    def test_a_second_click_does_nothing(self, site):
        [request] = site.ask()
        site.decide(request)

        for approved in (True, False):
            with pytest.raises(NotPendingError):
                site.decide(request, approved)

        assert site.paid == [5]
        assert len(site.history) == 4

    def test_the_model_is_asked_once_all_are_decided(self):
        site = Site(calling(PAY, ("c2", "pay", '{"amount": 7}')), "Done.")
        first, second = site.ask()

        with pytest.raises(ApprovalRequiredError) as caught:
            site.decide(first)
        assert [each.id for each in caught.value.requests] == [second.id]
        assert len(site.model.requests) == 1
        assert site.decide(second) == "Done."
        assert site.paid == [5, 7]

    def test_decisions_that_were_recorded_elsewhere_are_carried_out_by_a_bare_resume(self, site):
        [request] = site.ask()
        with pytest.raises(NotPendingError, match="waits for a decision"):
            site.assistant.chat(site.memory_id, Resume())
        ann = get_user_model().objects.create_user("ann")
        approving.decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=True)], ann)

        assert site.paid == []
        assert site.assistant.chat(site.memory_id, Resume()) == "Done."
        assert site.paid == [5]
        assert ToolApproval.objects.get().decided_by == str(ann.pk)

    def test_of_two_decisions_the_first_one_counts(self, site):
        [request] = site.ask()
        decide = approving.decide
        decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=False)], None)

        decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=False)], None)
        with pytest.raises(NotPendingError, match="was decided before"):
            decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=True)], None)

    def test_if_the_model_fails_the_call_has_run_and_the_answer_can_go_on(self):
        site = Site(calling(PAY), DOWN, "Done.")
        [request] = site.ask()

        with pytest.raises(UnavailableError):
            site.decide(request)
        assert [result.text for result in site.results] == ["Paid 5."]
        assert site.assistant.chat(site.memory_id, Resume()) == "Done."
        assert site.paid == [5]

    def test_a_resumed_answer_may_wait_again(self):
        site = Site(calling(PAY), calling(("c1", "pay", '{"amount": 7}')), "Done.")
        [first] = site.ask()

        with pytest.raises(ApprovalRequiredError) as caught:
            site.decide(first)
        [second] = caught.value.requests
        with pytest.raises(NotPendingError):
            site.decide(first)
        assert site.decide(second) == "Done."
        assert site.paid == [5, 7]

    def test_a_later_call_may_have_its_id(self):
        site = Site(calling(PAY), calling(("c1", "look", "{}")), "Done.")
        [request] = site.ask()

        assert site.decide(request) == "Done."
        assert [result.text for result in site.results] == ["Paid 5.", "Seen."]

    def test_if_the_model_rejects_the_results_these_are_notes_and_the_question_stays(self):
        site = Site(calling(PAY), InvalidRequestError("No."), "Done.", persist="early")
        [request] = site.ask()

        with pytest.raises(InvalidRequestError):
            site.decide(request)

        rejected = [row.sequence for row in Message.objects.all() if "rejected" in (row.metadata or {})]
        assert rejected == [3]

    def test_a_tool_that_fails_and_one_that_is_gone_are_errors_for_the_model(self, site):
        [request] = site.ask()
        site.assistant.tools = {}

        assert site.decide(request) == "Done."
        assert "There is no such tool" in site.results[0].text

    def test_a_conversation_gets_its_title_when_its_first_answer_is_complete(self, site):
        [request] = site.ask()
        assert site.conversation.title == ""
        site.decide(request)
        assert site.conversation.title == "Pay 5."

    def test_a_long_reason_is_refused(self, site):
        [request] = site.ask()

        for reason in ("x" * 501, "\0"):
            with pytest.raises(ValueError, match="A reason must be a text of at most 500 characters"):
                site.decide(request, approved=False, reason=reason)
        assert len(site.pending) == 1

    @override_settings(CHATMEMORY={"KEEP_HISTORY": False, "CHAT": {}})
    def test_a_site_without_history_approves_too(self, site):
        [request] = site.ask()

        assert site.decide(request) == "Done."
        assert site.paid == [5]


class TestWhoAndWhat:
    def test_nobody_but_the_owner_approves(self, site):
        users = get_user_model().objects
        ann, bob = users.create_user("ann"), users.create_user("bob")
        [request] = site.ask(owner=ann)

        with pytest.raises(PermissionDenied):
            site.decide(request, owner=bob)
        assert site.paid == []
        assert site.decide(request, owner=ann) == "Done."
        assert ToolApproval.objects.get().decided_by == str(ann.pk)

    def test_the_approval_of_another_conversation_is_none(self, site):
        [request] = site.ask()
        other = Site()
        other.ask()

        for name in (request.id, uuid4(), "c1", "", None, 7):
            with pytest.raises(NotPendingError):
                other.assistant.chat(other.memory_id, Resume(Decision(name, approved=True)))
        assert site.paid == other.paid == []

    def test_a_call_that_somebody_else_added_cannot_be_approved(self, site):
        get_chat_memory(site.memory_id).add(UserMessage("Pay 5."), calling(PAY))

        with pytest.raises(NotPendingError):
            site.assistant.chat(site.memory_id, Resume())
        assert site.paid == []

    def test_after_another_answer_on_another_branch_or_removed_a_call_cannot_be_approved(self):
        def rewind(memory):
            memory.rewind(1)

        changes = [
            rewind,
            lambda memory: memory.remove(2),
            lambda memory: memory.clear(),
            lambda memory: memory.set([UserMessage("New.")]),
            lambda memory: memory.pop(),
            lambda memory: memory.evict(2),
        ]
        for change in changes:
            site = Site()
            [request] = site.ask()
            change(get_chat_memory(site.memory_id))

            with pytest.raises(NotPendingError):
                site.decide(request)
            assert (site.paid, site.pending) == ([], [])

    def test_back_on_its_branch_it_can_be_approved(self, site):
        [request] = site.ask()
        memory = get_chat_memory(site.memory_id)
        memory.rewind(1)
        memory.switch(2)

        assert site.decide(request) == "Done."

    def test_in_a_fork_nothing_waits(self, site):
        [request] = site.ask()
        copy = operations.fork(site.conversation)

        with pytest.raises(NotPendingError):
            site.assistant.chat(copy.memory_id, Resume(Decision(request.id, approved=True)))
        assert site.decide(request) == "Done."

    def test_erased_with_the_conversation_and_forgotten_with_the_message(self, site):
        site.ask()
        get_chat_memory(site.memory_id).remove(2)
        assert not ToolApproval.objects.exists()

        other = Site()
        other.ask()
        Conversation.objects.filter(memory_id=other.memory_id).delete()
        assert not ToolApproval.objects.exists()

    @override_settings(CHATMEMORY={"KEEP_HISTORY": False, "CHAT": {}})
    def test_without_history_forgotten_by_the_prune_after_its_message_has_left_the_memory(self, capsys):
        left, other = Site(), Site()
        left.decide(left.ask()[0])
        other.ask()
        memory = MessageWindowChatMemory(max_messages=1, id=left.memory_id, store=DjangoChatMemoryStore())
        memory.add(UserMessage("Thanks."))

        call_command("prune_chatmemory", sum_calls=True)

        assert ToolApproval.objects.get().conversation == other.conversation

    def test_forgotten_with_a_message_that_is_pruned(self, site):
        [request] = site.ask()
        site.decide(request)
        get_chat_memory(site.memory_id).clear()

        operations.prune(Conversation.objects.all(), history_older_than=datetime.timedelta(0))

        assert not Message.objects.exists()
        assert not ToolApproval.objects.exists()

    def test_a_process_that_has_lost_the_conversation_ends_no_call_for_its_question(self, site):
        """It was stopped as it was about to, and another question was asked and answered meanwhile."""
        [request] = site.ask()
        memory, own = site.assistant.chat_memory(site.memory_id), lambda approve_by: True
        fence = Conversation.objects.get().fence
        Conversation.objects.update(fence=fence + 1)

        with pytest.raises(LeaseLostError):
            end_waiting(memory, own, fence)

        assert ([each.id for each, _ in site.pending], site.results) == ([request.id], [])
        assert end_waiting(memory, own, fence + 1)[0]
        assert [each.text for each in site.results] == [approving.PASSED_OVER]

    def test_an_expired_call_is_not_run_and_the_model_learns_it(self, site):
        [request] = site.ask()
        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(days=2))

        assert site.pending == []
        with pytest.raises(NotPendingError, match="has expired"):
            site.decide(request)
        assert site.assistant.chat(site.memory_id, Resume()) == "Done."
        assert (site.paid, site.results[0].text) == ([], EXPIRED)

    @override_settings(CHATMEMORY={"CHAT": {"APPROVAL_SECONDS": 1}})
    def test_how_long_a_call_waits_is_a_setting(self, site):
        site.ask()
        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(seconds=2))
        assert site.pending == []

    def test_an_approved_call_that_was_not_run_in_time_is_not_run_any_more(self, site):
        [request] = site.ask()
        site.record(request)
        ToolApproval.objects.update(decided_at=timezone.now() - datetime.timedelta(days=2))

        assert site.assistant.chat(site.memory_id, Resume()) == "Done."
        assert (site.paid, site.results[0].text) == ([], EXPIRED)
        assert ToolApproval.objects.get().approved

    def test_nor_is_its_outcome_unknown_where_it_is_shown(self, site):
        [request] = site.ask()
        site.record(request)
        ToolApproval.objects.update(decided_at=timezone.now() - datetime.timedelta(days=2))

        rows = list(site.conversation.history())
        [approval] = shown_approvals(site.conversation, rows).values()

        assert (approval.is_open, approval.error) == (False, EXPIRED)

    def test_one_that_was_approved_late_has_its_time_from_then_on(self, site):
        [request] = site.ask()
        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(hours=23))
        site.record(request)
        ToolApproval.objects.update(decided_at=timezone.now() - datetime.timedelta(hours=2))

        assert site.assistant.chat(site.memory_id, Resume()) == "Done."
        assert site.paid == [5]


class TestTheNextQuestion:
    @pytest.mark.parametrize("options", [{}, {"memory_options": {"repair_tools": True}}])
    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_ends_the_waiting_and_the_model_learns_it(self, persist, options):
        site = Site(calling(PAY), "Nothing paid.", persist=persist, **options)
        [request] = site.ask()

        assert site.assistant.chat(site.memory_id, "Never mind.") == "Nothing paid."

        assert [each.text for each in site.results] == [approving.PASSED_OVER]
        assert site.history[-2:] == [UserMessage("Never mind."), AiMessage("Nothing paid.")]
        assert site.model.sent[-1] == site.history[:-1]
        with pytest.raises(NotPendingError):
            site.decide(request)
        assert site.paid == []

    def test_ends_it_at_once_so_that_nothing_is_approved_meanwhile(self):
        site = Site(calling(PAY), DOWN)
        [request] = site.ask()

        with pytest.raises(UnavailableError):
            site.assistant.chat(site.memory_id, "Never mind.")
        with pytest.raises(NotPendingError):
            site.decide(request)
        assert site.paid == []

    def test_lets_the_model_know_that_the_outcome_of_an_interrupted_call_is_unknown(self, site):
        [request] = site.ask()
        approving.decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=True)], None)
        approving.claim(Conversation.objects.all(), site.memory_id)  # a process that dies here

        assert site.assistant.chat(site.memory_id, "And?") == "Done."
        assert [each.text for each in site.results] == [UNKNOWN]
        assert site.paid == []

    def test_is_refused_while_an_approved_call_runs(self, site):
        [request] = site.ask()

        def meanwhile():
            with pytest.raises(BusyError):
                site.assistant.chat(site.memory_id, "And?")

        site.during = meanwhile
        assert site.decide(request) == "Done."
        assert [each.text for each in site.results] == ["Paid 5."]
        assert UserMessage("And?") not in site.history

    def test_a_call_that_was_approved_but_not_run_is_not_run_any_more(self, site):
        [request] = site.ask()
        approving.decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=True)], None)

        site.assistant.chat(site.memory_id, "And?")

        assert ([each.text for each in site.results], site.paid) == ([approving.WITHDRAWN], [])


class TestWhoApproves:
    """A permission in place of the owner: its holders decide, whatever was asked and answered since."""

    PERMISSION = "auth.change_user"

    @pytest.fixture
    def ann(self):
        return get_user_model().objects.create_user("ann")

    @pytest.fixture
    def clerk(self):
        clerk = get_user_model().objects.create_user("clerk")
        clerk.user_permissions.add(Permission.objects.get(codename="change_user"))
        return clerk

    @pytest.fixture(params=["late", "early"])
    def shop(self, request):
        return Site(
            calling(PAY, text="I pay."), "Sunny.", "It is paid.", approve_by=self.PERMISSION, persist=request.param
        )

    def test_who_has_it_and_not_the_owner(self, shop, ann, clerk):
        [request] = shop.ask(owner=ann)
        assert request.approve_by == ToolApproval.objects.get().approve_by == self.PERMISSION

        for by in (None, ann):
            with pytest.raises(PermissionDenied, match=r"is approved by 'auth\.change_user'"):
                shop.decide(request, owner=ann, by=by)
        assert shop.decide(request, owner=ann, by=clerk) == "Sunny."
        assert shop.paid == [5]
        assert ToolApproval.objects.get().decided_by == str(clerk.pk)

    def test_a_function_of_the_arguments_decides_who(self):
        site = Site(
            calling(PAY, ("c2", "pay", '{"amount": 500}')),
            approve_by=lambda amount: self.PERMISSION if amount > 100 else "owner",
        )

        assert [request.approve_by for request in site.ask()] == ["owner", self.PERMISSION]

    def test_if_it_fails_or_returns_neither_staff_do(self):
        for wrong in (lambda amount: 1 / 0, lambda amount: "boss"):
            [request] = Site(approve_by=wrong).ask()
            assert request.approve_by == "chatmemory.approve_conversation"

    def test_anything_else_is_refused(self):
        async def ask(amount: int) -> str:
            return "owner"

        for wrong in ("boss", None, "", ".", "x." + 255 * "x", ask):
            with pytest.raises(ValueError, match="approve_by must be 'owner', a permission like"):
                Tool(lambda: "", name="x", description="X.", approve_by=wrong)

    def test_the_owners_next_question_is_answered_and_the_call_waits_on(self, shop, ann):
        [request] = shop.ask(owner=ann)

        assert shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann) == "Sunny."

        [pending] = [approval for approval, _ in shop.pending]
        assert pending.id == request.id
        [_, call, result, question] = shop.model.sent[-1]
        assert (call, question) == (calling(PAY, text="I pay."), UserMessage("And the weather?"))
        assert (result.id, result.text, result.is_error) == ("c1", approving.WAITS, True)
        assert shop.results == []

    @pytest.mark.parametrize("way", ["chat", "achat"])
    def test_the_decision_then_begins_an_answer_of_its_own(self, shop, ann, clerk, way):
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)

        if way == "chat":
            assert shop.decide(request, owner=ann, by=clerk, answer_id="late") == "It is paid."
        else:
            resume = Resume(Decision(request.id, approved=True), by=clerk)
            options = {"owner": ann, "answer_id": "late"}
            assert run(shop.assistant.achat(shop.memory_id, resume, **options)) == "It is paid."

        assert shop.paid == [5]
        paid, final = shop.history[-2:]
        assert (paid.text, final) == ("Paid 5.", AiMessage("It is paid."))
        [asked, call, result, *between, note] = shop.model.sent[-1]
        assert [asked, call, result] == [*shop.history[:2], paid]
        assert between == shop.history[2:4]
        assert note == UserMessage(DECIDED)
        assert shop.conversation.history().last().client_message_id == "late"
        assert not Message.objects.incomplete().exists()

    def test_its_question_sent_again_has_the_same_requests_and_later_the_stored_answer(self, shop, ann, clerk):
        options = {"owner": ann, "client_message_id": "q1"}
        [request] = shop.ask(**options)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)

        assert shop.ask(**options) == (request,)
        shop.decide(request, owner=ann, by=clerk)
        asked = len(shop.model.requests)
        assert shop.assistant.chat(shop.memory_id, "Pay 5.", **options) == "It is paid."

        assert (len(shop.model.requests), shop.paid) == (asked, [5])

    @pytest.mark.parametrize("fails", [False, True])
    def test_its_question_sent_again_lets_it_go_on_once_it_is_decided(self, ann, clerk, fails):
        shop = Site(calling(PAY), "Sunny.", *([DOWN] if fails else []), "It is paid.", approve_by=self.PERMISSION)
        options = {"owner": ann, "client_message_id": "q1"}
        [request] = shop.ask(**options)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        if fails:
            with pytest.raises(UnavailableError):
                shop.decide(request, owner=ann, by=clerk)
        else:
            shop.record(request, by=clerk)

        assert shop.assistant.chat(shop.memory_id, "Pay 5.", **options) == "It is paid."

        assert (shop.paid, [row.text for row in Message.objects.incomplete()]) == ([5], [])

    def test_so_does_a_denial(self, shop, ann, clerk):
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)

        shop.decide(request, approved=False, reason="No.", owner=ann, by=clerk)

        assert (shop.paid, shop.results[0].text) == ([], f"{approving.DENIED} The reason: No.")

    def test_what_was_denied_elsewhere_the_model_reads_with_the_next_question(self, shop, ann, clerk):
        [request] = shop.ask(owner=ann)
        shop.record(request, approved=False, by=clerk)

        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)

        assert [each.text for each in shop.results] == [approving.DENIED]
        assert ToolApproval.objects.get().state == "ended"

    def test_a_question_beside_it_that_has_no_answer_yet_is_answered_and_not_with_what_was_decided(self, ann, clerk):
        shop = Site(calling(PAY), DOWN, "It is paid.", "Sunny.", approve_by=self.PERMISSION, persist="early")
        options = {"owner": ann, "client_message_id": "q2"}
        [request] = shop.ask(owner=ann)
        with pytest.raises(UnavailableError):
            shop.assistant.chat(shop.memory_id, "And the weather?", **options)
        assert shop.decide(request, owner=ann, by=clerk) == "It is paid."

        assert shop.assistant.chat(shop.memory_id, "And the weather?", **options) == "Sunny."

    def test_its_regeneration_leaves_what_was_decided_on_the_path(self, ann, clerk):
        shop = Site(calling(PAY), DOWN, "It is paid.", "Sunny.", approve_by=self.PERMISSION, persist="early")
        [request] = shop.ask(owner=ann)
        with pytest.raises(UnavailableError):
            shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        question = shop.conversation.history().last().sequence
        shop.decide(request, owner=ann, by=clerk)

        assert shop.assistant.chat(shop.memory_id, None, owner=ann, after=question) == "Sunny."
        assert [each.text for each in shop.results] == ["Paid 5."]

    def test_nor_does_it_run_its_tools_again_then(self, ann, clerk):
        shop = Site(calling(PAY), calling(LOOK), DOWN, "It is paid.", "Sunny.", approve_by=self.PERMISSION)
        options = {"owner": ann, "client_message_id": "q2", "persist": "early"}
        [request] = shop.ask(owner=ann)
        with pytest.raises(UnavailableError):
            shop.assistant.chat(shop.memory_id, "And the weather?", **options)
        shop.decide(request, owner=ann, by=clerk)

        for _ in range(2):
            assert shop.assistant.chat(shop.memory_id, "And the weather?", **options) == "Sunny."

        assert [each.text for each in shop.results] == ["Seen.", "Paid 5."]
        kinds = [each.type.value for each in shop.model.sent[-1]]
        assert kinds == ["USER", "AI", "TOOL_EXECUTION_RESULT", "USER", "AI", "TOOL_EXECUTION_RESULT", "AI"]
        assert shop.model.sent[-1][2].text == "Paid 5."

    def test_each_question_sent_again_has_its_own_answer_in_whichever_order_they_were_decided(self, ann, clerk):
        again = calling(("c2", "pay", '{"amount": 7}'))
        shop = Site(calling(PAY), again, "7 is paid.", "5 is paid.", approve_by=self.PERMISSION)
        [first] = shop.ask(owner=ann, client_message_id="q1")
        [second] = shop.ask("Pay 7.", owner=ann, client_message_id="q2")
        shop.decide(second, owner=ann, by=clerk)
        shop.decide(first, owner=ann, by=clerk)

        for text, name, answer in [("Pay 5.", "q1", "5 is paid."), ("Pay 7.", "q2", "7 is paid.")]:
            assert shop.assistant.chat(shop.memory_id, text, owner=ann, client_message_id=name) == answer

    def test_each_has_an_answer_of_its_own_also_if_both_were_decided_before_the_first_one_went_on(self, ann, clerk):
        again = calling(("c2", "pay", '{"amount": 7}'))
        shop = Site(calling(PAY), again, "Sunny.", "5 is paid.", "7 is paid.", approve_by=self.PERMISSION)
        [first] = shop.ask(owner=ann, client_message_id="q1")
        [second] = shop.ask("Pay 7.", owner=ann, client_message_id="q2")
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        shop.record(second, by=clerk)

        assert (shop.decide(first, owner=ann, by=clerk), shop.paid) == ("5 is paid.", [5])
        assert shop.assistant.chat(shop.memory_id, Resume(), owner=ann) == "7 is paid."
        for text, name, answer in [("Pay 5.", "q1", "5 is paid."), ("Pay 7.", "q2", "7 is paid.")]:
            assert shop.assistant.chat(shop.memory_id, text, owner=ann, client_message_id=name) == answer
        assert shop.paid == [5, 7]
        assert not Message.objects.incomplete().exists()

    def test_sent_again_it_goes_on_with_its_own_answer_although_another_one_was_decided(self, ann, clerk):
        again = calling(("c2", "pay", '{"amount": 7}'))
        answers = ["Sunny.", DOWN, "5 is paid.", "7 is paid."]
        shop = Site(calling(PAY), again, *answers, approve_by=self.PERMISSION)
        [first] = shop.ask(owner=ann, client_message_id="q1")
        [second] = shop.ask("Pay 7.", owner=ann, client_message_id="q2")
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        with pytest.raises(UnavailableError):
            shop.decide(first, owner=ann, by=clerk)
        shop.record(second, by=clerk)

        for text, name, answer in 2 * [("Pay 5.", "q1", "5 is paid."), ("Pay 7.", "q2", "7 is paid.")]:
            assert shop.assistant.chat(shop.memory_id, text, owner=ann, client_message_id=name) == answer
        assert shop.paid == [5, 7]
        assert not Message.objects.incomplete().exists()

    def test_nor_has_it_the_answer_to_a_question_that_went_on_behind_its_own(self, ann, clerk):
        shop = Site(calling(PAY), calling(LOOK), DOWN, "It is paid.", "Sunny.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann, client_message_id="q1")
        weather = {"owner": ann, "client_message_id": "q2"}
        with pytest.raises(UnavailableError):
            shop.assistant.chat(shop.memory_id, "And the weather?", **weather)
        shop.decide(request, owner=ann, by=clerk)
        assert shop.assistant.chat(shop.memory_id, "And the weather?", **weather) == "Sunny."

        assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "It is paid."
        assert shop.assistant.chat(shop.memory_id, "And the weather?", **weather) == "Sunny."

    def test_nor_its_requests_and_does_not_go_on_with_it(self, ann, clerk):
        more = calling(("c3", "pay", '{"amount": 7}'))
        shop = Site(calling(PAY), calling(LOOK), DOWN, "It is paid.", more, "7 is paid.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann, client_message_id="q1")
        with pytest.raises(UnavailableError):
            shop.assistant.chat(shop.memory_id, "Pay 7.", owner=ann, client_message_id="q2")
        shop.decide(request, owner=ann, by=clerk)
        [second] = shop.ask("Pay 7.", owner=ann, client_message_id="q2")

        assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "It is paid."
        shop.record(second, by=clerk)
        assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "It is paid."
        for _ in range(2):
            assert shop.assistant.chat(shop.memory_id, "Pay 7.", owner=ann, client_message_id="q2") == "7 is paid."
        assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "It is paid."
        assert shop.paid == [5, 7]

    def test_if_the_model_fails_then_the_text_behind_it_is_of_the_question_that_went_on(self, ann, clerk):
        shop = Site(calling(PAY), calling(LOOK), DOWN, DOWN, "Sunny.", "It is paid.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann, client_message_id="q1")
        weather = {"owner": ann, "client_message_id": "q2"}
        with pytest.raises(UnavailableError):
            shop.assistant.chat(shop.memory_id, "And the weather?", **weather)
        with pytest.raises(UnavailableError):
            shop.decide(request, owner=ann, by=clerk)

        for _ in range(2):
            assert shop.assistant.chat(shop.memory_id, "And the weather?", **weather) == "Sunny."
        for _ in range(2):
            assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "It is paid."

        assert shop.paid == [5]

    def test_if_the_model_fails_and_then_rejects_the_result_the_next_question_is_sent_a_note(self, ann, clerk):
        shop = Site(calling(PAY), "Sunny.", DOWN, InvalidRequestError("x"), "Fine.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        with pytest.raises(UnavailableError):
            shop.decide(request, owner=ann, by=clerk)
        with pytest.raises(InvalidRequestError):
            shop.assistant.chat(shop.memory_id, Resume(), owner=ann)

        assert shop.assistant.chat(shop.memory_id, "How are you?", owner=ann) == "Fine."

        assert NOT_ACCEPTED in str(shop.model.sent[-1])
        assert "Paid 5." not in str(shop.model.sent[-1])
        assert shop.paid == [5]

    def test_if_the_model_fails_behind_further_calls_its_question_is_asked_once_more_at_the_end(self, ann, clerk):
        shop = Site(calling(PAY), "Sunny.", calling(LOOK), DOWN, "It is paid.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann, client_message_id="q1")
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        with pytest.raises(UnavailableError):
            shop.decide(request, owner=ann, by=clerk)

        for _ in range(2):
            assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "It is paid."

        assert shop.paid == [5]
        assert [each.text for each in shop.model.sent[-1] if isinstance(each, ToolExecutionResultMessage)] == [
            "Paid 5.",
            "Seen.",
        ]

    @pytest.mark.parametrize("fails", [False, True])
    def test_of_calls_that_are_decided_one_by_one_the_last_answer_is_that_of_the_question(self, ann, clerk, fails):
        both = calling(PAY, ("c2", "pay", '{"amount": 7}'))
        after = [DOWN, "7 is paid."] if fails else ["7 is paid."]
        shop = Site(both, "Sunny.", "5 is paid.", "Rainy.", *after, approve_by=self.PERMISSION)
        [first, second] = shop.ask(owner=ann, client_message_id="q1")
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        assert shop.decide(first, owner=ann, by=clerk) == "5 is paid."
        shop.assistant.chat(shop.memory_id, "And tomorrow?", owner=ann)
        assert shop.ask(owner=ann, client_message_id="q1") == (second,)

        if fails:
            with pytest.raises(UnavailableError):
                shop.decide(second, owner=ann, by=clerk)
        else:
            assert shop.decide(second, owner=ann, by=clerk) == "7 is paid."

        for _ in range(2):
            assert shop.assistant.chat(shop.memory_id, "Pay 5.", owner=ann, client_message_id="q1") == "7 is paid."
        assert shop.paid == [5, 7]

    def test_the_model_is_sent_the_call_although_its_result_fills_the_window(self, ann, clerk):
        window = {"memory": MessageWindowChatMemory, "memory_options": {"max_messages": 4}}
        shop = Site(calling(PAY), "Sunny.", "It is paid.", approve_by=self.PERMISSION, **window)
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)

        assert shop.decide(request, owner=ann, by=clerk) == "It is paid."
        assert shop.model.sent[-1][-3:] == [UserMessage(DECIDED), calling(PAY), shop.results[0]]

    def test_calls_that_have_left_the_memory_are_sent_with_the_results_that_they_have(self, ann, clerk):
        shop = Site(calling(PAY, LOOK), "Sunny.", "It is paid.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        get_chat_memory(shop.memory_id).evict(4)

        assert shop.decide(request, owner=ann, by=clerk) == "It is paid."
        assert [each.text for each in shop.model.sent[-1][-2:]] == ["Paid 5.", "Seen."]

    def test_of_several_answers_that_can_go_on_the_one_that_a_resume_is_about_does(self, ann, clerk):
        again = calling(("c2", "pay", '{"amount": 7}'))
        shop = Site(calling(PAY), again, "Paid.", approve_by=self.PERMISSION)
        [first], [second] = shop.ask(owner=ann), shop.ask("Pay 7.", owner=ann)
        for each in (first, second):
            shop.record(each, by=clerk)

        shop.assistant.chat(shop.memory_id, Resume(about=[first.id]), owner=ann)

        assert shop.paid == [5]

    def test_without_a_name_each_resume_carries_out_one_answer_the_newest_first(self, ann, clerk):
        large = ("c2", "pay", '{"amount": 90}')
        by_amount = {"approve_by": lambda amount: self.PERMISSION if amount > 50 else "owner"}
        site = Site(calling(large), calling(PAY), "Unknown.", "Ninety.", **by_amount)
        [of_clerk] = site.ask("Pay 90.", owner=ann)
        [of_owner] = site.ask("Pay 5.", owner=ann)
        site.record(of_clerk, by=clerk)
        site.die_while_it_runs(of_owner)

        assert site.assistant.chat(site.memory_id, Resume(), owner=ann) == "Unknown."
        assert ([each.text for each in site.results], site.paid) == ([UNKNOWN], [])
        assert site.assistant.chat(site.memory_id, Resume(), owner=ann) == "Ninety."
        assert ([each.text for each in site.results], site.paid) == ([UNKNOWN, "Paid 90."], [90])

    def test_what_was_approved_elsewhere_runs_after_the_next_question(self, shop, ann, clerk):
        [request] = shop.ask(owner=ann)
        shop.record(request, by=clerk)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)

        assert shop.assistant.chat(shop.memory_id, Resume(), owner=ann) == "It is paid."
        assert shop.paid == [5]

    def test_if_the_model_fails_then_it_is_asked_once_more(self, ann, clerk):
        shop = Site(calling(PAY), "Sunny.", DOWN, "It is paid.", approve_by=self.PERMISSION)
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        with pytest.raises(UnavailableError):
            shop.decide(request, owner=ann, by=clerk)

        assert shop.assistant.chat(shop.memory_id, Resume(), owner=ann) == "It is paid."
        assert shop.paid == [5]
        with pytest.raises(NotPendingError):
            shop.assistant.chat(shop.memory_id, Resume(), owner=ann)

    def test_it_waits_on_when_it_has_left_the_memory_and_the_model_is_shown_it_again(self, shop, ann, clerk):
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        get_chat_memory(shop.memory_id).evict(3)

        assert shop.decide(request, owner=ann, by=clerk) == "It is paid."
        assert shop.model.sent[-1] == [AiMessage("Sunny."), UserMessage(DECIDED), shop.history[1], shop.results[0]]
        assert len(shop.history) == 6

    @pytest.mark.parametrize(("approved", "reads"), [(False, approving.DENIED), (True, approving.WITHDRAWN)])
    @pytest.mark.parametrize("asks_again", [True, False])
    def test_one_of_the_owner_that_was_decided_and_has_left_the_memory_then_was_not_run(
        self, ann, asks_again, approved, reads
    ):
        site = Site(calling(PAY), "Not paid.")
        [request] = site.ask(owner=ann, client_message_id="q1")
        site.record(request, approved=approved, by=ann)
        get_chat_memory(site.memory_id).evict(2)

        message, options = ("Pay 5.", {"client_message_id": "q1"}) if asks_again else (Resume(about=[request.id]), {})
        assert site.assistant.chat(site.memory_id, message, owner=ann, **options) == "Not paid."

        assert (site.paid, [each.text for each in site.results]) == ([], [reads])
        assert site.model.sent[-1][-1].text == reads
        assert ToolApproval.objects.get().state == "ended"

    def test_it_does_not_once_the_memory_was_cleared(self, shop, ann, clerk):
        [request] = shop.ask(owner=ann)
        get_chat_memory(shop.memory_id).clear()

        with pytest.raises(NotPendingError):
            shop.decide(request, owner=ann, by=clerk)
        assert shop.paid == []

    def test_two_calls_with_one_id_have_each_their_result(self, ann, clerk):
        again = calling(("c1", "pay", '{"amount": 7}'))
        shop = Site(calling(PAY), again, "Paid.", "Paid, too.", approve_by=self.PERMISSION)
        [first] = shop.ask(owner=ann)
        [second] = shop.ask("Pay 7.", owner=ann)

        shop.decide(first, owner=ann, by=clerk)
        shop.decide(second, owner=ann, by=clerk)

        calls = [each.tool_execution_requests for each in shop.history if isinstance(each, AiMessage)]
        results = {result.id: result.text for result in shop.results}
        assert [results[call.id] for [call] in filter(None, calls)] == ["Paid 5.", "Paid 7."]

    @pytest.mark.parametrize("way", ["chat", "achat"])
    def test_so_they_have_if_the_first_one_has_left_the_memory(self, ann, clerk, way):
        again = calling(("c1", "pay", '{"amount": 7}'))
        shop = Site(calling(PAY), again, "5 is paid.", "7 is paid.", approve_by=self.PERMISSION)
        [first] = shop.ask(owner=ann)
        get_chat_memory(shop.memory_id).evict(2)
        with pytest.raises(ApprovalRequiredError) as caught:
            asking = getattr(shop.assistant, way)(shop.memory_id, "Pay 7.", owner=ann)
            run(asking)
        [second] = caught.value.requests

        shop.decide(first, owner=ann, by=clerk)
        shop.decide(second, owner=ann, by=clerk)

        assert shop.paid == [5, 7]
        assert self.results_of(shop.history) == {'{"amount": 5}': "Paid 5.", '{"amount": 7}': "Paid 7."}
        assert self.results_of(shop.model.sent[-1]) == {'{"amount": 7}': "Paid 7."}

    def results_of(self, messages):
        """Return the result of each call, by its arguments."""
        answers = tool_answers(messages).items()
        return {messages[at].tool_execution_requests[n].arguments: messages[found].text for (at, n), found in answers}

    def test_the_question_ends_what_its_asker_may_decide_beside_what_waits_for_others(self, ann):
        site = Site(
            calling(PAY, ("c2", "pay", '{"amount": 500}')),
            "Sunny.",
            approve_by=lambda amount: self.PERMISSION if amount > 100 else "owner",
        )
        [_, second] = site.ask(owner=ann)

        site.assistant.chat(site.memory_id, "And the weather?", owner=ann)

        assert [approval.id for approval, _ in site.pending] == [second.id]
        assert [each.text for each in site.model.sent[-1] if isinstance(each, ToolExecutionResultMessage)] == [
            approving.PASSED_OVER,
            approving.WAITS,
        ]

    def test_messages_that_others_add_do_not_end_it(self, site):
        [request] = site.ask()
        get_chat_memory(site.memory_id).add(UserMessage("By the way."), AiMessage("Yes?"))

        assert site.decide(request) == "Done."
        assert site.paid == [5]
        assert site.model.sent[-1][-1] == UserMessage(DECIDED)

    def test_context_of_the_site_comes_before_the_note_and_is_of_the_first_question(self, ann, clerk):
        asked = []

        def context(question):
            asked.append(question.single_text)
            return "It rains."

        shop = Site(calling(PAY), "Sunny.", "It is paid.", approve_by=self.PERMISSION, context=context)
        [request] = shop.ask(owner=ann)
        shop.assistant.chat(shop.memory_id, "And the weather?", owner=ann)
        shop.decide(request, owner=ann, by=clerk)

        assert asked == ["Pay 5.", "And the weather?", "Pay 5."]
        assert shop.model.sent[-1][-1] == UserMessage(f"It rains.\n\n{DECIDED}")


class TestInterruptions:
    """A process that dies while an approved call runs."""

    def test_a_result_is_kept_although_the_next_call_is_interrupted(self):
        site = Site(calling(PAY, ("c2", "pay", '{"amount": 7}')), "Done.")
        first, second = site.ask()

        def die():
            if site.paid[-1] == 7:
                raise KeyboardInterrupt

        site.during = die
        with pytest.raises(KeyboardInterrupt):
            site.assistant.chat(site.memory_id, Resume(*(Decision(each.id, approved=True) for each in (first, second))))

        assert [result.text for result in site.results] == ["Paid 5."]
        states = dict(ToolApproval.objects.values_list("id", "state"))
        assert (states[first.id], states[second.id]) == ("ended", "running")

    @pytest.mark.parametrize("way", ["click", "resume", "retry"])
    def test_the_next_who_takes_the_conversation_lets_the_answer_go_on_and_runs_nothing_again(self, site, way):
        [request] = site.ask(client_message_id="q1", persist="early")
        site.die_while_it_runs(request)
        message = {
            "click": Resume(Decision(request.id, approved=True)),
            "resume": Resume(),
            "retry": UserMessage("Pay 5."),
        }
        options = {"client_message_id": "q1" if way == "retry" else None, "persist": "early"}

        assert site.assistant.chat(site.memory_id, message[way], **options) == "Done."

        assert site.paid == []
        assert [each.text for each in site.results] == [UNKNOWN]
        assert site.history[-1] == AiMessage("Done.")
        assert ToolApproval.objects.get().state == "ended"

    def test_it_is_shown_as_having_ended(self, site):
        [request] = site.ask()
        site.die_while_it_runs(request)

        rows = list(site.conversation.history().order_by("sequence"))
        [_, answer] = to_ui_messages(rows, shown_approvals(site.conversation, rows))

        assert answer["parts"][-1]["state"] == "output-error"
        assert answer["parts"][-1]["errorText"] == UNKNOWN

    def test_a_result_that_comes_after_that_is_not_stored(self, site):
        [request] = site.ask()

        def seem_dead():
            Run.objects.update(lease=before(DEAD_AFTER + 1))
            site.assistant.chat(site.memory_id, "And?")

        site.during = seem_dead
        with pytest.raises(LeaseLostError):
            site.decide(request)
        assert site.paid == [5]
        assert [each.text for each in site.results] == [UNKNOWN]
        assert repair_tools(site.history) == site.history


class TestRaces:
    def test_of_many_who_approve_at_once_one_runs_it(self, site):
        [request] = site.ask()
        count = 4
        start = threading.Barrier(count)
        outcomes = []

        def click(approved):
            try:
                start.wait(20)
                outcomes.append(site.decide(request, approved))
            except (NotPendingError, BusyError) as exc:
                outcomes.append(type(exc).__name__)
            finally:
                connection.close()

        threads = [threading.Thread(target=click, args=[index % 2 == 0]) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        approval = ToolApproval.objects.get()
        assert len(outcomes) == count
        assert site.paid == ([5] if approval.approved else [])
        assert len(site.results) == 1
        assert outcomes.count("Done.") == 1

    def test_while_one_call_runs_nobody_runs_another_one_beside_it(self):
        site = Site(calling(PAY, ("c2", "pay", '{"amount": 7}')), "Done.")
        first, second = site.ask()

        def meanwhile():
            with pytest.raises(BusyError):
                site.decide(second)

        site.during = meanwhile
        with pytest.raises(ApprovalRequiredError):
            site.decide(first)
        with pytest.raises(NotPendingError):
            site.assistant.chat(site.memory_id, Resume())
        site.during = None
        assert site.decide(second) == "Done."
        assert site.paid == [5, 7]

    def test_what_is_decided_elsewhere_while_a_call_runs_runs_after_it_in_the_same_answer(self):
        site = Site(calling(PAY, ("c2", "pay", '{"amount": 7}')), "Done.")
        first, second = site.ask()

        site.during = lambda: site.record(second)
        assert site.decide(first) == "Done."
        assert site.paid == [5, 7]
        assert [each for each in site.history if isinstance(each, AiMessage)][1:] == [AiMessage("Done.")]

    def test_a_failed_storing_of_the_answer_asks_for_nothing(self, site, monkeypatch):
        def fail(*args):
            raise RuntimeError

        monkeypatch.setattr(approving, "request_approvals", fail)
        with pytest.raises(RuntimeError):
            site.assistant.chat(site.memory_id, "Pay 5.")

        assert not ToolApproval.objects.exists()
        assert not Message.objects.filter(type="AI").exists()


class Elsewhere:
    """A router that has what the chat stores in a database that does not exist."""

    def db_for_read(self, model, **hints):
        return "elsewhere" if model._meta.app_label in {"chatmemory", "chatmemory_chat"} else None

    db_for_write = db_for_read


def test_everything_is_in_the_database_of_the_memory_whichever_the_router_names(settings):
    site = Site(calling(PAY), "Done.", "Edited.", calling(PAY), "Sunny.", memory_options={"using": "default"})
    settings.DATABASE_ROUTERS = [Elsewhere()]
    options = {"client_message_id": "q1", "persist": "early"}

    [asked] = site.ask(**options)
    assert site.decide(asked) == "Done."
    assert site.assistant.chat(site.memory_id, "Pay 5.", **options) == "Done."
    assert site.assistant.chat(site.memory_id, "Pay 6.", **options) == "Edited."
    site.ask()
    assert site.assistant.chat(site.memory_id, "And the weather?") == "Sunny."

    assert site.paid == [5]


def test_a_turn_without_such_a_call_takes_no_statement_more():
    def count(needs_approval):
        site = Site("Hello.", needs_approval=needs_approval, title=None)
        site.assistant.chat(site.memory_id, "Hi.")
        with CaptureQueriesContext(
            connection,
        ) as queries:
            site.assistant.chat(site.memory_id, "Hi again.")
        return len(queries)

    assert count(needs_approval=True) == count(needs_approval=False)


def test_an_answer_over_asyncio_runs_approved_calls_beside_each_other():
    gate = asyncio.Event()

    async def first() -> str:
        """Wait for the other."""
        await asyncio.wait_for(gate.wait(), 20)
        return "1"

    async def second() -> str:
        """Let the other go on."""
        gate.set()
        return "2"

    model = ScriptedModel(calling(("a", "first", "{}"), ("b", "second", "{}")), "Done.")
    assistant = Assistant(model, tools=[Tool(first, needs_approval=True), Tool(second, needs_approval=True)])
    memory_id = str(uuid4())

    async def drive():
        with pytest.raises(ApprovalRequiredError) as caught:
            await assistant.achat(memory_id, "Both.")
        decisions = (Decision(each.id, approved=True) for each in caught.value.requests)
        return await assistant.achat(memory_id, Resume(*decisions))

    assert run(drive()) == "Done."
