"""What is promised of what a model is sent while an answer runs, by every way to ask."""

import pytest
from django.apps import apps

from chatmemory_django.chat.answers.too_long import AnswerTooLongError
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import (
    RateLimitError,
)
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import SummarizingChatMemory
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from tests.database.chat.answers.conftest import (
    DOWN,
    PAY,
    QUESTION,
    history,
    messages,
    remembered,
    tokens,
    tools,
    two_ways,
)
from tests.estimators import ADDITIVE_WORDS, words
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)


class TestTheAnswerThatIsRunningIsNeverPushedOut:
    def test_by_its_own_rounds(self, ask, till):
        rounds = [calling(*((f"c{each}-{n}", "pay", '{"amount": 5}') for n in range(4))) for each in range(6)]
        model = ScriptedModel("Hi!", *rounds, "7")
        bot = Assistant(model, tools=tools(till.pay), system_message="Be brief.", **messages(20))
        ask(bot, "Hello?")

        assert ask(bot, "Pay.") == "7"

        assert len(till.paid) == 24
        for sent in model.sent[1:]:
            assert sent[0] == SystemMessage("Be brief.")
            assert sent.count(QUESTION) == 1
        assert len(model.sent[-1]) == 2 + 6 * 5
        assert len(remembered(ask, bot)) <= 20
        assert len(history()) == 3 + 1 + 6 * 5 + 1

    def test_by_many_calls_at_once(self, ask):
        def read() -> str:
            return "word " * 40

        model = ScriptedModel(calling(*((f"c{n}", "read", "{}") for n in range(19))), "7")
        bot = Assistant(model, tools=tools(read), **tokens(400))

        assert ask(bot, "Read.") == "7"

        sent = model.sent[-1]
        assert [type(each) for each in sent] == [UserMessage, AiMessage] + [ToolExecutionResultMessage] * 19
        assert ADDITIVE_WORDS.estimate_token_count_in_messages(sent) <= 400
        assert [words(each.text) for each in history()[2:-1]] == [40] * 19

    def test_by_a_result_that_is_too_long(self, ask):
        def read() -> str:
            return "word " * 8_000

        model = ScriptedModel(calling(("c1", "read", "{}")), "7")
        bot = Assistant(model, tools=tools(read), **tokens(4_000))

        assert ask(bot, "Read.") == "7"

        assert words(model.sent[-1][-1].text) < 1_100
        assert model.sent[-1][-1].text.endswith(" characters left out]")
        assert words(history()[2].text) == 8_000

    def test_the_error_for_calls_that_cannot_fit_names_them(self, ask, till):
        calls = calling(*((f"c{n}", "pay", '{"amount": 5}') for n in range(19)))
        bot = Assistant(ScriptedModel(calls, "7"), tools=tools(till.pay), **tokens(60))

        with ask.fails(AnswerTooLongError) as caught:
            ask(bot, "Pay.")

        assert "your message" not in str(caught.value).lower()
        assert ask.is_post or "calls of tools and their results" in str(caught.value)
        assert len(history()) == 2 + 19


@two_ways
class TestTheSystemMessageComesFirst:
    def test_whenever_it_was_changed(self, ask, till):
        model = ScriptedModel("One.", "Two.", PAY, "Three.")
        for number in range(3):
            bot = Assistant(model, tools=tools(till.pay), system_message=f"Be brief, {number}.")
            ask(bot, "Go.")

        for number, sent in zip((0, 1, 2, 2), model.sent, strict=True):
            assert sent[0] == SystemMessage(f"Be brief, {number}.")
            assert sum(isinstance(each, SystemMessage) for each in sent) == 1

    def test_a_summary_comes_behind_it(self, ask):
        limits = {"max_tokens": 60, "summary_tokens": 20, "after_tokens": 10}
        summarizing = {"token_count_estimator": ADDITIVE_WORDS, "summarize": lambda *_: "They talked."}
        model = ScriptedModel("word " * 15)
        for number in range(4):
            bot = Assistant(
                model,
                memory=SummarizingChatMemory,
                memory_options={**limits, **summarizing},
                system_message=f"Be brief, {number}.",
            )
            ask(bot, "Go.")

        assert model.sent[-1][:2] == [SystemMessage("Be brief, 3."), SystemMessage("They talked.")]
        assert not any(isinstance(each, SystemMessage) for each in model.sent[-1][2:])


