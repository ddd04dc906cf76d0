"""Data stored with messages: metadata and client message ids."""

import uuid

import pytest
from django.db import connection

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, ChatMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores import InMemoryChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run

HI, HELLO = UserMessage("hi"), AiMessage("hello")
USAGE = {"model": "gpt-4o-mini", "usage": {"input_tokens": 3, "output_tokens": 5}, "name": "日本"}
PRIVATE = "what no one else may read"
ONE, TWO = "msg-1", "MSG-1"  # Two different ids, even on databases that compare text case-insensitively.


def memory(max_messages: int = 10, **options) -> ChatMemory:
    return MessageWindowChatMemory(max_messages=max_messages, id="c", store=DjangoChatMemoryStore(**options))


def named(message: ChatMessage, client_message_id: str) -> NewMessage:
    return NewMessage(message, client_message_id=client_message_id)


def noted() -> list:
    return list(Message.objects.values_list("metadata", flat=True))


@pytest.mark.django_db
class TestMetadata:
    def test_metadata_is_stored_with_each_added_message(self):
        memory().add(HI)
        memory().add(NewMessage(HELLO, USAGE), NewMessage(HELLO, USAGE))

        assert noted() == [None, USAGE, USAGE]
        assert memory().messages() == [HI, HELLO, HELLO]

    def test_metadata_can_differ_between_messages(self):
        memory().add(HI, NewMessage(HELLO, USAGE), NewMessage(HI, {}))

        assert noted() == [None, USAGE, {}]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_turn_stores_metadata(self, persist):
        with memory().turn(persist=persist) as turn:
            turn.add(NewMessage(HI, {"page": "/shop"}))
            turn.add(HI)
            during_the_turn = noted()
            turn.add(NewMessage(HELLO, USAGE))

        assert during_the_turn == ([{"page": "/shop"}, None] if persist == "early" else [])
        assert noted() == [{"page": "/shop"}, None, USAGE]

    def test_a_turn_keeps_the_metadata_of_an_existing_system_message(self):
        system = SystemMessage("Be brief.")
        memory().add(NewMessage(system, {"prompt": 7}))

        with memory().turn(persist="early") as turn:
            turn.add(system, HI)
            incomplete = list(Message.objects.incomplete().values_list("sequence", flat=True))

        assert incomplete == [2]
        assert noted() == [{"prompt": 7}, None]
        assert not Message.objects.incomplete().exists()

    @pytest.mark.django_db(transaction=True)
    def test_async_methods_store_metadata(self):
        async def talk() -> None:
            await memory().aadd(NewMessage(HI, {"n": 1}))
            async with memory().turn() as turn:
                await turn.aadd(NewMessage(HELLO, {"n": 2}))

        run(talk())

        assert noted() == [{"n": 1}, {"n": 2}]

    def test_what_is_not_a_message_is_rejected_with_its_index(self):
        with pytest.raises(TypeError, match=r"^messages\[1\] must be a message, not str\.$"):
            memory().add(NewMessage(HI, USAGE), NewMessage("hi", USAGE))
        with pytest.raises(TypeError, match=r"^messages\[0\] must be a message, not NewMessage\.$"):
            memory().set([NewMessage(HI, USAGE)])

        assert not Conversation.objects.exists()

    def test_a_store_without_metadata_ignores_it(self):
        in_process = MessageWindowChatMemory(max_messages=3, store=InMemoryChatMemoryStore())

        in_process.add(NewMessage(HI, USAGE))

        assert in_process.messages() == [HI]

    @pytest.mark.parametrize(
        ("metadata", "error", "message"),
        [
            ("a text", TypeError, r"metadata must be a mapping or None, not str\."),
            ([1], TypeError, r"metadata must be a mapping or None, not list\."),
            ({1: 2}, TypeError, r"metadata has a key of type int; JSON keys must be str\."),
            ({"a": {"b": object()}}, TypeError, r"metadata\['a'\]\['b'\] is a object, which JSON cannot represent\."),
            ({"a": float("nan")}, ValueError, r"metadata\['a'\] is nan, which JSON cannot represent"),
            ({"a": PRIVATE + "\0"}, ValueError, r"metadata\.a holds a NUL character or a lone surrogate"),
            ({"a": PRIVATE + "\ud800"}, ValueError, r"metadata\.a holds a NUL character or a lone surrogate"),
            (
                {"a": "x" * 101},
                ValueError,
                r"metadata has 109 bytes, but CHATMEMORY\['MAX_MESSAGE_BYTES'\]",
            ),
        ],
        ids=["text", "list", "key", "object", "nan", "NUL", "surrogate", "size"],
    )
    def test_invalid_json_objects_are_rejected_and_nothing_is_stored(self, metadata, error, message, settings):
        settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 100}

        with pytest.raises(error, match=message) as refused:
            memory().add(NewMessage(HI, metadata))

        assert PRIVATE not in str(refused.value)
        assert not Conversation.objects.exists()


