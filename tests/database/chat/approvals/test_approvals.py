"""Calls of tools that need an approval: the answer waits, and what is approved runs once, exactly as it is stored."""

import asyncio
import datetime
import threading
from contextlib import closing
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, NotPendingError, Resume, approving
from chatmemory_django.chat.approvals.waiting import UNKNOWN, pending_calls
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ApprovalRequested, ChatResponse, UnavailableError
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.chat.tools import Tool
from chatmemory_django.core.tool_calls import repair_tools
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

PAY = ("c1", "pay", '{"amount": 5}')
LOOK = ("c2", "look", "{}")
DOWN = UnavailableError("The model's server cannot be reached.")


class Site:
    """An assistant with a tool that needs an approval, and what it has paid."""

    def __init__(self, *answers, needs_approval=True, **options):
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

        self.assistant = Assistant(self.model, tools=[Tool(pay, needs_approval=needs_approval), look], **options)

    def ask(self, message="Pay 5.", **options):
        """Ask, and return the calls for which the answer waits."""
        with pytest.raises(ApprovalRequiredError) as caught:
            self.assistant.chat(self.memory_id, message, **options)
        return caught.value.requests

    def decide(self, request, approved=True, reason="", **options):
        return self.assistant.chat(self.memory_id, Resume(Decision(request.id, approved, reason)), **options)

    @property
    def conversation(self):
        return Conversation.objects.get(memory_id=self.memory_id)

    @property
    def history(self):
        return [row.chat_message for row in self.conversation.history().order_by("sequence")]

    @property
    def results(self):
        return [each for each in self.history if isinstance(each, ToolExecutionResultMessage)]

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
        assert not Message.objects.incomplete().exists()

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

    def test_an_expired_call_is_not_run_and_the_model_learns_it(self, site):
        [request] = site.ask()
        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(days=2))

        assert site.pending == []
        with pytest.raises(NotPendingError, match="has expired"):
            site.decide(request)
        assert site.assistant.chat(site.memory_id, Resume()) == "Done."
        assert (site.paid, site.results[0].text) == ([], approving.EXPIRED)

    @override_settings(CHATMEMORY={"CHAT": {"APPROVAL_SECONDS": 1}})
    def test_how_long_a_call_waits_is_a_setting(self, site):
        site.ask()
        ToolApproval.objects.update(requested_at=timezone.now() - datetime.timedelta(seconds=2))
        assert site.pending == []


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

        with pytest.raises(NotPendingError, match="a call that runs"):
            site.assistant.chat(site.memory_id, Resume())
        assert site.assistant.chat(site.memory_id, "And?") == "Done."
        assert [each.text for each in site.results] == [UNKNOWN]
        assert site.paid == []

    def test_while_an_approved_call_runs_its_result_is_not_stored(self, site):
        [request] = site.ask()
        site.during = lambda: site.assistant.chat(site.memory_id, "And?")

        with pytest.raises(NotPendingError, match="has gone on without the result"):
            site.decide(request)
        assert site.paid == [5]
        assert [each.text for each in site.results] == [UNKNOWN]
        assert repair_tools(site.history) == site.history

    def test_a_call_that_was_approved_but_not_run_is_not_run_any_more(self, site):
        [request] = site.ask()
        approving.decide(Conversation.objects.all(), site.memory_id, [Decision(request.id, approved=True)], None)

        site.assistant.chat(site.memory_id, "And?")

        assert ([each.text for each in site.results], site.paid) == ([approving.WITHDRAWN], [])


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
            except (NotPendingError, ApprovalRequiredError) as exc:
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

    def test_two_processes_that_run_two_calls_at_once_leave_one_answer(self):
        site = Site(calling(PAY, ("c2", "pay", '{"amount": 7}')), "Done.")
        first, second = site.ask()

        def meanwhile():
            site.during = None
            with pytest.raises(ApprovalRequiredError):
                site.decide(second)

        site.during = meanwhile
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