@two_ways
class TestContext:
    def test_it_is_sent_in_front_of_the_question_and_stored_nowhere(self, ask):
        async def orders(owner, memory_id) -> str:
            return f"Xyzzy has orders of {owner.username} in {memory_id}."

        functions = [lambda question: f"Xyzzy knows {question.single_text}", orders, lambda: None]
        model = ScriptedModel("Yes.")
        bot = Assistant(model, context=functions)

        ask(bot, "Plugh?")

        made = f"Xyzzy knows Plugh?\n\nXyzzy has orders of ann in {ask.memory_id}."
        assert model.sent == [[UserMessage([TextContent(made), TextContent("Plugh?")])]]
        assert "Plugh" in _all_that_is_stored()
        assert "Xyzzy" not in _all_that_is_stored()
        assert Conversation.objects.get().title == "Plugh?"
        ask(Assistant(model, context=lambda: None), "Yes?")
        assert model.sent[-1] == [UserMessage("Plugh?"), AiMessage("Yes."), UserMessage("Yes?")]

    def test_it_is_computed_again_when_an_answer_goes_on(self, ask, till):
        days = iter(["Monday", "Tuesday"])
        model = ScriptedModel(PAY, DOWN, "7")
        bot = Assistant(model, tools=tools(till.pay), context=lambda question: f"{next(days)}: {question.single_text}")
        with ask.fails(RateLimitError):
            ask(bot, "Pay.", name="q1")

        ask(bot, "Pay.", name="q1")

        assert [sent[0].contents[0].text for sent in model.sent] == ["Monday: Pay.", "Monday: Pay.", "Tuesday: Pay."]

    def test_a_system_message_is_given_what_it_names_too(self, ask):
        model = ScriptedModel("Yes.")

        ask(Assistant(model, system_message=lambda memory_id, owner=None: f"{owner.username} in {memory_id}"))

        assert model.sent[0][0] == SystemMessage(f"ann in {ask.memory_id}")

    def test_an_unknown_name_is_an_error_when_the_assistant_is_made(self, ask):
        for named in ("context", "system_message"):
            with pytest.raises(TypeError, match="the parameter 'user'; it can be given memory_id, owner"):
                Assistant(ScriptedModel("Yes."), **{named: lambda user: "Hello."})


def _all_that_is_stored() -> str:
    """Return all values of all tables."""
    return "\n".join(str(list(model._default_manager.values_list())) for model in apps.get_models())


@two_ways
class TestCountedIsWhatIsSent:
    def test_thinking_that_goes_back_to_its_vendor(self, ask):
        class Thinker(ScriptedModel):
            def returns_thinking(self, message: AiMessage) -> bool:
                return True

        model = Thinker(AiMessage("Yes.", thinking="hm " * 300))
        bot = Assistant(model, **tokens(1_000))

        for _ in range(6):
            ask(bot, "Go.")

        for sent in model.sent:
            thinking = sum(words(each.thinking) for each in sent if isinstance(each, AiMessage))
            assert ADDITIVE_WORDS.estimate_token_count_in_messages(sent) + thinking <= 1_000
        assert [len(sent) for sent in model.sent] == [1, 3, 5, 7, 7, 7]

    def test_specifications_of_tools_and_context(self, ask):
        def look() -> str:
            return "nothing"

        model = ScriptedModel("word " * 40)
        bot = Assistant(
            model, tools=[Tool(look, description="word " * 100)], context=lambda: "word " * 50, **tokens(260)
        )

        for _ in range(6):
            ask(bot, "Go.")

        for sent in model.sent:
            assert ADDITIVE_WORDS.estimate_token_count_in_messages(sent) + 100 <= 260
        assert [len(sent) for sent in model.sent] == [1, 3, 5, 5, 5, 5]

    def test_what_does_not_fit_beside_the_tools_has_left_the_memory_too_and_so_can_be_summarized(self, ask):
        model = ScriptedModel("word " * 40)
        bot = Assistant(model, tools=[Tool(lambda: "nothing", name="look", description="word " * 100)], **tokens(260))

        for number in range(6):
            ask(bot, f"Go {number}.")

        *earlier, _answer = [row.chat_message for row in Conversation.objects.get().memory()]
        assert model.sent[-1][-len(earlier) :] == earlier
        assert len(earlier) > 1
