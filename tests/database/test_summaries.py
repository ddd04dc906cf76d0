"""A summary replaces evicted messages: each once, in order, and never more than the window holds."""

import asyncio
import datetime
import logging
import re
import threading
from contextlib import suppress
from itertools import pairwise

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.pending import MAX_MESSAGES, take
from chatmemory_django.core.windows import Window, to_entry
from chatmemory_django.memory import MessageWindowChatMemory, SummarizingChatMemory
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores import InMemoryChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run
from tests.database.interleaving import another_writer
from tests.estimators import ADDITIVE_WORDS, JOINT
from tests.logs import logged_by
from tests.oracle import Oracle
from tests.oracle import Window as OracleWindow
from tests.reference_store import ReferenceStore

pytestmark = pytest.mark.django_db
DAY = datetime.timedelta(days=1)
CONCISE = SystemMessage("Be concise.")
CALLING = AiMessage("looking", tool_execution_requests=[ToolExecutionRequest("1", "look", "{}")])
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


@pytest.fixture
def store():
    return DjangoChatMemoryStore()


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

    @pytest.mark.parametrize("old", [1, 2])
    def test_a_summary_goes_with_the_first_message_that_is_pruned_from_it_and_the_next_is_made_of_what_is_left(
        self, memory, summarizer, old
    ):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6, 7))
        talk.summarize()
        after_that = talk.messages()
        Message.objects.filter(sequence__lte=old).update(created_at=timezone.now() - DAY)

        operations.prune(Conversation.objects.all(), history_older_than=DAY / 2)

        assert talk.messages() == after_that[1:]
        assert not Message.objects.filter(text="until 2").exists()
        operations.check(Conversation.objects.all(), lambda memory_id: None, pytest.fail)
        assert talk.summarize()
        assert summarizer.calls[1] == (None, [str(number) for number in range(old + 1, 6)])

    def test_a_summary_of_what_stays_stays(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6, 7))
        talk.summarize()
        talk.remove(1)
        before, version = talk.messages(), Conversation.objects.get().version

        operations.prune(Conversation.objects.all(), history_older_than=DAY / 2)

        assert (talk.messages(), Conversation.objects.get().version) == (before, version)

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

    @pytest.mark.parametrize(
        "large",
        [
            UserMessage("long " * 3_000),
            UserMessage([TextContent("long " * 3_000), TextContent("short"), TextContent("long " * 3_000)], name="ann"),
            UserMessage([ImageContent(Image(url="https://a.example/1")), TextContent("long " * 3_000)]),
            AiMessage("long " * 3_000, thinking="why " * 3_000),
            AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "look", "long " * 3_000)]),
            ToolExecutionResultMessage("1", "look", "long " * 3_000, is_error=True),
        ],
        ids=["user", "parts", "image", "answer", "call", "result"],
    )
    def test_a_message_above_the_limit_is_passed_alone_and_shortened(self, memory, large):
        talk, passed = memory(max_tokens=60, after_tokens=50), []
        talk.summarizer = lambda previous, messages: passed.append(messages) or "so far"
        talk.add(large, *numbered(*range(20)))

        assert talk.summarize()

        [[message]] = passed
        assert type(message) is type(large)
        assert 15 < ADDITIVE_WORDS.estimate_token_count_in_message(message) <= 60
        assert "characters left out]" in message_to_json(message)
        assert talk.store.get_messages("c")[0] == SystemMessage("so far")

    def test_a_shortened_message_keeps_its_beginning_and_reports_the_rest(self, memory, summarizer):
        talk = memory(max_tokens=60)
        talk.add(UserMessage("long " * 3_000), *numbered(*range(15)))
        summarizer.answers = ["so far"]

        talk.summarize()

        [(_, [text])] = summarizer.calls
        assert re.fullmatch(r"(long )+\w*… \[14,\d{3} characters left out\]", text)

    def test_results_that_are_too_large_together_are_shortened_with_their_call(self, memory):
        talk, passed = memory(max_tokens=100, after_tokens=50), []
        talk.summarizer = lambda previous, messages: passed.append(messages) or "so far"
        calls = [ToolExecutionRequest(id=str(number), name="look", arguments="{}") for number in range(3)]
        results = [ToolExecutionResultMessage(call.id, "look", "found " * 400) for call in calls]
        talk.add(AiMessage(tool_execution_requests=calls), *results, *numbered(*range(30)))

        assert talk.summarize()

        call, *given = passed[0]
        assert call.tool_execution_requests == tuple(calls)
        assert [(each.id, each.text[:6]) for each in given] == [("0", "found "), ("1", "found "), ("2", "found ")]
        assert sum(map(ADDITIVE_WORDS.estimate_token_count_in_message, passed[0])) <= 100

    def test_what_fits_before_a_call_is_not_shortened_with_its_results(self, memory):
        talk, passed = memory(max_tokens=100, after_tokens=50), []
        talk.summarizer = lambda previous, messages: passed.append(messages) or "so far"
        before = UserMessage("a question of some words " * 5)
        talk.add(before, CALLING, ToolExecutionResultMessage("1", "look", "found " * 400), *numbered(*range(30)))

        assert talk.summarize()
        assert talk.summarize()

        [first, [call, result]] = passed
        assert (first, call) == ([before], CALLING)
        assert "characters left out]" in result.text

    @pytest.mark.parametrize(("failures", "covered", "passed"), [(4, [0], [0]), (5, [0, 1, 2], [1, 2])])
    def test_after_failures_what_fits_before_a_call_is_left_out_alone(self, failures, covered, passed):
        result = ToolExecutionResultMessage("1", "look", "found " * 400)
        given = [UserMessage("one"), CALLING, result, *numbered(2)]
        entries = [to_entry(key, message) for key, message in enumerate(given)]

        taken, messages, has_more = take(entries, Window(10, ADDITIVE_WORDS), 160, failures)

        assert [entry.key for entry in taken] == covered
        assert [type(message) for message in messages] == [type(given[key]) for key in passed]
        assert has_more

    def test_more_results_than_fit_are_covered_but_not_passed(self, memory, summarizer):
        talk = memory()
        results = [ToolExecutionResultMessage("1", "look", "found") for _ in range(30)]
        talk.add(AiMessage("look", tool_execution_requests=[ToolExecutionRequest("1", "a", "{}")]), *results)
        talk.add(*numbered(2, 3, 4, 5, 6))

        while talk.summarize():
            pass

        assert 1 < len(summarizer.calls[0][1]) * 3 <= 19
        assert summarizer.calls[1][1][:1] == ["2"]

    def test_tool_results_are_passed_with_their_call(self, memory, summarizer):
        talk = memory(max_tokens=31)
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
            ({"evict_to": 12, "summary_tokens": 12}, "summary_tokens must be less than evict_to, which is 12, not 12."),
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

    @pytest.mark.parametrize("store", [None])
    def test_it_does_not_do_without_a_store(self, memory):
        error = r"as DjangoChatMemoryStore\(keep_history=True\) does, .*; SingleSlotChatMemoryStore\(\) does not\.$"
        with pytest.raises(ValueError, match=error):
            memory()


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

    def test_older_summaries_are_erased_too_if_the_last_message_they_cover_was_deleted(self, memory):
        """In both: a soak of random verbs takes the oracle's word for it."""
        talk, oracle, window = memory(), Oracle(), OracleWindow(19, ADDITIVE_WORDS)
        without_history = MessageWindowChatMemory(
            max_messages=10, id="c", store=DjangoChatMemoryStore(keep_history=False)
        )
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.pin(2)
        talk.summarize()
        without_history.unpin(2)
        talk.summarize()
        oracle.add(numbered(1, 2, 3, 4, 5, 6), window)
        oracle.pin(2)
        oracle.put_summary(SystemMessage("until 2"), [1, 2], window)
        oracle.unpin(2)
        oracle.delete([2])
        oracle.put_summary(SystemMessage("until 5"), [3, 4, 5], window)
        assert oracle.memory_messages() == talk.messages() == [SystemMessage("until 5"), *numbered(6)]

        talk.remove(3)
        oracle.remove(3)

        kept = Message.objects.exclude(text="").order_by("sequence")
        assert list(kept.values_list("sequence", flat=True)) == sorted(oracle.messages) == [1, 4, 5, 6]

    def test_a_removed_summary_is_not_restored(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()
        talk.remove(7)
        talk.add(*numbered(8))

        talk.rewind(4)

        assert talk.messages() == numbered(1, 2, 3, 4)


class TestAFunctionThatFails:
    """It is called less and less often, with fewer messages, and then without the first of them."""

    @pytest.fixture
    def talk(self, memory):
        return memory(max_tokens=67)

    def add(self, talk, *numbers: int) -> None:
        """Add messages, and summarize as it is done after an ``add``: in a transaction, only after the commit."""
        for number in numbers:
            talk.add(*numbered(number))
            with suppress(Exception):
                talk.summarize(waits=True)

    def refuse(self, talk, is_refused) -> list[list[str]]:
        """Let the function of *talk* raise if a message *is_refused*, and return the texts of each of its calls."""
        calls = []

        def summarize(previous, messages):
            calls.append([text(message) for message in messages])
            if any(map(is_refused, calls[-1])):
                raise RuntimeError("content_filter")
            return f"until {calls[-1][-1]}"

        talk.summarizer = summarize
        return calls

    def test_it_is_called_after_pauses_that_grow(self, talk):
        calls, called_at = self.refuse(talk, lambda text: True), []

        for number in range(1, 1_200):
            before = len(calls)
            self.add(talk, number)
            called_at += [number] * (len(calls) - before)

        pauses = [later - earlier for earlier, later in pairwise(called_at)]
        assert pauses == [1, 4, 8, 16, 32, 64, 128, 256, 256, 256]
        assert sum(4 * len(call) for call in calls) < 400

    def test_a_message_that_it_always_refuses_is_left_out_of_the_summary_and_stays_in_the_history(self, talk):
        calls = self.refuse(talk, lambda text: text == "3")

        self.add(talk, *range(1, 150))

        refused = [call for call in calls if "3" in call]
        assert [len(call) for call in refused] == [3, 4, 8, 4, 2]
        assert talk.messages()[0] == SystemMessage(f"until {calls[-1][-1]}")
        assert int(calls[-1][-1]) > 120
        assert "3" in [text(each.message) for each in talk.explain(200)]

    def test_before_a_message_is_left_out_fewer_are_passed(self, talk):
        calls = self.refuse(talk, lambda text: True)

        self.add(talk, *range(1, 100))

        assert [len(call) for call in calls] == [2, 3, 7, 4, 2, 2]
        assert [call[0] for call in calls] == ["1", "1", "1", "1", "1", "3"]

    def test_after_a_success_all_is_as_at_the_start(self, talk):
        broken = [True]
        calls = self.refuse(talk, lambda text: broken[0])
        self.add(talk, *range(1, 60))
        failed = len(calls)
        broken[0] = False

        self.add(talk, *range(60, 120))

        later = calls[failed:]
        assert sum(map(len, later[1:4])) > 3 * 10
        assert talk.messages()[0] == SystemMessage(f"until {later[-1][-1]}")
        assert int(later[-1][-1]) > 95

    def test_who_calls_it_need_not_wait_and_its_failures_are_not_counted_then(self, talk):
        calls = self.refuse(talk, lambda text: True)
        self.add(talk, *range(1, 21))
        counted = talk.store.read_pending("c", talk.window(), 100).failure
        for _ in range(10):
            with pytest.raises(RuntimeError):
                talk.summarize()

        assert talk.store.read_pending("c", talk.window(), 100).failure == counted
        assert len(calls) == 12
        self.refuse(talk, lambda text: False)
        assert talk.summarize()

    def test_other_processes_wait_as_well(self, memory, store):
        talk = memory(max_tokens=67)
        calls = self.refuse(talk, lambda text: True)
        talk.add(*numbered(*range(1, 21)))
        for _ in range(2):
            with pytest.raises(RuntimeError):
                talk.summarize()
        job = memory(max_tokens=67)
        job.summarizer = talk.summarizer

        assert [job.summarize(waits=True) for _ in range(3)] == [False] * 3
        assert len(calls) == 2

    def test_what_follows_a_clear_does_not_wait(self, talk):
        calls = self.refuse(talk, lambda text: text == "1")
        self.add(talk, *range(1, 24))
        talk.clear()

        talk.add(*numbered(*range(100, 120)))
        talk.summarize()

        assert [call for call in calls if "1" not in call] == [["100", "101", "102", "103"]]
        assert talk.messages()[0] == SystemMessage("until 103")

    @pytest.mark.parametrize("answer", ["one two three four", " ", None], ids=["too_large", "blank", "none"])
    def test_an_answer_that_is_refused_counts_as_well(self, talk, answer):
        calls = []
        talk.summarizer = lambda previous, messages: calls.append(messages) or answer

        self.add(talk, *range(1, 100))

        assert len(calls) == 6

    def test_a_summary_without_room_counts_as_well(self, talk):
        calls = []
        talk.summarizer = lambda previous, messages: calls.append(messages) or "so far"
        talk.add(SystemMessage("You " * 58))

        self.add(talk, *range(1, 100))

        assert len(calls) < 10

    @pytest.mark.django_db(transaction=True)
    def test_asynchronous_adds_wait_as_well(self, memory):
        talk = memory(max_tokens=67, summarize_after_add=True)
        calls = self.refuse(talk, lambda text: True)

        async def summarize(previous, messages, fail=talk.summarizer):
            return fail(previous, messages)

        async def main():
            for number in range(1, 60):
                await talk.aadd(*numbered(number))
            talk.summarizer = summarize
            for number in range(60, 100):
                await talk.aadd(*numbered(number))

        run(main())

        assert len(calls) == 6

    @pytest.mark.django_db(transaction=True)
    def test_a_cancelled_call_is_no_failure(self, memory):
        talk, started = memory(), []
        talk.add(*numbered(*range(1, 12)))

        async def summarize(previous, messages):
            started.append(messages)
            await asyncio.sleep(60)

        async def main():
            task = asyncio.ensure_future(talk.asummarize())
            while not started and not task.done():
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])

        talk.summarizer = summarize
        for _ in range(3):
            started.clear()
            run(main())

        assert talk.store.read_pending("c", talk.window(), 100).failure is None


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
    return Conversation.objects.get().messages.get(text=str(number), in_history=True).sequence