@pytest.mark.django_db
class TestClientIds:
    def test_a_message_with_a_known_client_id_is_not_stored_again(self):
        first = memory().add(named(HI, ONE), named(HELLO, TWO))
        again = memory().add(named(HI, ONE), named(HELLO, TWO))

        assert first == again == [1, 2]
        assert memory().messages() == [HI, HELLO]
        assert list(Message.objects.values_list("client_message_id", flat=True)) == [ONE, TWO]

    def test_new_messages_in_a_retry_are_stored(self):
        memory().add(named(HI, ONE))

        assert memory().add(named(HI, ONE), named(HELLO, TWO), HI) == [1, 2, 3]
        assert memory().messages() == [HI, HELLO, HI]

    def test_a_retry_is_recognized_after_the_message_left_the_memory(self):
        memory(1).add(named(HI, ONE))
        memory(1).add(HELLO)

        assert memory(1).add(named(HI, ONE)) == [1]
        assert memory(1).messages() == [HELLO]

    def test_a_client_id_twice_in_one_call_is_stored_once(self):
        assert memory().add(named(HI, ONE), named(HI, ONE)) == [1, 1]
        assert memory().messages() == [HI]

    def test_two_different_messages_cannot_share_a_client_id(self):
        with pytest.raises(ValueError, match=r"Two messages have the client message id 'msg-1'; ids must be unique\."):
            memory().add(named(HI, ONE), named(HELLO, ONE))

        assert not Conversation.objects.exists()

    def test_each_conversation_has_its_own_client_ids(self):
        memory().add(named(HI, ONE))
        other = MessageWindowChatMemory(max_messages=3, id="other", store=DjangoChatMemoryStore())

        assert other.add(named(HELLO, ONE)) == [1]
        assert other.messages() == [HELLO]

    def test_an_existing_system_message_keeps_its_sequence(self):
        system = SystemMessage("Be brief.")
        memory().add(HI, system)

        assert memory().add(named(system, ONE), named(HELLO, TWO)) == [2, 3]
        assert memory().add(named(system, ONE), named(HELLO, TWO)) == [2, 3]

    def test_client_ids_cost_no_statement_except_in_a_retry(self, django_assert_num_queries):
        memory().add(named(HI, ONE))

        with django_assert_num_queries(2 if connection.vendor == "postgresql" else 3):
            memory().add(named(HELLO, TWO))
        # Once more behind the lock, which is a separate statement except on SQLite; and the lookup of known ids.
        with django_assert_num_queries(4 if connection.vendor == "sqlite" else 5):
            memory().add(named(HI, ONE))

    def test_a_store_that_cannot_recognize_retries_raises_an_error(self):
        in_process = MessageWindowChatMemory(max_messages=3, store=InMemoryChatMemoryStore())

        with pytest.raises(NotImplementedError, match="InMemoryChatMemoryStore does not store client message ids"):
            in_process.add(named(HI, ONE))
        assert in_process.messages() == []

    def test_a_turn_leaves_them_out_if_the_store_has_none(self):
        in_process = MessageWindowChatMemory(max_messages=3, store=InMemoryChatMemoryStore())

        with in_process.turn() as turn:
            turn.add(named(HI, ONE))

        assert in_process.messages() == [HI]

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            (uuid.UUID(int=1), TypeError, r"must be a str or None, not UUID\."),
            ("", ValueError, r"must have 1 to 64 characters, not 0\."),
            ("x" * 65, ValueError, r"must have 1 to 64 characters, not 65\."),
            ("a\0", ValueError, r"must not hold NUL characters or lone surrogates"),
            ("\ud800", ValueError, r"must not hold NUL characters or lone surrogates"),
        ],
        ids=["UUID", "empty", "long", "NUL", "surrogate"],
    )
    def test_a_client_message_id_is_a_text_of_up_to_64_characters(self, name, error, message):
        with pytest.raises(error, match=r"messages\[1\]\.client_message_id " + message):
            memory().add(named(HI, "fine"), named(HI, name))

        assert not Conversation.objects.exists()
        memory().add(named(HI, "日" * 64))
