"""Rewinding and branching a conversation."""

import pytest
from asgiref.sync import async_to_sync

from chatmemory_django.core.branches import Tree, fork_point
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, MemoryStatus, Message
from chatmemory_django.signals import messages_evicted
from chatmemory_django.stores import ChatMemoryStore
from chatmemory_django.stores.base import MessageNotFoundError, SimpleStoreAdapter
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS, JOINT

pytestmark = pytest.mark.django_db

CALL = ToolExecutionRequest(id="1", name="look", arguments="{}")


@pytest.fixture
def store() -> DjangoChatMemoryStore:
    return DjangoChatMemoryStore()


def memory_in(store: ChatMemoryStore, *messages: ChatMessage | str, size: int = 20, **options) -> ChatMemory:
    memory = MessageWindowChatMemory(max_messages=size, id="a", store=store, **options)
    for message in messages:
        memory.add(UserMessage(message) if isinstance(message, str) else message)
    return memory


def texts(messages: list[ChatMessage]) -> list[str]:
    return [
        message.text if isinstance(message, (SystemMessage, AiMessage)) else message.single_text for message in messages
    ]


def history(**options) -> list[str]:
    return [row.text for row in Conversation.objects.get().history(**options).order_by("sequence")]


class TestRewind:
    def test_later_messages_leave_the_memory(self, store):
        memory = memory_in(store, "one", "two", "three")

        memory.rewind(1)

        assert texts(memory.messages()) == ["one"]

    def test_the_conversation_continues_from_there(self, store):
        memory = memory_in(store, "one", "two", "three")

        memory.rewind(1)
        [sequence] = memory.add(UserMessage("other"))

        assert sequence == 4
        assert texts(memory.messages()) == ["one", "other"]

    def test_rewind_to_0_returns_to_the_start(self, store):
        memory = memory_in(store, SystemMessage("Be brief."), "one")

        memory.rewind(0)
        memory.add(UserMessage("other"))

        assert texts(memory.messages()) == ["other"]

    def test_rewind_to_the_newest_message_changes_nothing(self, store):
        memory = memory_in(store, "one", "two")

        memory.rewind(2)

        assert texts(memory.messages()) == ["one", "two"]

    def test_rewind_past_the_window_refills_the_memory(self, store):
        memory = memory_in(store, *"abcdefgh", size=3)

        memory.rewind(4)

        assert texts(memory.messages()) == ["b", "c", "d"]

    def test_rewind_within_the_window_does_not_refill_the_memory(self, store):
        memory = memory_in(store, *"abcdefgh", size=3)

        memory.rewind(6)

        assert texts(memory.messages()) == ["f"]

    def test_rewind_restores_the_system_message_of_that_time(self, store):
        memory = memory_in(store, SystemMessage("Old."), *"abcd", SystemMessage("New."), *"efgh", size=3)

        memory.rewind(4)

        assert texts(memory.messages()) == ["Old.", "b", "c"]

    def test_a_system_message_replaced_within_the_window_is_restored(self, store):
        memory = memory_in(store, SystemMessage("Old."), "a", SystemMessage("New."), "b")

        memory.rewind(2)

        assert texts(memory.messages()) == ["Old.", "a"]

    def test_a_system_message_is_restored_at_its_position(self, store):
        memory = memory_in(store, "a", SystemMessage("Old."), "b", SystemMessage("New."), "c")

        memory.rewind(3)

        assert texts(memory.messages()) == ["a", "Old.", "b"]

    def test_a_system_message_is_restored_at_the_front_if_kept_first(self, store):
        memory = memory_in(
            store, "a", SystemMessage("Old."), "b", SystemMessage("New."), always_keep_system_message_first=True
        )

        memory.rewind(3)

        assert texts(memory.messages()) == ["Old.", "a", "b"]

    def test_tool_results_are_restored_with_their_call_or_not_at_all(self, store):
        results = [ToolExecutionResultMessage("1", "look", text) for text in ("x", "y")]
        memory = memory_in(store, "a", AiMessage(tool_execution_requests=[CALL]), *results, *"bcdefg", size=3)

        memory.rewind(5)

        assert texts(memory.messages()) == ["b"]

    def test_a_token_limit_applies_to_the_refilled_memory(self, store):
        memory = TokenWindowChatMemory(max_tokens=12, token_count_estimator=ADDITIVE_WORDS, id="a", store=store)
        memory.add(*(UserMessage(text) for text in ("one", "two words", "and three words", "four", "five", "six", "7")))
        before = memory.messages()

        memory.rewind(3)

        assert UserMessage("and three words") in memory.messages()
        assert memory.messages()[-1] not in before

    def test_a_non_additive_token_limit_applies_to_the_refilled_memory(self, store):
        memory = TokenWindowChatMemory(max_tokens=20, token_count_estimator=JOINT, id="a", store=store)
        memory.add(*(UserMessage(text) for text in "abcdefgh"))

        memory.rewind(4)

        assert texts(memory.messages()) == ["c", "d"]

    def test_cleared_messages_are_not_restored(self, store):
        memory = memory_in(store, *"abc", size=3)
        memory.clear()
        memory.add(*(UserMessage(text) for text in "defgh"))

        memory.rewind(5)

        assert texts(memory.messages()) == ["d", "e"]

    def test_cleared_messages_are_restored_by_a_rewind_to_before_the_clear(self, store):
        memory = memory_in(store, *"abc", size=3)
        memory.clear()
        memory.add(UserMessage("d"))

        memory.rewind(2)

        assert texts(memory.messages()) == ["a", "b"]

    def test_a_rewind_can_be_undone(self, store):
        memory = memory_in(store, *"abcdef", size=3)
        before = memory.messages()

        memory.rewind(2)
        memory.rewind(6)

        assert memory.messages() == before

    def test_messages_of_other_branches_can_be_reached(self, store):
        memory = memory_in(store, *"abcd", size=3)
        memory.rewind(1)
        memory.add(UserMessage("other"))

        memory.rewind(3)

        assert texts(memory.messages()) == ["a", "b", "c"]

    @pytest.mark.parametrize("to", [5, -1, 10**12])
    def test_an_unknown_message_raises_an_error_and_changes_nothing(self, store, to):
        memory = memory_in(store, "one", "two")

        with pytest.raises(MessageNotFoundError, match=str(to)):
            memory.rewind(to)

        assert texts(memory.messages()) == ["one", "two"]

    def test_an_unknown_conversation_can_only_start_at_0(self, store):
        memory = memory_in(store)

        memory.rewind(0)
        with pytest.raises(MessageNotFoundError):
            memory.rewind(1)

        assert memory.messages() == []

    def test_the_abandoned_branch_stays_in_the_full_history(self):
        memory = memory_in(DjangoChatMemoryStore(), "one", "two")
        memory.rewind(1)
        memory.add(UserMessage("other"))

        assert history() == ["one", "other"]
        assert history(all_branches=True) == ["one", "two", "other"]

    def test_a_message_on_another_branch_is_marked(self):
        memory_in(DjangoChatMemoryStore(), "one", "two").rewind(1)

        statuses = [row.status for row in Conversation.objects.get().messages.with_status()]

        assert statuses == [MemoryStatus.IN_MEMORY, MemoryStatus.OFF_PATH]

    def test_adding_after_a_message_of_an_unknown_conversation_creates_none(self):
        memory = memory_in(DjangoChatMemoryStore())

        with pytest.raises(MessageNotFoundError, match="5"):
            memory.add(UserMessage("one"), after=5)

        assert not Conversation.objects.exists()

    def test_without_history_removed_messages_are_deleted(self):
        memory = memory_in(DjangoChatMemoryStore(keep_history=False), "one", "two", "three")

        memory.rewind(1)

        assert list(Message.objects.values_list("text", flat=True)) == ["one"]
        with pytest.raises(MessageNotFoundError):
            memory.rewind(3)

    def test_a_store_without_history_raises_an_error(self):
        class Three:
            def get_messages(self, memory_id):
                return []

            def update_messages(self, memory_id, messages):
                pass

            def delete_messages(self, memory_id):
                pass

        memory = memory_in(SimpleStoreAdapter(Three()))

        for verb in (lambda: memory.rewind(1), lambda: memory.switch(1), memory.pop, lambda: memory.remove(1)):
            with pytest.raises(NotImplementedError, match="SimpleStoreAdapter keeps no history"):
                verb()

    def test_every_method_has_an_async_version(self):
        async def converse() -> tuple[list[ChatMessage], ChatMessage | None]:
            memory = MessageWindowChatMemory(max_messages=9, id="a", store=DjangoChatMemoryStore())
            await memory.aadd(UserMessage("one"), UserMessage("two"), UserMessage("three"))
            await memory.arewind(1)
            assert await memory.aswitch(2) == 3
            assert await memory.aremove(2) == [2]
            assert await memory.aevict(0) == []
            return await memory.amessages(), await memory.apop()

        assert async_to_sync(converse)() == ([UserMessage("one"), UserMessage("three")], UserMessage("three"))


