"""Budgets of users, conversations and labels, and what answers in progress reserve of them."""

import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.db import connection, connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.ledger import INPUT_TOKENS, OUTPUT_TOKENS, BudgetExceededError
from chatmemory_django.chat.costs.recording import RecordedChatModel
from chatmemory_django.chat.model import ChatResponse, TokenUsage
from chatmemory_django.chat.models import BudgetLock, ModelCall, Run
from chatmemory_django.chat.runs.leases import Lease, Taken, end, take
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.stores.base import LeaseLostError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

CALLS = calling(("1", "look", '{"place": "here"}'))
PER_CALL = TokenUsage(5, 7)
"""What each call of a scripted model uses."""


@pytest.fixture
def ann() -> Any:
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def bob() -> Any:
    return get_user_model().objects.create_user("bob")


@pytest.fixture(autouse=True)
def memory(settings) -> None:
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 20}}
    }


def look(place: str) -> str:
    """Look."""
    return place


def budget(settings: Any, *budgets: Any) -> None:
    settings.CHATMEMORY["BUDGET"] = list(budgets)


def per_day(tokens: int, of: str = "user", **options: Any) -> dict[str, Any]:
    return {"TOKENS": tokens, "PER": "day", "OF": of, **options}


def ask(memory_id: str, owner: Any = None, **options: Any) -> list[ScriptedModel]:
    """Ask until it is refused, and return the models that were called."""
    made = []
    for _ in range(9):
        model = ScriptedModel("Yes")
        try:
            Assistant(model).chat(memory_id, "Tea?", owner=owner, **options)
        except BudgetExceededError:
            assert model.requests == []
            return made
        made.append(model)
    raise AssertionError("No budget has ended it.")


def reserve(memory_id: str, owner: Any, **columns: Any) -> Taken:
    """Begin a run that reserves *columns*, as another process does."""
    taken = take("default", memory_id, owner.pk, uuid4())
    assert isinstance(taken, Taken)
    Run.objects.filter(pk=taken.run).update(**columns)
    return taken


class TestWhose:
    def test_a_budget_of_a_label_is_shared_by_all_calls_with_its_value(self, ann, bob, settings):
        budget(settings, per_day(36, "label:tenant"))

        assert len(ask("a", ann, labels={"tenant": "acme"})) == 3
        assert ask("b", bob, labels={"tenant": "acme"}) == []
        assert ask("c", labels={"tenant": "acme"}) == []
        assert len(ask("d", bob, labels={"tenant": "Acme"})) == 3

    def test_it_does_not_limit_calls_without_the_label(self, ann, settings):
        budget(settings, per_day(0, "label:tenant"))

        assert Assistant(ScriptedModel("Yes"), labels={"feature": "x"}).chat("a", "Tea?", owner=ann) == "Yes"

    def test_each_assistant_has_its_own(self, ann, settings):
        budget(settings, per_day(12, "label:assistant"))
        first, second = (Assistant(ScriptedModel("Yes"), name=name) for name in ("first", "second"))
        first.chat("a", "Tea?", owner=ann)
        second.chat("a", "Tea?", owner=ann)

        with pytest.raises(BudgetExceededError) as refused:
            first.chat("a", "Tea?", owner=ann)
        assert refused.value.of == "label:assistant"

    def test_each_conversation_has_its_own(self, ann, settings):
        budget(settings, per_day(24, "conversation"))

        assert len(ask("a", ann)) == len(ask("b", ann)) == len(ask("c")) == 2

    def test_of_several_the_first_that_is_used_up_refuses(self, ann, settings):
        budget(settings, per_day(24, "conversation"), {"TOKENS": 36, "PER": "month"})

        assert len(ask("a", ann)) == 2
        assert len(ask("b", ann)) == 1
        with pytest.raises(BudgetExceededError) as refused:
            Assistant(ScriptedModel("Yes")).chat("a", "Tea?", owner=ann)
        assert refused.value.until.day == 1  # the later moment of both
        assert refused.value.of == "user"

    def test_what_is_pruned_counts_on(self, ann, settings):
        from chatmemory_django.chat.costs.calls import prune_calls

        first = datetime.now(UTC).replace(day=1, hour=1)
        if first.date() == datetime.now(UTC).date():
            pytest.skip("Calls of today are not pruned.")
        values = {"purpose": "answer", "outcome": "completed", "input_tokens": 30, "labels": {"tenant": "acme"}}
        ModelCall.objects.create(**values, created_at=first)
        assert prune_calls(timedelta()) == 1
        budget(settings, {"TOKENS": 30, "PER": "month", "OF": "label:tenant"})

        assert ask("a", ann, labels={"tenant": "acme"}) == []

    def test_a_function_is_given_what_it_names(self, ann, settings):
        seen = []

        def limits(user: Any, labels: Any, memory_id: Any) -> Any:
            seen.append((user, labels, memory_id))
            return None

        settings.CHATMEMORY["BUDGET"] = limits
        Assistant(ScriptedModel("Yes"), labels={"a": "b"}).chat("c", "Tea?", owner=ann)
        Assistant(ScriptedModel("Yes")).chat("d", "Tea?")

        assert seen == [(ann, {"a": "b"}, "c"), (None, {}, "d")]

    def test_a_function_of_a_user_is_not_asked_without_one(self, settings):
        settings.CHATMEMORY["BUDGET"] = lambda user: pytest.fail("It was.")

        assert Assistant(ScriptedModel("Yes")).chat("c", "Tea?") == "Yes"

    def test_a_policy_of_before_there_were_labels_goes_on_working(self, ann, settings):
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Old"

        assert len(ask("c", ann)) == 2
        assert Assistant(ScriptedModel("Yes")).chat("d", "Tea?") == "Yes"


