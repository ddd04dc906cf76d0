"""Features of the database store beyond the contract of stores: history, statements, signals, owners."""

import logging

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction

from chatmemory_django import signals
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message, copies
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS, WORDS
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db


def user(number: int) -> UserMessage:
    return UserMessage(f"user message number {number}")


def window(max_messages: int = 10, memory_id: str = "c", **options) -> MessageWindowChatMemory:
    store = DjangoChatMemoryStore(**{name: options.pop(name) for name in ("keep_history", "owner") if name in options})
    return MessageWindowChatMemory(max_messages=max_messages, id=memory_id, store=store, **options)


def tokens(max_tokens: int = 50, memory_id: str = "c", estimator=ADDITIVE_WORDS, **options) -> TokenWindowChatMemory:
    return TokenWindowChatMemory(
        max_tokens=max_tokens, token_count_estimator=estimator, id=memory_id, store=DjangoChatMemoryStore(), **options
    )


def history(memory_id: str = "c") -> list[ChatMessage]:
    return [row.chat_message for row in Conversation.objects.get(memory_id=memory_id).history()]


def with_history(length: int, memory_id: str = "c") -> Conversation:
    """Create a conversation of *length* short messages, the last 9 of them in its memory."""
    conversation = Conversation.objects.create(
        memory_id=memory_id,
        next_sequence=length + 1,
        total_messages=length,
        window_start=length - 8,
        memory_messages=9,
        memory_tokens=9 * 7,
        counted_by="words",
    )
    Message.objects.bulk_create(
        [
            Message(
                conversation=conversation,
                sequence=sequence,
                type="USER",
                text=user(sequence).single_text,
                token_count=7,
                counted_by="words",
            )
            for sequence in range(1, length + 1)
        ],
        batch_size=500,
    )
    return conversation


class TestHistory:
    def test_every_message_stays_in_the_history_after_its_eviction(self):
        memory = window(3)

        for number in range(10):
            memory.add(user(number))

        assert memory.messages() == [user(7), user(8), user(9)]
        assert history() == [user(number) for number in range(10)]

    def test_sequences_have_no_gaps_and_start_at_1(self):
        memory = window(3)

        memory.add(user(1), user(2))
        memory.add(user(3), user(4))

        assert list(Message.objects.values_list("sequence", flat=True)) == [1, 2, 3, 4]

    def test_a_message_too_large_for_the_memory_is_in_the_history(self):
        memory = tokens(5)

        memory.add(user(1))

        assert memory.messages() == []
        assert history() == [user(1)]

    def test_a_replaced_system_message_stays_in_the_history(self):
        memory = window()

        memory.add(user(1), SystemMessage("Be brief."), user(2))
        memory.add(SystemMessage("Be kind."))

        assert memory.messages() == [user(1), user(2), SystemMessage("Be kind.")]
        assert history() == [user(1), SystemMessage("Be brief."), user(2), SystemMessage("Be kind.")]

    def test_clear_keeps_the_history_and_deleting_the_conversation_does_not(self):
        memory = window()
        memory.add(user(1), user(2))

        memory.clear()

        assert memory.messages() == []
        assert history() == [user(1), user(2)]

        Conversation.objects.get(memory_id="c").delete()

        assert not Message.objects.exists()

    def test_a_conversation_continues_after_a_clear(self):
        memory = window(2)
        memory.add(user(1), SystemMessage("Be brief."), user(2), user(3))
        memory.clear()

        memory.add(user(4))

        assert memory.messages() == [user(4)]
        assert history() == [user(1), SystemMessage("Be brief."), user(2), user(3), user(4)]

    def test_a_compaction_is_in_the_memory_but_not_in_the_history(self):
        memory = window()
        memory.add(*map(user, range(6)))

        memory.set([SystemMessage("They greeted four times."), user(4), user(5)])

        assert memory.messages() == [SystemMessage("They greeted four times."), user(4), user(5)]
        assert history() == [user(number) for number in range(6)]

    def test_a_compaction_to_a_single_summary_is_not_in_the_history(self):
        memory = window()
        memory.add(SystemMessage("Be brief."), *map(user, range(6)))

        memory.set([SystemMessage("Be brief."), UserMessage("So far: hello.")])

        assert memory.messages() == [SystemMessage("Be brief."), UserMessage("So far: hello.")]
        assert history() == [SystemMessage("Be brief."), *map(user, range(6))]

    def test_messages_after_a_compaction_are_in_the_history(self):
        memory = window(4)
        memory.add(*map(user, range(6)))
        memory.set([UserMessage("So far: hello."), user(5)])

        memory.add(user(6), user(7), user(8))

        assert memory.messages() == [user(5), user(6), user(7), user(8)]
        assert history() == [user(number) for number in range(9)]

    def test_the_first_messages_ever_set_are_history(self):
        window().set([user(1), user(2)])

        assert history() == [user(1), user(2)]

    @pytest.mark.parametrize("system", [[], [SystemMessage("Be brief.")]], ids=["alone", "after a system message"])
    def test_a_custom_algorithm_that_drops_at_the_front_and_appends_writes_history(self, system):
        store = DjangoChatMemoryStore()
        store.update_messages("c", [*system, user(1), user(2)])

        store.update_messages("c", [*system, user(2), user(3)])

        assert store.get_messages("c") == [*system, user(2), user(3)]
        assert history() == [*system, user(1), user(2), user(3)]
        assert Message.objects.count() == len(system) + 3

    def test_a_custom_algorithm_that_drops_the_first_system_message_drops_only_it(self):
        memory = window(always_keep_system_message_first=True)
        memory.add(user(1), user(2), SystemMessage("Be brief."))
        assert memory.messages() == [SystemMessage("Be brief."), user(1), user(2)]

        memory.set([user(1), user(2), user(3)])

        assert memory.messages() == [user(1), user(2), user(3)]
        assert Message.objects.count() == 4

    def test_setting_the_same_messages_writes_nothing(self, django_assert_num_queries):
        memory = window()
        memory.add(user(1), user(2))

        with django_assert_num_queries(3):
            memory.set([user(1), user(2)])


