"""After any sequence of operations, the Django store holds the same as the in-memory store."""

import itertools

import pytest
from django.db.models import QuerySet
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT

CALL = ToolExecutionRequest(id="1", name="look", arguments="{}")
POOL: list[ChatMessage] = [
    SystemMessage("Be brief."),
    SystemMessage("Be kind, and patient."),
    UserMessage("hi"),
    UserMessage("one two three four five"),
    UserMessage("hi", name="Klaus"),
    AiMessage("hello"),
    AiMessage(tool_execution_requests=[CALL]),
    AiMessage("looking", tool_execution_requests=[CALL, CALL]),
    ToolExecutionResultMessage("1", "look", "found it"),
    CustomMessage({"any": "json"}),
]
some_messages = st.lists(st.sampled_from(POOL), max_size=4)
limits = st.integers(min_value=1, max_value=40)
numbers = itertools.count()


class SameAsInMemory(RuleBasedStateMachine):
    @initialize(
        keep_history=st.booleans(),
        estimator=st.sampled_from([None, ADDITIVE_WORDS, ADDITIVE_LETTERS, JOINT]),
        limit=limits,
        system_first=st.booleans(),
    )
    def begin(self, keep_history, estimator, limit, system_first):
        self.memory_id = f"machine {next(numbers)}"
        self.keeps_history = keep_history
        self.estimator = estimator
        self.limit = limit
        self.system_first = system_first
        self.history: list[ChatMessage] | None = []
        self.expected = self.build(InMemoryChatMemoryStore(keep_history=keep_history))
        self.memory = self.build(DjangoChatMemoryStore(keep_history=keep_history))

    def build(self, store: ChatMemoryStore) -> ChatMemory:
        options = {"id": self.memory_id, "store": store, "always_keep_system_message_first": self.system_first}
        if self.estimator is None:
            return MessageWindowChatMemory(max_messages=lambda _: self.limit, **options)
        return TokenWindowChatMemory(max_tokens=lambda _: self.limit, token_count_estimator=self.estimator, **options)

    def rebuild(self) -> None:
        self.expected, self.memory = self.build(self.expected.store), self.build(self.memory.store)

    @rule(messages=some_messages)
    def add(self, messages):
        if self.history is not None:
            before = self.expected.store.get_messages(self.memory_id)
            self.history += without_repeated_system_messages(before, messages)
        self.expected.add(*messages)
        self.memory.add(*messages)

    @rule(messages=some_messages)
    def add_as_given(self, messages):
        if self.history is not None:
            self.history += messages
        self.expected.add(*messages, repeats=True)
        self.memory.add(*messages, repeats=True)

    @rule(data=st.data(), messages=some_messages.filter(bool), archived=st.booleans(), on_a_branch=st.booleans())
    def add_unbounded(self, data, messages, archived, on_a_branch):
        after = None
        if on_a_branch:  # The conversation would be created although its message is not found.
            is_there = Conversation.objects.filter(memory_id=self.memory_id).exists()
            after = self.some_sequence(data) if is_there else 0
        outcomes = []
        for memory in (self.memory, self.expected):
            try:
                added = memory.store.append_messages(
                    self.memory_id,
                    messages,
                    memory.window().unbounded(),
                    after=after,
                    repeats=True,
                    archived=archived,
                )
                outcomes.append(added.keys)
            except MessageNotFoundError as exc:
                outcomes.append(exc.args)
        assert outcomes[0] == outcomes[1]
        if on_a_branch:
            self.history = None
        elif self.history is not None:
            self.history += messages

    @rule(count=st.integers(0, 4))
    def evict(self, count):
        assert self.memory.evict(count) == self.expected.evict(count)

    @rule(messages=some_messages)
    def set(self, messages):
        self.expected.set(messages)
        self.memory.set(messages)
        self.history = None  # Which of these messages are history is tested elsewhere.

    @rule(drop=st.integers(0, 3), messages=some_messages)
    def use_another_algorithm(self, drop, messages):
        now = [*self.memory.store.get_messages(self.memory_id)[drop:], *messages]
        self.expected.store.update_messages(self.memory_id, now)
        self.memory.store.update_messages(self.memory_id, now)
        self.history = None

    @rule()
    def clear(self):
        self.expected.clear()
        self.memory.clear()

    @rule(data=st.data())
    def rewind(self, data):
        self.continue_from(data, "rewind")

    @rule(data=st.data())
    def switch(self, data):
        self.continue_from(data, "switch")

    def continue_from(self, data, verb: str):
        to = self.some_sequence(data)
        assert self.outcome(self.memory, verb, to) == self.outcome(self.expected, verb, to)
        self.history = None

    @rule(
        data=st.data(),
        messages=some_messages,
        persist=st.sampled_from(["late", "early"]),
        fails=st.booleans(),
        in_between=st.sampled_from([None, "rewind", "switch"]),
    )
    def take_a_turn_on_a_branch(self, data, messages, persist, fails, in_between):
        after, to = self.some_sequence(data), self.some_sequence(data)
        outcomes = [
            turn_of(memory, persist, after, messages, fails, in_between, to) for memory in (self.memory, self.expected)
        ]
        assert outcomes[0] == outcomes[1]
        self.history = None

    @rule()
    def pop(self):
        assert self.outcome(self.memory, "pop") == self.outcome(self.expected, "pop")
        self.history = None

    @rule(data=st.data(), count=st.integers(0, 4), with_results=st.booleans())
    def remove(self, data, count, with_results):
        sequences = [self.some_sequence(data) for _ in range(count)]
        outcomes = [
            self.outcome(memory, "remove", *sequences, with_results=with_results)
            for memory in (self.memory, self.expected)
        ]
        assert outcomes[0] == outcomes[1]
        self.history = None

    @precondition(lambda self: self.keeps_history and self.estimator is not None and self.limit > 1)
    @rule(text=st.sampled_from(["so far", "so far it was all about the weather"]), after=st.integers(1, 20))
    def summarize(self, text, after):
        outcomes = [self.summary_of(memory, text, after) for memory in (self.memory, self.expected)]
        assert outcomes[0] == outcomes[1]

    def summary_of(self, memory: ChatMemory, text: str, after: int):
        handed = []
        summarizing = SummarizingChatMemory(
            id=self.memory_id,
            store=memory.store,
            max_tokens=self.limit,
            token_count_estimator=self.estimator,
            summarize=lambda *given: handed.append(given) or text,
            summary_tokens=self.limit - 1,
            after_tokens=after,
            always_keep_system_message_first=self.system_first,
        )
        try:
            stands = summarizing.summarize()
        except ValueError as exc:  # it is too large
            return handed, exc.args
        if stands:
            kept = memory.store.get_messages(self.memory_id)
            assert self.estimator.estimate_token_count_in_messages(kept) <= self.limit
        return handed, stands

    def some_sequence(self, data) -> int:
        conversation = Conversation.objects.filter(memory_id=self.memory_id).first()
        return data.draw(st.integers(0, 2 if conversation is None else conversation.next_sequence))

    def outcome(self, memory: ChatMemory, verb: str, *args, **options):
        try:
            return getattr(memory, verb)(*args, **options)
        except MessageNotFoundError as exc:
            return exc.args

    @rule(limit=limits)
    def change_the_limit(self, limit):
        self.limit = limit

    @rule(system_first=st.booleans())
    def change_the_place_of_system_messages(self, system_first):
        self.system_first = system_first
        self.rebuild()

    @rule(estimator=st.sampled_from([None, ADDITIVE_WORDS, ADDITIVE_LETTERS, JOINT]))
    def change_the_estimator(self, estimator):
        self.estimator = estimator
        self.rebuild()

    @invariant()
    def both_hold_the_same(self):
        if hasattr(self, "memory"):
            assert self.memory.messages() == self.expected.messages()
            assert self.memory.store.get_messages(self.memory_id) == self.expected.store.get_messages(self.memory_id)

    @invariant()
    def the_tables_hold_the_same(self):
        conversation = Conversation.objects.filter(memory_id=getattr(self, "memory_id", "")).first()
        if conversation is None:
            return
        rows = list(conversation.memory())
        stored = self.expected.store.get_messages(self.memory_id)
        assert [row.chat_message for row in rows] == stored
        assert conversation.memory_messages == len(stored)
        if conversation.counted_by:
            assert {row.counted_by for row in rows} <= {conversation.counted_by}
            assert conversation.memory_tokens == sum(row.token_count for row in rows)
        for row in conversation.messages.exclude(counted_by=""):
            estimator = {"words": ADDITIVE_WORDS, "letters": ADDITIVE_LETTERS}[row.counted_by]
            assert row.token_count == estimator.estimate_token_count_in_message(row.chat_message)
        sequences = {row.sequence for row in rows}
        assert (
            set(Message.objects.in_memory().filter(conversation=conversation).values_list("sequence", flat=True))
            == sequences
        )
        out = [row.sequence for row in conversation.history() if row.sequence not in sequences]
        assert [row.sequence for row in conversation.evicted()] == out
        assert (
            list(Message.objects.evicted().filter(conversation=conversation).values_list("sequence", flat=True)) == out
        )
        if self.keeps_history:
            assert list(conversation.messages.values_list("sequence", flat=True)) == list(
                range(1, conversation.next_sequence)
            )
            assert conversation.total_messages == conversation.history(all_branches=True).count()
        else:
            assert out == []

    @invariant()
    def the_rows_are_on_the_same_branches(self):
        conversation = Conversation.objects.filter(memory_id=getattr(self, "memory_id", "")).first()
        if conversation is None:
            return
        expected = self.expected.store._conversations[self.memory_id]
        rows = conversation.history(all_branches=True)
        assert [(row.sequence, row.on_path, row.parent_sequence) for row in rows] == [
            (key, row.on_path, row.parent) for key, row in sorted(expected.rows.items()) if row.in_history
        ]
        if self.keeps_history:
            assert (conversation.parent_sequence, conversation.forgotten_through) == (
                expected.parent,
                expected.forgotten_through,
            )
        assert not conversation.messages.filter(on_path=True, in_history=False).exists()

    @precondition(lambda self: self.keeps_history and self.history is not None)
    @invariant()
    def the_history_is_complete(self):
        conversation = Conversation.objects.filter(memory_id=self.memory_id).first()
        history = [] if conversation is None else [row.chat_message for row in conversation.history()]
        assert history == self.history


