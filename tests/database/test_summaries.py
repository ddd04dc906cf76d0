"""A summary replaces evicted messages: each once, in order, and never more than the window holds."""

import asyncio
import logging
import threading

import pytest
from django.db import connection, transaction

from chatmemory_django.core.pending import MAX_MESSAGES
from chatmemory_django.memory import MessageWindowChatMemory, SummarizingChatMemory
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.stores import InMemoryChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.database.interleaving import another_writer
from tests.estimators import ADDITIVE_WORDS, JOINT

pytestmark = pytest.mark.django_db
CONCISE = SystemMessage("Be concise.")
STATEMENTS = {"sqlite": 8, "postgresql": 7, "mysql": 8}


class Summarizer:
    """Return the numbers of its messages; raise errors on request."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.answers: list = []

    def __call__(self, previous, messages):
        self.calls.append((previous, [text(message) for message in messages]))
        answer = self.answers.pop(0) if self.answers else f"until {text(messages[-1])}"
        if isinstance(answer, Exception):
            raise answer
        return answer


def text(message) -> str:
    return message.single_text if isinstance(message, UserMessage) else message.text


def numbered(*numbers: int) -> list[UserMessage]:
    return [UserMessage(str(number)) for number in numbers]


@pytest.fixture(params=["in memory", "django"])
def store(request):
    return DjangoChatMemoryStore() if request.param == "django" else InMemoryChatMemoryStore(keep_history=True)


@pytest.fixture
def summarizer() -> Summarizer:
    return Summarizer()


@pytest.fixture
def memory(store, summarizer):
    """Hold four messages of one word; a summary of two words costs 5 tokens, one more than a message."""

    def make(**options) -> SummarizingChatMemory:
        defaults = {
            "max_tokens": 3 + 4 * 4,
            "token_count_estimator": ADDITIVE_WORDS,
            "summary_tokens": 6,
            "after_tokens": 8,
            "summarize_after_add": False,
        }
        return SummarizingChatMemory(id="c", store=store, summarize=summarizer, **{**defaults, **options})

    return make


class TestSummarizedMessages:
    def test_evicted_messages_are_summarized_after_the_system_message(self, memory, summarizer):
        talk = memory(max_tokens=30)
        talk.add(CONCISE, *numbered(1, 2, 3, 4, 5, 6, 7))

        assert talk.summarize()

        assert summarizer.calls == [(None, ["1", "2"])]
        assert talk.messages() == [CONCISE, SystemMessage("until 2"), *numbered(4, 5, 6, 7)]

    def test_messages_evicted_by_or_after_a_summary_are_left_to_the_next_one(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()
        after_the_first = talk.messages()
        talk.add(*numbered(7))

        assert talk.summarize()

        assert after_the_first == [SystemMessage("until 2"), *numbered(5, 6)]
        assert summarizer.calls == [(None, ["1", "2"]), ("until 2", ["3", "4", "5"])]
        assert talk.messages() == [SystemMessage("until 5"), *numbered(6, 7)]

    def test_nothing_is_summarized_below_the_threshold(self, memory, summarizer):
        talk = memory()
        assert not talk.summarize()

        talk.add(*numbered(1, 2, 3, 4, 5))

        assert not talk.summarize()
        assert summarizer.calls == []

    def test_system_messages_are_not_summarized(self, memory, summarizer):
        talk = memory(max_tokens=24)
        talk.add(*numbered(1), CONCISE, *numbered(2, 3), SystemMessage("Be kind."), *numbered(4, 5, 6, 7))

        talk.summarize()

        assert summarizer.calls == [(None, ["1", "2", "3"])]

    def test_cleared_messages_are_not_summarized(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6, 7))
        talk.clear()
        talk.add(*numbered(11, 12, 13, 14, 15, 16))

        talk.summarize()

        assert summarizer.calls == [(None, ["11", "12"])]

    @pytest.mark.parametrize("forget", ["clear", "set"])
    def test_clear_and_set_discard_the_summary(self, memory, summarizer, forget):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()

        talk.clear() if forget == "clear" else talk.set(numbered(5, 9))
        talk.add(*numbered(11, 12, 13, 14, 15, 16))
        talk.summarize()

        assert summarizer.calls[1][0] is None
        assert "1" not in summarizer.calls[1][1]

    def test_one_call_takes_as_much_as_the_window_holds_and_the_next_ones_the_rest(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(*range(1, 13)))

        while talk.summarize():
            pass

        assert [call[1] for call in summarizer.calls] == [
            ["1", "2", "3", "4"],
            ["5", "6", "7", "8", "9", "10"][:4],
            ["9", "10"],
        ]

    def test_one_call_takes_a_limited_number_of_messages(self, memory, summarizer):
        talk = memory(max_tokens=10_000, after_tokens=9_000)
        talk.add(*numbered(*range(MAX_MESSAGES + 10)))
        narrow = memory(max_tokens=11, after_tokens=9_000)
        narrow.add(*numbered(1, 2))

        assert narrow.summarize()

        assert len(summarizer.calls[0][1]) == MAX_MESSAGES

    def test_a_message_above_the_limit_is_passed_alone(self, memory, summarizer):
        talk = memory()
        talk.add(UserMessage("long " * 30), *numbered(2, 3, 4, 5, 6))
        summarizer.answers = ["so far"]

        talk.summarize()

        assert summarizer.calls == [(None, ["long " * 30])]

    def test_tool_results_are_passed_with_their_call(self, memory, summarizer):
        talk = memory()
        call = ToolExecutionRequest(id="1", name="look", arguments="{}")
        results = [ToolExecutionResultMessage("1", "look", f"found {number}") for number in range(4)]
        talk.add(AiMessage("looking", tool_execution_requests=[call]), *results, *numbered(2, 3, 4, 5, 6))

        talk.summarize()

        assert summarizer.calls[0][1] == ["looking", "found 0", "found 1", "found 2", "found 3"]

    def test_a_non_additive_estimator_is_supported(self, memory, summarizer):
        talk = memory(token_count_estimator=JOINT, max_tokens=30)
        talk.add(*numbered(*range(1, 10)))

        assert talk.summarize()

        assert talk.messages()[0] == SystemMessage("until 5")
        assert JOINT.estimate_token_count_in_messages(talk.messages()) <= 30

    def test_a_summary_without_room_next_to_the_system_message_is_dropped(self, memory):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6), SystemMessage("You " * 12))
        before = talk.messages()

        assert not talk.summarize()
        assert talk.messages() == before

    def test_an_add_evicts_the_summary_last(self, memory):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()

        talk.add(UserMessage("word " * 8))

        assert talk.messages() == [SystemMessage("until 2"), UserMessage("word " * 8)]


class TestErrors:
    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            ("one two three four", "summarize returned 7 tokens, but summary_tokens is 6."),
            (" \n", "summarize returned a blank text"),
            (None, "summarize must return a str, not NoneType."),
            (SystemMessage("so far"), "summarize must return a str, not SystemMessage."),
        ],
    )
    def test_an_invalid_summary_changes_nothing(self, memory, summarizer, answer, error):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        before = talk.messages()
        summarizer.answers = [answer]

        with pytest.raises((TypeError, ValueError), match=error):
            talk.summarize()

        assert talk.messages() == before
        assert talk.summarize()
        assert summarizer.calls[0] == summarizer.calls[1]

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"summary_tokens": 19}, "summary_tokens must be less than max_tokens, which is 19, not 19."),
            ({"summary_tokens": 0}, "summary_tokens must be a whole number above 0, not 0."),
            ({"after_tokens": "8"}, "after_tokens must be a whole number above 0, not '8'."),
            ({"summary_tokens": lambda _: 25}, "summary_tokens must be less than max_tokens, which is 19, not 25."),
        ],
    )
    def test_invalid_options_are_rejected(self, memory, options, error):
        with pytest.raises(ValueError, match=error):
            memory(**options)

    def test_an_invalid_function_is_rejected(self, memory):
        with pytest.raises(TypeError, match="summarize must be a function, not str"):
            SummarizingChatMemory(
                max_tokens=9, token_count_estimator=ADDITIVE_WORDS, summarize="so", summary_tokens=5, after_tokens=5
            )

    @pytest.mark.parametrize("store", [InMemoryChatMemoryStore(), DjangoChatMemoryStore(keep_history=False)], ids=repr)
    def test_a_store_without_history_is_rejected(self, memory):
        with pytest.raises(ValueError, match="store must keep the history"):
            memory()

    def test_without_a_store_it_keeps_its_own_history(self, summarizer):
        talk = SummarizingChatMemory(
            max_tokens=19,
            token_count_estimator=ADDITIVE_WORDS,
            summarize=summarizer,
            summary_tokens=6,
            after_tokens=8,
        )

        talk.add(*numbered(1, 2, 3, 4, 5, 6))

        assert talk.messages() == [SystemMessage("until 2"), *numbered(5, 6)]


class TestBranches:
    def test_rewind_past_the_covered_messages_restores_the_previous_summary(self, memory):
        talk = memory()
        for number in range(1, 13):
            talk.add(*numbered(number))
            talk.summarize()
        newest = talk.messages()
        covered = int(text(newest[0]).split()[1])

        talk.rewind(where(talk, 6))

        summary, *rest = talk.messages()
        before = int(text(summary).split()[1])
        assert before < 6 < covered
        assert rest == numbered(*range(before + 1, 7))

    def test_rewind_before_all_summaries_leaves_none(self, memory):
        talk = memory()
        for number in range(1, 13):
            talk.add(*numbered(number))
            talk.summarize()

        talk.rewind(1)

        assert talk.messages() == numbered(1)

    def test_each_branch_has_its_own_summary(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()
        end_of_the_first = newest(talk)
        talk.rewind(1)
        keys = talk.add(*numbered(11, 12, 13, 14, 15, 16))
        talk.summarize()
        on_the_second = talk.messages()

        talk.switch(end_of_the_first)
        on_the_first = talk.messages()
        talk.switch(keys[0])

        assert summarizer.calls == [(None, ["1", "2"]), (None, ["1", "11", "12"])]
        assert on_the_first == [SystemMessage("until 2"), *numbered(5, 6)]
        assert talk.messages() == on_the_second == [SystemMessage("until 12"), *numbered(15, 16)]

    def test_shared_messages_are_summarized_on_each_branch(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6, 7, 8))
        talk.summarize()
        talk.rewind(5)
        talk.add(*numbered(11, 12, 13, 14, 15))

        talk.summarize()

        assert summarizer.calls == [(None, ["1", "2", "3", "4"]), ("until 4", ["5", "11", "12", "13"])]

    def test_removed_messages_are_not_summarized(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6, 7))

        talk.remove(2)
        talk.summarize()

        assert summarizer.calls == [(None, ["1", "3"])]

    def test_without_a_covered_message_the_others_are_summarized_again(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()

        talk.remove(2)
        talk.add(*numbered(7))
        talk.summarize()

        assert summarizer.calls == [(None, ["1", "2"]), (None, ["1", "3", "4"])]

    def test_a_removed_summary_is_not_restored(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()
        talk.remove(7)
        talk.add(*numbered(8))

        talk.rewind(4)

        assert talk.messages() == numbered(1, 2, 3, 4)


class TestConcurrentChanges:
    """Other writers change the conversation while *summarize* runs."""

    @pytest.fixture
    def talk(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        return talk

    def during(self, talk, do) -> bool:
        made = talk.summarizer

        def summarize(previous, messages):
            do()
            return made(previous, messages)

        talk.summarizer = summarize
        try:
            return talk.summarize()
        finally:
            talk.summarizer = made

    def test_concurrently_added_messages_are_kept(self, talk):
        assert self.during(talk, lambda: talk.add(*numbered(7)))
        assert talk.messages() == [SystemMessage("until 2"), *numbered(6, 7)]

    def test_one_of_two_concurrent_summaries_wins(self, talk, summarizer):
        outcomes = []

        assert not self.during(talk, lambda: outcomes.append(type(talk).summarize(again(talk, summarizer))))

        assert outcomes == [True]
        assert talk.messages() == [SystemMessage("until 2"), *numbered(5, 6)]

    @pytest.mark.parametrize(
        "change",
        [
            lambda talk: talk.clear(),
            lambda talk: talk.rewind(1),
            lambda talk: talk.rewind(2),
            lambda talk: talk.set(numbered(9)),
            lambda talk: talk.remove(1),
            lambda talk: talk.remove(2),
            lambda talk: (talk.clear(), talk.add(*numbered(1, 2, 3, 4, 5, 6, 7))),
            lambda talk: (talk.rewind(1), talk.add(*numbered(12, 13, 14, 15, 16, 17))),
        ],
        ids=[
            "clear",
            "rewind",
            "rewind into it",
            "set",
            "remove",
            "remove the last",
            "clear and add",
            "rewind and add",
        ],
    )
    def test_an_outdated_summary_is_dropped(self, talk, change):
        assert not self.during(talk, lambda: change(talk))
        assert not any(isinstance(message, SystemMessage) for message in talk.messages())

    def test_leaving_and_returning_to_a_branch_makes_no_difference(self, talk):
        def there_and_back():
            talk.rewind(3)
            talk.switch(6)

        assert self.during(talk, there_and_back)
        assert talk.messages() == [SystemMessage("until 2"), *numbered(5, 6)]


def again(talk, summarizer) -> SummarizingChatMemory:
    return SummarizingChatMemory(
        id=talk.id,
        store=talk.store,
        max_tokens=talk.max_tokens,
        token_count_estimator=talk.token_count_estimator,
        summarize=summarizer,
        summary_tokens=talk.summary_tokens,
        after_tokens=talk.after_tokens,
        summarize_after_add=False,
    )


def where(talk, number: int) -> int:
    """Return the sequence of *message*."""
    if isinstance(talk.store, DjangoChatMemoryStore):
        return Conversation.objects.get().messages.get(text=str(number), in_history=True).sequence
    rows = talk.store._conversations[talk.id].rows
    return next(key for key, row in rows.items() if row.message == UserMessage(str(number)))


def newest(talk) -> int:
    return where(talk, int(text(talk.messages()[-1])))


class TestSummarizingOnAdd:
    @pytest.fixture
    def talk(self, memory):
        return memory(summarize_after_add=True)

    @pytest.fixture
    def store(self):
        return InMemoryChatMemoryStore(keep_history=True)  # The database store waits for the commit, see below.

    def test_it_is_summarized_in_the_same_call(self, talk):
        talk.add(*numbered(1, 2, 3, 4, 5, 6))

        assert talk.messages()[0] == SystemMessage("until 2")

    def test_an_add_that_evicts_nothing_does_not_call_the_function(self, talk, monkeypatch):
        monkeypatch.setattr(talk.store, "read_pending", None)

        assert talk.add(*numbered(1, 2, 3, 4)) == [1, 2, 3, 4]

    def test_a_failure_is_logged_without_messages_and_the_next_add_retries(self, talk, summarizer, caplog):
        summarizer.answers = [TimeoutError()]

        assert talk.add(*numbered(1, 2, 3, 4, 5, 6)) == [1, 2, 3, 4, 5, 6]
        after_the_failure = talk.messages()
        talk.add(*numbered(7))

        assert after_the_failure == numbered(3, 4, 5, 6)
        [record] = caplog.records
        assert (record.levelno, record.args) == (logging.ERROR, ("c",))
        assert talk.messages() == [SystemMessage("until 3"), *numbered(6, 7)]

    @pytest.mark.parametrize("persist", ["late", "early"])
    def test_a_turn_is_summarized_when_it_ends(self, talk, summarizer, persist):
        talk.add(*numbered(1, 2, 3, 4))

        with talk.turn(persist) as turn:
            turn.add(*numbered(5, 6))
            calls_so_far = list(summarizer.calls)
            turn.add(AiMessage("7"))

        assert calls_so_far == []
        assert summarizer.calls == [(None, ["1", "2", "3"])]

    def test_async_turns_are_summarized(self, talk, summarizer):
        async def main():
            await talk.aadd(*numbered(1, 2, 3, 4, 5, 6))
            async with talk.turn() as turn:
                await turn.aadd(*numbered(7, 8))

        asyncio.run(main())

        assert summarizer.calls == [(None, ["1", "2"]), ("until 2", ["3", "4", "5", "6"])]

    def test_an_async_function_is_supported(self, talk, memory, summarizer, caplog):
        async def summarize(previous, messages):
            await asyncio.sleep(0)
            return summarizer(previous, messages)

        talk.summarizer = summarize
        asyncio.run(talk.aadd(*numbered(1, 2, 3, 4, 5, 6)))
        in_async = talk.messages()
        talk.add(*numbered(7, 8))

        assert in_async[0] == SystemMessage("until 2")
        assert "summarize is asynchronous" in caplog.text
        with pytest.raises(TypeError, match="use asummarize"):
            talk.summarize()

    def test_a_failure_of_an_async_function_loses_nothing(self, talk, summarizer, caplog):
        summarizer.answers = [TimeoutError()]

        assert asyncio.run(talk.aadd(*numbered(1, 2, 3, 4, 5, 6))) == [1, 2, 3, 4, 5, 6]
        assert len(caplog.records) == 1
        assert asyncio.run(talk.asummarize())


class TestInTheDatabase:
    @pytest.fixture
    def store(self):
        return DjangoChatMemoryStore()

    def test_in_a_transaction_it_waits_for_the_commit(self, memory, summarizer, django_capture_on_commit_callbacks):
        talk = memory(summarize_after_add=True)

        with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
            talk.add(*numbered(1, 2, 3, 4, 5, 6))
            calls_so_far = list(summarizer.calls)

        assert calls_so_far == []
        assert talk.messages()[0] == SystemMessage("until 2")

    @pytest.mark.django_db(transaction=True)
    def test_no_transaction_is_open_while_the_function_runs(self, memory):
        talk = memory(summarize_after_add=True)
        seen = []

        def summarize(previous, messages):
            seen.append(connection.in_atomic_block)
            return "so far"

        talk.summarizer = summarize
        with transaction.atomic():
            talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.add(*numbered(7))
        with talk.turn() as turn:
            turn.add(*numbered(8, 9))

        assert seen == [False] * len(seen) != []

    @pytest.mark.django_db(transaction=True)
    def test_async_adds_are_summarized(self, memory):
        talk = memory()

        async def main():
            await talk.aadd(*numbered(1, 2, 3, 4, 5, 6))
            return await talk.asummarize()

        assert run(main())

    def test_the_row_is_not_history_and_records_what_it_covers(self, memory):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        before = Conversation.objects.get()

        talk.summarize()

        conversation = Conversation.objects.get()
        row = conversation.messages.get(sequence=7)
        assert (row.in_history, row.on_path, row.superseded, row.parent_sequence) == (False, False, True, 2)
        assert (row.metadata, row.token_count, row.counted_by) == ({"through": 2}, 5, "words")
        assert conversation.summary_sequence == 7
        assert (conversation.total_messages, conversation.updated_at) == (6, before.updated_at)
        assert (conversation.version, conversation.next_sequence) == (before.version + 1, 8)
        assert (conversation.memory_messages, conversation.memory_tokens) == (3, 13)
        assert [row.text for row in conversation.history()] == ["1", "2", "3", "4", "5", "6"]
        assert talk.add(*numbered(8)) == [8]
        assert conversation.history().get(sequence=8).parent_sequence is None

    @pytest.mark.parametrize("before", [0, 300])
    def test_the_costs_are_the_same_at_any_length_of_history(self, memory, before, django_assert_num_queries):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        for number in range(before):
            talk.add(*numbered(number))
        while talk.summarize():
            pass
        talk.add(*numbered(7, 8, 9))
        assert talk.store.read_pending("c", talk.window(), 100) is not None

        # The conversation, the summary, the messages it does not cover; the same again, the memory, and the write.
        with django_assert_num_queries(STATEMENTS[connection.vendor]):
            assert talk.summarize()
        with django_assert_num_queries(3):
            assert not talk.summarize()

    def test_summarizing_requires_write_access(self, memory, django_user_model):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        bob = django_user_model.objects.create_user("bob")
        talk.store = DjangoChatMemoryStore(owner=bob)

        assert not talk.summarize()

    def test_a_conversation_that_was_erased_and_recreated_is_a_different_one(self, memory):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        pending = talk.store.read_pending("c", talk.window(), 100)

        Conversation.objects.all().delete()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))

        assert not talk.store.put_summary("c", pending, SystemMessage("so far"), talk.window())

    def test_its_counts_are_stored_after_the_use_of_another_window(self, memory, store):
        MessageWindowChatMemory(max_messages=6, id="c", store=store).add(*numbered(1, 2, 3, 4, 5, 6, 7, 8))
        talk = memory(max_tokens=35, after_tokens=6)

        assert talk.summarize()

        conversation = Conversation.objects.get()
        assert conversation.counted_by == "words"
        assert conversation.memory_tokens == sum(row.token_count for row in conversation.memory())

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite in memory is one connection")
    def test_one_of_many_concurrent_summaries_wins(self, memory):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        barrier, outcomes = threading.Barrier(4), []

        def summarize(previous, messages):
            barrier.wait()
            return "so far"

        def work():
            try:
                outcomes.append(again(talk, summarize).summarize())
            finally:
                connection.close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(outcomes) == [False, False, False, True]
        assert Conversation.objects.get().messages.filter(in_history=False).count() == 1

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("after", range(1, 6))
    @pytest.mark.parametrize(
        ("other", "is_dropped"),
        [
            (lambda talk: talk.add(UserMessage("7")), False),
            (lambda talk: talk.rewind(1), True),
            (lambda talk: talk.clear(), None),
        ],
        ids=["add", "rewind", "clear"],
    )
    def test_another_writer_between_any_two_statements(self, memory, summarizer, after, other, is_dropped):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))

        with another_writer(lambda: other(again(talk, summarizer)), after):
            talk.summarize()

        messages = talk.messages()
        has_summary = SystemMessage("until 2") in messages
        assert ADDITIVE_WORDS.estimate_token_count_in_messages(messages) <= 19
        if is_dropped is False:
            assert has_summary
            assert messages[-1] == UserMessage("7")
        else:
            assert not has_summary
        conversation = Conversation.objects.get()
        assert conversation.memory_messages == len(messages)
        assert conversation.memory_tokens == sum(row.token_count for row in conversation.memory())