class TestSwitch:
    def test_switch_continues_from_the_newest_message_of_the_branch(self, store):
        memory = memory_in(store, *"abcd")
        memory.rewind(1)
        memory.add(UserMessage("other"), UserMessage("and on"))

        assert memory.switch(2) == 4

        assert texts(memory.messages()) == ["a", "b", "c", "d"]
        assert memory.switch(5) == 6
        assert texts(memory.messages()) == ["a", "other", "and on"]

    def test_switch_to_the_active_branch_changes_nothing(self, store):
        memory = memory_in(store, *"abcd")

        assert memory.switch(2) == 4

        assert texts(memory.messages()) == ["a", "b", "c", "d"]

    def test_switch_at_a_shared_message_selects_the_newer_branch(self, store):
        memory = memory_in(store, *"abcd")
        memory.rewind(2)
        memory.add(UserMessage("other"))
        memory.switch(3)

        assert memory.switch(1) == 5

        assert texts(memory.messages()) == ["a", "b", "other"]

    def test_switch_restores_the_system_message_of_the_branch(self, store):
        memory = memory_in(store, SystemMessage("Old."), "a", SystemMessage("New."), "b")
        memory.rewind(2)
        memory.add(UserMessage("c"))

        memory.switch(4)

        assert texts(memory.messages()) == ["a", "New.", "b"]

    def test_switch_reaches_branches_of_branches(self, store):
        memory = memory_in(store, *"abc")
        memory.rewind(2)
        memory.add(*(UserMessage(text) for text in "def"))
        memory.rewind(5)
        memory.add(UserMessage("g"))
        memory.rewind(0)
        memory.add(UserMessage("h"))

        assert memory.switch(6) == 6
        assert texts(memory.messages()) == ["a", "b", "d", "e", "f"]
        assert memory.switch(7) == 7
        assert texts(memory.messages()) == ["a", "b", "d", "e", "g"]
        assert memory.switch(8) == 8
        assert texts(memory.messages()) == ["h"]


