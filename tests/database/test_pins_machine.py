"""After any sequence of operations, a memory with pins is what the sentences of docs/pins.md make of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chatmemory_django import operations
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.stores.base import PinError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.oracle import Oracle, Window
from tests.strategies import IN_DATABASE

numbers = itertools.count()


class Pins(RuleBasedStateMachine):
    @initialize(estimator=st.sampled_from([None, ADDITIVE_WORDS]), limit=st.integers(1, 30))
    def begin(self, estimator, limit):
        self.memory_id = f"pins {next(numbers)}"
        self.estimator = estimator
        self.change_the_limit(limit, evicts_more=False)
        self.oracle = Oracle()
        self.calls = 0

    @property
    def memory(self) -> ChatMemory:
        store = DjangoChatMemoryStore(keep_history=True)
        limit, low = self.window.limit, self.window.evict_to
        if self.estimator is None:
            return MessageWindowChatMemory(max_messages=limit, id=self.memory_id, store=store, evict_to=low)
        return TokenWindowChatMemory(
            max_tokens=limit, token_count_estimator=self.estimator, id=self.memory_id, store=store, evict_to=low
        )

    def _add(self, *messages: ChatMessage) -> None:
        assert self.memory.add(*messages) == self.oracle.add(messages, self.window)

    @rule(texts=st.lists(st.integers(1, 12), min_size=1, max_size=4))
    def ask(self, texts):
        self._add(*(UserMessage("x " * count) for count in texts))

    @rule(size=st.integers(1, 3))
    def instruct(self, size):
        self._add(SystemMessage("s " * size))

    @rule(results=st.integers(0, 2), size=st.integers(1, 8))
    def call(self, results, size):
        self.calls += 1
        ids = [f"{self.calls}-{each}" for each in range(2)]
        asked = AiMessage(
            tool_execution_requests=[ToolExecutionRequest(id=each, name="look", arguments="{}") for each in ids]
        )
        self._add(asked, *(ToolExecutionResultMessage(each, "look", "y " * size) for each in ids[:results]))

    def some(self, data, sequences) -> int:
        return data.draw(st.sampled_from(sorted(sequences)))

    @precondition(lambda self: self.oracle.path())
    @rule(data=st.data())
    def pin(self, data):
        sequence = self.some(data, self.oracle.path())
        if self.oracle.can_pin(sequence, self.window):
            assert self.memory.pin(sequence) == self.oracle.pin(sequence)
        else:
            with pytest.raises(PinError):
                self.memory.pin(sequence)

    @precondition(lambda self: self.oracle.history())
    @rule(data=st.data())
    def unpin(self, data):
        sequence = self.some(data, self.oracle.pins or self.oracle.history())
        assert self.memory.unpin(sequence) == self.oracle.unpin(sequence)

    @rule(count=st.integers(0, 3))
    def evict(self, count):
        assert self.memory.evict(count) == self.oracle.evict(count)

    @precondition(lambda self: self.oracle.history())
    @rule(data=st.data())
    def remove(self, data):
        sequence = self.some(data, self.oracle.history())
        assert self.memory.remove(sequence) == self.oracle.remove(sequence)

    @precondition(lambda self: self.oracle.history())
    @rule(data=st.data())
    def rewind(self, data):
        to = self.some(data, self.oracle.history())
        self.memory.rewind(to)
        self.oracle.rewind(to, self.window)

    @precondition(lambda self: len(self.oracle.history()) > 12 and not self.oracle.cuts)
    @rule()
    def clear(self):
        self.memory.clear()
        self.oracle.clear()

    @rule(start=st.integers(0, 3), more=st.integers(0, 2))
    def set(self, start, more):
        messages = [*self.memory.messages()[start:], *[UserMessage("new")] * more]
        self.memory.set(messages)
        self.oracle.set(messages, self.window)

    @rule(limit=st.integers(1, 30), evicts_more=st.booleans())
    def change_the_limit(self, limit, evicts_more):
        most = limit if self.estimator is None else 4 * limit
        self.window = Window(most, self.estimator, evict_to=most // 2 or None if evicts_more else None)

    @invariant()
    def the_memory_is_as_the_oracle_has_it(self):
        if not hasattr(self, "oracle"):
            return
        seen = self.oracle.seen(self.window)
        sent = [each for each in seen.memory() if each not in seen.aside]
        assert [each.sequence for each in self.memory.explain(100) if each.is_sent] == sent
        assert self.memory.messages() == seen.memory_messages()
        with self.memory.turn() as turn:
            assert turn.messages == seen.memory_messages()

    @invariant()
    def what_is_stored_is_consistent(self):
        for conversation in Conversation.objects.filter(memory_id=getattr(self, "memory_id", "")):
            assert conversation.pinned_count == len(self.oracle.pins)
            assert conversation.memory_messages == len(self.oracle.memory())
            found: list[operations.Finding] = []
            operations.check(Conversation.objects.filter(pk=conversation.pk), lambda _: None, found.append)
            assert found == []


@pytest.mark.slow
@pytest.mark.django_db
def test_a_memory_with_pins_is_as_the_oracle():
    run_state_machine_as_test(Pins, settings=IN_DATABASE)
