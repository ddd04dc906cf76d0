"""What is promised of what answers leave behind, by every way to ask."""

import asyncio
import threading
import time
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.db.models import F

from chatmemory_django.chat.answers import stored
from chatmemory_django.chat.answers.exchange import TooManyRoundsError
from chatmemory_django.chat.answers.returns import InvalidAnswerError
from chatmemory_django.chat.answers.too_long import QuestionTooLongError
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import (
    BrokenStreamError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    ModelTimeoutError,
    PartialThinking,
    RateLimitError,
)
from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.leases import DEAD_AFTER, BusyError, Taken
from chatmemory_django.chat.tools import ToolError
from chatmemory_django.core.tool_calls import NOT_ACCEPTED, UNKNOWN
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.messages import (
    AiMessage,
    DetailLevel,
    Image,
    ImageContent,
    NewMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.base import LeaseLostError
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from tests.asgi import run
from tests.database.chat.answers.conftest import (
    DOWN,
    PAID,
    PATIENCE,
    PAY,
    QUESTION,
    Till,
    history,
    in_event_loops,
    interruptible,
    messages,
    remembered,
    tokens,
    tools,
    two_ways,
)
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.pictures import PNG, encoded

pytestmark = pytest.mark.django_db(transaction=True)


def everything() -> list:
    """Return all that is stored of the conversation, except that somebody has asked something in it."""
    conversations = [{**row, "fence": None} for row in Conversation.objects.values()]
    return [conversations, list(Message.objects.order_by("sequence").values())]


class TestARefusedQuestionChangesNothing:
    @pytest.mark.parametrize("has_tools", [False, True])
    def test_whose_text_is_too_long(self, ask, till, has_tools):
        model = ScriptedModel("Hello, Ada.", "Ada.")
        bot = Assistant(model, tools=tools(till.pay) if has_tools else [], **tokens(80))
        ask(bot, "My name is Ada.")
        before = everything()

        with ask.fails(QuestionTooLongError) as caught:
            ask(bot, "word " * 90)

        assert everything() == before
        if not ask.is_post:
            assert (caught.value.needed - caught.value.beside, caught.value.limit) == (3 + 90, 80)
        assert ask(bot, "What is my name?") == "Ada."
        asked = [UserMessage("My name is Ada."), AiMessage("Hello, Ada."), UserMessage("What is my name?")]
        assert model.sent[1:] == [asked]

    def test_whose_image_is_too_large(self, ask):
        estimator = OpenAiTokenCountEstimator("gpt-4o-mini")
        limited = {"max_tokens": 4_000, "token_count_estimator": estimator}
        model = ScriptedModel("Hello, Ada.", "Ada.")
        bot = Assistant(model, memory=TokenWindowChatMemory, memory_options=limited)
        ask(bot, "My name is Ada.")
        before = everything()
        image = ImageContent(Image(base64_data=encoded(PNG), mime_type="image/png"), DetailLevel.AUTO)

        with ask.fails(QuestionTooLongError):
            ask(bot, UserMessage([TextContent("Look."), image]))

        assert everything() == before
        ask(bot, "What is my name?")
        assert len(model.sent[-1]) == 3

    @pytest.mark.parametrize("has_tools", [False, True])
    def test_it_begins_no_conversation(self, ask, till, has_tools):
        bot = Assistant(ScriptedModel("Yes."), tools=tools(till.pay) if has_tools else [], **tokens(40))

        with ask.fails(QuestionTooLongError):
            ask(bot, "word " * 90)

        assert not Conversation.objects.exists()
        assert not bot.model.requests


class TestWhatHappenedIsRemembered:
    def goes_on(self, ask, bot: Assistant, till: Till, **options) -> None:
        """Check that nothing was lost, that a retry runs nothing twice, and that another one asks no model."""
        assert history()[:3] == [QUESTION, PAY, PAID]
        before = len(bot.model.requests)

        answer = ask(bot, "Pay.", name="q1", **options)

        assert str(answer) == "7"
        assert till.paid == [5]
        assert bot.model.sent[before:] == [history()[:-1]]
        assert history()[:3] == [QUESTION, PAY, PAID]
        if not options:
            assert ask(bot, "Pay.", name="q1") == "7"
            assert len(bot.model.requests) == before + 1

    @pytest.mark.parametrize("error", [DOWN, BrokenStreamError("It broke."), ModelTimeoutError("It took long.")])
    def test_after_an_error_of_the_model(self, ask, till, error):
        bot = Assistant(ScriptedModel(PAY, error, "7", words_before_error=2), tools=tools(till.pay))

        with ask.fails(type(error)):
            ask(bot, "Pay.", name="q1")

        assert len(history()) == 3
        self.goes_on(ask, bot, till)

    @pytest.mark.slow
    def test_after_the_assistants_own_time_out(self, ask, till):
        def pay(amount: int) -> str:
            model.pause = PATIENCE
            return till.pay(amount)

        model = ScriptedModel(PAY, lambda _: time.sleep(4.1) or "Too late.", "7")
        bot = Assistant(model, tools=tools(pay), timeout=4)  # the call is stored before

        with ask.fails(ModelTimeoutError):
            ask(bot, "Pay.", name="q1")

        model.pause, model.answers, bot.timeout = 0, ["7"], None
        self.goes_on(ask, bot, till)

    def test_after_a_model_has_ended_without_a_response(self, ask, till):
        class Broken(ScriptedModel):
            def _events(self, answer):
                return (event for event in super()._events(answer) if answer.text != "Broken.")

            def do_chat(self, request):
                response = super().do_chat(request)
                return None if response.ai_message.text == "Broken." else response

        bot = Assistant(Broken(PAY, "Broken.", "7"), tools=tools(till.pay))

        with ask.fails(BrokenStreamError):
            ask(bot, "Pay.", name="q1")

        assert len(bot.model.requests) == 2
        self.goes_on(ask, bot, till)

    def test_after_too_many_rounds(self, ask, till):
        bot = Assistant(ScriptedModel(PAY, PAY, "7"), tools=tools(till.pay), max_rounds=2)

        with ask.fails(TooManyRoundsError):
            ask(bot, "Pay.", name="q1")

        self.goes_on(ask, bot, till)

    @pytest.mark.parametrize("ask", ["chat-late", "chat-early", "achat-late", "achat-early"], indirect=True)
    def test_after_an_answer_of_another_type(self, ask, till):
        bot = Assistant(ScriptedModel(PAY, "No number.", '{"value": 7}'), tools=tools(till.pay))

        with ask.fails(InvalidAnswerError):
            ask(bot, "Pay.", name="q1", returns=int)

        assert len(history()) == 3
        self.goes_on(ask, bot, till, returns=int)

    @interruptible
    def test_after_its_reader_has_left_or_stopped_it(self, ask, till):
        def pay(amount: int) -> str:
            model.pause = PATIENCE
            return till.pay(amount)

        model = ScriptedModel(PAY, "7")
        bot = Assistant(model, tools=tools(pay))

        ask.until(lambda: _stored("c1"), bot, "Pay.", name="q1")

        model.pause = 0
        assert len(history()) == 3
        self.goes_on(ask, bot, till)

    @pytest.mark.parametrize("ask", ["stream-late"], indirect=True)
    def test_after_its_reader_has_left_what_was_stored_before_the_model_is_asked_again(self, ask, till):
        bot = Assistant(ScriptedModel(PAY, DOWN, "7"), tools=tools(till.pay), keep_partial=True)
        with ask.fails(RateLimitError):
            ask(bot, "Pay.", name="q1")

        ask.until(lambda: True, bot, "Pay.", name="q1")

        assert history() == [QUESTION, PAY, PAID]
        self.goes_on(ask, bot, till)

    @two_ways
    def test_after_more_calls_than_are_read_at_once(self, ask, till, monkeypatch):
        monkeypatch.setattr(stored, "MAX_STEPS", 4)
        rounds = [calling((f"c{each}", "pay", f'{{"amount": {each}}}')) for each in range(4)]
        bot = Assistant(ScriptedModel(*rounds, DOWN, "7", "8"), tools=tools(till.pay))
        with ask.fails(RateLimitError):
            ask(bot, "Pay.", name="q1")
        before = history()

        assert ask(bot, "Pay.", name="q1") == "7"
        assert ask(bot, "Pay.", name="q1") == "7"

        assert bot.model.sent[-1] == before
        assert history() == [*before, AiMessage("7")]
        assert till.paid == [0, 1, 2, 3]

    def test_after_a_question_that_was_answered_there_is_nothing_to_run(self, ask, till):
        bot = Assistant(ScriptedModel(PAY, "7", "8"), tools=tools(till.pay))
        ask(bot, "Pay.", name="q1")
        before = everything()

        assert ask(bot, "Pay.", name="q1") == "7"

        assert (till.paid, len(bot.model.requests)) == ([5], 2)
        assert everything() == before

    def test_regenerate_goes_on_with_an_answer_that_has_not_ended(self, ask, till):
        bot = Assistant(ScriptedModel(PAY, DOWN, "7"), tools=tools(till.pay))
        with ask.fails(RateLimitError):
            ask(bot, "Pay.", name="q1")

        assert ask.regenerate(bot, "Pay.", "q1") == "7"

        assert till.paid == [5]
        assert history() == bot.model.sent[-1] + [AiMessage("7")] == [QUESTION, PAY, PAID, AiMessage("7")]

    def test_regenerate_makes_another_answer_beside_one_that_has_ended(self, ask, till):
        bot = Assistant(ScriptedModel(PAY, "7", PAY, "8"), tools=tools(till.pay))
        ask(bot, "Pay.", name="q1")

        assert ask.regenerate(bot, "Pay.", "q1") == "8"

        assert till.paid == [5, 5]
        assert history() == [QUESTION, PAY, PAID, AiMessage("8")]
        assert [row.text for row in Message.objects.history(all_branches=True) if row.text] == [
            "Pay.",
            "paid 5",
            "7",
            "paid 5",
            "8",
        ]

    def test_after_an_error_behind_what_others_have_added_meanwhile_it_is_asked_once_more_at_the_end(self, ask, till):
        def pay(amount: int) -> str:
            bot.chat_memory(ask.memory_id, ask.owner).add(UserMessage("By a job."))
            return till.pay(amount)

        bot = Assistant(ScriptedModel(PAY, DOWN, "7"), tools=tools(pay))
        with ask.fails(RateLimitError):
            ask(bot, "Pay.", name="q1")
        before = history()

        assert ask(bot, "Pay.", name="q1") == "7"

        assert till.paid == [5]
        assert bot.model.sent[-1] == [QUESTION, PAY, PAID, UserMessage("By a job."), QUESTION]
        assert history() == [*before, QUESTION, AiMessage("7")]

    def test_a_call_without_a_result_is_not_run_again_and_its_outcome_is_unknown(self, ask, till):
        bot = Assistant(ScriptedModel("7"), tools=tools(till.pay))
        turn = bot.chat_memory(ask.memory_id, ask.owner).turn().begin()
        turn.add(NewMessage(QUESTION, client_message_id="q1"), PAY)
        turn.save()  # then its process is killed

        assert ask(bot, "Pay.", name="q1") == "7"

        unknown = ToolExecutionResultMessage("c1", "pay", UNKNOWN, is_error=True)
        assert bot.model.sent == [[QUESTION, PAY, unknown]]
        assert history() == [QUESTION, PAY, AiMessage("7")]
        assert till.paid == []

    @in_event_loops
    def test_a_tool_that_ends_after_a_stop_has_its_result_stored(self, ask, till):
        is_called, may_return = threading.Event(), threading.Event()

        def pay(amount: int) -> str:
            is_called.set()
            assert may_return.wait(PATIENCE)
            return till.pay(amount)

        bot = Assistant(ScriptedModel(PAY, "7"), tools=tools(pay))

        ask.until(is_called.is_set, bot, "Pay.", name="q1", then=lambda: may_return.set() or len(history()) == 3)

        self.goes_on(ask, bot, till)

    @in_event_loops
    def test_of_tools_that_end_at_the_same_time_after_a_stop_every_result_is_stored(self, ask, till):
        calls = [(f"c{each}", "pay", f'{{"amount": {each}}}') for each in range(8)]
        called, may_return = [], threading.Event()

        def pay(amount: int) -> str:
            called.append(amount)
            assert may_return.wait(PATIENCE)
            return till.pay(amount)

        bot = Assistant(ScriptedModel(calling(*calls), "7"), tools=tools(pay))
        late = time.monotonic() + PATIENCE / 3

        def then() -> bool:
            may_return.set()
            return len(history()) == 2 + len(calls) or time.monotonic() > late

        ask.until(lambda: len(called) == len(calls), bot, "Pay.", name="q1", then=then)

        assert {each.text for each in history()[2:]} == {f"paid {each}" for each in till.paid}
        assert len(till.paid) == len(calls)

    def test_a_result_that_could_not_be_stored_is_stored_when_the_answer_ends(self, ask, till, monkeypatch):
        attempts, save = [], Turn.save

        def fails(turn: Turn, *args: object, **options: object) -> None:
            if till.paid:
                attempts.append(turn)
                if len(attempts) <= 1 + ask.is_post:  # over HTTP, the end is tried again, too
                    raise OperationalError("The database is away.")
            save(turn, *args, **options)

        bot = Assistant(ScriptedModel(PAY, "7"), tools=tools(till.pay))
        with monkeypatch.context() as patch, ask.fails(OperationalError):
            patch.setattr(Turn, "save", fails)
            ask(bot, "Pay.", name="q1")

        self.goes_on(ask, bot, till)

    @in_event_loops
    def test_of_calls_that_run_at_once_each_result_is_stored_when_it_ends(self, ask, till):
        async def hang() -> str:
            return await asyncio.sleep(PATIENCE, "")

        def fail() -> str:
            raise ToolError("It is closed.")

        calls = calling(("c1", "hang", "{}"), ("c2", "fail", "{}"), ("c3", "pay", '{"amount": 5}'))
        bot = Assistant(ScriptedModel(calls, "7"), tools=tools(hang, fail, till.pay))

        ask.until(lambda: _stored("c2", "c3"), bot, "Pay.", name="q1")

        assert ask(bot, "Pay.", name="q1") == "7"
        assert till.paid == [5]
        assert [(each.id, each.text) for each in bot.model.sent[-1][2:]] == [
            ("c1", UNKNOWN),
            ("c2", "It is closed."),
            ("c3", "paid 5"),
        ]

    @pytest.mark.parametrize("ask", ["chat-late", "stream-early"], indirect=True)
    def test_of_calls_one_after_the_other_those_before_the_end_of_the_process_have_results(self, ask, till):
        def die() -> str:
            raise KeyboardInterrupt

        calls = calling(("c1", "pay", '{"amount": 5}'), ("c2", "die", "{}"), ("c3", "pay", '{"amount": 6}'))
        bot = Assistant(ScriptedModel(calls, "7"), tools=tools(till.pay, die))

        with pytest.raises(KeyboardInterrupt):
            ask(bot, "Pay.", name="q1")

        assert ask(bot, "Pay.", name="q1") == "7"
        assert till.paid == [5]
        assert [each.text for each in bot.model.sent[-1][2:]] == ["paid 5", UNKNOWN, UNKNOWN]


def _stored(*ids: str) -> bool:
    return {each.id for each in history() if isinstance(each, ToolExecutionResultMessage)} == set(ids)


class TestARejectedQuestionPoisonsNothing:
    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (InvalidRequestError("No."), "invalid"),
            (ContextLengthError("No."), "too_long"),
            (ContentFilterError("No."), "content_filter"),
        ],
    )
    def test_it_is_in_the_history_with_the_reason_and_in_no_request(self, ask, error, reason):
        model = ScriptedModel("Hi!", error, "Yes.", "No.")
        bot = Assistant(model)
        ask(bot, "Hello?")
        with ask.fails(type(error)):
            ask(bot, "Poison.", name="q1")

        assert ask(bot, "Is all well?") == "Yes."

        asked = [UserMessage("Hello?"), AiMessage("Hi!"), UserMessage("Is all well?")]
        assert model.sent[-1] == asked
        assert remembered(ask, bot) == [*asked, AiMessage("Yes.")]
        rejected = Message.objects.history().filter(text="Poison.")
        kept = [(row.metadata, row.is_complete) for row in rejected]
        assert kept == ([({"rejected": reason}, False)] if ask.persist == "early" else [])  # late, nothing is stored

    def test_sent_again_it_is_asked_once_more_at_the_end(self, ask):
        model = ScriptedModel("Hi!", InvalidRequestError("No."), "Yes.", "No.")
        bot = Assistant(model)
        ask(bot, "Hello?")
        with ask.fails(InvalidRequestError):
            ask(bot, "Poison.", name="q1")
        ask(bot, "Is all well?")

        assert ask(bot, "Poison.", name="q1") == "No."

        assert model.sent[-1] == [*model.sent[-2], AiMessage("Yes."), UserMessage("Poison.")]
        assert history()[-2:] == [UserMessage("Poison."), AiMessage("No.")]

    @pytest.mark.parametrize("ask", ["chat-early", "astream-early", "post-early"], indirect=True)
    def test_regenerated_and_then_sent_again_it_goes_on_and_no_tool_runs_twice(self, ask, till):
        bot = Assistant(ScriptedModel(InvalidRequestError("No."), PAY, DOWN, "7"), tools=tools(till.pay))
        with ask.fails(InvalidRequestError):
            ask(bot, "Pay.", name="q1")
        with ask.fails(RateLimitError):
            ask.regenerate(bot, "Pay.", "q1")

        assert ask(bot, "Pay.", name="q1") == "7"

        assert bot.model.sent[-1] == [UserMessage("Pay."), PAY, PAID]
        assert till.paid == [5]

    def test_an_image_is_named_as_the_reason(self, ask):
        bot = Assistant(ScriptedModel(InvalidRequestError("No."), "Yes."), **messages(20))
        image = ImageContent(Image(base64_data=encoded(PNG), mime_type="image/png"))

        with ask.fails(InvalidRequestError):
            ask(bot, UserMessage([TextContent("Look."), image]))

        assert [row.metadata for row in Message.objects.all()] == [{"rejected": "file"}] * (ask.persist == "early")

    def test_a_question_that_has_an_answer_stays_in_the_memory_if_another_answer_is_not_given(self, ask):
        model = ScriptedModel("Hi!", InvalidRequestError("No."), "Yes.")
        bot = Assistant(model)
        ask(bot, "Hello?", name="q1")
        before = remembered(ask, bot)

        with ask.fails(InvalidRequestError):
            ask.regenerate(bot, "Hello?", "q1")

        assert remembered(ask, bot) == before == history()
        assert not Message.objects.filter(metadata__has_key="rejected").exists()

    @pytest.mark.parametrize("ask", ["chat-late", "astream-early"], indirect=True)
    def test_so_does_one_whose_answer_is_on_another_branch(self, ask, till):
        model = ScriptedModel("Hi!", PAY, DOWN, "Yes.", InvalidRequestError("No."))
        bot = Assistant(model, tools=tools(till.pay))
        ask(bot, "Hello?", name="q1")
        with ask.fails(RateLimitError):
            ask.regenerate(bot, "Hello?", "q1")
        ask(bot, "Is all well?")
        before = remembered(ask, bot)

        with ask.fails(InvalidRequestError):
            ask.regenerate(bot, "Hello?", "q1")

        assert remembered(ask, bot) == before == history()
        assert not Message.objects.filter(metadata__has_key="rejected").exists()

    def test_a_rejection_after_a_tool_has_run_keeps_everything_and_later_requests_have_a_note(self, ask, till):
        model = ScriptedModel(PAY, InvalidRequestError("No."), "Yes.")
        bot = Assistant(model, tools=tools(till.pay))
        with ask.fails(InvalidRequestError):
            ask(bot, "Pay.", name="q1")
        assert history() == [QUESTION, PAY, PAID]

        assert ask(bot, "Is all well?") == "Yes."

        note = ToolExecutionResultMessage("c1", "pay", NOT_ACCEPTED, is_error=True)
        assert model.sent[-1] == [QUESTION, PAY, note, UserMessage("Is all well?")]
        assert history()[:3] == [QUESTION, PAY, PAID]
        assert till.paid == [5]

    @two_ways
    @pytest.mark.parametrize("goes_on", ["again", "edited", "regenerated"])
    def test_so_has_one_of_an_answer_that_goes_on_or_is_replaced_behind_those_results(self, ask, till, goes_on):
        again = calling(("c2", "pay", '{"amount": 6}'))
        after = [again, DOWN, "7"] if goes_on == "again" else ["6", "7"]
        model = ScriptedModel(PAY, InvalidRequestError("No."), *after)
        bot = Assistant(model, tools=tools(till.pay))
        with ask.fails(InvalidRequestError):
            ask(bot, "Pay.", name="q1")

        if goes_on == "again":
            with ask.fails(RateLimitError):
                ask(bot, "And?", name="q2")
        else:
            ask(bot, "And?", name="q2")
        if goes_on == "regenerated":
            assert ask.regenerate(bot, "And?", "q2") == "7"
        else:
            assert ask(bot, "Or?" if goes_on == "edited" else "And?", name="q2") == "7"

        note = ToolExecutionResultMessage("c1", "pay", NOT_ACCEPTED, is_error=True)
        assert model.sent[-1][:3] == [QUESTION, PAY, note]
        assert len(model.sent[-1]) == (6 if goes_on == "again" else 4)

    @two_ways
    def test_so_has_the_next_one_of_the_branch_that_has_begun_behind_those_results(self, ask, till):
        model = ScriptedModel(PAY, InvalidRequestError("No."), "6", "7", "8")
        bot = Assistant(model, tools=tools(till.pay))
        with ask.fails(InvalidRequestError):
            ask(bot, "Pay.", name="q1")
        ask(bot, "And?", name="q2")
        ask(bot, "Or?", name="q2")

        assert ask(bot, "Then?") == "8"

        note = ToolExecutionResultMessage("c1", "pay", NOT_ACCEPTED, is_error=True)
        assert model.sent[-1][:3] == [QUESTION, PAY, note]
        assert len(model.sent[-1]) == 6

    @two_ways
    def test_so_has_an_edit_behind_those_results_while_another_branch_is_shown(self, ask, till):
        model = ScriptedModel(PAY, InvalidRequestError("No."), "6", "7", "8")
        bot = Assistant(model, tools=tools(till.pay))
        with ask.fails(InvalidRequestError):
            ask(bot, "Pay.", name="q1")
        ask(bot, "And?", name="q2")
        ask(bot, "Pay nothing.", name="q1")

        assert ask(bot, "Or?", name="q2") == "8"

        note = ToolExecutionResultMessage("c1", "pay", NOT_ACCEPTED, is_error=True)
        assert model.sent[-1] == [QUESTION, PAY, note, UserMessage("Or?")]