class TestWithoutHistory:
    def test_rows_are_deleted_with_their_messages(self):
        memory = window(3, keep_history=False)

        memory.add(SystemMessage("Be brief."))
        memory.add(*map(user, range(10)))

        assert memory.messages() == [SystemMessage("Be brief."), user(8), user(9)]
        assert Message.objects.count() == 3

    def test_a_replaced_system_message_is_deleted(self):
        memory = window(keep_history=False)

        memory.add(user(1), SystemMessage("Be brief."), user(2))
        memory.add(SystemMessage("Be kind."))

        assert [row.chat_message for row in Message.objects.all()] == memory.messages()

    def test_clear_leaves_no_row(self):
        memory = window(keep_history=False)
        memory.add(user(1), user(2))

        memory.clear()

        assert not Message.objects.exists()

    def test_a_compaction_leaves_only_its_rows(self):
        memory = window(keep_history=False)
        memory.add(*map(user, range(6)))

        memory.set([UserMessage("So far: hello."), user(5)])

        assert Message.objects.count() == 2

    def test_the_setting_applies_to_all_stores(self, settings):
        settings.CHATMEMORY = {"KEEP_HISTORY": False}
        memory = window(2)

        memory.add(*map(user, range(6)))

        assert Message.objects.count() == 2


@pytest.mark.parametrize("length", mostly_slow([10, 10_000]))
class TestStatements:
    """The same number at any length of history. BEGIN and COMMIT are not counted, as tests run in a transaction.

    An add reads the conversation with the front of its window, and writes it and the message; on PostgreSQL both writes
    are a single statement.
    """

    ADD = 2 if connection.vendor == "postgresql" else 3

    def test_an_add_that_evicts_takes_no_extra_statement(self, length, django_assert_num_queries):
        with_history(length)
        memory = tokens(3 + 9 * 7)

        for number in range(40):
            with django_assert_num_queries(self.ADD):
                memory.add(user(number))

        assert len(memory.messages()) == 9

    def test_an_add_to_a_large_window_takes_no_extra_statement(self, length, django_assert_num_queries):
        memory = window(100)
        memory.add(*map(user, range(100)))

        for number in range(40):
            with django_assert_num_queries(self.ADD):
                memory.add(user(number))

    def test_an_add_that_evicts_nothing_reads_no_messages(self, length, django_assert_num_queries):
        with_history(length)

        with django_assert_num_queries(self.ADD):
            tokens(1000).add(user(0))

    def test_a_message_window_takes_as_many_statements(self, length, django_assert_num_queries):
        with_history(length)

        with django_assert_num_queries(self.ADD):
            window(9).add(user(0))

    def test_an_add_of_49_messages_takes_no_extra_statement(self, length, django_assert_num_queries):
        with_history(length)

        with django_assert_num_queries(self.ADD + 1):
            window(9).add(*map(user, range(49)))

    def test_a_read_takes_1_statement(self, length, django_assert_num_queries):
        with_history(length)

        with django_assert_num_queries(1):
            messages = tokens(3 + 9 * 7).messages()

        assert len(messages) == 9

    def test_adding_an_unchanged_system_message_takes_2_statements(self, length, django_assert_num_queries):
        with_history(length)
        memory = window(10)
        memory.add(SystemMessage("Be brief."))

        with django_assert_num_queries(2):
            memory.add(SystemMessage("Be brief."))

    def test_clear_takes_4_statements(self, length, django_assert_num_queries, monkeypatch):
        monkeypatch.setattr(copies, "_holds", [])  # an app that the example site does not have
        with_history(length)

        with django_assert_num_queries(4):
            window().clear()


