"""Tools that a function returns for each answer, by every way to ask."""

from uuid import uuid4

import pytest

from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, Resume
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import RateLimitError
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import ToolExecutionResultMessage
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from tests.asgi import run
from tests.database.chat.answers.conftest import DOWN, PAID, PAY, history, tokens, tools, two_ways
from tests.estimators import ADDITIVE_WORDS, words
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)


def offered(model: ScriptedModel) -> list[list[str]]:
    """Return the names of the tools that each request of *model* has."""
    return [[tool.name for tool in request.tools] for request in model.requests]


@two_ways
class TestToolsByRequest:
    def test_they_are_those_of_who_asks_what_and_where(self, ask, till):
        async def tools_of(owner, memory_id, question) -> list:
            given.append((owner, memory_id, question.single_text))
            return tools(till.pay) if "Pay" in question.single_text else ()

        given: list = []
        model = ScriptedModel("Hi!", PAY, "Paid.")
        bot = Assistant(model, tools=tools_of)

        ask(bot, "Hello?")
        assert ask(bot, "Pay.") == "Paid."

        assert offered(model) == [[], ["pay"], ["pay"]]
        assert (till.paid, history()[3:5]) == ([5], [PAY, PAID])
        assert given == [(ask.owner, ask.memory_id, "Hello?"), (ask.owner, ask.memory_id, "Pay.")]

    def test_they_are_made_again_when_an_answer_goes_on_and_one_that_is_gone_by_then_is_an_error(self, ask, till):
        left = [tools(till.pay), []]
        model = ScriptedModel(PAY, DOWN, calling(("c2", "pay", '{"amount": 7}')), "Sorry.")
        bot = Assistant(model, tools=lambda: left.pop(0))
        with ask.fails(RateLimitError):
            ask(bot, "Pay.", name="q1")

        assert ask(bot, "Pay.", name="q1") == "Sorry."

        assert offered(model) == [["pay"], ["pay"], [], []]
        assert till.paid == [5]
        refused = history()[4]
        assert isinstance(refused, ToolExecutionResultMessage)
        assert refused.is_error
        assert refused.text == "There is no such tool; the tools are: none."

    def test_they_are_not_made_for_an_answer_that_has_ended(self, ask, till):
        made = []
        bot = Assistant(ScriptedModel("Hi!"), tools=lambda: made.append(1) or tools(till.pay))

        for _ in range(2):
            assert ask(bot, "Hello?", name="q1") == "Hi!"

        assert made == [1]

    def test_their_specifications_count(self, ask):
        def look() -> str:
            return "nothing"

        model = ScriptedModel("word " * 40)
        looking = Tool(look, description="word " * 100)
        bot = Assistant(model, tools=lambda: [looking], **tokens(260))

        for _ in range(6):
            ask(bot, "Go.")

        for request in model.requests:
            sent = ADDITIVE_WORDS.estimate_token_count_in_messages(request.messages)
            assert sent + words(request.tools[0].description) <= 260
        assert len(model.sent[-1]) < 8

    @pytest.mark.parametrize("returned", [None, "pay", 5, [5]])
    def test_what_is_no_list_of_tools_is_an_error_and_stores_nothing_but_the_question(self, ask, returned):
        with ask.fails(TypeError):
            ask(Assistant(ScriptedModel("Hi!"), tools=lambda: returned), "Pay.")

        assert all(each.type == "USER" for each in history())


class TestApprovals:
    def wait(self, bot: Assistant, memory_id: str) -> Resume:
        with pytest.raises(ApprovalRequiredError) as caught:
            bot.chat(memory_id, "Pay.")
        return Resume(Decision(caught.value.requests[0].id, True))

    @pytest.mark.parametrize("way", ["chat", "achat"])
    def test_an_approved_call_finds_its_tool_by_name(self, till, way):
        bot = Assistant(ScriptedModel(PAY, "Paid."), tools=lambda: [_approved(till.pay)])
        memory_id = str(uuid4())
        resume = self.wait(bot, memory_id)
        assert till.paid == []

        answer = getattr(bot, way)(memory_id, resume)

        assert (answer if way == "chat" else run(answer)) == "Paid."
        assert till.paid == [5]

    def test_one_whose_tool_is_gone_is_an_error_for_the_model(self, till):
        left = [[_approved(till.pay)], []]
        model = ScriptedModel(PAY, "Sorry.")
        bot, memory_id = Assistant(model, tools=lambda: left.pop(0)), str(uuid4())

        assert bot.chat(memory_id, self.wait(bot, memory_id)) == "Sorry."

        assert till.paid == []
        assert history()[2].text == "There is no such tool; the tools are: none."

    @pytest.mark.parametrize("way", ["chat", "achat"])
    def test_one_whose_tools_could_not_be_made_runs_when_the_answer_is_resumed_again(self, till, way):
        made = iter([[_approved(till.pay)], None, [_approved(till.pay)]])
        bot = Assistant(ScriptedModel(PAY, "Paid."), tools=lambda: next(made))
        memory_id = str(uuid4())
        resume = self.wait(bot, memory_id)

        with pytest.raises(TypeError):
            self.go_on(bot, way, memory_id, resume)
        assert till.paid == []

        assert self.go_on(bot, way, memory_id, Resume(about=[each.id for each in resume.decisions])) == "Paid."
        assert till.paid == [5]

    def go_on(self, bot: Assistant, way: str, memory_id: str, resume: Resume) -> str:
        answer = getattr(bot, way)(memory_id, resume)
        return answer if way == "chat" else run(answer)

    def test_they_need_a_store_that_can_wait(self, till):
        store = InMemoryChatMemoryStore()
        bot = Assistant(
            ScriptedModel(PAY),
            memory=TokenWindowChatMemory,
            memory_options={"max_tokens": 100, "token_count_estimator": ADDITIVE_WORDS, "store": store},
            tools=lambda: [_approved(till.pay)],
        )

        with pytest.raises(TypeError, match="DjangoChatMemoryStore"):
            bot.chat("c", "Pay.")

        assert store.get_messages("c") == []


class TestMistakes:
    def test_a_parameter_that_cannot_be_given(self, till):
        with pytest.raises(TypeError, match=r"tools: .*pay has the parameter 'amount'; it can be given memory_id"):
            Assistant(ScriptedModel("Yes."), tools=till.pay)


def _approved(function) -> Tool:
    return Tool(function, description="It pays.", needs_approval=True)
