"""What the LLM would be sent, message by message, is what the memory says it is."""

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatmemory_django.explain import read, read_recent
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import with_limit
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests import test_models
from tests.estimators import ADDITIVE_WORDS, JOINT, WORDS

pytestmark = pytest.mark.django_db

U1, A1, S1 = test_models.U1, test_models.A1, test_models.S1


def sent(memory: ChatMemory) -> list:
    readings = read(Conversation.objects.get(memory_id="a"), memory)
    return [reading.sent for reading in readings if reading.sent is not None]


@pytest.mark.parametrize(
    "make",
    [
        test_models.evict_some,
        test_models.pin_the_system_message,
        test_models.replace_the_system_message,
        test_models.replace_a_pinned_system_message,
        test_models.replace_twice_at_once,
        test_models.evict_a_call_with_its_result,
        test_models.add_more_than_fits,
        test_models.compact,
    ],
)
def test_it_is_the_memory_whatever_became_of_it(make):
    memory = test_models.memory_of(3)
    make(memory)
    conversation = Conversation.objects.get()

    readings = read(conversation, memory)

    assert [reading.sent for reading in readings] == memory.messages()
    assert [reading.row.sequence for reading in readings] == [row.sequence for row in conversation.memory()]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(
        st.one_of(
            st.sampled_from([U1, A1, S1, test_models.S2]),
            st.builds(
                AiMessage,
                st.sampled_from([None, "so"]),
                st.none(),
                st.lists(st.builds(ToolExecutionRequest, st.sampled_from("ab")), min_size=1, max_size=2),
            ),
            st.builds(ToolExecutionResultMessage, st.sampled_from("ab"), st.just("t"), st.just("4")),
        ),
        max_size=12,
    ),
    limit=st.integers(1, 12),
    estimator=st.sampled_from([None, ADDITIVE_WORDS, WORDS, JOINT]),
    options=st.fixed_dictionaries(
        {
            "start_on_user": st.booleans(),
            "repair_tools": st.booleans(),
            "always_keep_system_message_first": st.booleans(),
        }
    ),
)
def test_it_is_the_memory_through_any_window(said, limit, estimator, options):
    Conversation.objects.all().delete()
    test_models.memory_of(10).add(SystemMessage("x"), *said)
    options |= {"id": "a", "store": DjangoChatMemoryStore()}
    if estimator is None:
        memory: ChatMemory = MessageWindowChatMemory(max_messages=limit, **options)
    else:
        memory = TokenWindowChatMemory(max_tokens=limit * 4, token_count_estimator=estimator, **options)

    assert sent(memory) == memory.messages()


def test_of_the_history_it_reads_no_more_than_asked(django_assert_num_queries):
    memory = test_models.memory_of(2)
    memory.add(*[U1] * 20)

    with django_assert_num_queries(3):
        readings = read_recent(Conversation.objects.get(), memory, 5)

    assert [(reading.row.sequence, reading.reason) for reading in readings] == [
        (16, "evicted"),
        (17, "evicted"),
        (18, "evicted"),
        (19, "in_window"),
        (20, "in_window"),
    ]


class TestAnotherLimit:
    MESSAGES: ClassVar = {"CLASS": "own.Memory", "OPTIONS": {"max_messages": 5, "repair_tools": True}}
    TOKENS: ClassVar = {
        "CLASS": "own.Memory",
        "OPTIONS": {"max_tokens": 5, "token_count_estimator": "gpt-4o", "own": 1},
    }

    def test_of_the_same_kind_changes_nothing_else(self):
        assert with_limit(self.MESSAGES) == self.MESSAGES
        assert with_limit(self.MESSAGES, max_messages=7)["OPTIONS"] == {"max_messages": 7, "repair_tools": True}
        assert with_limit(self.TOKENS, max_tokens=7)["OPTIONS"] == {**self.TOKENS["OPTIONS"], "max_tokens": 7}

    def test_of_the_other_kind_keeps_what_every_memory_can_be_told(self):
        assert with_limit(self.TOKENS, max_messages=7) == {
            "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
            "OPTIONS": {"max_messages": 7},
        }

    def test_of_tokens_needs_something_to_count_them_with(self):
        with pytest.raises(ValueError, match="has no token_count_estimator"):
            with_limit(self.MESSAGES, max_tokens=7)