def places(rows: QuerySet[Message], conversation: Conversation) -> list[int]:
    return list(rows.filter(conversation=conversation).values_list("sequence", flat=True))


def without_repeated_system_messages(memory: list[ChatMessage], messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return *messages* without repetitions of the current system message."""
    systems = [message for message in memory if isinstance(message, SystemMessage)]
    added = []
    for message in messages:
        if isinstance(message, SystemMessage):
            if systems and systems[0] == message:
                continue
            systems = [*systems[1:], message]
        added.append(message)
    return added


def turn_of(
    memory: ChatMemory,
    persist: str,
    after: int,
    messages: list[ChatMessage],
    fails: bool,
    in_between: str | None = None,
    to: int = 0,
):
    try:
        with memory.turn(persist, after=after) as turn:
            seen = turn.messages
            for message in messages:
                turn.add(message)
                if in_between is not None and message is messages[0]:
                    getattr(memory, in_between)(to)
            seen = [seen, turn.messages]
            1 / (not fails)
    except MessageNotFoundError as exc:
        return exc.args
    except ZeroDivisionError:
        pass
    return seen


@pytest.mark.django_db
def test_the_django_store_matches_the_in_memory_store():
    run_state_machine_as_test(
        SameAsInMemory,
        settings=settings(
            max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
