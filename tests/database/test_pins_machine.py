"""After any sequence of operations, a memory with pins is what the sentences of docs/pins.md make of it."""

from __future__ import annotations

import itertools
from typing import NamedTuple

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
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.stores.base import PinError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS, words
from tests.strategies import IN_DATABASE

numbers = itertools.count()
MOST = 20


class Noted(NamedTuple):
    """A message as the oracle sees it."""

    kind: str
    """``user``, ``call`` or ``result``."""
    cost: int
    call: str = ""
    """Which call it is, or is a result of."""


class Oracle:
    """
    A conversation with pins, in plain Python.

    The memory is the pins that have left the window, in the order of the history, and the window.
    """

    def __init__(self, overhead: int) -> None:
        self.overhead = overhead
        self.noted: dict[int, Noted] = {}
        self.parent: dict[int, int] = {}
        self.path: list[int] = []
        self.window: list[int] = []
        self.pinned: set[int] = set()
        self.cleared = 0
        self.last = 0

    @property
    def outside(self) -> list[int]:
        """The pins of the path that have left the window."""
        return [each for each in self.path if each in self.pinned and each not in self.window]

    def cost(self, sequences: list[int]) -> int:
        return sum(self.noted[each].cost for each in sequences)

    def trimmed(self, limit: int, window: list[int] | None = None) -> tuple[list[int], list[int]]:
        """
        Return which pins are sent, and the window: while the memory exceeds the limit, the message at the front of the
        window leaves it, with the results directly behind it if it is a call. A pinned one joins the pins instead. Of
        these, the newest that fit in half of the limit are sent, a call never without the results behind it.
        """
        window = list(self.window if window is None else window)
        pins = [each for each in self.path if each in self.pinned and each not in window]
        if self.overhead + self.cost([*pins, *window]) <= limit:
            return pins, window
        pins = self.fitting(pins, limit)
        while window and self.overhead + self.cost([*pins, *window]) > limit:
            first = window.pop(0)
            stays, group = first in self.pinned, [first]
            while self.noted[first].kind == "call" and window and self.noted[window[0]].kind == "result":
                if (window[0] in self.pinned) != stays:
                    break
                group.append(window.pop(0))
            if stays:
                pins = self.fitting([*pins, *group], limit)
        return pins, window

    def fitting(self, pins: list[int], limit: int) -> list[int]:
        pins = list(pins)
        while pins and self.cost(pins) > limit // 2:
            first = pins.pop(0)
            while self.noted[first].kind == "call" and pins and self.noted[pins[0]].kind == "result":
                pins.pop(0)
        return pins

    def sent(self, limit: int) -> list[int]:
        pins, window = self.trimmed(limit)
        return [*pins, *window]

    def add(self, messages: list[Noted], limit: int) -> None:
        for message in messages:
            _, self.window = self.trimmed(limit)
            self.last += 1
            self.noted[self.last] = message
            self.parent[self.last] = self.path[-1] if self.path else 0
            self.path.append(self.last)
            self.window.append(self.last)
            _, self.window = self.trimmed(limit)

    def group(self, sequence: int) -> list[int]:
        """Return the message and what belongs to it: a call and its results, on the path or both on other branches."""
        call, on_path = self.noted[sequence].call, sequence in self.path
        members = [each for each, noted in self.noted.items() if call and noted.call == call]
        members = sorted(each for each in members if (each in self.path) == on_path)
        has_call = any(self.noted[each].kind == "call" for each in members)
        return members if has_call else [sequence]

    def can_pin(self, sequence: int, limit: int) -> bool:
        """At most twenty, and those of the path in half of the window."""
        group = set(self.group(sequence))
        if group <= self.pinned:
            return True
        everything = self.pinned | group
        return len(everything) <= MOST and self.cost([each for each in self.path if each in everything]) <= limit // 2

    def pin(self, sequence: int) -> list[int]:
        group = self.group(sequence)
        start = self.window[0] if self.window else self.last + 1
        back = [each for each in group if each > start and each not in self.window and each not in self.pinned]
        self.window = sorted([*self.window, *back])  # inside the window, it stands in its place
        self.pinned.update(group)
        return group

    def unpin(self, sequence: int) -> list[int]:
        group = self.group(sequence)
        self.pinned.difference_update(group)
        return group

    def evict(self, count: int) -> list[int]:
        """The first ones of the window leave it, but those pinned."""
        out = [each for each in self.window if each not in self.pinned][:count]
        self.window = [each for each in self.window if each not in out]
        return out

    def remove(self, sequence: int) -> None:
        parent = self.parent.pop(sequence)
        del self.noted[sequence]
        self.parent = {each: parent if above == sequence else above for each, above in self.parent.items()}
        self.path = [each for each in self.path if each != sequence]
        self.window = [each for each in self.window if each != sequence]
        self.pinned.discard(sequence)

    def clear(self) -> None:
        self.window, self.pinned = [], set()
        self.cleared = self.last

    def rewind(self, to: int, limit: int) -> None:
        path, each = [], to
        while each:
            path.insert(0, each)
            each = self.parent[each]
        is_inside = to in self.path and self.window and to >= self.window[0]
        if path == self.path:
            return
        self.path = path
        kept = [each for each in path if each > self.cleared]
        window = [each for each in self.window if each <= to] if is_inside else kept
        _, self.window = self.trimmed(limit, window)