class TestEvict:
    def test_the_first_messages_leave_the_memory_and_stay_in_the_history(self, store):
        memory = memory_in(store, *"abcd")

        assert memory.evict(2) == [1, 2]
        assert memory.evict(0) == []

        assert texts(memory.messages()) == ["c", "d"]
        assert memory.evict(9) == [3, 4]
        assert memory.messages() == []
        memory.rewind(2)
        assert texts(memory.messages()) == ["a", "b"]

    def test_a_system_message_kept_first_counts_as_the_first(self, store):
        memory = memory_in(store, "a", SystemMessage("s"), "b", always_keep_system_message_first=True)

        assert memory.evict(1) == [2]
        assert texts(memory.messages()) == ["a", "b"]

    def test_evicting_from_an_unknown_memory_evicts_and_creates_nothing(self, store):
        assert memory_in(store).evict(3) == []
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("count", [-1, True, 1.0, "1", None])
    def test_an_invalid_count_is_rejected(self, store, count):
        with pytest.raises(ValueError, match="count must be a whole number"):
            memory_in(store, "a").evict(count)

    def test_an_eviction_sends_a_signal(self, django_capture_on_commit_callbacks):
        memory = memory_in(DjangoChatMemoryStore(), *"abc")
        received = []

        def receive(sequences, **options):
            received.append(sequences)

        messages_evicted.connect(receive)
        try:
            with django_capture_on_commit_callbacks(execute=True):
                memory.evict(2)
        finally:
            messages_evicted.disconnect(receive)

        assert received == [(1, 2)]

    def test_without_history_evicted_messages_are_deleted(self):
        memory = memory_in(DjangoChatMemoryStore(keep_history=False), *"abc")

        memory.evict(2)

        assert [row.sequence for row in Message.objects.all()] == [3]