def test_a_message_that_evicts_many_takes_few_statements(django_assert_max_num_queries):
    memory = tokens(1000)
    memory.add(*(UserMessage("hi") for _ in range(200)))

    with django_assert_max_num_queries(6):
        memory.add(UserMessage("word " * 994))

    assert memory.messages() == [UserMessage("word " * 994)]


@pytest.mark.parametrize("place", [3, 9, 20, 39])
def test_a_system_message_pinned_inside_the_window_survives_evictions_around_it(place):
    memory = window(40, always_keep_system_message_first=True)
    memory.add(*map(user, range(place)), SystemMessage("Be brief."), *map(user, range(place, 39)))

    window(3, always_keep_system_message_first=True).add(user(39))
    memory.add(user(40))

    assert memory.messages() == [SystemMessage("Be brief."), user(38), user(39), user(40)]
    assert Conversation.objects.get().memory_messages == 4


def test_a_tool_call_is_evicted_with_more_results_than_were_read_ahead():
    calls = [ToolExecutionRequest(id=str(number), name="f", arguments="{}") for number in range(60)]
    results = [ToolExecutionResultMessage.from_request(call, "done") for call in calls]
    memory = window(62)
    memory.add(AiMessage(tool_execution_requests=calls), *results, user(1))

    memory.add(user(2))

    assert memory.messages() == [user(1), user(2)]


class TestCounts:
    def test_a_message_is_counted_once(self):
        counted: list[ChatMessage] = []

        class Counting(type(ADDITIVE_WORDS)):
            def estimate_token_count_in_message(self, message):
                counted.append(message)
                return super().estimate_token_count_in_message(message)

        memory = tokens(60, estimator=Counting())
        for number in range(20):
            memory.add(user(number))
            memory.messages()

        assert counted == [user(number) for number in range(20)]

    def test_another_estimator_recounts_and_stores_its_counts_with_the_next_write(self):
        class Letters(type(ADDITIVE_WORDS)):
            name = "letters"

            def estimate_token_count_in_message(self, message):
                return len(message.single_text)

        tokens(1000).add(user(1), user(2), user(3))
        memory = tokens(60, estimator=Letters())

        assert memory.messages() == [user(2), user(3)]
        assert set(Message.objects.values_list("counted_by", "token_count")) == {("words", 7)}

        memory.add(UserMessage("hi"))

        assert memory.messages() == [user(2), user(3), UserMessage("hi")]
        assert list(Message.objects.values_list("counted_by", "token_count")) == [
            ("words", 7),  # Evicted: its tokens no longer count.
            ("letters", 21),
            ("letters", 21),
            ("letters", 2),
        ]
        conversation = Conversation.objects.get()
        assert (conversation.memory_messages, conversation.memory_tokens, conversation.counted_by) == (
            3,
            44,
            "letters",
        )

    def test_the_counters_match_the_rows(self):
        memory = tokens(40, always_keep_system_message_first=True)
        for number in range(12):
            memory.add(user(number))
            if number % 4 == 0:
                memory.add(SystemMessage(f"Rule number {number}."))

        conversation = Conversation.objects.get()
        rows = list(conversation.memory())

        assert conversation.memory_messages == len(rows) == len(memory.messages())
        assert conversation.memory_tokens == sum(row.token_count for row in rows)

    def test_counts_of_a_non_additive_estimator_are_not_stored(self):
        memory = tokens(60, estimator=WORDS)

        memory.add(user(1), user(2))

        assert memory.messages() == [user(1), user(2)]
        assert set(Message.objects.values_list("counted_by", "token_count")) == {("", None)}


