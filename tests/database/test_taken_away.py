"""What was cleared stays away, and what was removed is gone."""

import pytest

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory
from chatmemory_django.messages import AiMessage, ChatMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import fork
from chatmemory_django.stores import ChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS

pytestmark = pytest.mark.django_db


SUMMARY = "until 5"


@pytest.fixture
def store() -> DjangoChatMemoryStore:
    return DjangoChatMemoryStore()


def memory_in(store: ChatMemoryStore, *messages: ChatMessage | str, size: int = 20) -> ChatMemory:
    memory = MessageWindowChatMemory(max_messages=size, id="a", store=store)
    memory.add(*map(as_message, messages))
    return memory


def summarizing(store: ChatMemoryStore, *messages: ChatMessage | str) -> SummarizingChatMemory:
    """Hold four messages of one word; a summary names the last message that it covers, and costs one token more."""
    memory = SummarizingChatMemory(
        id="a",
        store=store,
        max_tokens=3 + 4 * 4,
        token_count_estimator=ADDITIVE_WORDS,
        summary_tokens=6,
        after_tokens=8,
        summarize_after_add=False,
        summarize=lambda previous, covered: f"until {texts(covered)[-1]}",
    )
    for message in messages:
        memory.add(as_message(message))
        memory.summarize()
    return memory


def as_message(message: ChatMessage | str) -> ChatMessage:
    return UserMessage(message) if isinstance(message, str) else message


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.single_text if isinstance(message, UserMessage) else message.text for message in messages]


def summaries() -> list[str]:
    """Return what is left of all summaries of the conversation, in use or not."""
    rows = Message.objects.filter(in_history=False).order_by("sequence")
    return [row.text for row in rows if row.text]


class TestClear:
    def test_what_was_in_no_memory_any_more_is_forgotten_too(self, store):
        memory = memory_in(store, "one", "two")
        memory.evict(2)

        memory.clear()
        memory.add(UserMessage("three"))
        memory.rewind(0)
        memory.rewind(3)

        assert texts(memory.messages()) == ["three"]

    def test_a_cleared_message_is_never_summarized(self, store):
        memory = summarizing(store)
        memory.add(UserMessage("a message that is larger than the whole window can ever hold"))
        memory.clear()

        memory.add(*map(UserMessage, "123456"))

        pending = memory.store.read_pending("a", memory.window(), 100)
        assert texts(pending.messages) == ["1", "2"]

    def test_adding_after_the_newest_message_brings_nothing_back(self, store):
        memory = memory_in(store, "one", "two", "three")
        memory.pop()
        memory.clear()

        with memory.turn(after=2) as turn:
            seen = turn.messages
            turn.add(UserMessage("four"))
        memory.add(UserMessage("five"), after=4)

        assert seen == []
        assert texts(memory.messages()) == ["four", "five"]

    def test_leaving_and_coming_back_brings_nothing_back(self, store):
        memory = memory_in(store, "one", "two", "three")
        memory.clear()
        memory.add(UserMessage("four"))

        memory.rewind(1)
        before = texts(memory.messages())
        memory.switch(4)

        assert before == ["one"]
        assert texts(memory.messages()) == ["four"]

    def test_an_edit_of_the_first_message_after_it_brings_nothing_back(self, store):
        memory = memory_in(store, "one", "two")
        memory.clear()
        memory.add(UserMessage("three"))

        memory.add(UserMessage("drei"), after=2)
        memory.add(UserMessage("vier"))
        memory.switch(3)
        memory.switch(4)

        assert texts(memory.messages()) == ["drei", "vier"]

    def test_it_holds_although_nothing_was_added_before_the_conversation_went_elsewhere(self, store):
        memory = memory_in(store, "one", "two")
        memory.clear()

        memory.rewind(1)
        memory.rewind(2)

        assert memory.messages() == []

    def test_each_clear_on_the_path_holds(self, store):
        memory = memory_in(store, "one")
        memory.clear()
        memory.add(UserMessage("two"))
        memory.clear()
        memory.add(UserMessage("three"))

        remembered = {}
        for to in (1, 3, 2, 0, 3, 1, 2):
            memory.rewind(to)
            remembered[to] = texts(memory.messages())

        assert remembered == {0: [], 1: [], 2: [], 3: ["three"]}

    def test_a_branch_begun_before_it_remembers_what_it_follows(self, store):
        memory = memory_in(store, "one", "two")
        memory.rewind(1)
        memory.add(UserMessage("zwei"))
        memory.rewind(1)
        memory.clear()
        memory.add(UserMessage("due"))

        memory.switch(3)

        assert texts(memory.messages()) == ["one", "zwei"]

    @pytest.mark.parametrize("goes_on", [True, False])
    @pytest.mark.parametrize("answer", [AiMessage("answer"), UserMessage("answer")], ids=["answer", "second question"])
    def test_what_answers_a_question_after_which_it_was_cleared_comes_alone(self, store, goes_on, answer):
        memory = memory_in(store, "one", "two")
        with memory.turn("early", after=1) as turn:
            turn.add(UserMessage("three"))
            memory.rewind(3)
            memory.clear()
            if goes_on:
                memory.add(UserMessage("four"))
            turn.add(answer)
        answered = texts(memory.messages())
        memory.rewind(2)

        memory.rewind(5 if goes_on else 4)

        assert answered == texts(memory.messages()) == ["answer"]

    def test_it_holds_after_the_last_message_before_it_was_removed(self, store):
        memory = memory_in(store, "one", "two")
        memory.clear()
        memory.add(UserMessage("three"))

        memory.remove(2)
        memory.rewind(0)
        memory.switch(3)
        after = texts(memory.messages())
        memory.rewind(1)

        assert after == ["three"]
        assert memory.messages() == []

    def test_a_fork_is_cleared_in_the_same_places(self, store):
        memory = memory_in(store, "one", "two", "three")
        memory.pop()
        memory.clear()
        conversation = Conversation.objects.get()
        fork(conversation, "cleared")
        memory.add(UserMessage("four"))
        fork(Conversation.objects.get(memory_id="a"), "gone on")

        cleared = MessageWindowChatMemory(max_messages=20, id="cleared", store=store)
        cleared.add(UserMessage("four"))
        gone_on = MessageWindowChatMemory(max_messages=20, id="gone on", store=store)
        for each in (cleared, gone_on):
            newest = Conversation.objects.get(memory_id=each.id).history().last().sequence
            each.rewind(1)
            each.switch(newest)

        assert texts(cleared.messages()) == texts(gone_on.messages()) == ["four"]

    def test_no_summary_is_left(self, store):
        memory = summarizing(store, *"123456789")
        memory.rewind(4)
        memory.add(*map(UserMessage, "abcdef"))
        memory.summarize()
        assert len(summaries()) > 2

        memory.clear()

        assert summaries() == []

    def test_after_a_set_the_summary_of_that_time_returns(self, store):
        memory = summarizing(store, *"123456789")
        summary = texts(memory.messages())[0]
        memory.set([UserMessage("another memory")])

        memory.rewind(8)

        assert texts(memory.messages())[0] == summary

    def test_a_second_one_changes_nothing(self):
        memory = memory_in(DjangoChatMemoryStore(), "one", "two")
        memory.clear()
        version = Conversation.objects.get().version

        memory.clear()

        assert Conversation.objects.get().version == version