class TestArchived:
    def test_archived_messages_are_in_the_history_but_not_in_the_memory(self, store):
        memory = memory_in(store, "a", size=2)
        window = memory.window()

        assert store.append_messages("a", [UserMessage("b"), UserMessage("c")], window, archived=True).keys == [2, 3]
        memory.add(UserMessage("d"))

        assert texts(memory.messages()) == ["a", "d"]
        memory.rewind(3)
        assert texts(memory.messages()) == ["a"]
        assert memory.remove(3, 2) == [2, 3]

    @pytest.mark.parametrize("pinned", [[], [SystemMessage("s")]])
    def test_a_window_without_messages_begins_behind_those_that_are_archived(self, pinned):
        store = DjangoChatMemoryStore()
        memory = MessageWindowChatMemory(id="a", max_messages=3, store=store, always_keep_system_message_first=True)
        memory.add(*pinned)
        archived = [UserMessage("b"), UserMessage("c")]

        store.append_messages("a", archived, memory.window(), archived=True)

        conversation = Conversation.objects.get()
        assert conversation.window_start == conversation.next_sequence == len(pinned) + 3
        assert memory.messages() == pinned
        memory.add(UserMessage("d"))
        assert memory.messages() == [*pinned, UserMessage("d")]
        assert list(conversation.history().values_list("text", flat=True)) == [*("s" for _ in pinned), "b", "c", "d"]

    def test_an_unbounded_window_evicts_and_replaces_nothing(self, store):
        memory = memory_in(store, SystemMessage("s"), "a", size=2)
        added = [SystemMessage("s"), SystemMessage("t"), SystemMessage("t"), UserMessage("b")]

        store.append_messages("a", added, memory.window().unbounded(), repeats=True)

        assert store.get_messages("a") == [SystemMessage("s"), UserMessage("a"), *added]

    def test_a_store_without_history_cannot_archive(self):
        class Three:
            def get_messages(self, memory_id):
                return []

            update_messages = delete_messages = get_messages

        memory = memory_in(SimpleStoreAdapter(Three()))
        with pytest.raises(NotImplementedError):
            memory.store.append_messages("a", [UserMessage("a")], memory.window(), archived=True)
        with pytest.raises(NotImplementedError):
            memory.evict(1)