class TestRecount:
    def test_uncounted_messages_are_counted_and_the_counts_stored(self):
        window(max_messages=2).add(UserMessage("gone"), UserMessage("one"), UserMessage("one two"))

        counted = DjangoChatMemoryStore().recount("c", tokens().window())

        conversation = Conversation.objects.get()
        assert counted == conversation.memory_tokens == 4 + 5
        assert conversation.counted_by == "words"
        assert list(conversation.messages.values_list("token_count", "counted_by")) == [
            (None, ""),
            (4, "words"),
            (5, "words"),
        ]

    def test_wrong_counts_are_corrected(self):
        memory = tokens()
        memory.add(SystemMessage("Be brief"), UserMessage("one"))
        Message.objects.update(token_count=999)
        Conversation.objects.update(memory_tokens=1998)

        assert memory.store.recount("c", memory.window()) == 5 + 4
        assert Conversation.objects.get().memory_tokens == 9
        assert set(Message.objects.values_list("token_count", flat=True)) == {5, 4}

    def test_evictions_after_a_recount_use_the_new_counts(self):
        memory = tokens(max_tokens=30)
        for number in range(5):
            memory.add(user(number))  # 7 tokens each: the first two must be evicted.
        Message.objects.update(token_count=1)
        Conversation.objects.update(memory_tokens=3)

        memory.store.recount("c", memory.window())
        memory.add(user(5))

        conversation = Conversation.objects.get()
        kept = list(conversation.memory().values_list("token_count", flat=True))
        assert conversation.memory_tokens == sum(kept) == 21
        assert memory.messages() == [user(3), user(4), user(5)]

    def test_a_recount_is_not_activity_and_takes_four_statements(self, django_assert_num_queries):
        memory = tokens()
        memory.add(UserMessage("one"), UserMessage("two"))
        before = Conversation.objects.get().updated_at

        with django_assert_num_queries(4):
            memory.store.recount("c", memory.window())

        assert Conversation.objects.get().updated_at == before

    def test_an_unknown_or_empty_memory_has_no_tokens(self):
        memory = tokens()
        memory.add(UserMessage("one"))
        memory.clear()

        assert memory.store.recount("c", memory.window()) == 0
        assert memory.store.recount("unknown", memory.window()) == 0
        assert Conversation.objects.count() == 1

    @pytest.mark.parametrize("memory", [window(), tokens(estimator=WORDS)], ids=["of_messages", "not_additive"])
    def test_a_window_without_storable_counts_is_rejected(self, memory):
        with pytest.raises(ValueError, match="counts of window cannot be stored"):
            DjangoChatMemoryStore().recount("c", memory.window())