class Old(AccessPolicy):
    """A policy whose budgets are of users alone."""

    def budget(self, user: Any) -> Any:  # type: ignore[override]
        return {"TOKENS": 24, "PER": user and "day"}


class TestReserving:
    @pytest.mark.parametrize(
        ("of", "labels"), [("user", None), ("conversation", None), ("label:tenant", {"tenant": "acme"})]
    )
    def test_what_an_answer_in_progress_reserves_counts_until_it_ends(self, ann, settings, of, labels):
        budget(settings, per_day(50, of))
        taken = reserve("a", ann, reserved=50, labels=labels)

        asked = {"labels": {"tenant": "acme"}}
        with pytest.raises(BudgetExceededError):
            Assistant(ScriptedModel("Yes")).chat("a", "Tea?", owner=ann, **asked)
        end(taken, Run.State.DONE)
        assert Assistant(ScriptedModel("Yes")).chat("a", "Tea?", owner=ann, **asked) == "Yes"

    def test_that_of_others_does_not_count(self, ann, bob, settings):
        budget(settings, per_day(50), per_day(50, "label:tenant"), per_day(50, "conversation"))
        taken = reserve("a", bob, reserved=99, labels={"tenant": "other"})

        assert Assistant(ScriptedModel("Yes")).chat("b", "Tea?", owner=ann, labels={"tenant": "acme"}) == "Yes"
        end(taken, Run.State.DONE)

    def test_a_dead_answer_reserves_nothing(self, ann, settings):
        budget(settings, per_day(50))
        taken = reserve("a", ann, reserved=50)
        end(taken, Run.State.DONE)
        Run.objects.filter(pk=taken.run).update(active=taken.conversation, lease=datetime(2020, 1, 1, tzinfo=UTC))

        assert Assistant(ScriptedModel("Yes")).chat("b", "Tea?", owner=ann) == "Yes"

    def test_a_cost_is_reserved_by_the_function_of_costs(self, ann, settings):
        settings.CHATMEMORY["COST"] = lambda model, usage: usage.input + 10 * usage.output
        budget(settings, {"COST": "500", "PER": "day"})
        assistant = Assistant(ScriptedModel("Yes"), tools=[look], reserves=TokenUsage(5, 20))

        with closing(assistant.stream("a", "Tea?", owner=ann, persist="early")) as events:
            next(events)
            assert Run.objects.values_list("reserved", "reserved_cost").get() == (25, Decimal(205))
            other = reserve("b", ann, reserved_cost=295, reserved=0)
            with pytest.raises(BudgetExceededError):
                Assistant(ScriptedModel("Yes")).chat("c", "Tea?", owner=ann)
        end(other, Run.State.DONE)
        assert Assistant(ScriptedModel("Yes")).chat("c", "Tea?", owner=ann) == "Yes"

    def test_by_default_that_is_the_window_and_an_answer(self, ann, settings):
        budget(settings, per_day(100_000))
        options = {"max_tokens": 77, "token_count_estimator": ADDITIVE_WORDS}
        for name, more, window in (
            ("a", {}, INPUT_TOKENS),
            ("b", {"memory": TokenWindowChatMemory, "memory_options": options}, 77),
        ):
            assistant = Assistant(ScriptedModel("Yes"), tools=[look], **more)
            list(assistant.stream(name, "Tea?", owner=ann, persist="early"))

            assert Run.objects.get(conversation__memory_id=name).reserved == window + OUTPUT_TOKENS

    def test_without_a_budget_nothing_is_reserved_or_read(self, ann, settings):
        assistant = Assistant(ScriptedModel("Yes"), tools=[look], labels={"tenant": "acme"}, title=None)
        counts = []
        for given in (None, [], per_day(100_000), per_day(100_000, "label:tenant"), [per_day(9_999)] * 3):
            settings.CHATMEMORY["BUDGET"] = given
            for options in ({"persist": "early"}, {}):
                assistant.chat("a", "Tea?", owner=ann, **options)  # then nothing is loaded for the first time
                with CaptureQueriesContext(connection) as captured:
                    assistant.chat("a", "Tea?", owner=ann, **options)
                counts.append(len(captured))

        with_run, without = counts[:2]
        assert counts[2:4] == [with_run, without]
        assert counts[4:] == [with_run + 2, without + 1] * 3


