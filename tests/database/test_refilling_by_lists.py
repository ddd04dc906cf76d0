"""A memory that is filled again is, after any steps and for any limit, what plain lists of the same messages are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.core.windows import Window
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
from chatmemory_django.stores import ChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.reference_store import ReferenceStore
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db


@dataclass
class Talk:
    """A conversation as plain lists: what is written, and what of it is remembered, by the sentences of docs/faq.md."""

    stored: dict[int, ChatMessage] = field(default_factory=dict)
    """All messages by their sequences, without what was removed."""
    path: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    summary: int | None = None
    through: int = 0
    """The last message that the summary covers, ..."""
    base: int = 0
    """... which covers nothing up to this one."""
    forgotten: int = 0
    kept_out: int = 0
    evicted_limit: int | None = None
    next: int = 1

    def shown(self, window: Window) -> list[ChatMessage]:
        """Return what is sent: the memory is filled again, and trimmed."""
        seen = self.filled(window).trimmed(window)
        lead = seen.lead()
        summary = [] if seen.summary is None else [seen.summary]
        return [self.stored[each] for each in (*lead, *summary, *seen.memory[len(lead) :])]

    def lead(self) -> list[int]:
        """Return the system message in front."""
        return [each for each in self.memory[:1] if self.is_system(each)]

    def filled(self, window: Window) -> Talk:
        """Bring back what fits of the path, if the limit is larger than the one that evicted last."""
        if self.evicted_limit is None or window.limit <= self.evicted_limit:
            return self
        start = [*self.memory[len(self.lead()) :], self.next][0]
        away = max(self.forgotten, self.kept_out, self.through if self.summary else 0)
        may_return = [each for each in self.path if away < each < start and not self.is_system(each)]
        most = window.limit
        if self.size(window, may_return) > window.limit:
            most = window.evict_to or window.limit
        back = may_return
        while back and (self.size(window, back) > most or isinstance(self.stored[back[0]], ToolExecutionResultMessage)):
            back = back[1:]
        return replace(self, memory=sorted([*back, *self.memory]), evicted_limit=window.limit)

    def trimmed(self, window: Window) -> Talk:
        """Evict the oldest messages but a system message in front, calls with their results, and last the summary."""
        talk = replace(self, memory=list(self.memory))
        if talk.size(window) <= window.limit:
            return talk
        talk.evicted_limit = window.limit
        while talk.size(window) > (window.evict_to or window.limit):
            rest = talk.memory[len(talk.lead()) :]
            group = rest[:1]
            if group and isinstance(self.stored[group[0]], AiMessage):
                results = takewhile(lambda each: isinstance(self.stored[each], ToolExecutionResultMessage), rest[1:])
                group = [group[0], *results]
            if not group or (talk.size(window) <= window.limit and group == rest):
                break  # the newest message stays if it fits
            talk.memory = [each for each in talk.memory if each not in group]
        if talk.size(window) > window.limit:
            talk.summary = None
        return talk

    def size(self, window: Window, back: Sequence[int] = ()) -> int:
        there = [*self.memory, *back, *([] if self.summary is None else [self.summary])]
        return window.total([self.stored[each] for each in there])

    def add(self, messages: Sequence[ChatMessage], window: Window) -> Talk:
        """Add *messages* one by one; a system message takes the place of the one that is there."""
        talk = self.filled(window)
        is_changed = False
        for message in messages:
            systems = [each for each in talk.memory if talk.is_system(each)][:1]
            if isinstance(message, SystemMessage) and systems and talk.stored[systems[0]] == message:
                continue
            is_changed = True
            talk = talk.trimmed(window)
            if isinstance(message, SystemMessage):
                talk.memory = [each for each in talk.memory if each not in systems]
            talk = talk.store(message)
            talk.path = [*talk.path, talk.next - 1]
            talk.memory.append(talk.next - 1)
            talk = talk.trimmed(window)
        return talk if is_changed else self

    def set(self, given: Sequence[ChatMessage], window: Window) -> Talk:
        """Let the memory be those of *given* that fit."""
        talk = self.filled(window)
        list_of_its_own = Talk(dict(enumerate(given, 1)), [], list(range(1, len(given) + 1)))
        trimmed = list_of_its_own.trimmed(window)
        new = [trimmed.stored[each] for each in trimmed.memory]
        if talk.summary is None and new == [talk.stored[each] for each in talk.memory]:
            return self
        old, texts = talk.memory, {id(talk.stored[each]): each for each in talk.memory}
        stays = [texts[id(each)] for each in new if id(each) in texts]
        goes_on = not old or (stays and (stays == old[-len(stays) :] or (stays[:1] == talk.lead() and stays[1:])))
        not_dropped = [texts[id(each)] for each in given if id(each) in texts] if goes_on else []
        dropped = [each for each in old if each not in not_dropped and not talk.is_system(each)]
        talk = replace(talk, summary=None, memory=stays if goes_on else [], kept_out=max([talk.kept_out, *dropped]))
        if trimmed.evicted_limit is not None:
            talk.evicted_limit = window.limit
        if not goes_on:
            talk.forgotten = max([0, *talk.path])
        for message in new[len(stays) if goes_on else 0 :]:
            talk = talk.store(message)
            talk.memory.append(talk.next - 1)
            if goes_on:
                talk.path = [*talk.path, talk.next - 1]
        return talk

    def evict(self, count: int, window: Window) -> Talk:
        """Evict the first *count* messages, which stay away, and so does what came before them."""
        talk = self.filled(window)
        lead, summary = talk.lead(), [] if talk.summary is None else [talk.summary]
        out = [*lead, *summary, *talk.memory[len(lead) :]][:count]
        if not out:
            return self
        kept_out = max([talk.kept_out, *(each for each in out if not talk.is_system(each))])
        left = [each for each in talk.memory if each not in out]
        return replace(talk, memory=left, summary=None if talk.summary in out else talk.summary, kept_out=kept_out)

    def remove(self, sequence: int) -> Talk:
        """Remove a message, and the summary that covers it."""
        is_covered = self.summary is not None and self.base < sequence <= self.through
        return replace(
            self,
            path=[each for each in self.path if each != sequence],
            memory=[each for each in self.memory if each != sequence],
            summary=None if is_covered else self.summary,
        )

    def clear(self) -> Talk:
        """Forget everything."""
        return replace(self, memory=[], summary=None, forgotten=max([self.forgotten, *self.path]))

    def pending(self) -> list[int]:
        away = max(self.forgotten, self.through if self.summary else 0)
        end = [*self.memory[len(self.lead()) :], self.next][0]
        return [each for each in self.path if away < each < end and not self.is_system(each)]

    def summarize(self, message: SystemMessage, window: Window) -> Talk:
        """Let *message* stand for all that has left the memory, if it fits."""
        if not self.pending():
            return self
        talk = self.store(message)
        talk.summary, talk.through, talk.base = talk.next - 1, self.pending()[-1], self.forgotten
        talk = talk.trimmed(window)
        return self if talk.summary is None else talk

    def store(self, message: ChatMessage) -> Talk:
        return replace(self, stored={**self.stored, self.next: message}, next=self.next + 1, memory=list(self.memory))

    def is_system(self, sequence: int) -> bool:
        return isinstance(self.stored[sequence], SystemMessage)


KINDS = st.sampled_from(["user", "user", "user", "call", "result", "result", "system"])
STEPS = st.one_of(
    st.tuples(st.just("add"), st.lists(KINDS, min_size=1, max_size=4)),
    st.tuples(st.just("add"), st.lists(KINDS, min_size=1, max_size=4)),
    st.tuples(st.just("resize"), st.integers(1, 12)),
    st.tuples(st.just("resize"), st.integers(1, 12)),
    st.tuples(st.just("evict"), st.integers(1, 3)),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("set"), st.tuples(st.booleans(), st.integers(0, 3), st.lists(KINDS, max_size=2))),
    st.tuples(st.just("clear"), st.none()),
    st.tuples(st.just("summarize"), st.none()),
)


class Walk:
    """A memory and a ``Talk`` that do the same."""

    def __init__(self, store: ChatMemoryStore, unit: int, has_mark: bool) -> None:
        self.store, self.unit, self.has_mark, self.limit = store, unit, has_mark, 3
        self.talk, self.count = Talk(), 0

    def memory(self, limit: int | None = None) -> ChatMemory:
        limit = limit or self.limit
        mark = limit // 2 if self.has_mark and limit > 1 else None
        options = {"id": "a", "store": self.store, "refill": True, "evict_to": mark and mark * self.unit}
        if self.unit == 1:
            return MessageWindowChatMemory(max_messages=limit, **options)
        return TokenWindowChatMemory(max_tokens=limit * self.unit, token_count_estimator=ADDITIVE_WORDS, **options)

    def message(self, kind: str) -> ChatMessage:
        self.count += 1
        if kind == "system":
            return SystemMessage("be " + "very " * (self.count % 2) + "kind")
        if kind == "user":
            return UserMessage(f"{self.count} " + "word " * (self.count % 3))
        call = ToolExecutionRequest("1", "look", f'{{"n": {self.count}}}')
        return (
            AiMessage(tool_execution_requests=[call])
            if kind == "call"
            else ToolExecutionResultMessage("1", "look", str(self.count))
        )

    def step(self, name: str, given: object) -> None:
        memory, window = self.memory(), self.memory().window()
        match name, given:
            case "add", kinds:
                messages = [self.message(kind) for kind in kinds]
                memory.add(*messages)
                self.talk = self.talk.add(messages, window)
            case "resize", limit:
                self.limit = limit
            case "evict", count:
                memory.evict(count)
                self.talk = self.talk.evict(count, window)
            case "remove", index if self.talk.path:
                sequence = self.talk.path[index % len(self.talk.path)]
                memory.remove(sequence)
                self.talk = self.talk.remove(sequence)
            case "set", (keeps_lead, drop, kinds) if self.talk.summary is None:
                read = self.talk.shown(window)
                lead = len(self.talk.filled(window).trimmed(window).lead()) if keeps_lead else 0
                messages = [*read[:lead], *read[lead + drop :], *(self.message(kind) for kind in kinds)]
                memory.set(messages)
                self.talk = self.talk.set(messages, window)
            case "clear", _:
                memory.clear()
                self.talk = self.talk.clear()
            case "summarize", _ if (pending := self.store.read_pending("a", window, 10**6)) is not None:
                summary = SystemMessage("so far")
                assert pending.keys == self.talk.pending()
                self.store.put_summary("a", pending, summary, window)
                self.talk = self.talk.summarize(summary, window)

    def check(self) -> None:
        for limit in {self.limit, 1, 4, 7, 30}:
            memory = self.memory(limit)
            shown = self.talk.shown(memory.window())
            assert memory.messages() == shown
            assert [each.sent for each in memory.explain(1000) if each.is_sent] == shown


@given(steps=st.lists(STEPS, max_size=20), unit=st.sampled_from([1, 5]), has_mark=st.booleans())
def test_a_memory_without_a_database_is_what_plain_lists_are(steps, unit, has_mark):
    follow(Walk(ReferenceStore(), unit, has_mark), steps)


@pytest.mark.slow
@IN_DATABASE
@given(steps=st.lists(STEPS, max_size=20), unit=st.sampled_from([1, 5]), has_mark=st.booleans())
def test_a_memory_in_the_database_is_what_plain_lists_are(steps, unit, has_mark):
    Conversation.objects.all().delete()
    follow(Walk(DjangoChatMemoryStore(), unit, has_mark), steps)


def follow(walk: Walk, steps: Sequence[tuple[str, object]]) -> None:
    for step in steps:
        walk.step(*step)
        walk.check()
