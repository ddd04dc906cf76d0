"""What is remembered of the next messages to leave a memory: always what their rows say, and never read in vain."""

import pytest
from django.db import connection

from chatmemory_django.front import LENGTH
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS

pytestmark = pytest.mark.django_db

ADD = 2 if connection.vendor == "postgresql" else 3
"""The statements of an add that need not read what leaves."""


def window(max_messages: int) -> ChatMemory:
    return MessageWindowChatMemory(max_messages=max_messages, id="c", store=DjangoChatMemoryStore())


def tokens(max_tokens: int) -> ChatMemory:
    return TokenWindowChatMemory(
        max_tokens=max_tokens, token_count_estimator=ADDITIVE_WORDS, id="c", store=DjangoChatMemoryStore()
    )


def user(number: int) -> ChatMessage:
    return UserMessage(f"message {number}")


def remembered() -> list[tuple[int, int]]:
    """The cost and the kind of each."""
    codes = Conversation.objects.get(memory_id="c").front
    return [divmod(int(code), 4) for code in codes.split(",")] if codes else []


def test_a_call_of_tools_and_its_results_are_remembered_as_such_and_leave_together(django_assert_num_queries):
    calls = [ToolExecutionRequest(id=str(number), name="f", arguments="{}") for number in range(2)]
    results = [ToolExecutionResultMessage.from_request(call, "done") for call in calls]
    window(5).add(AiMessage(tool_execution_requests=calls), *results, user(1), user(2))

    assert remembered() == [(1, 1), (1, 2), (1, 2), (1, 0), (1, 0)]
    with django_assert_num_queries(ADD):
        window(5).add(user(3))

    assert window(5).messages() == [user(1), user(2), user(3)]
    assert remembered() == [(1, 0), (1, 0), (1, 0)]


def test_so_many_are_remembered_and_no_more():
    window(100).add(*map(user, range(60)))

    assert remembered() == [(1, 0)] * LENGTH


def test_nothing_is_remembered_behind_a_system_message_that_may_be_replaced():
    window(5).add(user(1), SystemMessage("Be brief."), user(2))
    behind_it = remembered()
    window(5).add(SystemMessage("Be kind."), user(3), user(4), user(5))

    assert behind_it == [(1, 0)]
    assert window(5).messages() == [user(2), SystemMessage("Be kind."), user(3), user(4), user(5)]


def test_what_is_remembered_goes_on_behind_a_pinned_system_message(django_assert_num_queries):
    memory = window(4)
    memory.add(SystemMessage("Be brief."), user(1), user(2), user(3))
    memory.add(user(4))
    memory.add(user(5))

    with django_assert_num_queries(ADD):
        memory.add(user(6))

    assert memory.messages() == [SystemMessage("Be brief."), user(4), user(5), user(6)]


def test_with_another_measure_all_is_counted_again():
    window(10).add(*map(user, range(6)))
    tokens(1000).add(user(6))  # recounts, so nothing is remembered
    counted_anew = remembered()
    tokens(3 + 4 * 6).add(user(7))
    in_tokens = remembered()
    window(3).add(user(8))

    assert counted_anew == []
    assert {cost for cost, _ in in_tokens} == {ADDITIVE_WORDS.estimate_token_count_in_message(user(0))}
    assert window(3).messages() == [user(6), user(7), user(8)]


def test_a_memory_that_somebody_made_is_read_when_it_is_its_turn():
    memory = window(4)
    memory.add(*map(user, range(4)))
    memory.set([UserMessage("a summary"), user(3)])
    made = remembered()
    memory.add(user(4), user(5), user(6))

    assert made == []
    assert memory.messages() == [user(3), user(4), user(5), user(6)]
    assert remembered() == [(1, 0)] * 4


def test_clearing_forgets_it():
    window(4).add(*map(user, range(6)))
    window(4).clear()

    assert remembered() == []