late = pytest.mark.parametrize("ask", ["chat-late"], indirect=True)


def begun(ask, model, till):
    """Return the stream of an answer to "Second?", whose model has been asked and whose events are still to come."""

    class Asked(ScriptedModel):
        def do_stream(self, request):
            yield PartialThinking("Well.")
            yield from model.do_stream(request)

    bot = Assistant(Asked(), tools=tools(till.pay))
    stream = bot.stream(ask.memory_id, "Second?", owner=ask.owner)
    next(stream)
    return stream


class TestOneAnswerAtATime:
    def test_a_second_one_is_refused(self, ask):
        refused = []

        def pay(amount: int) -> str:
            with ask.fails(BusyError):  # in this thread, another event loop would wait for this tool
                ask(bot, "Second?") if ask.is_post else bot.chat(ask.memory_id, "Second?", owner=ask.owner)
            refused.append(amount)
            return f"paid {amount}"

        bot = Assistant(ScriptedModel(PAY, "7"), tools=tools(pay))

        assert ask(bot, "Pay.") == "7"

        assert refused == [5]
        assert history() == [QUESTION, PAY, PAID, AiMessage("7")]
        assert ask(bot, "Second?") == "7"

    @late
    def test_without_an_id_nothing_is_taken_unless_the_model_calls_a_tool(self, ask, till):
        bot = Assistant(ScriptedModel("1", PAY, "7"), tools=tools(till.pay))

        ask(bot, "First?")
        assert (Conversation.objects.get().fence, Run.objects.count()) == (0, 0)

        ask(bot, "Pay.")
        assert (Conversation.objects.get().fence, Run.objects.count()) == (1, 1)

    @late
    def test_of_two_that_begin_together_the_second_to_call_a_tool_is_refused(self, ask, till):
        def pay(amount: int) -> str:
            with ask.fails(BusyError):
                list(second)
            return till.pay(amount)

        bot = Assistant(ScriptedModel(PAY, "7"), tools=tools(pay))
        second = begun(ask, ScriptedModel(PAY, "8"), till)

        assert ask(bot, "Pay.") == "7"

        assert till.paid == [5]
        assert history() == [QUESTION, PAY, PAID, AiMessage("7")]

    @late
    def test_of_two_that_begin_together_one_without_calls_is_refused_while_the_other_runs(self, ask, till):
        def pay(amount: int) -> str:
            with ask.fails(BusyError):
                list(second)
            return till.pay(amount)

        bot = Assistant(ScriptedModel(PAY, "7"), tools=tools(pay))
        second = begun(ask, ScriptedModel("8"), till)

        assert ask(bot, "Pay.") == "7"

        assert history() == [QUESTION, PAY, PAID, AiMessage("7")]

    @late
    @pytest.mark.parametrize("answer", [("8",), (PAY, "8")], ids=["without-calls", "with-calls"])
    def test_of_two_that_begin_together_one_comes_after_the_other_has_ended(self, ask, till, answer):
        second = begun(ask, ScriptedModel(*answer), till)
        ask(Assistant(ScriptedModel(PAY, "7"), tools=tools(till.pay)), "Pay.")

        list(second)

        calls = [PAY, PAID] if PAY in answer else []
        assert history() == [QUESTION, PAY, PAID, AiMessage("7"), UserMessage("Second?"), *calls, AiMessage("8")]
        assert not Run.objects.filter(active__isnull=False).exists()

    @late
    def test_one_that_begins_between_two_rounds_of_another_is_refused(self, ask, till):
        class Beside(ScriptedModel):
            def do_chat(self, request):
                if len(request.messages) > 1:
                    with ask.fails(BusyError):
                        Assistant(ScriptedModel("8"), tools=tools(till.pay)).chat(
                            ask.memory_id, "Second?", owner=ask.owner
                        )
                return super().do_chat(request)

        bot = Assistant(Beside(PAY, "7"), tools=tools(till.pay))

        assert bot.chat(ask.memory_id, "Pay.", owner=ask.owner) == "7"
        assert history() == [QUESTION, PAY, PAID, AiMessage("7")]

    @late
    @pytest.mark.parametrize("has_tools", [False, True])
    def test_one_that_begins_while_another_has_stored_nothing_is_refused_without_the_model(self, ask, till, has_tools):
        second, refused = ScriptedModel("8"), []

        class Beside(ScriptedModel):
            def do_chat(self, request):
                with ask.fails(BusyError):
                    other = Assistant(second, tools=tools(till.pay) if has_tools else [])
                    other.chat(ask.memory_id, "Second?", owner=ask.owner)
                refused.append(len(self.requests))
                return super().do_chat(request)

        ask(Assistant(ScriptedModel("6")), "Pay.", name="q1")
        bot = Assistant(Beside(PAY, "7"), tools=tools(till.pay))

        assert bot.chat(ask.memory_id, None, after=1, owner=ask.owner) == "7"

        assert (len(refused), second.requests) == (2, [])
        assert history() == [QUESTION, PAY, PAID, AiMessage("7")]

    @late
    def test_one_that_begins_while_a_dead_one_has_the_conversation_takes_it(self, ask, till):
        ask(Assistant(ScriptedModel("6")), "First?", name="q1")
        dead = leases.take("default", ask.memory_id, ask.owner.pk, uuid4())
        Run.objects.update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))

        assert ask(Assistant(ScriptedModel("8"), tools=tools(till.pay)), "Second?") == "8"

        assert (Conversation.objects.get().fence, Run.objects.get(pk=dead.run).state) == (dead.fence + 1, "interrupted")

    @pytest.mark.parametrize("ask", ["achat-late", "astream-early"], indirect=True)
    def test_one_that_is_cancelled_while_it_begins_gives_the_conversation_up(self, ask, till, monkeypatch):
        has_taken, may_go_on, take = threading.Event(), threading.Event(), leases.Lease.take

        def taken(*args: object, **options: object) -> object:
            fence = take(*args, **options)
            has_taken.set()
            assert may_go_on.wait(PATIENCE)
            return fence

        bot = Assistant(ScriptedModel("7"), tools=tools(till.pay))
        monkeypatch.setattr(leases.Lease, "take", taken)

        async def cancelled() -> None:
            task = asyncio.create_task(ask._aasked(bot, "First?", client_message_id="q1"))
            while not (has_taken.is_set() or task.done()):
                await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.sleep(0.002)
            may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(cancelled())

        assert not Run.objects.filter(active__isnull=False).exists()
        assert ask(bot, "Second?") == "7"

    def test_one_whose_conversation_another_has_taken_stores_nothing_any_more(self, ask, till):
        taken = []

        def pay(amount: int) -> str:
            Run.objects.update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))
            taken.append(leases.take("default", ask.memory_id, ask.owner.pk, uuid4()))
            return till.pay(amount)

        bot = Assistant(ScriptedModel(PAY, "7"), tools=tools(pay))

        with ask.fails(LeaseLostError):
            ask(bot, "Pay.", name="q1")

        assert [type(each) for each in taken] == [Taken]
        assert till.paid == [5]
        assert history() == [QUESTION, PAY]
        assert len(bot.model.requests) == 1
