"""Old results of tools leave what is sent before any message does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatmemory_django.admin.reasons import WORDS, read_reasons
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.core.reasons import Reason
from chatmemory_django.memory import ChatMemory, ClearToolResults, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    Image,
    ImageContent,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.operations import export_lines, fork, import_lines
from chatmemory_django.operations.examining import Examination
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.oracle import Clears, Oracle, Window, marker

pytestmark = pytest.mark.django_db

LONG = 100
"""How many words a long result has."""

numbers = itertools.count()


def round_of(number: int, words: int = LONG, tool: str = "look") -> list[ChatMessage]:
    """Return a question whose answer needs a tool; it has about *words* + 20 tokens."""
    call = ToolExecutionRequest(str(number), tool, "{}")
    result = ToolExecutionResultMessage.from_request(call, f"{number} " * words)
    return [UserMessage(f"question {number}"), AiMessage(None, None, [call]), result, AiMessage(f"answer {number}")]


def memory_in(store: ChatMemoryStore, size: int = 600, *, id: str = "a", **options) -> ChatMemory:
    options = {"clear_tool_results": {"keep": 1}, **options}
    return TokenWindowChatMemory(max_tokens=size, token_count_estimator=ADDITIVE_WORDS, id=id, store=store, **options)


def chatted(memory: ChatMemory, rounds: int = 8, **options) -> ChatMemory:
    """Return *memory* after a chat whose window was full once, one message at a time."""
    for number in range(rounds):
        for message in round_of(number, **options):
            memory.add(message)
    return memory


def questions(memory: ChatMemory) -> int:
    return sum(isinstance(each, UserMessage) for each in memory.messages())


def results(messages: Sequence[ChatMessage]) -> list[ToolExecutionResultMessage]:
    return [each for each in messages if isinstance(each, ToolExecutionResultMessage)]


def are_cleared(messages: Sequence[ChatMessage]) -> list[bool]:
    """Return of each result among *messages* whether it is a marker."""
    return [each == marker(each) for each in results(messages)]


@pytest.fixture(params=[InMemoryChatMemoryStore, DjangoChatMemoryStore])
def store(request) -> ChatMemoryStore:
    return request.param()


class TestAFullWindow:
    def test_has_markers_in_the_place_of_old_results_and_keeps_all_messages(self, store):
        memory = chatted(memory_in(store))

        assert questions(memory) == 8
        assert are_cleared(memory.messages())[:2] == [True, True]
        assert questions(chatted(memory_in(store, id="b", clear_tool_results=None))) < 8

    def test_shows_which_result_it_was_and_how_to_get_it_back(self, store):
        found, *_ = results(chatted(memory_in(store)).messages())

        assert (found.id, found.tool_name) == ("0", "look")
        assert found.text == "[The result of look was cleared to save space. Call it again if needed.]"

    def test_clears_nothing_before_it_is_full(self, store):
        assert not any(are_cleared(chatted(memory_in(store), 4).messages()))

    def test_clears_all_old_results_at_once_so_that_what_is_sent_begins_the_same_for_a_while(self, store):
        memory, before, changes = memory_in(store), [], 0
        for number in range(8):
            memory.add(*round_of(number))
            changes += memory.messages()[: len(before)] != before
            before = memory.messages()

        assert changes == 2

    def test_keeps_the_newest_results(self, store):
        memory = chatted(memory_in(store, clear_tool_results=ClearToolResults(keep=2)), 5)

        assert are_cleared(memory.messages()) == [True, True, False, False, False] or are_cleared(
            memory.messages()
        ) == [True, True, True, False, False]

    def test_keeps_results_of_excluded_tools_and_small_ones(self, store):
        memory = memory_in(store, clear_tool_results={"keep": 0, "exclude": ["policy"]})
        memory.add(*round_of(1, tool="policy"), *round_of(2, words=5), *round_of(3))
        chatted(memory, 4)

        assert are_cleared(memory.messages())[:3] == [False, False, True]

    def test_clears_a_file_of_a_result_in_a_window_of_messages_too(self):
        store = InMemoryChatMemoryStore()
        picture = ImageContent(Image(url="https://example.org/a.png"))
        call = ToolExecutionRequest("1", "draw", "{}")
        memory = MessageWindowChatMemory(max_messages=6, id="b", store=store, clear_tool_results={"keep": 0})
        memory.add(SystemMessage("Draw."), UserMessage("a"), UserMessage("draw"), AiMessage(None, None, [call]))
        memory.add(ToolExecutionResultMessage("1", "draw", [picture]), AiMessage("done"), UserMessage("c"))
        assert are_cleared(memory.messages()) == [True]

    def test_never_clears_results_of_the_running_answer(self, store):
        memory = memory_in(store, clear_tool_results={"keep": 0})
        chatted(memory, 3)
        call = [ToolExecutionRequest(str(each), "look", "{}") for each in range(3)]
        memory.add(UserMessage("look again"))
        for each in call:
            memory.add(AiMessage(None, None, [each]), ToolExecutionResultMessage.from_request(each, "new " * LONG))

        assert are_cleared(memory.messages())[-3:] == [False] * 3
        assert all(are_cleared(memory.messages())[:-3])

    def test_evicts_down_to_its_mark_if_clearing_was_not_enough(self, store):
        memory = chatted(memory_in(store, evict_to=250, clear_tool_results={"keep": 1}), 5)
        assert questions(memory) < 5

        memory = chatted(memory_in(store, id="b", evict_to=250, clear_tool_results={"keep": 1, "at_least": 30}), 5)
        assert questions(memory) == 5

    def test_is_set_as_given(self, store):
        memory = memory_in(store)
        memory.set([message for number in range(8) for message in round_of(number)])

        assert not any(are_cleared(memory.messages()))

    def test_goes_on_from_what_was_read(self, store):
        memory = chatted(memory_in(store))
        read = memory.messages()
        memory.set([*read, UserMessage("more")])

        assert memory.messages() == [*read, UserMessage("more")]


class TestInTheDatabase:
    @pytest.fixture
    def memory(self) -> ChatMemory:
        return chatted(memory_in(DjangoChatMemoryStore()))

    @pytest.fixture
    def conversation(self, memory) -> Conversation:
        return Conversation.objects.get(memory_id="a")

    def test_rows_and_history_keep_the_results(self, conversation):
        written = [message for number in range(8) for message in round_of(number)]

        assert [row.chat_message for row in conversation.history()] == written

    def test_the_counters_are_of_what_is_sent(self, memory, conversation):
        sent = sum(map(ADDITIVE_WORDS.estimate_token_count_in_message, memory.messages()))

        assert conversation.memory_tokens == sent == sum(row.token_count for row in conversation.memory())
        assert Examination(conversation, lambda _: memory.window()).broken == []
        assert memory.store.recount("a", memory.window()) == sent

    def test_another_estimator_counts_the_markers(self, memory):
        other = TokenWindowChatMemory(
            max_tokens=10**6, token_count_estimator=ADDITIVE_LETTERS, id="a", store=memory.store
        )
        read = memory.messages()
        assert other.messages() == read
        other.add(UserMessage("more"))

        assert other.messages() == [*read, UserMessage("more")]
        conversation = Conversation.objects.get(memory_id="a")
        sent = sum(map(ADDITIVE_LETTERS.estimate_token_count_in_message, other.messages()))
        assert conversation.memory_tokens == sent

    def test_explain_and_the_admin_show_it(self, memory, conversation):
        explained = memory.explain()
        cleared = [each for each in explained if each.reason == Reason.CLEARED]

        assert [each.is_sent for each in cleared] == [True] * sum(are_cleared(memory.messages()))
        assert [each.sent for each in explained if each.is_sent] == memory.messages()
        assert all(each.message.text.endswith(f"{each.message.id} ") for each in cleared)
        words = read_reasons(conversation, memory)
        assert {words[each.sequence].short for each in cleared} == {WORDS[Reason.CLEARED].short}

    def test_a_fork_and_an_import_send_the_same(self, memory, conversation):
        forked = fork(conversation)
        other = memory_in(memory.store, id=forked.memory_id)
        assert other.messages() == memory.messages()
        assert Conversation.objects.get(pk=forked.pk).memory_tokens == conversation.memory_tokens

        lines = list(export_lines(Conversation.objects.filter(pk=conversation.pk)))
        conversation.delete()
        import_lines(lines)
        assert memory_in(memory.store).messages() == other.messages()
        assert Examination(Conversation.objects.get(memory_id="a"), lambda _: memory.window()).broken == []

    def test_what_was_cleared_stays_so_after_a_rewind_and_with_a_larger_window(self, memory):
        read = memory.messages()
        first = next(each.sequence for each in memory.explain() if each.is_sent)
        newest = Conversation.objects.get(memory_id="a").next_sequence - 1
        memory.rewind(newest - 4)

        assert memory.messages() == read[:-4]
        larger = memory_in(memory.store, 10_000, clear_tool_results=None, refill=True)
        assert larger.messages()[-len(read) + 4 :] == read[:-4]
        assert first >= 1

    def test_a_summary_is_made_of_the_whole_results(self, memory):
        chatted(memory, 20)
        pending = memory.store.read_pending("a", memory.window(), 10**6)

        assert pending is not None
        assert not any(are_cleared(pending.messages))

    def test_reading_and_most_writes_take_as_many_statements_as_without(self, memory):
        other = chatted(memory_in(DjangoChatMemoryStore(), id="b", clear_tool_results=None))
        room = memory_in(memory.store, 10_000)
        roomy = memory_in(memory.store, 10_000, id="b", clear_tool_results=None)

        assert statements(memory.messages) == statements(other.messages)
        assert statements(lambda: room.add(UserMessage("hi"))) == statements(lambda: roomy.add(UserMessage("hi")))

    def test_an_answer_is_sent_markers_to_make_room_and_reads_its_own_results_whole(self, memory):
        memory.clear()
        chatted(memory, 4)
        assert not any(are_cleared(memory.messages()))
        model = ScriptedModel(calling(("new", "look", "{}")), "done")

        Assistant(model, tools=[look], memory=lambda **options: memory).chat("a", "look " * 20)

        assert [any(are_cleared(each)) for each in model.sent] == [False, True]
        assert are_cleared(model.sent[1])[-1] is False
        assert questions(memory) == sum(isinstance(each, UserMessage) for each in model.sent[1]) == 5
        assert are_cleared(memory.messages()) == are_cleared(model.sent[1])


def look() -> str:
    """Look."""
    return "seen " * 110


def statements(call: Callable[[], object]) -> int:
    call()  # what a process records once
    with CaptureQueriesContext(
        connection,
    ) as captured:
        call()
    return len(captured)


class TestItsOptions:
    def test_are_also_those_of_the_settings(self, settings):
        options = {"max_tokens": 300, "token_count_estimator": ADDITIVE_WORDS, "clear_tool_results": {"keep": 2}}
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": "chatmemory_django.memory.TokenWindowChatMemory", "OPTIONS": options}
        }

        assert get_chat_memory("a").window().clears == ClearToolResults(keep=2)
        assert get_chat_memory("a", max_messages=5).window().clears == ClearToolResults(keep=2)
        assert get_chat_memory("a", clear_tool_results=True).window().clears == ClearToolResults()
        assert get_chat_memory("a", clear_tool_results=False).window().clears is None

    @pytest.mark.parametrize(
        ("option", "error"),
        [
            ({"keep": -1}, ValueError),
            ({"at_least": 0}, ValueError),
            ({"exclude": "look"}, TypeError),
            ({"kept": 1}, TypeError),
            ("yes", TypeError),
        ],
    )
    def test_are_checked(self, option, error):
        with pytest.raises(error):
            memory_in(InMemoryChatMemoryStore(), clear_tool_results=option)


rounds = st.lists(
    st.tuples(st.sampled_from(["look", "read"]), st.sampled_from([3, 20, 40, 90]), st.integers(0, 3), st.booleans()),
    min_size=5,
    max_size=14,
)
windows = st.builds(
    Window,
    st.integers(120, 400),
    st.sampled_from([ADDITIVE_WORDS, ADDITIVE_LETTERS, JOINT]),
    evict_to=st.sampled_from([None, 60, 110]),
    clears=st.builds(Clears, st.integers(0, 3), st.sampled_from([None, 30, 100]), st.sampled_from([(), ("read",)])),
)


def it_is_as_the_oracle(store: ChatMemoryStore, window: Window, asked) -> int:
    """Compare a chat in *store* with the oracle after each write; return how many results were cleared."""
    oracle = Oracle()
    memory = TokenWindowChatMemory(
        max_tokens=window.limit,
        token_count_estimator=window.estimator,
        evict_to=window.evict_to,
        clear_tool_results=window.clears._asdict(),
        id=f"chat {next(numbers)}",
        store=store,
    )
    for number, (tool, words, count, at_once) in enumerate(asked):
        calls = [ToolExecutionRequest(f"{number} {each}", tool, "{}") for each in range(count)]
        found = [ToolExecutionResultMessage.from_request(call, "word " * words) for call in calls]
        written = [UserMessage(f"question {number}"), *([AiMessage(None, None, calls)] if calls else []), *found]
        written.append(AiMessage("so it is " * (words // 8)))
        for part in [written] if at_once else [[each] for each in written]:
            memory.add(*part)
            oracle.add(part, window)
            assert memory.messages() == oracle.seen(window).memory_messages()
            assert store.get_messages(memory.id) == oracle.memory_messages()
    return len(oracle.cleared)


@given(window=windows, asked=rounds)
def test_a_memory_in_this_process_is_as_the_oracle(window, asked):
    it_is_as_the_oracle(InMemoryChatMemoryStore(), window, asked)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(window=windows, asked=rounds)
def test_a_memory_in_the_database_is_as_the_oracle(window, asked):
    it_is_as_the_oracle(DjangoChatMemoryStore(), window, asked)


def test_the_chats_of_these_comparisons_do_clear_results():
    window = Window(200, ADDITIVE_WORDS, clears=Clears(1))

    assert it_is_as_the_oracle(InMemoryChatMemoryStore(), window, [("look", 20, 1, False)] * 14) > 5
