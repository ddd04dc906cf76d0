"""Budgets in the chat over HTTP: a question is refused before the model is called, until a moment that is given."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import BrokenStreamError, TokenUsage
from chatmemory_django.chat.models import ModelCall, Run
from chatmemory_django.models import Conversation
from tests.asgi import run
from tests.faces.chat.http.test_http import Chat, ann, bearer, no_throttle, reason_of, user
from tests.faces.chat.scripted import ScriptedModel, calling

__all__ = ["ann", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

CALLS = calling(("1", "look", '{"place": "here"}'))


def look(place: str) -> str:
    """Look."""
    return place


class Generous(AccessPolicy):
    """A policy with budgets of its own."""

    def budget(self, user: Any) -> Any:
        return {"TOKENS": 1_000, "PER": "day"}


@pytest.fixture
def spent(ann, settings) -> None:
    settings.CHATMEMORY["BUDGET"] = {"TOKENS": 10, "PER": "day"}
    ModelCall.objects.create(owner=ann, purpose="answer", outcome="completed", input_tokens=5, output_tokens=5)


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
def test_a_question_over_the_budget_is_answered_with_429(ann, settings, spent, accept):
    chat = Chat(settings, bearer(ann), ScriptedModel("Yes"))

    response = run(chat.post({"id": "c", "messages": [user("Tea?")]}, Accept=accept))

    assert response.status_code == 429
    assert 0 < int(response["Retry-After"]) <= 86_400
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert str(tomorrow.year) in response.content.decode()
    assert reason_of(response).startswith("Your budget for this chat is used up until ")
    assert chat.model.requests == []
    assert not Conversation.objects.exists()


def test_the_next_question_is_answered_in_the_next_period(ann, settings, spent):
    chat = Chat(settings, bearer(ann), ScriptedModel("Yes"))
    ModelCall.objects.update(created_at=datetime.now(UTC) - timedelta(days=1))

    assert run(chat.say("Tea?"))[-1]["type"] == "finish"
    assert ModelCall.objects.filter(model="scripted", conversation__isnull=False, owner=ann).count() == 1


@pytest.mark.parametrize("tokens", [-1, float("nan"), 0.5, 2**31, True])
def test_what_a_call_reserves_gives_no_tokens_to_others(tokens):
    with pytest.raises(ValueError, match="at least 0, not TokenUsage"):
        Assistant(ScriptedModel("Yes"), reserves=TokenUsage(5, tokens))


def test_an_answer_reserves_what_a_call_may_use_in_the_row_of_its_run(ann, settings):
    settings.CHATMEMORY["BUDGET"] = {"TOKENS": 100_000, "PER": "day"}
    chat = Chat(settings, bearer(ann), ScriptedModel("Yes"), reserves=TokenUsage(30, 12))

    assert run(chat.say("Tea?"))[-1]["type"] == "finish"
    assert Run.objects.values_list("state", "reserved", "reserved_cost").get() == ("done", 42, 0)


def test_a_round_over_the_budget_ends_the_answer_with_an_error(ann, settings):
    settings.CHATMEMORY["BUDGET"] = {"TOKENS": 12, "PER": "day"}
    chat = Chat(settings, bearer(ann), ScriptedModel(CALLS, "Yes"), tools=[look])

    events = run(chat.say("Where?"))

    assert events[-1]["errorText"].startswith("Your budget for this chat is used up until ")
    assert len(chat.model.requests) == ModelCall.objects.count() == 1


def test_a_round_over_the_budget_is_429_for_a_client_that_wants_json(ann, settings):
    settings.CHATMEMORY |= {"BUDGET": {"COST": 1, "PER": "month"}, "COST": lambda model, usage: 1}
    chat = Chat(settings, bearer(ann), ScriptedModel(CALLS, "Yes"), tools=[look])

    response = run(chat.post({"id": "c", "messages": [user("Where?")]}, Accept="application/json"))

    assert response.status_code == 429
    assert int(response["Retry-After"]) > 0


def test_the_policy_of_a_site_has_the_last_word(ann, settings, spent):
    settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Generous"

    assert run(Chat(settings, bearer(ann), ScriptedModel("Yes")).say("Tea?"))[-1]["type"] == "finish"


def test_an_invalid_budget_of_a_function_refuses_every_question(ann, settings):
    settings.CHATMEMORY["BUDGET"] = lambda user: {"TOKENS": -1, "PER": "day"}
    chat = Chat(settings, bearer(ann), ScriptedModel("Yes"))

    assert run(chat.say("Tea?"))[-1]["type"] == "error"
    assert chat.model.requests == []


def test_failed_and_stopped_answers_are_recorded(ann, settings):
    chat = Chat(settings, bearer(ann), ScriptedModel(RuntimeError("secret"), words_before_error=4))
    run(chat.say("Tea?"))

    assert list(ModelCall.objects.values_list("outcome", "error", "output_tokens", "conversation__memory_id")) == [
        ("failed", "RuntimeError", 6, Conversation.objects.get().memory_id)
    ]


def test_answers_that_all_break_off_use_up_a_budget(ann, settings):
    settings.CHATMEMORY["BUDGET"] = {"TOKENS": 30, "PER": "day"}
    chat = Chat(settings, bearer(ann), ScriptedModel(BrokenStreamError("secret"), words_before_error=4))

    statuses = [
        run(chat.post({"id": f"c{number}", "messages": [user("Tea?")]}, Accept="application/json")).status_code
        for number in range(4)
    ]

    assert statuses[-1] == 429
    assert len(chat.model.requests) < 4


def test_users_see_nothing_of_the_budgets_of_others(settings, spent):
    other = User.objects.create_user("other")

    assert run(Chat(settings, bearer(other), ScriptedModel("Yes")).say("Tea?"))[-1]["type"] == "finish"
