"""Every call of a model is recorded: what it used, and for whom; and what is left of that when they are erased."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.calls import prune_calls, record_call
from chatmemory_django.chat.costs.ledger import BudgetExceededError
from chatmemory_django.chat.costs.recording import RecordedChatModel
from chatmemory_django.chat.costs.usage import BY, usage
from chatmemory_django.chat.model import (
    AuthenticationError,
    BrokenStreamError,
    ContextLengthError,
    ModelTimeoutError,
    RateLimitError,
    TokenUsage,
    UnavailableError,
)
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.memory import MessageWindowChatMemory, SummarizingChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import erase
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "Zwiebelkuchen"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def ann() -> Any:
    return get_user_model().objects.create_user("ann")


@pytest.fixture(autouse=True)
def memory(settings) -> None:
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 20}}
    }


def now() -> datetime:
    return datetime.now(UTC)


def recorded() -> list[tuple[Any, ...]]:
    """Return purpose, model, input, output, outcome, error and memory id of all calls, in their order."""
    columns = ("purpose", "model", "input_tokens", "output_tokens", "outcome", "error", "conversation__memory_id")
    return list(ModelCall.objects.order_by("pk").values_list(*columns))


def summed(calls: Any, by: Any, **options: Any) -> list[tuple[Any, ...]]:
    since, until = now() - timedelta(days=365), now() + MINUTE
    found = usage(calls, by, **{"since": since, "until": until, "limit": 50, **options})
    return [(each.key, each.calls, each.input, each.output) for each in found]


def add(number: int = 1, **columns: Any) -> None:
    values = {"purpose": "answer", "model": "m", "outcome": "completed", "input_tokens": 10, "output_tokens": 1}
    ModelCall.objects.bulk_create([ModelCall(**{**values, **columns}) for _ in range(number)])


def chat(assistant: Assistant, owner: Any) -> None:
    assistant.chat("c", f"Tea, {SECRET}?", owner=owner)


def achat(assistant: Assistant, owner: Any) -> None:
    run(assistant.achat("c", f"Tea, {SECRET}?", owner=owner))


def stream(assistant: Assistant, owner: Any) -> None:
    list(assistant.stream("c", f"Tea, {SECRET}?", owner=owner))


def astream(assistant: Assistant, owner: Any) -> None:
    async def read() -> None:
        async for _ in assistant.astream("c", f"Tea, {SECRET}?", owner=owner):
            pass

    run(read())


FORMS = [chat, achat, stream, astream]
CALLS = calling(("1", "look", '{"place": "here"}'))
COMPLETED = ("answer", "scripted", 5, 7, "completed", "", "c")


def look(place: str) -> str:
    """Look."""
    return place


class TestAnswers:
    @pytest.mark.parametrize("ask", FORMS)
    def test_each_round_of_an_answer_is_a_call(self, ann, ask):
        ask(Assistant(ScriptedModel(CALLS, "Yes"), tools=[look]), ann)

        assert recorded() == [COMPLETED, COMPLETED]
        assert set(ModelCall.objects.values_list("owner", flat=True)) == {ann.pk}
        assert all(now() - each.created_at < MINUTE for each in ModelCall.objects.all() if each.created_at.tzinfo)

    @pytest.mark.parametrize("ask", FORMS)
    def test_a_failed_call_is_recorded_by_the_class_of_its_error(self, ann, ask):
        with pytest.raises(UnavailableError):
            ask(Assistant(ScriptedModel(CALLS, UnavailableError(SECRET)), tools=[look]), ann)

        assert [call[:6] for call in recorded()] == [
            COMPLETED[:6],
            ("answer", "", None, None, "failed", "UnavailableError"),
        ]

    def test_a_cancelled_stream_counts_by_what_was_sent_and_has_arrived(self, ann):
        with closing(Assistant(ScriptedModel("one two three")).stream("c", "Tea?", owner=ann)) as events:
            next(events)
            next(events)

        assert recorded() == [("answer", "", 5, 2, "cancelled", "", None)]

    def test_a_cancelled_asynchronous_stream_does_so_too(self, ann):
        async def cancel() -> None:
            model = ScriptedModel("one two three", gate=asyncio.Event())
            task = asyncio.ensure_future(consume(Assistant(model, keep_partial=True).astream("c", "Tea?", owner=ann)))
            while not model.open_streams:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def consume(events: Any) -> None:
            async for _ in events:
                pass

        run(cancel())

        assert [call[:6] for call in recorded()] == [("answer", "", 5, 1, "cancelled", "")]

    @pytest.mark.parametrize("error", [BrokenStreamError, ModelTimeoutError, RuntimeError])
    @pytest.mark.parametrize("ask", FORMS)
    def test_a_call_that_fails_after_it_was_sent_counts_by_what_was_sent_and_has_arrived(self, ann, ask, error):
        with pytest.raises(error):
            ask(Assistant(ScriptedModel(error(SECRET), words_before_error=4)), ann)

        arrived = 6 if ask in {stream, astream} else 0
        assert [call[2:5] for call in recorded()] == [(9, arrived, "failed")]

    @pytest.mark.parametrize("error", [AuthenticationError, ContextLengthError, RateLimitError, UnavailableError])
    @pytest.mark.parametrize("ask", FORMS)
    def test_a_call_that_is_refused_costs_nothing(self, ann, settings, ask, error):
        settings.CHATMEMORY["COST"] = lambda model, usage: 1
        with pytest.raises(error):
            ask(Assistant(ScriptedModel(error(SECRET))), ann)

        assert ModelCall.objects.values_list("input_tokens", "output_tokens", "cost").get() == (None, None, None)

    def test_a_server_that_fails_in_the_middle_of_an_answer_has_not_refused_it(self, ann, settings):
        settings.CHATMEMORY["COST"] = lambda model, usage: usage.input + usage.output
        with pytest.raises(UnavailableError):
            stream(Assistant(ScriptedModel(UnavailableError(SECRET), words_before_error=4)), ann)

        assert ModelCall.objects.values_list("input_tokens", "output_tokens", "cost").get() == (9, 6, 15)

    def test_what_the_model_reports_after_the_time_is_over_counts(self, ann):
        def answer(request: Any) -> str:
            time.sleep(0.02)
            return "Yes"

        with pytest.raises(ModelTimeoutError):
            chat(Assistant(ScriptedModel(answer), timeout=0.01), ann)

        assert [call[2:5] for call in recorded()] == [(5, 7, "completed")]

    def test_that_it_cannot_be_estimated_is_logged_and_the_call_is_recorded(self, caplog):
        with pytest.raises(ZeroDivisionError), record_call("other", "m") as call:
            call.sends(1 // 0 for _ in "x")
            1 / 0  # noqa: B018

        assert recorded() == [("other", "m", None, None, "failed", "ZeroDivisionError", None)]
        assert "What a call of a model used could not be estimated." in caplog.text

    def test_an_answered_question_that_is_sent_again_is_no_call(self, ann):
        assistant = Assistant(ScriptedModel("Yes"))
        for _ in range(2):
            assistant.chat("c", "Tea?", owner=ann, client_message_id="u1")

        assert recorded() == [COMPLETED]

    def test_an_answer_that_is_regenerated_is_another_call(self, ann):
        assistant = Assistant(ScriptedModel("Yes"))
        assistant.chat("c", "Tea?", owner=ann)
        assistant.chat("c", None, after=1, owner=ann)

        assert recorded() == [COMPLETED, COMPLETED]

    @pytest.mark.parametrize("ask", FORMS)
    def test_a_call_is_recorded_before_the_tools_run_that_it_calls(self, ann, ask):
        """So nothing that a tool does, not even the end of the process, loses it."""
        seen = []

        def look(place: str) -> str:
            """Look."""
            seen.append(recorded())
            return place

        ask(Assistant(ScriptedModel(CALLS, "Yes"), tools=[look]), ann)

        assert seen == [[COMPLETED]]

    def test_a_round_takes_one_statement_more(self, ann):
        for rounds, model in ((1, ScriptedModel("Yes")), (2, ScriptedModel(CALLS, "Yes"))):
            with CaptureQueriesContext(connection) as captured:
                chat(Assistant(model, tools=[look], title=None), ann)

            written = [each["sql"] for each in captured if "chatmemory_chat_modelcall" in each["sql"]]
            assert len(written) == rounds

    def test_no_text_is_recorded(self, ann):
        chat(Assistant(ScriptedModel(f"It is {SECRET}")), ann)

        assert SECRET not in str(list(ModelCall.objects.values()))

    def test_that_it_cannot_be_recorded_is_logged_and_the_answer_is_given(self, ann, monkeypatch, caplog):
        def fail(*args: object, **options: object) -> None:
            raise DatabaseError("The disk is full.")

        monkeypatch.setattr("chatmemory_django.stores.django.statements._beside_of", fail)
        monkeypatch.setattr(ModelCall, "save", fail)
        with caplog.at_level(logging.ERROR):
            assert Assistant(ScriptedModel("Yes")).chat("c", "Tea?", owner=ann) == "Yes"

        assert "1 calls of models could not be recorded." in caplog.text
        assert [message.text for message in get_chat_memory("c").messages()[1:]] == ["Yes"]

    def test_the_record_is_committed_with_the_round(self, ann):
        for rounds, model in ((1, ScriptedModel("Yes")), (2, ScriptedModel(CALLS, "Yes"))):
            with CaptureQueriesContext(connection) as captured:
                chat(Assistant(model, tools=[look], title=None), ann)

            statements = [each["sql"] for each in captured]
            records = [place for place, sql in enumerate(statements) if "chatmemory_chat_modelcall" in sql]
            assert len(records) == rounds
            for record in records:
                if connection.vendor == "postgresql":
                    assert "chatmemory_message" in statements[record]
                    continue
                # What comes before the record and belongs to its transaction.
                begun = max(place for place, sql in enumerate(statements[:record]) if sql.startswith("BEGIN"))
                before = statements[begun:record]
                assert "COMMIT" not in before
                assert any(sql.startswith("INSERT") and "chatmemory_message" in sql for sql in before)

    def test_an_answer_is_stored_although_who_pays_for_it_was_erased_meanwhile(self, ann):
        class Erasing(ScriptedModel):
            def chat(self, request: Any) -> Any:
                get_user_model().objects.filter(pk=ann.pk).delete()
                return super().chat(request)

        def shared(**options: Any) -> MessageWindowChatMemory:
            return MessageWindowChatMemory(max_messages=9, id=options["id"], store=DjangoChatMemoryStore())

        assistant = Assistant(Erasing("Yes"), memory=shared, title=None)

        assert assistant.chat("c", "Tea?", owner=ann) == "Yes"
        assert [message.text for message in shared(id="c").messages()[1:]] == ["Yes"]
        assert list(ModelCall.objects.values_list("owner", "outcome", "conversation__memory_id")) == [
            (None, "completed", "c")
        ]

    def test_a_failure_leaves_the_transaction_around_it_as_it_was(self, ann):
        with transaction.atomic():
            chat(Assistant(ScriptedModel("Yes", UnavailableError("x"))), ann)
            ModelCall.objects.update(conversation=None)
            model = ScriptedModel("Yes")
            model.model_name = "m" * 500
            record_call("other", "n" * 500).__enter__().__exit__(None, None, None)
            assert Conversation.objects.exists()

        assert [model for _, model, *_ in recorded()] == ["scripted", "n" * 100]

    def test_the_owner_may_be_erased_while_the_model_answers(self, ann):
        with closing(Assistant(ScriptedModel("one two")).stream("c", "Tea?", owner=ann)) as events:
            next(events)
            get_user_model().objects.filter(pk=ann.pk).delete()

        assert list(ModelCall.objects.values_list("owner", "outcome")) == [(None, "cancelled")]

    def test_the_conversation_may_be_erased_while_the_model_answers(self, ann):
        assistant = Assistant(ScriptedModel("one two"))
        chat(assistant, ann)
        with closing(assistant.stream("c", "Tea?", owner=ann)) as events:
            next(events)
            Conversation.objects.all().delete()

        assert list(ModelCall.objects.values_list("conversation", flat=True)) == [None, None]


class TestOtherCalls:
    def test_a_summary_is_recorded_with_its_purpose_and_conversation(self, ann):
        model = RecordedChatModel(ScriptedModel("short"), "summary")

        def summarize(previous: str | None, messages: list[Any]) -> str:
            return model.chat("Summarize.")

        assistant = Assistant(
            ScriptedModel("four words of answer"),
            memory=SummarizingChatMemory,
            memory_options={"max_tokens": 20, "token_count_estimator": ADDITIVE_WORDS, "summarize": summarize,
                            "summary_tokens": 5, "after_tokens": 1},
        )  # fmt: skip
        for _ in range(4):
            assistant.chat("c", "One two three four five?", owner=ann)

        assert ("summary", "scripted", 5, 7, "completed", "", "c") in recorded()
        assert set(ModelCall.objects.values_list("owner", flat=True)) == {ann.pk}

    @pytest.mark.parametrize("ask", FORMS)
    def test_a_title_is_recorded(self, ann, ask):
        model = RecordedChatModel(ScriptedModel("Tea"), "title")

        async def title(question: UserMessage, answer: AiMessage) -> str:
            return await model.achat("Entitle.")

        ask(Assistant(ScriptedModel("Yes"), title=title), ann)

        assert Conversation.objects.get().title == "Tea"
        assert recorded() == [COMPLETED, ("title", "scripted", 5, 7, "completed", "", "c")]

    @pytest.mark.parametrize("ask", FORMS)
    def test_a_synchronous_title_function_is_served_the_same_conversation(self, ann, ask):
        model = RecordedChatModel(ScriptedModel("Tea"), "title")

        ask(Assistant(ScriptedModel("Yes"), title=lambda question, answer: model.chat("Entitle.")), ann)

        assert recorded()[1:] == [("title", "scripted", 5, 7, "completed", "", "c")]

    def test_streams_of_a_recorded_model_are_recorded(self, ann):
        model = RecordedChatModel(ScriptedModel("one two"), "recall", owner=ann)

        async def read() -> None:
            async for _ in model.astream("x"):
                pass

        list(model.stream("x"))
        run(read())
        with closing(model.stream("x")) as events:
            next(events)

        assert [call[2:5] for call in recorded()] == [(5, 7, "completed"), (5, 7, "completed"), (5, 1, "cancelled")]

    def test_a_site_records_any_call(self, ann):
        Conversation.objects.create(memory_id="c", owner=ann)
        with record_call("other", "embedder", owner=ann, memory_id="c") as call:
            call.used(TokenUsage(input=3))
        with pytest.raises(ZeroDivisionError), record_call("recall", "embedder"):
            1 / 0  # noqa: B018
        with pytest.raises(TimeoutError), record_call("other", "chatter") as call:
            call.sends([SystemMessage("Be brief."), "a tool"])
            call.arrived("one two")
            raise TimeoutError

        assert recorded() == [
            ("other", "embedder", 3, None, "completed", "", "c"),
            ("recall", "embedder", None, None, "failed", "ZeroDivisionError", None),
            ("other", "chatter", 9, 2, "failed", "TimeoutError", None),
        ]

    def test_what_was_written_to_the_cache_is_recorded(self):
        with record_call("other", "m") as call:
            call.used(TokenUsage(input=9, cached_input=1, cache_write=5, cache_write_1h=4))

        columns = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "cache_write_1h_tokens")
        assert ModelCall.objects.values_list(*columns).get() == (9, 1, 5, 4)

    def test_an_unknown_purpose_is_an_error(self):
        with pytest.raises(ValueError, match="one of answer, summary, title, recall, other, not 'fun'"):
            record_call("fun")
        with pytest.raises(ValueError, match="not 'fun'"):
            RecordedChatModel(ScriptedModel("x"), "fun")

    @pytest.mark.parametrize("reported", [-5, 2**40])
    def test_impossible_counts_are_bounded(self, reported):
        with record_call("other", "m") as call:
            call.used(TokenUsage(input=reported))

        assert ModelCall.objects.get().input_tokens in {0, 2**31 - 1}


def price(model: str, usage: TokenUsage) -> Any:
    return {"free": None, "bad": "much", "huge": 10**30, "fails": 0}.get(model, (usage.input or 0) * 0.01)


def failing_price(model: str, usage: TokenUsage) -> Any:
    raise LookupError(SECRET)


class TestCosts:
    def test_the_function_in_the_settings_gives_the_cost(self, ann, settings):
        settings.CHATMEMORY["COST"] = f"{__name__}.price"
        chat(Assistant(ScriptedModel("Yes")), ann)

        assert ModelCall.objects.get().cost == Decimal("0.05")
        (total,) = usage(ModelCall.objects.all(), "model", since=now() - MINUTE, until=now() + MINUTE, limit=5)
        assert total.cost == Decimal("0.05")

    @pytest.mark.parametrize("model", ["free", "bad", "huge"])
    def test_without_a_usable_cost_it_is_null(self, settings, model):
        settings.CHATMEMORY["COST"] = price
        with record_call("other", model) as call:
            call.used(TokenUsage(input=3))

        assert ModelCall.objects.get().cost is None

    def test_a_function_that_fails_is_logged(self, ann, settings, caplog):
        settings.CHATMEMORY["COST"] = f"{__name__}.failing_price"
        chat(Assistant(ScriptedModel("Yes")), ann)

        assert ModelCall.objects.get().cost is None
        assert "What a call of the model 'scripted' costs could not be determined." in caplog.text


def close(ann: Any) -> None:
    with closing(Assistant(ScriptedModel("one two three")).stream("c", "Tea?", owner=ann)) as events:
        next(events)


def break_off(ann: Any) -> None:
    with suppress(BrokenStreamError):
        stream(Assistant(ScriptedModel(BrokenStreamError(SECRET))), ann)


def time_out(ann: Any) -> None:
    with suppress(ModelTimeoutError):
        achat(Assistant(ScriptedModel("Yes", pause=9), timeout=0.01), ann)


ENDS = {"closed": close, "broken": break_off, "a time-out": time_out}


def by_name(user: Any) -> Any:
    return {"ann": {"TOKENS": 13, "PER": "day"}}.get(user.username)


class TestBudgets:
    @pytest.mark.parametrize("ask", FORMS)
    def test_who_has_used_it_up_is_refused_before_the_model_is_called(self, ann, settings, ask):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 20, "PER": "day"}
        model = ScriptedModel("Yes")
        for _ in range(2):
            ask(Assistant(model), ann)

        with pytest.raises(BudgetExceededError) as refused:
            ask(Assistant(model, persist="early"), ann)

        assert len(model.requests) == 2
        assert Conversation.objects.get().total_messages == 4
        assert isinstance(refused.value, RateLimitError)
        tomorrow = (now() + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        assert refused.value.until == tomorrow
        assert 0 < refused.value.retry_after <= 86_400
        assert SECRET not in str(refused.value)

    @pytest.mark.parametrize("ask", FORMS)
    @pytest.mark.parametrize(
        "budget",
        [{"TOKENS": 15, "PER": "day"}, {"COST": "0.06", "PER": "month"}, lambda user: {"TOKENS": 13, "PER": "day"}],
    )
    def test_the_next_round_of_an_answer_is_refused(self, ann, settings, ask, budget):
        settings.CHATMEMORY |= {"BUDGET": budget, "COST": price}
        model = ScriptedModel(CALLS)

        with pytest.raises(BudgetExceededError):
            ask(Assistant(model, tools=[look]), ann)

        assert len(model.requests) == len(recorded()) == 2

    def test_what_others_and_earlier_days_used_does_not_count(self, ann, settings):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 20, "PER": "day"}
        add(100, owner=get_user_model().objects.create_user("bob"))
        add(100)
        add(100, owner=ann, created_at=now() - timedelta(days=1, minutes=1))

        chat(Assistant(ScriptedModel("Yes")), ann)

    def test_a_month_begins_on_its_first_day(self, ann, settings):
        settings.CHATMEMORY["BUDGET"] = {"COST": "1.00", "PER": "month"}
        first = now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        add(owner=ann, cost=5, created_at=first - MINUTE)
        chat(Assistant(ScriptedModel("Yes")), ann)
        add(owner=ann, cost=1, created_at=first)

        with pytest.raises(BudgetExceededError) as refused:
            chat(Assistant(ScriptedModel("Yes")), ann)

        assert refused.value.until.day == 1
        assert refused.value.until > now()

    def test_without_an_owner_or_a_budget_of_the_owner_there_is_no_limit(self, ann, settings):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 0, "PER": "day"}
        Assistant(ScriptedModel("Yes")).chat("anonymous", "Tea?")
        settings.CHATMEMORY["BUDGET"] = lambda user: None if user == ann else {"TOKENS": 0, "PER": "day"}
        chat(Assistant(ScriptedModel("Yes")), ann)

        with pytest.raises(BudgetExceededError):
            Assistant(ScriptedModel("Yes")).chat("d", "Tea?", owner=get_user_model().objects.create_user("bob"))

    def test_erasing_conversations_does_not_renew_it(self, ann, settings):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 12, "PER": "day"}
        chat(Assistant(ScriptedModel("Yes")), ann)
        erase(Conversation.objects.all())

        with pytest.raises(BudgetExceededError):
            chat(Assistant(ScriptedModel("Yes")), ann)

    @pytest.mark.parametrize("end", ENDS)
    @pytest.mark.parametrize("budget", [{"TOKENS": 40, "PER": "day"}, {"COST": "0.4", "PER": "day"}])
    def test_it_holds_however_answers_end_from_the_first_one_on(self, ann, settings, end, budget):
        settings.CHATMEMORY |= {"BUDGET": budget, "COST": lambda model, usage: 0.01 * (usage.input + usage.output)}

        with pytest.raises(BudgetExceededError):
            for _ in range(12):
                ENDS[end](ann)

        assert 3 <= ModelCall.objects.count() <= 7
        assert not ModelCall.objects.filter(outcome="completed").exists()

    def test_a_call_that_it_refuses_is_no_call(self, ann, settings):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 0, "PER": "day"}
        with pytest.raises(BudgetExceededError):
            chat(Assistant(ScriptedModel("Yes")), ann)

        assert recorded() == []

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="In memory, threads cannot race on SQLite")
    def test_answers_at_the_same_time_overrun_it_by_one_each(self, ann, settings):
        settings.CHATMEMORY["BUDGET"] = {"TOKENS": 12 * 10, "PER": "day"}
        barrier, refused = threading.Barrier(4), []

        def answer(number: int) -> None:
            try:
                barrier.wait()
                for turn in range(30):
                    Assistant(ScriptedModel("Yes")).chat(f"{number}-{turn}", "Tea?", owner=ann)
            except BudgetExceededError:
                refused.append(number)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(refused) == [0, 1, 2, 3]
        assert 10 <= ModelCall.objects.count() <= 10 + 3


WAYS: dict[str, Callable[[Any], object]] = {
    "operations.erase": lambda ann: erase(Conversation.objects.all()),
    "QuerySet.delete": lambda ann: Conversation.objects.all().delete(),
    "Model.delete": lambda ann: Conversation.objects.get().delete(),
    "erase_chatmemory": lambda ann: call_command("erase_chatmemory", user="ann", verbosity=0),
}


class TestErasing:
    @pytest.fixture
    def answered(self, ann) -> None:
        chat(Assistant(ScriptedModel("Yes")), ann)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_call_outlives_its_conversation_without_naming_it(self, ann, answered, way, capsys):
        WAYS[way](ann)

        assert list(ModelCall.objects.values_list("owner", "conversation", "input_tokens")) == [(ann.pk, None, 5)]

    @pytest.mark.parametrize("all_at_once", [True, False])
    def test_a_call_outlives_its_owner_without_naming_them(self, ann, answered, all_at_once):
        if all_at_once:
            get_user_model().objects.all().delete()
        else:
            ann.delete()

        assert list(ModelCall.objects.values_list("owner", "conversation", "input_tokens")) == [(None, None, 5)]

    def test_other_conversations_keep_theirs(self, ann, answered):
        Assistant(ScriptedModel("Yes")).chat("d", "Tea?", owner=ann)
        Conversation.objects.filter(memory_id="c").delete()

        assert [memory_id for *_, memory_id in recorded()] == [None, "d"]

    def test_old_calls_are_pruned(self, ann, monkeypatch):
        monkeypatch.setattr("chatmemory_django.chat.costs.calls.PRUNED_AT_ONCE", 2)
        add(5, owner=ann, created_at=now() - timedelta(days=31))
        add(2, created_at=now() - timedelta(days=29))

        assert prune_calls(timedelta(days=30), dry_run=True) == 5
        assert prune_calls(timedelta(days=30)) == 5
        assert ModelCall.objects.count() == 2


class TestUsage:
    @pytest.fixture(autouse=True)
    def calls(self, ann) -> None:
        conversation = Conversation.objects.create(memory_id="c", owner=ann)
        yesterday = now() - timedelta(days=1)
        add(2, owner=ann, conversation=conversation)
        add(1, owner=ann, model="n", purpose="title", created_at=yesterday, cost="0.5", cached_input_tokens=4,
            cache_write_tokens=3, cache_write_1h_tokens=2, reasoning_tokens=1)  # fmt: skip
        add(1, model="n", input_tokens=None, output_tokens=None, outcome="failed")

    def test_by_day_the_latest_comes_first(self):
        days = [(now() - timedelta(days=number)).date().isoformat() for number in range(2)]

        assert summed(ModelCall.objects.all(), "day") == [(days[0], 3, 20, 2), (days[1], 1, 10, 1)]

    def test_by_all_others_the_most_tokens_come_first(self, ann):
        calls = ModelCall.objects.all()

        assert summed(calls, "model") == [("m", 2, 20, 2), ("n", 2, 10, 1)]
        assert summed(calls, "conversation") == [("c", 2, 20, 2), (None, 2, 10, 1)]
        assert summed(calls, "user") == [(str(ann.pk), 3, 30, 3), (None, 1, 0, 0)]
        assert summed(calls, "purpose") == [("answer", 3, 20, 2), ("title", 1, 10, 1)]

    def test_its_other_numbers(self):
        first, second = usage(
            ModelCall.objects.all(), "model", since=now() - timedelta(days=9), until=now() + MINUTE, limit=9
        )

        assert first == ("m", 2, 0, 0, 2, 20, 0, 0, 0, 2, 0, None)
        assert second == ("n", 2, 1, 1, 1, 10, 4, 3, 2, 1, 1, Decimal("0.5"))

    @pytest.mark.parametrize("by", BY)
    def test_it_is_bounded_in_time_and_in_rows(self, by):
        whole = summed(ModelCall.objects.all(), by)

        assert summed(ModelCall.objects.all(), by, limit=1) == whole[:1]
        assert summed(ModelCall.objects.all(), by, limit=5, offset=1) == whole[1:]
        assert summed(ModelCall.objects.all(), by, until=now() - timedelta(days=9)) == []
        assert summed(ModelCall.objects.none(), by) == []
