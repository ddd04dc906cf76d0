"""``explain()`` lists, message by message, exactly what the LLM is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.database import test_models
from tests.estimators import ADDITIVE_WORDS, JOINT, WORDS
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db

U1, A1, S1 = test_models.U1, test_models.A1, test_models.S1


def numbered(*numbers: int) -> list[UserMessage]:
    return [UserMessage(str(number)) for number in numbers]


def sent(memory: ChatMemory) -> list:
    return [each.message for each in Conversation.objects.get(memory_id="a").read(memory).sent()]


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
def test_the_explanation_matches_the_memory_after_any_operation(make):
    memory = test_models.memory_of(3)
    make(memory)
    conversation = Conversation.objects.get()

    remembered = conversation.read(memory)

    assert [each.sent for each in remembered.explain()] == memory.messages()
    assert [each.message for each in remembered.sent()] == memory.messages()
    assert [each.sequence for each in remembered.explain()] == [row.sequence for row in conversation.memory()]
    assert [each.row.sequence for each in remembered.sent()] == [row.sequence for row in conversation.memory()]


@IN_DATABASE
@given(
    numbered=st.lists(
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
def test_the_explanation_matches_the_memory_through_any_window(numbered, limit, estimator, options):
    Conversation.objects.all().delete()
    test_models.memory_of(10).add(SystemMessage("x"), *numbered)
    options |= {"id": "a", "store": DjangoChatMemoryStore()}
    if estimator is None:
        memory: ChatMemory = MessageWindowChatMemory(max_messages=limit, **options)
    else:
        memory = TokenWindowChatMemory(max_tokens=limit * 4, token_count_estimator=estimator, **options)

    assert sent(memory) == memory.messages()


def test_no_more_of_the_history_is_read_than_requested(django_assert_num_queries):
    memory = test_models.memory_of(2)
    memory.add(*[U1] * 20)

    with django_assert_num_queries(3):
        conversation = Conversation.objects.get()
        explained = conversation.read(memory).explain(conversation.recent(5))

    assert [(each.sequence, each.reason) for each in explained] == [
        (16, "evicted"),
        (17, "evicted"),
        (18, "evicted"),
        (19, "in_window"),
        (20, "in_window"),
    ]


class TestAnotherLimit:
    MESSAGES = MemoryConfiguration("a", "own.Memory", {"max_messages": 5, "repair_tools": True})
    TOKENS = MemoryConfiguration("a", "own.Memory", {"max_tokens": 5, "token_count_estimator": "gpt-4o", "own": 1})

    def test_a_limit_of_the_same_kind_changes_nothing_else(self):
        assert self.MESSAGES.with_limit() == self.MESSAGES
        assert self.MESSAGES.with_limit(max_messages=7).options == {"max_messages": 7, "repair_tools": True}
        assert self.TOKENS.with_limit(max_tokens=7).options == {**self.TOKENS.options, "max_tokens": 7}

    def test_a_limit_of_another_kind_keeps_the_options_common_to_all_memories(self):
        assert self.TOKENS.with_limit(max_messages=7)[1:] == (
            "chatmemory_django.memory.MessageWindowChatMemory",
            {"max_messages": 7},
        )

    def test_a_token_limit_requires_an_estimator(self):
        with pytest.raises(ValueError, match="has no token_count_estimator"):
            self.MESSAGES.with_limit(max_tokens=7)


class TestEveryStoreExplains:
    """``memory.explain()`` returns the recent history of all branches, followed by the memory."""

    @pytest.fixture
    def store(self):
        return DjangoChatMemoryStore()

    @pytest.fixture
    def memory(self, store):
        return MessageWindowChatMemory(max_messages=3, id="a", store=store)

    def reasons(self, memory: ChatMemory, count: int = 50) -> list[tuple[int, str]]:
        explained = memory.explain(count)
        assert [each.sent for each in explained if each.is_sent] == memory.messages()
        return [(each.sequence, each.reason.value) for each in explained]

    def test_evicted_and_sent_messages(self, memory):
        memory.add(*numbered(1, 2, 3, 4))

        assert self.reasons(memory) == [(1, "evicted"), *[(each, "in_window") for each in (2, 3, 4)]]
        assert self.reasons(memory, 2) == [(each, "in_window") for each in (2, 3, 4)]

    def test_system_messages(self, memory):
        memory.add(S1, *numbered(2, 3), test_models.S2, *numbered(5))

        assert self.reasons(memory) == [
            (1, "superseded"),
            (2, "evicted"),
            (3, "in_window"),
            (4, "in_window"),
            (5, "in_window"),
        ]

    def test_messages_on_another_branch(self, memory):
        memory.add(*numbered(1, 2, 3))
        memory.rewind(2)
        memory.add(*numbered(4))

        assert self.reasons(memory) == [(3, "off_path"), (1, "in_window"), (2, "in_window"), (4, "in_window")]

    def test_refilled_messages_are_in_the_memory_again(self, memory):
        memory.add(*numbered(1, 2, 3, 4, 5, 6))
        memory.rewind(3)
        after_the_rewind = self.reasons(memory)
        memory.add(*numbered(7))

        assert after_the_rewind == [
            *[(each, "off_path") for each in (4, 5, 6)],
            *[(each, "refilled") for each in (1, 2, 3)],
        ]
        assert self.reasons(memory)[-3:] == [(2, "refilled"), (3, "refilled"), (7, "in_window")]

    def test_messages_that_never_left_are_not_marked_as_refilled(self, memory):
        memory.add(*numbered(1, 2, 3, 4, 5, 6))
        memory.rewind(5)

        assert self.reasons(memory)[-2:] == [(4, "in_window"), (5, "in_window")]

    def test_regenerating_an_answer_refills_nothing(self, memory):
        memory.add(*numbered(1, 2, 3))
        for again in range(5):
            memory.rewind(2)
            memory.add(*numbered(10 + again))

        assert self.reasons(memory)[-3:] == [(1, "in_window"), (2, "in_window"), (8, "in_window")]

    def test_messages_without_room_next_to_a_nested_branch_are_refilled(self, memory):
        memory.add(*numbered(1, 2, 3))
        memory.rewind(2)
        memory.add(*numbered(4, 5))
        memory.rewind(1)

        assert self.reasons(memory)[-1:] == [(1, "refilled")]

    def test_the_summary_and_the_messages_it_covers(self, store):
        memory = SummarizingChatMemory(
            id="a",
            store=store,
            max_tokens=23,
            token_count_estimator=ADDITIVE_WORDS,
            summarize=lambda previous, messages: "so far",
            summary_tokens=5,
            after_tokens=8,
            summarize_after_add=False,
        )
        memory.add(S1, *numbered(2, 3, 4, 5, 6, 7))
        memory.summarize()

        assert self.reasons(memory) == [
            (2, "summarized"),
            (3, "summarized"),
            (4, "summarized"),
            (5, "evicted"),
            (1, "pinned"),
            (8, "summary"),
            (6, "in_window"),
            (7, "in_window"),
        ]

    def test_a_store_with_only_three_methods_explains_the_memory(self, memory):
        class Three:
            def get_messages(self, memory_id):
                return numbered(1, 2)

            def update_messages(self, memory_id, messages):
                raise NotImplementedError

            delete_messages = update_messages

        simple = MessageWindowChatMemory(max_messages=1, store=Three())

        assert self.reasons(simple) == [(1, "does_not_fit"), (2, "in_window")]

    @pytest.mark.parametrize("count", [0, -1, True, "5"])
    def test_the_count_must_be_a_number(self, memory, count):
        with pytest.raises(ValueError, match="count must be a whole number above 0, not"):
            memory.explain(count)

    def test_a_conversation_of_another_user_is_not_explained(self, memory, django_user_model):
        memory.add(*numbered(1))
        memory.store = DjangoChatMemoryStore(owner=django_user_model.objects.create_user("bob"))

        assert memory.explain() == []

    @pytest.mark.django_db(transaction=True)
    def test_the_async_version_returns_the_same(self, memory):
        memory.add(*numbered(1, 2, 3, 4))

        assert run(memory.aexplain(5)) == memory.explain(5)


def test_the_costs_are_the_same_at_any_length_of_history(django_assert_num_queries):
    memory = test_models.memory_of(2)
    memory.add(*[U1] * 200)
    memory.rewind(100)

    with django_assert_num_queries(3):
        memory.explain(5)