class Pins(RuleBasedStateMachine):
    @initialize(estimator=st.sampled_from([None, ADDITIVE_WORDS]), limit=st.integers(1, 30))
    def begin(self, estimator, limit):
        self.memory_id = f"pins {next(numbers)}"
        self.estimator = estimator
        self.limit = limit if self.estimator is None else 4 * limit
        self.oracle = Oracle(0 if self.estimator is None else 3)
        self.calls = 0

    @property
    def memory(self) -> ChatMemory:
        store = DjangoChatMemoryStore(keep_history=True)
        if self.estimator is None:
            return MessageWindowChatMemory(max_messages=self.limit, id=self.memory_id, store=store)
        return TokenWindowChatMemory(
            max_tokens=self.limit, token_count_estimator=self.estimator, id=self.memory_id, store=store
        )

    def one(self, message: ChatMessage, kind: str, text: str, call: str = "") -> tuple[ChatMessage, Noted]:
        cost = 3 + words(text) + (words("look") + words("{}") + 2 if kind == "call" else 0)
        return message, Noted(kind, 1 if self.estimator is None else cost, call)

    def _add(self, several: list[tuple[ChatMessage, Noted]]) -> None:
        self.memory.add(*(message for message, _ in several))
        self.oracle.add([noted for _, noted in several], self.limit)

    @rule(texts=st.lists(st.integers(1, 12), min_size=1, max_size=4))
    def ask(self, texts):
        self._add([self.one(UserMessage("x " * count), "user", "x " * count) for count in texts])

    @rule(results=st.integers(0, 2), size=st.integers(1, 8))
    def call(self, results, size):
        self.calls += 1
        call, text = str(self.calls), "y " * size
        requests = [ToolExecutionRequest(id=f"{call}-{each}", name="look", arguments="{}") for each in range(2)]
        asked = AiMessage(tool_execution_requests=requests)
        cost = 1 if self.estimator is None else 3 + 2 * (words("look") + words("{}") + 2)
        several = [(asked, Noted("call", cost, call))]
        several += (
            self.one(ToolExecutionResultMessage(f"{call}-{each}", "look", text), "result", text, call)
            for each in range(results)
        )
        self._add(several)

    def some(self, data, sequences) -> int:
        return data.draw(st.sampled_from(sorted(sequences)))

    @precondition(lambda self: self.oracle.path)
    @rule(data=st.data())
    def pin(self, data):
        sequence = self.some(data, self.oracle.path)
        if self.oracle.can_pin(sequence, self.limit):
            assert self.memory.pin(sequence) == self.oracle.pin(sequence)
        else:
            with pytest.raises(PinError):
                self.memory.pin(sequence)

    @precondition(lambda self: self.oracle.noted)
    @rule(data=st.data())
    def unpin(self, data):
        sequence = self.some(data, self.oracle.pinned or self.oracle.noted)
        assert self.memory.unpin(sequence) == self.oracle.unpin(sequence)

    @rule(count=st.integers(0, 3))
    def evict(self, count):
        assert self.memory.evict(count) == self.oracle.evict(count)

    @precondition(lambda self: self.oracle.noted)
    @rule(data=st.data())
    def remove(self, data):
        sequence = self.some(data, self.oracle.noted)
        assert self.memory.remove(sequence) == [sequence]
        self.oracle.remove(sequence)

    @precondition(lambda self: any(each > self.oracle.cleared for each in self.oracle.noted))
    @rule(data=st.data())
    def rewind(self, data):
        to = self.some(data, [each for each in self.oracle.noted if each > self.oracle.cleared])
        self.memory.rewind(to)
        self.oracle.rewind(to, self.limit)

    @precondition(lambda self: len(self.oracle.noted) > 12 and not self.oracle.cleared)
    @rule()
    def clear(self):
        self.memory.clear()
        self.oracle.clear()

    @rule(limit=st.integers(1, 30))
    def change_the_limit(self, limit):
        self.limit = limit if self.estimator is None else 4 * limit

    @invariant()
    def the_memory_is_as_the_oracle_has_it(self):
        if not hasattr(self, "oracle"):
            return
        expected = self.oracle.sent(self.limit)
        assert [each.sequence for each in self.memory.explain(100) if each.is_sent] == expected
        assert len(self.memory.messages()) == len(expected)
        with self.memory.turn() as turn:
            assert len(turn.messages) == len(expected)

    @invariant()
    def what_is_stored_is_consistent(self):
        for conversation in Conversation.objects.filter(memory_id=getattr(self, "memory_id", "")):
            assert conversation.pinned_count == len(self.oracle.pinned)
            assert conversation.memory_messages == len(self.oracle.outside) + len(self.oracle.window)
            found: list[operations.Finding] = []
            operations.check(Conversation.objects.filter(pk=conversation.pk), lambda _: None, found.append)
            assert found == []


@pytest.mark.slow
@pytest.mark.django_db
def test_a_memory_with_pins_is_as_the_oracle():
    run_state_machine_as_test(Pins, settings=IN_DATABASE)