class TestEvicted:
    @pytest.mark.parametrize("how", ["add", "turn", "early turn"])
    def test_messages_stay_evicted_where_the_conversation_goes_on_from_its_newest(self, store, how):
        memory = memory_in(store, "one", "two", "three")
        memory.evict(3)

        if how == "add":
            memory.add(UserMessage("four"), after=3)
        else:
            with memory.turn("late" if how == "turn" else "early", after=3) as turn:
                assert turn.messages == []
                turn.add(UserMessage("four"))

        assert texts(memory.messages()) == ["four"]

    @pytest.mark.parametrize("how", ["evict", "remove", "set"])
    def test_the_system_message_of_that_time_returns_in_place_of_one_that_was_taken_away(self, store, how):
        memory = memory_in(store, SystemMessage("first"), "2", "3", SystemMessage("second"), "5")
        if how == "evict":
            memory.evict(3)
        elif how == "remove":
            memory.remove(4)
        else:
            memory.set([UserMessage("5")])

        memory.rewind(3)

        assert texts(memory.messages()) == ["first", "2", "3"]

    def test_its_own_system_message_returns(self, store):
        memory = memory_in(store, SystemMessage("first"), "2", "3")
        memory.evict(1)

        memory.rewind(2)

        assert texts(memory.messages()) == ["first", "2"]

    def test_the_summary_of_that_time_returns_in_place_of_an_evicted_one(self, store):
        memory = summarizing(store, *"123456789")
        summary = texts(memory.messages())[0]
        memory.evict(1)

        memory.rewind(8)

        assert texts(memory.messages())[0] == summary