class TestRows:
    def test_a_message_of_only_text_needs_no_json(self):
        window().add(SystemMessage("a"), UserMessage("b"), AiMessage("c"))

        assert list(Message.objects.values_list("type", "text", "payload")) == [
            ("SYSTEM", "a", None),
            ("USER", "b", None),
            ("AI", "c", None),
        ]

    def test_the_text_of_any_message_can_be_searched(self):
        picture = ImageContent(Image(url="https://example.com/a.png"))
        window().add(
            UserMessage([TextContent("What is"), picture, TextContent("this?")]),
            AiMessage("A cat.", thinking="whiskers"),
            ToolExecutionResultMessage("1", "look", "yes, a cat"),
            CustomMessage({"cat": True}),
            AiMessage(),
        )

        assert list(Message.objects.values_list("text", flat=True)) == [
            "What is\nthis?",
            "A cat.",
            "yes, a cat",
            "",
            "",
        ]

    @pytest.mark.parametrize(
        "message",
        [
            UserMessage("hi", name=""),
            AiMessage(),
            AiMessage(""),
            CustomMessage({"big": 10**30, "small": 1e-300, "large": 1.7976931348623157e308, "zero": -0.0}),
            UserMessage("ελληνικά 日本語 😀 \u0085\u2028 \\u0000 \\\\u0000"),
            UserMessage("tabs\tand\r\nlines\n", attributes={"\\u0000": ["\\", '"']}),
            UserMessage("x" * 3_000_000),
            ToolExecutionResultMessage(None, None, "'\"" * 500_000, is_error=True),
        ],
        ids=range(8),
    )
    def test_every_message_is_restored_unchanged(self, message):
        memory = window()

        memory.add(message)

        assert memory.messages() == [message]

    def test_many_large_messages_are_stored_in_one_add(self):
        messages = [UserMessage(f"{number}" + "x" * 3_000_000) for number in range(8)]
        memory = window()

        memory.add(*messages)

        assert memory.messages() == messages

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (UserMessage("secret \0"), r"UserMessage.contents\[0\].text holds a NUL character or a lone surrogate"),
            (UserMessage("secret \ud800"), r"UserMessage.contents\[0\].text holds a NUL"),
            (UserMessage("secret", name="a\0b"), "UserMessage.name holds a NUL"),
            (UserMessage("secret", attributes={"a": ["b\0c"]}), r"UserMessage.attributes.a\[0\] holds a NUL"),
            (AiMessage("secret", thinking="\udfff"), "AiMessage.thinking holds a NUL"),
            (CustomMessage({"a\0": "secret"}), "CustomMessage.attributes.* holds a NUL"),
            (
                UserMessage("é" * 2_100_000),
                r"UserMessage has 4200000 bytes, .*'MAX_MESSAGE_BYTES'\] is 4194304",
            ),
        ],
    )
    def test_unsupported_characters_are_rejected_naming_the_field_but_not_the_text(self, message, reason):
        memory = window()
        memory.add(user(1))

        with pytest.raises(ValueError, match=reason) as caught:
            memory.add(user(2), message)

        assert "secret" not in str(caught.value)
        assert memory.messages() == history() == [user(1)]

    def test_the_setting_limits_the_size_of_a_message(self, settings):
        settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 10}
        memory = window()

        memory.add(UserMessage("x" * 10))
        with pytest.raises(ValueError, match="has 11 bytes"):
            memory.add(UserMessage("x" * 11))

        assert memory.messages() == [UserMessage("x" * 10)]

    @pytest.mark.parametrize(
        "keys", [("a", "A"), ("a", "a "), ("a", "á"), ("ß", "ss"), ("1", "\N{FULLWIDTH DIGIT ONE}")]
    )
    def test_similar_ids_are_different_memories(self, keys):
        for key in keys:
            window(memory_id=key).add(UserMessage(f"sent in {key!r}"))

        assert [window(memory_id=key).messages() for key in keys] == [[UserMessage(f"sent in {key!r}")] for key in keys]


class TestOwners:
    def test_a_new_conversation_belongs_to_its_owner(self):
        ann = User.objects.create_user("ann")

        window(owner=ann).add(user(1))

        assert Conversation.objects.owned_by(ann).get().memory_id == "c"

    def test_a_conversation_of_another_user_is_inaccessible(self):
        ann, bob = User.objects.create_user("ann"), User.objects.create_user("bob")
        window(owner=ann).add(user(1))
        memory = window(owner=bob)

        with pytest.raises(PermissionDenied, match="'c' belongs to another user"):
            memory.add(user(2))
        with pytest.raises(PermissionDenied):
            memory.clear()
        with pytest.raises(PermissionDenied):
            memory.set([])
        for after in (None, 0, 1):
            with pytest.raises(PermissionDenied, match="'c' belongs to another user"), memory.turn(after=after):
                pass

        assert memory.messages() == []
        assert window(owner=ann).messages() == [user(1)]

    @pytest.mark.parametrize("messages", [1, 0])
    def test_a_turn_of_the_owner_takes_no_more_statements(self, django_assert_num_queries, messages):
        ann = User.objects.create_user("ann")
        window(owner=ann).add(*[user(1)] * messages)

        with django_assert_num_queries(1), window(owner=ann).turn():
            pass