class TestPopAndRemove:
    def test_pop_removes_and_returns_the_newest_message(self, store):
        memory = memory_in(store, "one", "two")

        assert memory.pop() == UserMessage("two")

        assert texts(memory.messages()) == ["one"]

    def test_pop_of_an_empty_memory_returns_none(self, store):
        memory = memory_in(store, "one")
        memory.clear()

        assert memory.pop() is None
        assert memory_in(store).pop() is None

    def test_a_sequence_is_never_reused(self, store):
        memory = memory_in(store, "one", "two")
        memory.pop()

        assert memory.add(UserMessage("three")) == [3]

    def test_remove_deletes_any_message(self, store):
        memory = memory_in(store, "one", "two", "three")

        assert memory.remove(2) == [2]

        assert texts(memory.messages()) == ["one", "three"]

    def test_a_message_that_is_only_in_the_memory_can_be_named_twice(self, store):
        memory = memory_in(store, "one")
        store.update_messages("a", [UserMessage("two")])

        assert memory.remove(2, 2, with_results=True) == [2]

        assert memory.messages() == []

    def test_remove_deletes_tool_results_with_their_call_on_request(self, store):
        call, result = AiMessage(tool_execution_requests=[CALL]), ToolExecutionResultMessage("1", "look", "x")
        for sequence in (2, 3):
            memory = memory_in(store, "one", call, result, "two")

            assert memory.remove(sequence, with_results=True) == [2, 3]

            assert texts(memory.messages()) == ["one", "two"]
            store.delete_messages("a")
            Conversation.objects.all().delete()

    def test_remove_keeps_tool_results_by_default(self, store):
        call, result = AiMessage(tool_execution_requests=[CALL]), ToolExecutionResultMessage("1", "look", "x")
        memory = memory_in(store, "one", call, result)

        assert memory.remove(2) == [2]

        assert memory.messages() == [UserMessage("one"), result]

    def test_several_messages_are_removed_at_once(self, store):
        memory = memory_in(store, *"abcdef", size=4)

        assert memory.remove(5, 1, 3, 4, 3) == [1, 3, 4, 5]
        assert memory.remove() == []

        assert texts(memory.messages()) == ["f"]
        memory.rewind(2)
        assert texts(memory.messages()) == ["b"]

    def test_all_of_several_messages_are_removed_or_none(self, store):
        memory = memory_in(store, *"abc")

        with pytest.raises(MessageNotFoundError):
            memory.remove(1, 4, 2)

        assert texts(memory.messages()) == ["a", "b", "c"]

    def test_children_of_removed_messages_on_other_branches_get_new_parents(self, store):
        memory = memory_in(store, *"ab")
        memory.rewind(1)
        memory.add(UserMessage("c"))
        memory.rewind(1)
        memory.add(UserMessage("d"), UserMessage("e"))

        assert memory.remove(3, 4) == [3, 4]
        memory.switch(2)
        memory.switch(5)

        assert texts(memory.messages()) == ["a", "e"]

    def test_removing_many_messages_takes_few_statements(self, django_assert_max_num_queries):
        memory = memory_in(DjangoChatMemoryStore())
        memory.add(*(UserMessage(str(number)) for number in range(300)))

        with django_assert_max_num_queries(40):
            memory.remove(*range(2, 301))

        assert history(all_branches=True) == ["0"]

    def test_a_removed_message_is_not_in_the_history_and_cannot_be_continued_from(self):
        memory = memory_in(DjangoChatMemoryStore(), "one", "two", "three")
        memory.remove(2)

        assert history(all_branches=True) == ["one", "three"]
        assert Conversation.objects.get().total_messages == 2
        with pytest.raises(MessageNotFoundError):
            memory.rewind(2)

    @pytest.mark.parametrize(
        "message",
        [
            SystemMessage("Be brief."),
            UserMessage("Hello"),
            AiMessage(""),
            ToolExecutionResultMessage("1", "look", "found"),
            CustomMessage({"text": "found"}),
        ],
        ids=lambda message: message.type,
    )
    def test_the_row_of_a_removed_message_is_an_empty_message_whatever_its_type_was(self, message):
        memory = memory_in(DjangoChatMemoryStore(), "before")
        [sequence] = memory.add(message)
        assert Message.objects.get(sequence=sequence).chat_message == message

        memory.remove(sequence)

        assert Message.objects.get(sequence=sequence).chat_message == CustomMessage({})
        assert Message.objects.get(sequence=1).chat_message == UserMessage("before")

    def test_children_of_a_removed_message_move_to_its_parent(self, store):
        memory = memory_in(store, *"abc")
        memory.rewind(1)
        memory.add(UserMessage("d"), UserMessage("e"))
        memory.remove(4)

        memory.switch(3)
        memory.switch(5)

        assert texts(memory.messages()) == ["a", "e"]

    def test_a_message_on_another_branch_can_be_removed(self, store):
        memory = memory_in(store, *"abc")
        memory.rewind(1)
        memory.add(UserMessage("d"))

        assert memory.remove(2) == [2]
        memory.switch(3)

        assert texts(memory.messages()) == ["a", "c"]

    def test_an_evicted_message_can_be_removed(self, store):
        memory = memory_in(store, *"abcdef", size=2)

        assert memory.remove(2) == [2]
        memory.rewind(3)

        assert texts(memory.messages()) == ["a", "c"]

    @pytest.mark.parametrize("sequence", [0, 3, -1])
    def test_removing_an_unknown_message_raises_an_error(self, store, sequence):
        memory = memory_in(store, "one", "two")

        with pytest.raises(MessageNotFoundError):
            memory.remove(sequence)

        assert texts(memory.messages()) == ["one", "two"]