class TestStrict:
    def test_it_refuses_what_it_has_no_room_for(self, ann, settings):
        budget(settings, per_day(30, STRICT=True))

        def asked() -> str:
            return Assistant(ScriptedModel("Yes"), reserves=PER_CALL).chat("a", "Tea?", owner=ann)

        assert [asked(), asked()] == ["Yes", "Yes"]
        with pytest.raises(BudgetExceededError):
            asked()
        assert list(Run.objects.values_list("state", flat=True).order_by("created_at"))[-1] == "failed"
        assert not Run.objects.alive().exists()

    def test_each_round_reserves_for_itself(self, ann, settings):
        budget(settings, per_day(30, STRICT=True))
        model = ScriptedModel(CALLS)

        with pytest.raises(BudgetExceededError):
            Assistant(model, tools=[look], reserves=PER_CALL).chat("a", "Tea?", owner=ann)
        assert len(model.requests) == ModelCall.objects.count() == 2

    def test_async_answers_do_so_too(self, ann, settings):
        budget(settings, per_day(30, STRICT=True))
        model = ScriptedModel(CALLS)

        with pytest.raises(BudgetExceededError):
            run(Assistant(model, tools=[look], reserves=PER_CALL).achat("a", "Tea?", owner=ann))
        assert len(model.requests) == 2

    @pytest.mark.parametrize("way", ["chat", "stream"])
    def test_what_a_call_reserved_is_given_back_with_its_record_and_counts_once(self, ann, settings, monkeypatch, way):
        budget(settings, per_day(24, STRICT=True))
        ended, others = Lease.end, []

        def end_later(lease: Lease, *args: Any) -> None:
            if not others:
                others.append("begins")
                others.append(Assistant(ScriptedModel("Yes"), reserves=PER_CALL).chat("b", "Tea?", owner=ann))
            ended(lease, *args)

        monkeypatch.setattr(Lease, "end", end_later)
        list(getattr(Assistant(ScriptedModel("Yes"), reserves=PER_CALL), way)("a", "Tea?", owner=ann))

        assert others == ["begins", "Yes"]
        assert set(Run.objects.values_list("state", "reserved", "reserved_cost")) == {("done", None, None)}

    def test_while_its_tools_run_an_answer_reserves_nothing(self, ann, settings):
        budget(settings, per_day(36, STRICT=True))
        reserved = []

        def look(place: str) -> str:
            """Look."""
            reserved.append(Run.objects.alive().values_list("reserved", flat=True).get())
            return place

        assistant = Assistant(ScriptedModel(CALLS, "Yes"), tools=[look], reserves=PER_CALL)
        assert assistant.chat("a", "Tea?", owner=ann) == "Yes"
        assert reserved == [None]

    def test_what_others_use_while_its_tools_run_leaves_nothing_for_its_next_call(self, ann, settings):
        budget(settings, per_day(24, STRICT=True))

        def look(place: str) -> str:
            """Look."""
            return Assistant(ScriptedModel(place), reserves=PER_CALL).chat("b", "Tea?", owner=ann)

        model = ScriptedModel(CALLS, "Yes")
        with pytest.raises(BudgetExceededError):
            Assistant(model, tools=[look], reserves=PER_CALL).chat("a", "Tea?", owner=ann)

        assert len(model.requests) == 1
        assert ModelCall.objects.count() == 2

    def test_it_is_given_back_where_the_record_comes_after_the_answer(self, ann, settings):
        """As its owner has been erased meanwhile, the call cannot be recorded with it."""
        budget(settings, per_day(24, "label:tenant", STRICT=True))
        seen = []

        class Erasing(ScriptedModel):
            def chat(self, request: Any) -> Any:
                seen.append(Run.objects.values_list("reserved", flat=True).get())
                get_user_model().objects.filter(pk=ann.pk).delete()
                return super().chat(request)

        def shared(**options: Any) -> MessageWindowChatMemory:
            return MessageWindowChatMemory(max_messages=9, id=options["id"], store=DjangoChatMemoryStore())

        asked = {"owner": ann, "labels": {"tenant": "acme"}}
        assert (
            Assistant(Erasing("Yes"), memory=shared, title=None, reserves=PER_CALL).chat("c", "Tea?", **asked) == "Yes"
        )
        seen.append(Run.objects.values_list("reserved", flat=True).get())

        assert seen == [12, None]
        assert ModelCall.objects.values_list("owner", flat=True).get() is None

    def test_a_run_that_another_process_has_taken_over_keeps_what_that_has_reserved(self, ann, settings):
        budget(settings, per_day(24, STRICT=True))

        def lost(request: Any) -> str:
            Run.objects.update(fence=F("fence") + 1)
            Conversation.objects.update(fence=F("fence") + 1)
            return "Yes"

        with pytest.raises(LeaseLostError):
            Assistant(ScriptedModel(lost), reserves=PER_CALL).chat("a", "Tea?", owner=ann)

        assert ModelCall.objects.count() == 1
        assert Run.objects.values_list("reserved", flat=True).get() == 12

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="In memory, threads cannot race on SQLite")
    @pytest.mark.parametrize("of", ["user", "label:tenant"])
    @pytest.mark.parametrize("strict", [True, False])
    def test_answers_that_begin_at_the_same_moment(self, ann, settings, of, strict):
        """A strict budget is never passed; another one by what each of them uses, at most."""
        budget(settings, per_day(3 * 12, of, STRICT=strict))
        count = 8
        barrier, checked = threading.Barrier(count), threading.Barrier(count)
        ended: list[str] = []

        def answered(request: Any) -> str:
            if not strict:
                checked.wait(20)  # each of them begins before any has ended
            return "Yes"

        def answer(number: int) -> None:
            try:
                assistant = Assistant(ScriptedModel(answered), labels={"tenant": "acme"}, reserves=PER_CALL, title=None)
                barrier.wait(20)
                assistant.chat(str(number), "Tea?", owner=ann)
                ended.append("answered")
            except BudgetExceededError:
                ended.append("refused")
            finally:
                connections.close_all()

        threads = [threading.Thread(target=answer, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(ended) == count
        assert ended.count("answered") == ModelCall.objects.count() == (3 if strict else count)
        assert BudgetLock.objects.count() == (1 if strict else 0)
        with pytest.raises(BudgetExceededError):
            assistant = Assistant(ScriptedModel("Yes"), labels={"tenant": "acme"}, reserves=PER_CALL)
            assistant.chat("later", "Tea?", owner=ann)


class TestLabels:
    def labels(self) -> list[Any]:
        return list(ModelCall.objects.order_by("pk").values_list("labels", flat=True))

    def test_those_of_the_assistant_and_of_the_call_are_stored_with_each_call(self, ann):
        assistant = Assistant(ScriptedModel(CALLS, "Yes"), tools=[look], labels={"feature": "support"}, name="Mira")
        assistant.chat("a", "Tea?", labels={"tenant": "acme"}, owner=ann)
        run(assistant.achat("a", "Tea?", labels={"feature": "sales", "assistant": "other"}, owner=ann))

        support = {"assistant": "Mira", "feature": "support", "tenant": "acme"}
        assert self.labels() == [support, support, {"assistant": "other", "feature": "sales"}]

    def test_a_function_makes_them_of_what_it_names(self, ann):
        def labels(owner: Any, memory_id: Any, request: Any) -> Any:
            return {"team": owner.username, "chat": memory_id, "by": type(request).__name__}

        Assistant(ScriptedModel("Yes"), labels=labels).chat("a", "Tea?", owner=ann)

        assert self.labels() == [{"by": "NoneType", "chat": "a", "team": "ann"}]

    def test_titles_have_those_of_their_answer(self, ann):
        small = RecordedChatModel(ScriptedModel("Tea"), "title", labels={"size": "small"})
        assistant = Assistant(ScriptedModel("Yes"), title=lambda question, answer: small.chat("Entitle."))
        assistant.chat("a", "Tea?", labels={"tenant": "acme"}, owner=ann)

        assert self.labels() == [{"tenant": "acme"}, {"size": "small", "tenant": "acme"}]

    @pytest.mark.parametrize(
        ("labels", "text"),
        [
            ("tenant", "are a dict"),
            ({f"l{number}": "x" for number in range(9)}, "at most 8 labels"),
            ({"a b": "x"}, "name of a label"),
            ({1: "x"}, "name of a label"),
            ({"x" * 33: "x"}, "name of a label"),
            ({"tenant": 5}, "'tenant' is a text of 1 to 100 characters, not 5"),
            ({"tenant": ""}, "'tenant' is a text"),
            ({"tenant": "x" * 101}, "'tenant' is a text"),
            ({"tenant": "a\0"}, "'tenant' is a text"),
        ],
    )
    def test_invalid_ones_are_an_error_at_once(self, labels, text):
        with pytest.raises(ValueError, match=text):
            Assistant(ScriptedModel("Yes"), labels=labels)
        with pytest.raises((ValueError, TypeError)):
            Assistant(ScriptedModel("Yes")).chat("a", "Tea?", labels=labels)
        assert not Conversation.objects.exists()

    def test_a_function_that_cannot_be_called_is_an_error_at_once(self):
        async def labels(owner: Any) -> Any:
            return {}

        with pytest.raises(TypeError, match="must not be asynchronous"):
            Assistant(ScriptedModel("Yes"), labels=labels)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="parameter 'question'"):
            Assistant(ScriptedModel("Yes"), labels=lambda question: {})


class Silent(ScriptedModel):
    """A model that reports no usage."""

    def do_chat(self, request: Any) -> Any:
        return ChatResponse(super().do_chat(request).ai_message)

    def do_stream(self, request: Any) -> Any:
        for event in super().do_stream(request):
            yield ChatResponse(event.ai_message) if isinstance(event, ChatResponse) else event


@pytest.mark.parametrize("way", ["chat", "stream"])
def test_answers_whose_model_reports_nothing_count_by_an_estimate(ann, settings, way):
    budget(settings, per_day(60))
    model = Silent("one two three four five six seven")

    with pytest.raises(BudgetExceededError):
        for _ in range(9):
            list(getattr(Assistant(model), way)("a", "Tea?", owner=ann))

    first = ModelCall.objects.order_by("pk")[0]
    assert (first.input_tokens, first.output_tokens, first.is_estimate, first.outcome) == (5, 9, True, "completed")
    assert 2 <= len(model.requests) <= 3


def test_the_function_of_costs_is_given_what_it_names(ann, settings):
    seen = []

    def cost(model: str, usage: TokenUsage, *, purpose: str, labels: Any, service_tier: Any) -> int:
        seen.append((model, purpose, labels, service_tier))
        return 1

    class Tiered(ScriptedModel):
        def do_chat(self, request: Any) -> Any:
            from dataclasses import replace

            response = super().do_chat(request)
            return replace(response, metadata=replace(response.metadata, attributes={"service_tier": "flex"}))

    settings.CHATMEMORY["COST"] = cost
    Assistant(Tiered("Yes"), labels={"tenant": "acme"}).chat("a", "Tea?", owner=ann)
    settings.CHATMEMORY["COST"] = lambda model, usage, **known: len(known)
    Assistant(ScriptedModel("Yes")).chat("a", "Tea?", owner=ann)

    assert seen == [("scripted", "answer", {"tenant": "acme"}, "flex")]
    assert list(ModelCall.objects.order_by("pk").values_list("cost", flat=True)) == [1, 3]