@pytest.fixture
def received():
    """Record the signals as (signal, memory id, sequences)."""
    events: list[tuple] = []
    names = ("messages_added", "messages_evicted", "memory_cleared")

    def receiver(name):
        def receive(sender, conversation, sequences, using, **kwargs):
            events.append((name, conversation.memory_id, sequences))

        return receive

    receivers = {name: receiver(name) for name in names}
    for name, receive in receivers.items():
        getattr(signals, name).connect(receive, sender=Conversation)
    yield events
    for name, receive in receivers.items():
        getattr(signals, name).disconnect(receive, sender=Conversation)


class TestSignals:
    def test_signals_report_added_evicted_and_cleared_messages(self, received, django_capture_on_commit_callbacks):
        memory = window(2)

        with django_capture_on_commit_callbacks(execute=True):
            memory.add(user(1), user(2), user(3))
            memory.clear()

        assert received == [
            ("messages_added", "c", (1, 2, 3)),
            ("messages_evicted", "c", (1,)),
            ("memory_cleared", "c", (2, 3)),
        ]

    def test_a_replaced_system_message_is_signalled_as_evicted(self, received, django_capture_on_commit_callbacks):
        memory = window()
        memory.add(SystemMessage("Be brief."), user(1))

        with django_capture_on_commit_callbacks(execute=True):
            memory.add(SystemMessage("Be kind."))

        assert received == [("messages_added", "c", (3,)), ("messages_evicted", "c", (1,))]

    def test_a_compaction_evicts_the_messages_it_replaces(self, received, django_capture_on_commit_callbacks):
        memory = window()
        memory.add(user(1), user(2))

        with django_capture_on_commit_callbacks(execute=True):
            memory.set([UserMessage("So far: hello.")])

        assert received == [("messages_added", "c", (3,)), ("messages_evicted", "c", (1, 2))]

    def test_other_fields_of_the_conversation_are_loaded_on_access(self, django_capture_on_commit_callbacks):
        titles: list[str] = []

        def receive(sender, conversation, **kwargs):
            titles.append(conversation.title)

        signals.messages_added.connect(receive, sender=Conversation)
        Conversation.objects.create(memory_id="c", title="Greetings")
        with django_capture_on_commit_callbacks(execute=True):
            window().add(user(1))
        signals.messages_added.disconnect(receive, sender=Conversation)

        assert titles == ["Greetings"]

    @pytest.mark.django_db(transaction=True)
    def test_a_rolled_back_write_sends_no_signals(self, received):
        with transaction.atomic():
            window().add(user(1))
            transaction.set_rollback(True)

        assert received == []

    @pytest.mark.django_db(transaction=True)
    def test_an_error_in_a_receiver_is_logged_and_the_message_stored(self, caplog):
        def receive(**kwargs):
            raise RuntimeError("broken receiver")

        signals.messages_added.connect(receive, sender=Conversation)
        with caplog.at_level(logging.ERROR):
            window().add(user(1))
        signals.messages_added.disconnect(receive, sender=Conversation)

        assert window().messages() == [user(1)]
        assert "broken receiver" in caplog.text


def test_exclusive_creates_a_missing_conversation_to_lock():
    store = DjangoChatMemoryStore()

    with store.exclusive("c"):
        assert connection.in_atomic_block
        store.update_messages("c", [user(1)])

    assert store.get_messages("c") == [user(1)]


def test_unknown_conversations_read_as_empty_and_are_not_created(django_assert_num_queries):
    store = DjangoChatMemoryStore()

    store.delete_messages("c")
    store.update_messages("c", [])

    assert store.get_messages("c") == []
    assert not Conversation.objects.exists()


def test_the_ids_1_and_true_are_different_memories():
    store = DjangoChatMemoryStore()
    store.update_messages("c", [UserMessage("hi", attributes={"a": 1})])

    store.update_messages("c", [UserMessage("hi", attributes={"a": True})])

    assert store.get_messages("c")[0].attributes["a"] is True