class TestTurns:
    def test_an_answer_is_regenerated_from_the_user_message(self, store):
        memory = memory_in(store, "question", AiMessage("answer"))

        with memory.turn(after=1) as turn:
            assert texts(turn.messages) == ["question"]
            turn.add(AiMessage("better"))

        assert texts(memory.messages()) == ["question", "better"]
        assert memory.switch(2) == 2

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_question_is_edited_from_the_message_before_it(self, store, persist):
        memory = memory_in(store, "hi", AiMessage("hello"), "question", AiMessage("answer"))

        with memory.turn(persist, after=2) as turn:
            turn.add(UserMessage("other question"))
            assert texts(turn.messages) == ["hi", "hello", "other question"]
            turn.add(AiMessage("other answer"))

        assert texts(memory.messages()) == ["hi", "hello", "other question", "other answer"]

    def test_a_turn_replaces_the_system_message_of_the_branch_it_continues(self, store):
        memory = memory_in(store, "one", SystemMessage("Be brief."))
        memory.rewind(1)
        memory.add(UserMessage("two"))

        memory.add(SystemMessage("Be kind."), after=2)

        assert texts(memory.messages()) == ["one", "Be kind."]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_if_the_model_fails_the_conversation_is_unchanged(self, store, persist):
        memory = memory_in(store, "question", AiMessage("answer"), size=2)

        with pytest.raises(ZeroDivisionError), memory.turn(persist, after=0) as turn:
            turn.add(UserMessage("other"))
            raise ZeroDivisionError

        assert texts(memory.messages()) == ["question", "answer"]
        memory.add(UserMessage("next"))
        assert texts(memory.messages()) == ["answer", "next"]

    def test_a_failed_early_turn_leaves_an_incomplete_branch(self):
        memory = memory_in(DjangoChatMemoryStore(), "question", AiMessage("answer"))

        with pytest.raises(ZeroDivisionError), memory.turn("early", after=0) as turn:
            turn.add(UserMessage("other"))
            raise ZeroDivisionError

        [row] = Message.objects.incomplete()
        assert (row.text, row.on_path) == ("other", False)
        assert list(Conversation.objects.get().alternatives(1)) == [row]

    def test_a_completed_early_turn_has_no_incomplete_message(self):
        memory = memory_in(DjangoChatMemoryStore(), "question", AiMessage("answer"))

        with memory.turn("early", after=0) as turn:
            turn.add(UserMessage("other"))
            turn.add(UserMessage("and more"))
            turn.add(AiMessage("fine"))

        assert not Message.objects.incomplete().exists()
        assert history() == ["other", "and more", "fine"]

    def test_concurrent_writers_stay_on_their_branch(self, store):
        memory = memory_in(store, "question", AiMessage("answer"))

        with memory.turn("early", after=0) as turn:
            turn.add(UserMessage("other"))
            memory.add(UserMessage("another"))
            turn.add(AiMessage("fine"))

        assert texts(memory.messages()) == ["other", "fine"]
        assert memory.switch(2) == 4
        assert texts(memory.messages()) == ["question", "answer", "another"]

    def test_other_writers_can_continue_from_an_early_turn(self, store):
        memory = memory_in(store, "question", AiMessage("answer"))

        with memory.turn("early", after=0) as turn:
            turn.add(UserMessage("other"))
            memory.rewind(3)
            assert texts(memory.messages()) == ["other"]
            turn.add(AiMessage("fine"))

        assert texts(memory.messages()) == ["other", "fine"]

    def test_a_repeated_system_message_is_on_the_path_of_the_messages_after_it(self, store):
        memory = memory_in(store, SystemMessage("Be brief."), "question", AiMessage("answer"))

        with memory.turn("early", after=1) as turn:
            turn.add(SystemMessage("Be brief."), UserMessage("other"))
            turn.add(AiMessage("fine"))
        memory.rewind(5)
        memory.add(AiMessage("better"))

        assert texts(memory.messages()) == ["Be brief.", "other", "better"]
        assert history() == ["Be brief.", "Be brief.", "other", "better"]

    @pytest.mark.django_db(transaction=True)
    def test_messages_that_stay_in_the_memory_are_not_signalled_as_evicted(self):
        memory = memory_in(DjangoChatMemoryStore(), "question", AiMessage("answer"))
        evicted: list[int] = []

        def receive(sequences, **kwargs):
            evicted.extend(sequences)

        with memory.turn("early", after=0) as turn:
            turn.add(UserMessage("other"))
            memory.rewind(3)
            messages_evicted.connect(receive)
            turn.add(AiMessage("fine"))
        messages_evicted.disconnect(receive)

        assert evicted == []

    def test_a_retried_end_of_a_turn_does_nothing_twice(self):
        memory = memory_in(DjangoChatMemoryStore(), "question", AiMessage("answer"))
        turn = memory.turn(after=1)
        turn.begin()
        turn.add(AiMessage("better"))
        unwritten = list(turn._unwritten)
        turn.end()

        turn._unwritten, turn._is_retry = unwritten, True  # As after a commit whose response was lost.
        turn.end()

        assert history() == ["question", "better"]
        assert history(all_branches=True) == ["question", "answer", "better"]


