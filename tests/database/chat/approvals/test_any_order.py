"""
Outputs, decisions, questions, retries and failures in any order, against a model of what has to come of them.

The browser acts outside of the database: it sends a value that is never sent twice, so that each result shows which
output it is.
"""

import itertools
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, NotPendingError, Output, Resume
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatModel, ChatResponse, UnavailableError
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.chat.tools import Tool
from chatmemory_django.core.tool_calls import in_order_of_calls
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models import Conversation

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = st.lists(st.text("cap", min_size=1, max_size=3), max_size=3)
"""The calls of each round: of a tool of the client, of one that needs an approval, or of a plain one."""


class Model(ChatModel):
    """Calls what it is asked for, round by round, and then ends; it fails as often as it is asked to."""

    def __init__(self):
        self.rounds = []
        self.failures = 0
        self.sent = []

    def do_chat(self, request):
        if self.failures:
            self.failures -= 1
            raise UnavailableError("Away.")
        self.sent = list(request.messages)
        asked = max(index for index, each in enumerate(self.sent) if each.type == "USER")
        done = sum(isinstance(each, AiMessage) for each in self.sent[asked:])
        if done >= len(self.rounds):
            return ChatResponse(AiMessage("Done."))
        # The same ids in each answer, as some models have them.
        calls = [ToolExecutionRequest(f"{done}-{at}", letter, "{}") for at, letter in enumerate(self.rounds[done])]
        return ChatResponse(AiMessage(None, tool_execution_requests=calls))


class Talk:
    """A conversation, with what is expected of it: what each open call waits for, and which outputs were accepted."""

    def __init__(self, persist):
        self.ran = []
        self.accepted = []
        self.open = {}
        self.memory_id = str(uuid4())
        self.model = Model()
        self.values = itertools.count()
        self.question = ""

        def run():
            """Do something that must not be done twice."""
            self.ran.append(next(self.values))
            return f"ran {self.ran[-1]}"

        tools = [
            Tool(run, name="c", runs_in="client"),
            Tool(run, name="a", needs_approval=True),
            Tool(run, name="p"),
        ]
        self.assistant = Assistant(self.model, tools=tools, persist=persist)

    def do(self, message, **options):
        """Say it, and note for what the answer waits then; return how it ended."""
        try:
            self.assistant.chat(self.memory_id, message, **options)
        except ApprovalRequiredError as exc:
            self.open = {each.id: each.runs_in for each in exc.requests}
            return "waits"
        except NotPendingError:
            return "nothing"
        except UnavailableError:
            return "failed"
        self.open = {}
        return "done"

    def ask(self, rounds):
        self.question = f"q{next(self.values)}"
        self.model.rounds, given_up, self.open = rounds, self.open, {}
        self.do(self.question, client_message_id=self.question)
        assert given_up.keys().isdisjoint(self.open)

    def again(self):
        before = dict(self.open)
        self.do(self.question, client_message_id=self.question)
        assert not before or self.open == before

    def answer(self, chosen):
        """Send outputs and decisions for some of the open calls, each in one of two ways."""
        given = []
        for name in chosen:
            yes, value = bool(next(self.values) % 2), f"output {next(self.values)}"
            given.append(Output(name, value, not yes) if self.open[name] == "client" else Decision(name, yes))
        left = {name: where for name, where in self.open.items() if name not in chosen}
        calls = list(self.open)
        how = self.do(Resume(*given))
        given.sort(key=lambda each: calls.index(each.id))  # so they are stored, however they are sent
        self.accepted += [each.value for each in given if isinstance(each, Output)]
        assert how != "nothing"
        if left:
            assert (how, self.open) == ("waits", left)
        elif how == "failed":
            self.open = {}

    def too_late(self, ended):
        """Send an output for a call that waits no more: it changes nothing."""
        before = self.rows
        assert self.do(Resume(Output(ended, "too late"))) == "nothing"
        assert self.rows == before

    @property
    def rows(self):
        history = Conversation.objects.get(memory_id=self.memory_id).history().order_by("sequence")
        return [row.chat_message for row in history]

    def check(self):
        found = Conversation.objects.filter(memory_id=self.memory_id).first()
        if found is None:
            return
        rows = self.rows
        results = [each.text for each in rows if isinstance(each, ToolExecutionResultMessage)]
        assert [text for text in results if text.startswith("output")] == self.accepted
        assert [text for text in results if text.startswith("ran")] == [f"ran {number}" for number in self.ran]
        unanswered = sum(at is not None and isinstance(rows[index], AiMessage) for index, at in in_order_of_calls(rows))
        assert unanswered == len(self.open)
        waiting = {each.id: "client" for each, _ in pending_calls(found, in_client=True)}
        waiting |= {each.id: "server" for each, _ in pending_calls(found)}
        assert waiting == self.open
        # What is sent has one result behind each call, whatever has become of it.
        sent = self.model.sent
        assert [index for index, at in in_order_of_calls(sent) if at is None] == [
            index for index, each in enumerate(sent)
        ]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), persist=st.sampled_from(["late", "early"]))
def test_each_output_is_stored_once_and_in_the_place_of_its_call(data, persist):
    talk = Talk(persist)
    for _ in range(data.draw(st.integers(1, 8))):
        steps = ["ask"] + ["again"] * bool(talk.question) + ["answer"] * 5 * bool(talk.open)
        ended = list(ToolApproval.objects.filter(conversation__memory_id=talk.memory_id, state="ended"))
        steps += ["too_late"] * bool(ended)
        talk.model.failures = data.draw(st.sampled_from([0, 0, 0, 1]))
        match data.draw(st.sampled_from(steps)):
            case "ask":
                talk.ask(data.draw(ROUNDS))
            case "again":
                talk.again()
            case "answer":
                talk.answer(data.draw(st.lists(st.sampled_from(list(talk.open)), min_size=1, unique=True)))
            case "too_late":
                talk.too_late(data.draw(st.sampled_from(ended)).id)
        talk.check()
    assert not ToolApproval.objects.filter(state="running").exists()
