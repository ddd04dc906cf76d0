"""A window that grew is filled again, with what a smaller limit had evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.core.reasons import Reason
from chatmemory_django.memory import (
    ChatMemory,
    MessageWindowChatMemory,
    SummarizingChatMemory,
    TokenWindowChatMemory,
)
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.operations import export_lines, fork, import_lines
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import messages_evicted
from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import in_another_connection
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT

pytestmark = pytest.mark.django_db

CALL = AiMessage("look", tool_execution_requests=[ToolExecutionRequest("1", "look", "{}")])
RESULT = ToolExecutionResultMessage("1", "look", "found")


@pytest.fixture
def store() -> DjangoChatMemoryStore:
    return DjangoChatMemoryStore()


def memory_in(store: ChatMemoryStore, size: int, *messages: ChatMessage | str | int, **options) -> ChatMemory:
    """Return the memory "a" of *size* messages, after *messages* were added one by one."""
    memory = MessageWindowChatMemory(**{"max_messages": size, "id": "a", "store": store, "refill": True, **options})
    for message in messages:
        memory.add(message if not isinstance(message, str | int) else UserMessage(str(message)))
    return memory


def sent(memory: ChatMemory) -> list[str]:
    """Return what *memory* sends now, after it was checked that its turns and explanations agree."""
    messages = memory.messages()
    with memory.turn() as turn:
        assert turn.messages == messages
    assert [each.sent for each in memory.explain() if each.is_sent] == messages
    return [text(each) for each in messages]


def text(message: ChatMessage) -> str:
    return message.single_text if isinstance(message, UserMessage) else message.text


def digits(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


class TestALargerLimit:
    def test_brings_back_what_fits(self, store):
        memory_in(store, 3, *range(1, 10))

        assert sent(memory_in(store, 5)) == digits(5, 9)
        assert sent(memory_in(store, 100)) == digits(1, 9)

    def test_is_only_shown_until_something_is_written(self, store):
        memory_in(store, 3, *range(1, 10))
        memory = memory_in(store, 5)

        memory.messages()
        assert len(store.get_messages("a")) == 3

        memory.add(UserMessage("10"))
        assert [text(each) for each in store.get_messages("a")] == digits(6, 10)

    def test_is_stored_by_a_turn(self, store):
        memory_in(store, 3, *range(1, 10))

        with memory_in(store, 6).turn() as turn:
            turn.add(UserMessage("10"))
            turn.add(UserMessage("11"))

        assert [text(each) for each in store.get_messages("a")] == digits(6, 11)

    @pytest.mark.parametrize("estimator", [ADDITIVE_WORDS, JOINT], ids=["additive", "joint"])
    def test_of_tokens_brings_back_what_fits(self, store, estimator):
        def memory(size: int, estimator=estimator) -> ChatMemory:
            return TokenWindowChatMemory(
                max_tokens=size, token_count_estimator=estimator, id="a", store=store, refill=True
            )

        memory(15).add(*map(UserMessage, digits(1, 9)))
        remembered = memory(15).messages()
        grown = sent(memory(35))

        assert len(remembered) < len(grown) < 9
        assert grown == digits(10 - len(grown), 9)
        memory(35).add(UserMessage("10"))
        assert estimator.estimate_token_count_in_messages(store.get_messages("a")) <= 35
        assert sent(memory(1000, ADDITIVE_LETTERS)) == digits(1, 10)

    def test_of_another_measure_brings_nothing_back(self, store):
        memory_in(store, 3, *range(1, 10))

        memory = TokenWindowChatMemory(
            max_tokens=1000, token_count_estimator=ADDITIVE_WORDS, id="a", store=store, refill=True
        )

        assert sent(memory) == digits(7, 9)

    def test_brings_nothing_back_without_the_option(self, store):
        memory_in(store, 3, *range(1, 10))

        memory = memory_in(store, 100, refill=False)
        assert sent(memory) == digits(7, 9)
        memory.add(UserMessage("10"))

        assert sent(memory) == digits(7, 10)
        assert sent(memory_in(store, 100)) == digits(1, 10)

    def test_can_come_and_go_with_each_answer(self, store):
        small, large = memory_in(store, 3, *range(1, 10)), memory_in(store, 6)

        for number in range(10, 14):
            large.add(UserMessage(str(number)))
            assert sent(large) == digits(number - 5, number)
            assert sent(small) == digits(number - 2, number)
            small.add(UserMessage(f"{number}b"))
            small.pop()

    def test_brings_whole_tool_pairs_back(self, store):
        memory_in(store, 2, 1, CALL, RESULT, RESULT, 2, 3)

        assert sent(memory_in(store, 3)) == ["2", "3"]
        assert sent(memory_in(store, 4)) == ["2", "3"]
        assert sent(memory_in(store, 5)) == ["look", "found", "found", "2", "3"]
        assert sent(memory_in(store, 6)) == ["1", "look", "found", "found", "2", "3"]

    def test_never_begins_with_a_result_whose_call_stays_away(self, store):
        memory = memory_in(store, 4, 1, CALL, RESULT, 2)
        memory.evict(2)
        memory_in(store, 1).add(UserMessage("3"))

        assert sent(memory_in(store, 10)) == ["2", "3"]

    def test_that_all_fits_brings_all_back_even_beside_a_lower_mark(self, store):
        memory_in(store, 6, *range(1, 10), evict_to=2)

        assert sent(memory_in(store, 20, evict_to=10)) == digits(1, 9)

    def test_leaves_the_room_of_a_lower_mark_free(self, store):
        memory = memory_in(store, 6, *range(1, 20), evict_to=2)
        remembered = sent(memory)

        assert len(remembered) < 6
        assert sent(memory_in(store, 12, evict_to=8)) == digits(12, 19)
        assert sent(memory_in(store, 12, evict_to=2)) == remembered

    def test_keeps_the_system_message_in_front(self, store):
        memory_in(store, 3, SystemMessage("S"), *range(1, 10))

        assert sent(memory_in(store, 6)) == ["S", *digits(5, 9)]

    def test_puts_the_system_message_where_it_was(self, store):
        memory_in(store, 3, 1, 2, SystemMessage("S"), *range(3, 7))
        assert sent(memory_in(store, 3)) == ["S", "5", "6"]

        assert sent(memory_in(store, 7)) == ["1", "2", "S", *digits(3, 6)]
        assert sent(memory_in(store, 6)) == ["2", "S", *digits(3, 6)]
        assert sent(memory_in(store, 6, always_keep_system_message_first=True)) == ["S", *digits(2, 6)]

    def test_does_not_bring_back_a_system_message_that_was_replaced(self, store):
        memory = memory_in(store, 3, 1, SystemMessage("S"), *range(2, 7), SystemMessage("T"))

        assert sent(memory_in(store, 20)) == [*digits(1, 6), "T"]
        memory_in(store, 20).add(UserMessage("7"))
        assert sent(memory) == ["T", "7"] or sent(memory) == ["6", "T", "7"]
        assert sent(memory_in(store, 20)) == [*digits(1, 6), "T", "7"]

    def test_brings_back_a_message_that_was_too_large_for_the_smaller_one(self, store):
        def memory(size: int) -> ChatMemory:
            return TokenWindowChatMemory(
                max_tokens=size, token_count_estimator=ADDITIVE_WORDS, id="a", store=store, refill=True
            )

        memory(10).add(UserMessage("one two three four five six seven eight nine"))
        assert memory(10).messages() == []

        assert len(memory(100).messages()) == 1
        assert memory(100).pop() is not None
        assert memory(100).messages() == []


class TestWhatStaysAway:
    def test_what_was_cleared(self, store):
        memory = memory_in(store, 3, *range(1, 10))
        memory.clear()
        memory_in(store, 3, *range(10, 15))

        assert sent(memory_in(store, 100)) == digits(10, 14)

    def test_what_was_removed(self, store):
        memory_in(store, 3, *range(1, 10)).remove(2, 5)

        assert sent(memory_in(store, 6)) == ["3", "4", *digits(6, 9)]

    def test_what_was_evicted_on_purpose_and_all_before_it(self, store):
        memory = memory_in(store, 3, *range(1, 10))
        assert memory.evict(1) == [7]
        memory_in(store, 3, *range(10, 15))

        assert sent(memory_in(store, 100)) == digits(8, 14)

    def test_what_was_evicted_of_a_memory_that_came_back(self, store):
        memory_in(store, 3, *range(1, 10))
        memory = memory_in(store, 6)

        assert memory.evict(2) == [4, 5]
        assert sent(memory) == digits(6, 9)
        assert sent(memory_in(store, 100)) == digits(6, 9)

    def test_what_was_set_away(self, store):
        memory = memory_in(store, 4, *range(1, 10))
        memory.set([*memory.messages()[2:], UserMessage("10"), UserMessage("11")])
        memory.add(UserMessage("12"))

        assert sent(memory) == digits(9, 12)
        assert sent(memory_in(store, 100)) == digits(8, 12)

    def test_but_not_what_did_not_fit_into_a_memory_that_was_set(self, store):
        memory = memory_in(store, 4, *range(1, 10))
        memory.set([*memory.messages(), UserMessage("10"), UserMessage("11")])

        assert sent(memory) == digits(8, 11)
        assert sent(memory_in(store, 100)) == digits(1, 11)

    def test_but_not_what_did_not_fit_before_a_system_message(self, store):
        memory = memory_in(store, 3, 1, SystemMessage("S"), evict_to=1)
        memory.set([*memory.messages(), UserMessage("2"), UserMessage("3")])

        assert sent(memory) == ["S", "3"]
        assert sent(memory_in(store, 100)) == ["1", "S", "3"]

    def test_what_came_before_a_memory_that_was_composed(self, store):
        memory = memory_in(store, 4, *range(1, 10))
        memory.set([UserMessage("so far")])
        memory_in(store, 2, 10, 11)

        assert sent(memory_in(store, 100)) == digits(10, 11)

    def test_what_the_summary_covers(self, store):
        def memory(size: int) -> SummarizingChatMemory:
            return SummarizingChatMemory(
                max_tokens=size,
                token_count_estimator=ADDITIVE_WORDS,
                id="a",
                store=store,
                refill=True,
                summarize=lambda previous, messages: "so far",
                summary_tokens=8,
                after_tokens=1,
                summarize_after_add=False,
            )

        memory(20).add(*map(UserMessage, digits(1, 6)))
        assert memory(20).summarize()
        assert sent(memory(20))[0] == "so far"
        memory(20).add(*map(UserMessage, digits(7, 12)))

        assert sent(memory(20)) == ["so far", *digits(10, 12)]
        assert sent(memory(1000)) == ["so far", *digits(3, 12)]

    def test_what_is_on_another_branch(self, store):
        memory = memory_in(store, 3, *range(1, 7))
        memory.add(UserMessage("5b"), after=4)
        memory.add(UserMessage("6b"), UserMessage("7b"))

        assert sent(memory_in(store, 100)) == [*digits(1, 4), "5b", "6b", "7b"]
        memory_in(store, 100).switch(6)
        assert sent(memory_in(store, 100)) == digits(1, 6)

    def test_what_was_left_out_when_it_was_added(self, store):
        window = memory_in(store, 3).window()
        store.append_messages("a", [UserMessage("1"), UserMessage("2")], window, archived=True)
        memory_in(store, 1, 3, 4)

        assert sent(memory_in(store, 100)) == ["3", "4"]


class TestOtherVerbs:
    def test_a_list_that_was_read_filled_goes_on_when_it_is_set(self, store):
        memory_in(store, 3, *range(1, 10))
        memory = memory_in(store, 6)

        memory.set([*memory.messages(), UserMessage("10")])

        assert sent(memory) == digits(5, 10)
        assert [each.sequence for each in memory.explain() if each.reason == Reason.OFF_PATH] == []
        memory.rewind(9)
        assert sent(memory) == digits(5, 9)

    def test_a_rewind_keeps_what_came_back(self, store):
        memory_in(store, 3, *range(1, 10))
        memory = memory_in(store, 6)

        with memory.turn(after=8) as turn:
            assert [text(each) for each in turn.messages] == digits(4, 8)
        memory.rewind(8)

        assert sent(memory) == digits(4, 8)
        assert sent(memory_in(store, 7)) == digits(2, 8)

    def test_without_a_history_nothing_comes_back(self):
        for store in (DjangoChatMemoryStore(keep_history=False), InMemoryChatMemoryStore()):
            memory_in(store, 3, *range(1, 10))

            assert sent(memory_in(store, 100)) == digits(7, 9)

    def test_a_failed_write_changes_nothing(self, store):
        memory_in(store, 3, *range(1, 10))

        memory_in(store, 6).add(*[])
        with pytest.raises(LookupError):
            memory_in(store, 6).add(UserMessage("x"), after=77)

        assert len(store.get_messages("a")) == 3


class TestInTheDatabase:
    def test_a_memory_takes_no_more_statements_until_its_limit_grows(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3, *range(1, 10))
        plain = memory_in(store, 3, refill=False)

        for size, more in ((3, 0), (2, 0), (6, 1), (50, 1)):
            memory = memory_in(store, size)
            assert statements(memory.messages) == statements(plain.messages) + more
            assert statements(lambda memory=memory: turn_of(memory)) == statements(lambda: turn_of(plain)) + more

    def test_what_fits_comes_back_in_one_statement_however_much_it_is(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3).add(*map(UserMessage, digits(1, 600)))

        assert statements(memory_in(store, 500).messages) == statements(memory_in(store, 3).messages) + 1
        assert len(memory_in(store, 500).messages()) == 500

    def test_a_write_takes_one_statement_more(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3, *range(1, 10))
        usual = statements(lambda: memory_in(store, 3, refill=False).add(UserMessage("10")))

        assert statements(lambda: memory_in(store, 6).add(UserMessage("11"))) == usual + 1
        assert statements(lambda: memory_in(store, 6).add(UserMessage("12"))) == usual
        assert sent(memory_in(store, 6)) == digits(7, 12)

    def test_a_turn_can_go_on_after_it_has_stored_it(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3, *range(1, 10))

        with memory_in(store, 6).turn("early") as turn:
            turn.add(UserMessage("10"))
            turn.add(UserMessage("11"))
            turn.add(UserMessage("12"))

        assert [text(each) for each in store.get_messages("a")] == digits(7, 12)

    def test_counters_and_counts_are_right(self):
        def memory(size: int, estimator=ADDITIVE_WORDS) -> ChatMemory:
            return TokenWindowChatMemory(
                max_tokens=size, token_count_estimator=estimator, id="a", store=DjangoChatMemoryStore(), refill=True
            )

        def check(count: int, counter: str) -> None:
            conversation = Conversation.objects.get()
            rows = list(conversation.memory())
            assert len(rows) == conversation.memory_messages == count
            assert {row.counted_by for row in rows} == {conversation.counted_by} == {counter}
            assert conversation.memory_tokens == sum(row.token_count for row in rows)

        memory(12).add(*map(UserMessage, digits(1, 9)))
        memory(12, ADDITIVE_LETTERS).add(UserMessage("10"))
        check(2, "letters")
        memory(30, ADDITIVE_LETTERS).add(UserMessage("11"))  # has counted what is remembered, but not what comes back
        check(5, "letters")
        memory(60).add(UserMessage("12"))  # has not counted everything that is remembered
        check(12, "words")

    def test_what_a_history_had_hidden_stays_hidden_for_a_store_without_one(self):
        memory_in(DjangoChatMemoryStore(), 2, 1, SystemMessage("S"), 2, 3, SystemMessage("T"), 4, 5)

        store = DjangoChatMemoryStore(keep_history=False)
        memory_in(store, 20).add(UserMessage("6"))

        assert sent(memory_in(store, 20)) == ["1", "2", "3", "T", "4", "5", "6"]

    @pytest.mark.django_db(transaction=True)
    def test_what_is_evicted_again_is_not_announced_again(self):
        store, announced = DjangoChatMemoryStore(), []
        memory_in(store, 3, *range(1, 10))

        def receive(sequences, **_):
            announced.extend(sequences)

        messages_evicted.connect(receive)
        try:
            memory_in(store, 5).add(UserMessage("10"), UserMessage("11"), UserMessage("12"))
        finally:
            messages_evicted.disconnect(receive)

        assert announced == [7]

    @pytest.mark.django_db(transaction=True)
    def test_a_read_is_of_one_moment(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3, *range(1, 10))

        def write() -> None:
            memory_in(store, 3).add(UserMessage("3b"), after=2)

        with before_the_second_statement(write):
            found = memory_in(store, 6).messages()

        assert [text(each) for each in found] in (digits(4, 9), ["1", "2", "3b"])

    @pytest.mark.django_db(transaction=True)
    def test_a_transaction_brings_back_what_it_has_written(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3, *range(1, 6))

        with transaction.atomic():
            memory_in(store, 3, *range(6, 10))
            assert sent(memory_in(store, 6)) == digits(4, 9)
            memory_in(store, 6).add(UserMessage("10"))
            assert sent(memory_in(store, 8)) == digits(3, 10)
            memory_in(store, 8).rewind(8)

        assert sent(memory_in(store, 6)) == digits(3, 8)

    def test_a_fork_and_an_import_bring_the_same_back(self):
        store = DjangoChatMemoryStore()
        memory_in(store, 3, *range(1, 4)).evict(1)
        memory_in(store, 3, *range(4, 10))

        fork(Conversation.objects.get(), "forked")
        lines = list(export_lines(Conversation.objects.filter(memory_id="a")))
        Conversation.objects.filter(memory_id="a").delete()
        import_lines(lines)

        for memory_id in ("a", "forked"):
            assert sent(memory_in(store, 100, id=memory_id)) == digits(2, 9)


class TestWhoFillsAgain:
    def test_memories_of_the_settings_do(self, settings):
        settings.CHATMEMORY = {}
        memory = get_chat_memory("a", max_messages=3)
        memory.add(*map(UserMessage, digits(1, 9)))

        assert sent(get_chat_memory("a", max_messages=5)) == digits(5, 9)
        assert sent(get_chat_memory("a", max_messages=5, refill=False)) == digits(7, 9)

    def test_unless_the_setting_excludes_it(self, settings):
        options = {"max_messages": 3, "refill": False}
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": options}
        }
        get_chat_memory("a").add(*map(UserMessage, digits(1, 9)))

        assert sent(get_chat_memory("a", max_messages=5)) == digits(7, 9)
        assert sent(get_chat_memory("a", max_messages=5, refill=True)) == digits(5, 9)

    def test_memories_of_assistants_do(self):
        memory_in(DjangoChatMemoryStore(), 3, *range(1, 10))

        def make(id, store):  # knows nothing of the option
            return MessageWindowChatMemory(max_messages=5, id=id, store=store)

        def exclude(id, store):
            return MessageWindowChatMemory(max_messages=5, id=id, store=store, refill=False)

        assert sent(Assistant(None, memory=make).chat_memory("a")) == digits(5, 9)
        assert sent(Assistant(None, memory=exclude).chat_memory("a")) == digits(7, 9)
        options = {"max_messages": 5}
        by_class = Assistant(None, memory=MessageWindowChatMemory, memory_options=options)
        assert sent(by_class.chat_memory("a")) == digits(5, 9)
        excluded = Assistant(None, memory=MessageWindowChatMemory, memory_options={**options, "refill": False})
        assert sent(excluded.chat_memory("a")) == digits(7, 9)

    def test_the_classes_do_not(self):
        memory_in(DjangoChatMemoryStore(), 3, *range(1, 10))

        assert sent(MessageWindowChatMemory(max_messages=5, id="a", store=DjangoChatMemoryStore())) == digits(7, 9)


@contextmanager
def before_the_second_statement(write: Callable[[], object]) -> Iterator[None]:
    """Let another writer *write* between two reads."""
    count = 0

    def wrapper(execute, *args):
        nonlocal count
        count += 1
        if count == 2:
            write() if connection.vendor == "sqlite" else in_another_connection(write)
        return execute(*args)

    with connection.execute_wrapper(wrapper):
        yield
    assert count > 2


def turn_of(memory: ChatMemory) -> None:
    with memory.turn():
        pass


def statements(call) -> int:
    with CaptureQueriesContext(connection) as captured:
        call()
    return len(captured)