class TestAlternatives:
    def test_alternatives_are_the_messages_at_that_position_on_other_branches(self):
        memory = memory_in(DjangoChatMemoryStore(), "question", "first")
        for text in ("second", "third"):
            memory.rewind(1)
            memory.add(UserMessage(text), UserMessage("and on"))
        conversation = Conversation.objects.get()

        assert [row.text for row in conversation.alternatives(2)] == ["second", "third"]
        assert [row.text for row in conversation.alternatives(5)] == ["first", "second"]
        assert not conversation.alternatives(1).exists()
        assert not conversation.alternatives(4).exists()

    def test_the_first_message_has_alternatives(self):
        memory = memory_in(DjangoChatMemoryStore(), "one", "two")
        memory.rewind(0)
        memory.add(UserMessage("other"))

        assert [row.text for row in Conversation.objects.get().alternatives(1)] == ["other"]
        assert [row.text for row in Conversation.objects.get().alternatives(3)] == ["one"]

    def test_a_removed_message_is_not_an_alternative(self):
        memory = memory_in(DjangoChatMemoryStore(), "one", "two")
        memory.pop()
        memory.add(UserMessage("other"))

        assert not Conversation.objects.get().alternatives(3).exists()

    def test_an_unknown_message_has_no_alternatives(self):
        memory_in(DjangoChatMemoryStore(), "one")

        assert not Conversation.objects.get().alternatives(9).exists()


class TestStatements:
    @pytest.mark.parametrize("length", [30, 3_000])
    def test_a_rewind_takes_the_same_statements_at_any_length_of_history(self, length, django_assert_max_num_queries):
        memory = memory_in(DjangoChatMemoryStore(), size=10)
        memory.add(*(UserMessage(f"{number}") for number in range(length)))

        with django_assert_max_num_queries(12):
            memory.rewind(length - 20)
        with django_assert_max_num_queries(12):
            memory.rewind(length - 22)

        assert texts(memory.messages())[-1] == f"{length - 23}"

    @pytest.mark.parametrize("count", [3, 1_000])
    def test_a_switch_takes_the_same_statements_for_any_number_of_branches(self, count, django_assert_max_num_queries):
        memory = memory_in(DjangoChatMemoryStore(), "question", size=10)
        conversation = Conversation.objects.get()
        memory.add(UserMessage("answer"))
        Message.objects.bulk_create(
            Message(
                conversation=conversation,
                sequence=sequence,
                type="USER",
                text=f"{sequence}",
                parent_sequence=1,
                on_path=False,
                superseded=True,
            )
            for sequence in range(3, 3 + count)
        )
        Conversation.objects.update(next_sequence=3 + count, parent_sequence=2, total_messages=2 + count)

        with django_assert_max_num_queries(14):
            assert memory.switch(count) == count

        assert texts(memory.messages()) == ["question", f"{count}" if count > 2 else "answer"]
        with django_assert_max_num_queries(5):
            assert conversation.alternatives(2).count() == count


class TestTree:
    def test_a_path_consists_of_the_runs_that_lead_to_a_message(self):
        tree = Tree([(4, 2), (6, 0), (7, 5)], 9)

        assert tree.path_to(3) == [(1, 3)]
        assert tree.path_to(5) == [(1, 2), (4, 5)]
        assert tree.path_to(8) == [(1, 2), (4, 5), (7, 8)]
        assert tree.path_to(6) == [(6, 6)]
        assert tree.path_to(0) == []

    def test_the_newest_message_is_on_the_last_run_that_continues_from_there(self):
        tree = Tree([(4, 2), (6, 0), (7, 5)], 9)

        assert [tree.newest_from(sequence) for sequence in range(1, 9)] == [8, 8, 3, 8, 8, 6, 8, 8]

    def test_two_paths_diverge_after_their_last_shared_message(self):
        assert fork_point([(1, 5)], [(1, 2), (6, 7)]) == 2
        assert fork_point([(1, 2), (6, 7)], [(1, 2), (8, 8)]) == 2
        assert fork_point([(1, 5)], [(1, 3)]) == 3
        assert fork_point([(1, 5)], [(6, 6)]) == 0
        assert fork_point([], [(1, 1)]) == 0
