"""A memory that goes on after a pause is evicted down to its mark at once: no cache knows its beginning any more."""

from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, Resume
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = pytest.mark.django_db(transaction=True)

IDLE = timedelta(minutes=5)


def memory_of(id="c", store=None, limit=10, evict_to=4, **options) -> MessageWindowChatMemory:
    store = store or DjangoChatMemoryStore()
    return MessageWindowChatMemory(
        max_messages=limit, evict_to=evict_to, id=id, store=store, **{"idle": IDLE, **options}
    )


def asked(*numbers: int) -> list[UserMessage]:
    return [UserMessage(str(number)) for number in numbers]


def texts(memory) -> list[str]:
    return [getattr(each, "single_text", None) or each.text for each in memory.messages()]


def pause(longer: bool = True) -> None:
    """Let the last activity in all conversations be longer ago, or nearly as long, as a memory has to be idle."""
    before = IDLE + timedelta(seconds=30 if longer else -30)
    Conversation.objects.update(updated_at=timezone.now() - before)


class TestMemories:
    @pytest.mark.parametrize("owned", [False, True])
    def test_the_next_message_evicts_down_to_the_mark_and_is_added_to_what_is_left(self, owned):
        owner = get_user_model().objects.create_user("ann") if owned else None
        memory = memory_of(store=DjangoChatMemoryStore(owner=owner))
        memory.add(*asked(*range(1, 9)))
        assert len(texts(memory)) == 8
        pause()

        assert texts(memory) == ["5", "6", "7", "8"]
        memory.add(*asked(9))

        assert texts(memory) == ["5", "6", "7", "8", "9"]
        assert Conversation.objects.get().window_start == 5
        memory.add(*asked(10, 11, 12))
        assert texts(memory) == ["5", "6", "7", "8", "9", "10", "11", "12"]

    def test_a_shorter_pause_or_a_memory_below_the_mark_evicts_nothing(self):
        memory = memory_of()
        memory.add(*asked(1, 2, 3))
        pause()
        memory.add(*asked(4, 5, 6))
        pause(longer=False)
        memory.add(*asked(7))

        assert texts(memory) == ["1", "2", "3", "4", "5", "6", "7"]

    def test_a_window_of_tokens_keeps_the_system_message(self):
        memory = TokenWindowChatMemory(
            max_tokens=100,
            evict_to=40,
            idle=IDLE,
            token_count_estimator=ADDITIVE_WORDS,
            id="c",
            store=DjangoChatMemoryStore(),
        )
        memory.add(SystemMessage("be brief"), *(UserMessage(f"{number} " + "word " * 8) for number in range(6)))
        everything = memory.messages()
        pause()

        left = memory.messages()
        memory.add(UserMessage("next"))

        assert left[0] == SystemMessage("be brief")
        assert left[1:] == everything[len(everything) - len(left) + 1 :]
        assert 1 < len(left) < len(everything)
        assert ADDITIVE_WORDS.estimate_token_count_in_messages(left) <= 40
        assert memory.messages() == [*left, UserMessage("next")]

    def test_what_is_shown_and_explained_is_what_is_sent(self):
        memory = memory_of()
        memory.add(*asked(*range(1, 9)))
        pause()

        sent = [each.message for each in memory.explain() if each.sent is not None]
        read = Conversation.objects.get().read(memory).sent()

        assert sent == asked(5, 6, 7, 8)
        assert [each.message for each in read] == sent

    @pytest.mark.parametrize("keep_history", [True, False])
    def test_it_takes_no_statement_more(self, keep_history):
        counts = []
        for number, idle in enumerate([None, IDLE]):
            memory = memory_of(f"c{number}", DjangoChatMemoryStore(keep_history=keep_history), idle=idle)
            memory.add(*asked(*range(1, 9)))
            memory.add(*asked(9))
            with CaptureQueriesContext(connection) as queries:
                memory.add(*asked(10))
                memory.messages()
            counts.append(len(queries))

        assert counts[0] == counts[1]

    def test_without_a_history_what_leaves_is_deleted(self):
        memory = memory_of(store=DjangoChatMemoryStore(keep_history=False))
        memory.add(*asked(*range(1, 9)))
        pause()
        memory.add(*asked(9))

        assert sorted(row.text for row in Message.objects.all()) == ["5", "6", "7", "8", "9"]

    def test_what_leaves_is_summarized(self):
        summarized = []
        memory = SummarizingChatMemory(
            max_tokens=100,
            evict_to=40,
            idle=IDLE,
            summary_tokens=20,
            after_tokens=1,
            token_count_estimator=ADDITIVE_WORDS,
            summarize=lambda summary, messages: summarized.extend(messages) or "They counted.",
            id="c",
            store=DjangoChatMemoryStore(),
        )
        memory.add(*(UserMessage(f"{number} " + "word " * 8) for number in range(6)))
        everything = memory.messages()
        assert not summarized
        pause()
        memory.add(UserMessage("next"))

        first, *left, last = memory.messages()
        assert (first, last) == (SystemMessage("They counted."), UserMessage("next"))
        assert [*summarized, *left] == everything

    def test_a_rewind_is_no_pause(self):
        memory = memory_of()
        memory.add(*asked(*range(1, 9)))
        pause()
        memory.add(*asked(9), after=7)

        assert texts(memory) == ["1", "2", "3", "4", "5", "6", "7", "9"]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_turn_after_a_message_is_no_pause_either(self, persist):
        memory = memory_of()
        memory.add(*asked(*range(1, 9)))
        pause()
        with memory.turn(persist, after=8) as turn:
            read = turn.messages
            turn.add(*asked(9))

        assert memory.messages() == [*read, *asked(9)]

    def test_a_store_that_knows_no_last_activity_evicts_by_the_limit_alone(self):
        memory = memory_of(store=InMemoryChatMemoryStore())
        memory.add(*asked(*range(1, 9)))

        assert len(texts(memory)) == 8


