"""Messages added by adapters of other frameworks: all are stored as given, and the memory follows its own rules."""

import json

import pytest
from asgiref.sync import async_to_sync

from chatmemory_django.core.reasons import Reason
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import ChatMessage, CustomMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import fork
from chatmemory_django.operations.jsonl import export_lines, import_lines
from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore
from chatmemory_django.stores.base import SimpleStoreAdapter
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS, JOINT
from tests.logs import logged_by

pytestmark = pytest.mark.django_db

A, B = SystemMessage("Be brief."), SystemMessage("Be kind.")
ONE, TWO = UserMessage("one"), UserMessage("two")


@pytest.fixture
def store() -> DjangoChatMemoryStore:
    return DjangoChatMemoryStore()


@pytest.fixture(params=["messages", "tokens", "tokens that do not add up"])
def memory(request, store) -> ChatMemory:
    return memory_in(store, request.param)


def memory_in(store: ChatMemoryStore, measure: str = "messages", **options) -> ChatMemory:
    if measure == "messages":
        return MessageWindowChatMemory(max_messages=20, id="a", store=store, **options)
    estimator = ADDITIVE_WORDS if measure == "tokens" else JOINT
    return TokenWindowChatMemory(max_tokens=100, token_count_estimator=estimator, id="a", store=store, **options)


def add(memory: ChatMemory, *messages: ChatMessage) -> list[int]:
    return memory.add(*messages, repeats=True)


def history() -> list[ChatMessage]:
    return [row.chat_message for row in Conversation.objects.get().history()]


class TestSystemMessages:
    def test_each_is_a_row_of_the_history_and_one_is_in_the_memory(self, memory):
        keys = add(memory, A, ONE, A, B, TWO)

        assert keys == [1, 2, 3, 4, 5]
        assert memory.messages() == [ONE, B, TWO]
        assert history() == [A, ONE, A, B, TWO]

    def test_a_repeated_system_message_leaves_the_memory_unchanged(self, memory):
        add(memory, A, ONE)
        add(memory, A)

        assert memory.messages() == [A, ONE]

    def test_adding_one_by_one_has_the_same_result(self, memory):
        for message in (A, ONE, A, A, B, TWO, B):
            add(memory, message)

        assert memory.messages() == [ONE, B, TWO]

    def test_a_repeated_system_message_causes_no_warning(self, memory, caplog):
        add(memory, A)
        add(memory, A)

        assert not logged_by(caplog, "chatmemory_django.memory")

    @pytest.mark.parametrize("to", [3, 4, 5])
    def test_rewind_restores_the_first_of_equal_system_messages_to_its_position(self, memory, to):
        add(memory, A, ONE, A, A, TWO, B)

        memory.rewind(to)

        assert memory.messages() == ([A, ONE, TWO] if to == 5 else [A, ONE])

    def test_a_branch_that_repeats_the_system_message_keeps_its_position(self, memory):
        add(memory, A, ONE, TWO)
        memory.rewind(2)
        add(memory, A, TWO)
        memory.rewind(3)

        memory.switch(5)

        assert memory.messages() == [A, ONE, TWO]

    def test_a_replaced_system_message_is_superseded_and_explained_as_such(self):
        memory = memory_in(DjangoChatMemoryStore())
        add(memory, A, ONE, A)

        assert [(each.sequence, each.reason) for each in memory.explain()] == [
            (3, Reason.SUPERSEDED),
            (1, Reason.IN_WINDOW),
            (2, Reason.IN_WINDOW),
        ]

    def test_without_history_no_copy_of_a_repeated_system_message_is_kept(self):
        memory = memory_in(DjangoChatMemoryStore(keep_history=False))

        add(memory, A, ONE, A)

        assert list(Message.objects.values_list("sequence", flat=True)) == [1, 2]

    def test_a_fork_copies_all_system_messages(self):
        memory = memory_in(DjangoChatMemoryStore())
        add(memory, A, ONE, A, TWO)

        forked = fork(Conversation.objects.get())

        assert [row.chat_message for row in forked.history()] == [A, ONE, A, TWO]
        assert [row.chat_message for row in forked.memory()] == [A, ONE, TWO]


class TestVerbatim:
    def test_verbatim_data_is_stored_with_the_message(self):
        given = json.dumps({"openai": {"content": "one", "phase": 1e308, "n": 2**53 + 1, "\ud800": "\0"}})

        memory_in(DjangoChatMemoryStore()).add(NewMessage(ONE, verbatim=given), TWO)

        assert list(Message.objects.values_list("verbatim", flat=True)) == [given, None]

    def test_verbatim_data_is_exported_imported_and_forked(self):
        memory_in(DjangoChatMemoryStore()).add(NewMessage(ONE, verbatim='{"a": 1.0}'))
        lines = list(export_lines(Conversation.objects.all()))
        forked = fork(Conversation.objects.get())
        Conversation.objects.filter(memory_id="a").delete()

        import_lines(lines)

        assert list(Message.objects.values_list("verbatim", flat=True)) == ['{"a": 1.0}'] * 2
        assert forked.messages.get().verbatim == '{"a": 1.0}'

    @pytest.mark.parametrize(
        ("verbatim", "error"),
        [
            ("\0", ValueError),
            ("\ud800", ValueError),
            ({"a": 1}, TypeError),
            ("x" * 5_000_000, ValueError),
        ],
    )
    def test_invalid_verbatim_data_is_rejected_and_nothing_is_stored(self, verbatim, error):
        with pytest.raises(error, match="verbatim"):
            memory_in(DjangoChatMemoryStore()).add(NewMessage(ONE, verbatim=verbatim))

        assert not Message.objects.exists()

    def test_a_store_without_support_for_verbatim_data_raises_an_error(self):
        class Plain:
            def get_messages(self, memory_id):
                return []

            update_messages = delete_messages = get_messages

        for store in (SimpleStoreAdapter(Plain()), InMemoryChatMemoryStore()):
            with pytest.raises(NotImplementedError, match="verbatim"):
                memory_in(store).add(NewMessage(ONE, verbatim="{}"))

    def test_a_store_without_history_cannot_keep_repeats(self):
        with pytest.raises(NotImplementedError, match="SimpleStoreAdapter keeps no history"):
            memory_in(SimpleStoreAdapter(InMemoryChatMemoryStore())).add(A, A, repeats=True)

    def test_repeats_can_be_added_from_async_code(self):
        memory = memory_in(DjangoChatMemoryStore())

        assert async_to_sync(memory.aadd)(A, A, repeats=True) == [1, 2]


class TestCustomMessages:
    def test_custom_messages_are_found_by_the_texts_they_contain(self):
        message = CustomMessage({"type": "note", "parts": [{"text": "Beware of the dog"}, 7], "file": "QUJD" * 1_000})
        memory_in(DjangoChatMemoryStore()).add(message)

        [found] = Message.objects.containing("dog")

        assert found.text == "note\nBeware of the dog"
        assert found.chat_message == message