class TestOrder:
    """The system message, then the summary, then the rest."""

    @pytest.fixture
    def memory(self, store) -> SummarizingChatMemory:
        memory = summarizing(store, *"1234567")
        memory.add(SystemMessage("new"))
        while "new" not in texts(memory.messages())[:2]:
            memory.add(UserMessage("more"))
        return memory

    def test_a_system_message_that_leads_comes_before_the_summary(self, memory):
        assert texts(memory.messages())[:2] == ["new", SUMMARY]
        assert texts(memory.store.get_messages("a"))[:2] == ["new", SUMMARY]
        assert texts([each.message for each in memory.explain() if each.is_sent])[:2] == ["new", SUMMARY]

    def test_forks_and_rows_have_the_same_order(self, memory):
        conversation = Conversation.objects.get()

        copy = fork(conversation, "copy")

        assert [row.text for row in conversation.memory()][:2] == ["new", SUMMARY]
        assert [row.text for row in copy.memory()][:2] == ["new", SUMMARY]

    def test_the_first_to_be_evicted_is_the_system_message(self, memory):
        memory.evict(1)

        assert texts(memory.messages())[0] == SUMMARY

    def test_a_removal_can_bring_it_to_the_front(self, store):
        memory = summarizing(store, *"1234567")
        memory.add(SystemMessage("new"))
        leading = [each.sequence for each in memory.explain() if each.is_sent and each.message.type == "USER"]

        memory.remove(*leading)

        assert texts(memory.store.get_messages("a")) == ["new", SUMMARY]


class TestRemoved:
    def test_of_a_row_its_sequence_its_type_and_its_client_id_are_left(self):
        memory = memory_in(DjangoChatMemoryStore(), "one")
        memory.add(UserMessage("secret", name="Ann"))
        Message.objects.filter(sequence=2).update(client_message_id="c", verbatim='"secret"', metadata={"a": "secret"})

        memory.remove(2)

        row = Message.objects.get(sequence=2)
        assert (row.type, row.client_message_id) == ("USER", "c")
        assert (row.text, row.payload, row.verbatim, row.metadata) == ("", None, None, None)
        assert (row.token_count, row.counted_by, row.in_history) == (None, "", False)

    def test_its_client_id_is_not_stored_again(self):
        memory = memory_in(DjangoChatMemoryStore())
        secret = NewMessage(UserMessage("secret"), client_message_id="c")
        memory.add(secret)
        memory.remove(1)

        memory.add(secret)

        assert memory.messages() == []
        assert not Message.objects.filter(text="secret").exists()

    @pytest.mark.parametrize("verb", ["pop", "remove"])
    def test_a_message_that_was_only_in_the_memory_is_emptied_too(self, verb):
        memory = memory_in(DjangoChatMemoryStore(), "one", "two")
        memory.set([UserMessage("secret")])
        sequence = Message.objects.get(text="secret").sequence

        memory.pop() if verb == "pop" else memory.remove(sequence)

        assert not Message.objects.filter(text="secret").exists()

    def test_the_summary_of_it_leaves_the_memory(self, store):
        memory = summarizing(store, *"1234567")
        assert texts(memory.messages())[0] == SUMMARY

        memory.remove(2)

        assert texts(memory.messages()) == ["6", "7"]
        assert summaries() == []

    def test_summaries_of_it_are_emptied_on_every_branch(self, store):
        memory = summarizing(store, *"123456789")
        memory.rewind(2)
        memory.add(*map(UserMessage, "abcdef"))
        memory.summarize()
        assert len(summaries()) > 2

        memory.remove(1)

        assert summaries() == []

    def test_summaries_that_do_not_cover_it_stay(self, store):
        memory = summarizing(store, *"123456789")
        before = summaries()

        memory.pop()

        assert summaries() == before != []

    def test_the_older_summaries_from_which_one_grew_are_emptied_with_it(self, store):
        memory = summarizing(store, *"123456789")
        assert len(summaries()) > 1

        memory.remove(5)

        assert summaries() == []

    def test_what_was_set_afterwards_is_not_covered(self, store):
        memory = memory_in(store, "before")
        memory.set([UserMessage("another memory")])
        talk = summarizing(store, *"1234567")
        before = summaries()

        talk.remove(1)

        assert summaries() == before != []

    def test_the_next_summary_is_made_of_what_is_left(self, store):
        memory = summarizing(store, *"1234567")
        memory.remove(2)

        pending = memory.store.read_pending("a", memory.window(), 100)

        assert texts(pending.messages) == ["1", "3", "4", "5"]
        assert pending.previous is None


class TestReject:
    def test_a_rejected_message_stays_away_where_its_branch_becomes_the_path_again(self):
        memory = memory_in(DjangoChatMemoryStore(), "one")
        with pytest.raises(TimeoutError), memory.turn("early") as turn:
            turn.add(UserMessage("rejected"))
            turn.reject(1, "file")
            raise TimeoutError
        memory.add(UserMessage("instead"), after=1)

        memory.switch(2)
        memory.add(AiMessage("two"))

        assert texts(memory.messages()) == ["one", "two"]
        assert [row.sequence for row in Message.objects.history()] == [1, 2, 4]
        assert Conversation.objects.get().memory_messages == 2