class TestAnswers:
    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_the_first_request_after_a_pause_begins_like_the_next_ones(self, persist):
        def look() -> str:
            """Look."""
            return "nothing"

        model = ScriptedModel("Yes.")
        options = {"max_messages": 20, "evict_to": 4, "idle": IDLE}
        bot = Assistant(model, memory=MessageWindowChatMemory, memory_options=options, tools=[look], persist=persist)
        for number in range(6):
            bot.chat("c", f"Question {number}")
        assert len(model.sent[-1]) == 11
        pause()

        model.answers = ["Yes.", calling(("1", "look", "{}")), "Yes."]
        model.requests.clear()
        for number in range(6, 8):
            bot.chat("c", f"Question {number}")

        first, second, third = model.sent
        assert [each.single_text for each in first[::2]] == ["Question 4", "Question 5", "Question 6"]
        assert second[: len(first)] == first
        assert third[: len(second)] == second

    def test_with_calls_in_the_first_answer_too(self):
        def look() -> str:
            """Look."""
            return "nothing"

        options = {"max_messages": 20, "evict_to": 4, "idle": IDLE}
        model = ScriptedModel("Yes.")
        bot = Assistant(model, memory=MessageWindowChatMemory, memory_options=options, tools=[look])
        for number in range(6):
            bot.chat("c", f"Question {number}")
        pause()
        model.answers = [calling(("1", "look", "{}")), calling(("2", "look", "{}")), "Yes."]
        model.requests.clear()
        for number in range(6, 8):
            bot.chat("c", f"Question {number}")

        for before, after in zip(model.sent, model.sent[1:], strict=False):
            assert after[: len(before)] == before
        assert model.sent[0][0] == UserMessage("Question 4")

    def test_an_answer_that_has_waited_keeps_what_it_has(self):
        def pay() -> str:
            """Pay."""
            return "paid"

        options = {"max_messages": 20, "evict_to": 2, "idle": IDLE}
        model = ScriptedModel("Yes.", "Yes.", calling(("1", "pay", "{}")), "Paid.")
        bot = Assistant(
            model,
            memory=MessageWindowChatMemory,
            memory_options=options,
            tools=[Tool(pay, needs_approval=True)],
        )
        for _ in range(2):
            bot.chat("c", "Hello?")
        with pytest.raises(ApprovalRequiredError) as caught:
            bot.chat("c", "Pay.")
        pause()

        assert bot.chat("c", Resume(Decision(caught.value.requests[0].id, True))) == "Paid."

        assert UserMessage("Pay.") in model.sent[-1]
        assert model.sent[-1][: len(model.sent[-2])] == model.sent[-2]


class TestMistakes:
    @pytest.mark.parametrize("idle", [300, "5 minutes", True])
    def test_what_is_no_duration(self, idle):
        with pytest.raises(ValueError, match="idle must be a timedelta, beside evict_to, or None"):
            memory_of(idle=idle)

    def test_without_a_mark(self):
        with pytest.raises(ValueError, match="idle must be a timedelta, beside evict_to, or None"):
            memory_of(evict_to=None)

    def test_another_limit_has_none(self):
        path, options = (
            "chatmemory_django.memory.MessageWindowChatMemory",
            {"max_messages": 10, "evict_to": 4, "idle": IDLE},
        )
        configuration = MemoryConfiguration("c", path, options)

        assert configuration.window().idle == IDLE
        assert configuration.with_limit(max_messages=3).window().idle is None