def newest(talk) -> int:
    return where(talk, int(text(talk.messages()[-1])))


class TestSummarizingOnAdd:
    @pytest.fixture
    def talk(self, memory):
        return memory(summarize_after_add=True)

    @pytest.fixture
    def store(self):
        return ReferenceStore()  # the store in the database waits for the commit, see below

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
        [record] = logged_by(caplog, "chatmemory_django.memory")
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
        assert len(logged_by(caplog, "chatmemory_django.memory")) == 1
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

    def test_a_failure_changes_nothing_that_others_read(self, memory, summarizer):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        before = Conversation.objects.values().get()
        summarizer.answers = [RuntimeError("no")]

        with pytest.raises(RuntimeError):
            talk.summarize()

        after = Conversation.objects.values().get()
        assert after == {**before, "summary_failure": [0, 1, 7]}

    @pytest.mark.django_db(transaction=True)
    def test_a_synchronous_function_uses_the_database_in_the_thread_of_the_store_in_asynchronous_code(self, memory):
        talk, threads = memory(), []

        def summarize(previous, messages):
            threads.append(threading.get_ident())
            return f"until {Conversation.objects.count()}"

        async def main():
            await talk.aadd(*numbered(1, 2, 3, 4, 5, 6))
            threads.append(await sync_to_async(threading.get_ident)())
            return await talk.asummarize()

        talk.summarizer = summarize
        assert run(main())
        assert threads[0] == threads[1]

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

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("after", range(1, 6))
    def test_a_clear_between_any_two_statements_of_a_turn(self, memory, summarizer, after):
        talk = memory()
        talk.add(*numbered(1, 2, 3, 4, 5, 6))
        talk.summarize()

        with another_writer(lambda: again(talk, summarizer).clear(), after), talk.turn(after=6) as turn:
            turn.add(UserMessage("7"))

        assert talk.messages()[-1] == UserMessage("7")
