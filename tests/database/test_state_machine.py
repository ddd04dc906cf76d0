"""After any sequence of operations, stores are as the oracle; see ``tests.oracle``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import pytest
from django.core.files.storage import storages
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chatmemory_django.contrib.files.models import MediaReference
from chatmemory_django.contrib.files.moving import move_files
from chatmemory_django.core.reasons import Reason
from chatmemory_django.core.shortening import shortened
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
from chatmemory_django.operations import fork
from chatmemory_django.operations.one_by_one import as_kept
from chatmemory_django.stores import ChatMemoryStore
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_LETTERS, ADDITIVE_WORDS, JOINT
from tests.oracle import Clears, MissingError, Oracle, Window, marker
from tests.pictures import assert_consistent, custom, picture, use_storage
from tests.reference_store import ReferenceStore
from tests.strategies import IN_DATABASE

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
    ToolExecutionResultMessage("1", "look", "found " * 25),
    CustomMessage({"any": "json"}),
    picture(1),
    picture(2),
    custom(1),
]
some_messages = st.lists(st.sampled_from(POOL), max_size=4)
limits = st.one_of(st.integers(1, 8), st.integers(1, 40), st.integers(30, 120))  # small ones evict more
clears = st.one_of(
    st.none(), st.tuples(st.integers(0, 2), st.sampled_from([None, 10, 40]), st.sampled_from([(), ["read"]]))
)
estimators = st.sampled_from([None, ADDITIVE_WORDS, ADDITIVE_LETTERS, JOINT])
numbers = itertools.count()
EVERYTHING = 10**6
OUT = {Reason.EVICTED, Reason.SUMMARIZED, Reason.SUPERSEDED, Reason.OFF_PATH}
"""The reasons for which a message is not in the memory."""


class InPlainDicts(RuleBasedStateMachine):
    """The reference store: without a database, the rules of branches and windows are quick to try."""

    store_class: type[ChatMemoryStore] = ReferenceStore

    @initialize(
        keep_history=st.sampled_from([True, True, True, False]),
        estimator=estimators,
        limit=limits,
        system_first=st.booleans(),
        evicts_more=st.booleans(),
        refills=st.booleans(),
        clears=clears,
    )
    def begin(self, keep_history, estimator, limit, system_first, evicts_more, refills, clears):
        self.clears = clears
        self.evicts_more = evicts_more
        self.refills = refills
        self.memory_id = f"machine {next(numbers)}"
        self.keeps_history = keep_history
        self.estimator = estimator
        self.limit = limit
        self.system_first = system_first
        self.oracle = Oracle()
        self.store = self.store_class(keep_history=keep_history)
        self.rebuild()

    def rebuild(self) -> None:
        self.memory = self.build(self.store)

    def build(self, store: ChatMemoryStore) -> ChatMemory:
        options = {
            "id": self.memory_id,
            "store": store,
            "evict_to": self.low,
            "always_keep_system_message_first": self.system_first,
            "refill": self.refills,
            "clear_tool_results": self.clears and Clears(*self.clears)._asdict(),
        }
        if self.estimator is None:
            return MessageWindowChatMemory(max_messages=lambda _: self.limit, **options)
        return TokenWindowChatMemory(max_tokens=lambda _: self.limit, token_count_estimator=self.estimator, **options)

    @property
    def window(self) -> Window:
        return Window(
            self.limit,
            self.estimator,
            self.system_first,
            evict_to=self.low,
            refills=self.refills,
            clears=self.clears and Clears(*self.clears),
        )

    @property
    def low(self) -> int | None:
        """What the memory is evicted to, once it exceeds the limit."""
        return self.limit // 2 if self.evicts_more and self.limit > 1 else None

    @property
    def most_of_a_summary(self) -> int:
        return (self.low or self.limit) - 1

    def do(self, expected: Callable[[Oracle], Any], actual: Callable[[ChatMemory], Any]) -> None:
        """Do the same to the oracle and the store, which must return the same."""
        outcome = outcome_of(expected, self.oracle)
        self.forget(self.oracle)
        assert outcome_of(actual, self.memory) == outcome

    def forget(self, oracle: Oracle) -> None:
        if not self.keeps_history:
            oracle.forget_history()

    def some_sequence(self, data) -> int:
        """Draw the sequence of a message: often of the head, of one of the path, or of one that is not there."""
        path = self.oracle.path()
        # Without history, it is undefined whether a memory that was set still follows a message that is gone.
        first = int(not self.keeps_history and not path)
        return data.draw(st.one_of(st.sampled_from([first, *path[-4:]]), st.integers(first, self.oracle.next)))

    @rule(messages=some_messages, repeats=st.booleans())
    def add(self, messages, repeats):
        self.do(
            lambda oracle: oracle.add(messages, self.window, repeats=repeats),
            lambda memory: memory.add(*messages, repeats=repeats),
        )

    @rule(results=st.lists(st.sampled_from([("look", 3), ("look", 25), ("read", 40)]), min_size=1, max_size=4))
    def ask_what_needs_tools(self, results):
        calls = [ToolExecutionRequest(str(number), name, "{}") for number, (name, _) in enumerate(results)]
        found = [
            ToolExecutionResultMessage.from_request(call, f"{name} " * count)
            for call, (name, count) in zip(calls, results, strict=True)
        ]
        messages = [UserMessage("look"), AiMessage(tool_execution_requests=calls), *found, AiMessage("done")]
        self.do(lambda oracle: oracle.add(messages, self.window), lambda memory: memory.add(*messages))

    @rule(data=st.data(), messages=some_messages.filter(bool))
    def add_after(self, data, messages):
        after = self.some_sequence(data)
        self.do(
            lambda oracle: oracle.add(messages, self.window, after=after),
            lambda memory: memory.add(*messages, after=after),
        )

    @rule(data=st.data(), messages=some_messages.filter(bool), archived=st.booleans(), on_a_branch=st.booleans())
    def add_unbounded(self, data, messages, archived, on_a_branch):
        after = self.some_sequence(data) if on_a_branch else None
        options = {"after": after, "repeats": True, "archived": archived}
        self.do(
            lambda oracle: oracle.add(messages, Window.unbounded(), **options),
            lambda memory: (
                memory.store.append_messages(self.memory_id, messages, memory.window().unbounded(), **options).keys
            ),
        )

    @rule(count=st.integers(0, 4))
    def evict(self, count):
        self.do(lambda oracle: oracle.evict(count, self.window), lambda memory: memory.evict(count))

    @rule(messages=some_messages)
    def set(self, messages):
        self.do(lambda oracle: oracle.set(messages, self.window), lambda memory: memory.set(messages))

    @rule(drop=st.integers(0, 3), messages=some_messages)
    def set_what_is_read(self, drop, messages):
        """Do as programs do that read a memory, change the list, and set it."""
        now = [*self.oracle.seen(self.window).memory_messages()[drop:], *messages]
        self.do(lambda oracle: oracle.set(now, self.window), lambda memory: memory.set(now))

    @rule(drop=st.integers(0, 3), messages=some_messages)
    def use_another_algorithm(self, drop, messages):
        if not self.keeps_history and self.oracle.head in self.oracle.memory()[:drop]:
            drop = 0  # undefined as well: a pinned system message is the newest one, and would be gone
        now = [*self.oracle.memory_messages()[drop:], *messages]
        self.do(lambda oracle: oracle.set(now), lambda memory: memory.store.update_messages(self.memory_id, now))

    @rule()
    def clear(self):
        self.do(lambda oracle: oracle.clear(), lambda memory: memory.clear())

    @rule(data=st.data())
    def rewind(self, data):
        to = self.some_sequence(data)
        self.do(lambda oracle: oracle.rewind(to, self.window), lambda memory: memory.rewind(to))

    @rule(data=st.data())
    def switch(self, data):
        to = self.some_sequence(data)
        self.do(lambda oracle: oracle.switch(to, self.window), lambda memory: memory.switch(to))

    @rule(
        data=st.data(),
        messages=some_messages,
        persist=st.sampled_from(["late", "early"]),
        in_rounds=st.booleans(),
        on_a_branch=st.booleans(),
        fails=st.booleans(),
        in_between=st.sampled_from([None, "rewind", "switch", "clear", "evict", "remove"]),
    )
    def take_a_turn(self, data, messages, persist, in_rounds, on_a_branch, fails, in_between):
        after, to = self.some_sequence(data) if on_a_branch else None, self.some_sequence(data)
        arguments = () if in_between == "clear" else (to,)

        def interrupt(memory: ChatMemory) -> None:
            if in_between is not None:
                getattr(memory, in_between)(*arguments)

        def interrupt_oracle(oracle: Oracle) -> None:
            if in_between is not None:
                moves = in_between in {"rewind", "switch", "evict"}
                getattr(oracle, in_between)(*arguments, *[self.window] * moves)
                self.forget(oracle)

        stores = Stores(persist == "early", in_rounds, self.keeps_history)
        self.do(
            lambda oracle: turn_of_the_oracle(
                oracle, self.window, stores, after, messages, fails, interrupt_oracle, self.forget
            ),
            lambda memory: turn_of(memory, persist, after, messages, fails, interrupt, in_rounds=in_rounds),
        )

    @rule()
    def pop(self):
        self.do(lambda oracle: oracle.pop(self.window), lambda memory: memory.pop())

    @rule(data=st.data(), count=st.integers(1, 3), with_results=st.booleans())
    def remove(self, data, count, with_results):
        sequences = [self.some_sequence(data) for _ in range(count)]
        self.do(
            lambda oracle: oracle.remove(*sequences, with_results=with_results),
            lambda memory: memory.remove(*sequences, with_results=with_results),
        )

    @precondition(lambda self: self.keeps_history and self.estimator is not None and self.most_of_a_summary > 0)
    @rule(text=st.sampled_from(["so far", "so far it was all about the weather"]), after=st.integers(1, 20))
    def summarize(self, text, after):
        self.do(
            lambda oracle: self.summary_of_the_oracle(oracle, text, after),
            lambda memory: self.summary_of(memory, text, after),
        )

    def summary_of(self, memory: ChatMemory, text: str, after: int):
        handed = []
        summarizing = SummarizingChatMemory(
            id=self.memory_id,
            store=memory.store,
            max_tokens=self.limit,
            token_count_estimator=self.estimator,
            summarize=lambda *given: handed.append(given) or text,
            summary_tokens=self.most_of_a_summary,
            after_tokens=after,
            evict_to=self.low,
            always_keep_system_message_first=self.system_first,
        )
        note_no_failure(memory)
        try:
            stands = summarizing.summarize()
        except ValueError:
            return handed, "too large"
        if stands:
            kept = memory.store.get_messages(self.memory_id)
            assert self.estimator.estimate_token_count_in_messages(kept) <= self.limit
        return handed, stands

    def summary_of_the_oracle(self, oracle: Oracle, text: str, after: int):
        summary, window = SystemMessage(text), self.window
        most = max(self.limit, after)
        covered, has_more = oracle.to_summarize(window, most)
        messages = [oracle.messages[each] for each in covered]
        tokens = sum(map(window.cost, messages))
        if not covered or not (has_more or tokens >= after):
            return [], False
        if tokens > most:
            messages = shortened(messages, window.cost, most)
        previous = None if oracle.summary is None else oracle.messages[oracle.summary].text
        if window.cost(summary) > self.most_of_a_summary:
            return [(previous, messages)], "too large"
        return [(previous, messages)], oracle.put_summary(summary, covered, window)

    @rule(clears=clears)
    def change_what_is_cleared(self, clears):
        self.clears = clears
        self.rebuild()

    @rule(estimator=estimators, system_first=st.booleans(), refills=st.booleans(), change=st.integers(0, 2))
    def change_the_window(self, estimator, system_first, refills, change):
        self.estimator, self.system_first, self.refills = (
            new if each == change else old
            for each, (new, old) in enumerate(
                [(estimator, self.estimator), (system_first, self.system_first), (refills, self.refills)]
            )
        )
        self.rebuild()

    @rule(limit=limits)
    def change_the_limit(self, limit):
        self.limit = limit
        self.rebuild()

    @invariant()
    def it_sends_the_same(self):
        if not hasattr(self, "oracle"):
            return
        shown = self.oracle.seen(self.window).memory_messages()
        memory = self.memory
        assert memory.messages() == shown
        explained = memory.explain(EVERYTHING)
        # No file is read to explain where messages are.
        kept = as_kept if isinstance(memory.store, DjangoChatMemoryStore) else lambda message: message
        assert [each.sent for each in explained if each.is_sent] == list(map(kept, shown))
        remembered = [(each.sequence, each.message) for each in explained if each.reason not in OUT]
        # In the order in which it is sent: as it is read, a system message can lead that does not lead as stored.
        filled = self.oracle.filled_again(self.window)
        expected = [(sequence, kept(message)) for sequence, message in memory_of(filled)]
        assert sorted(remembered, key=itemgetter(0)) == sorted(expected, key=itemgetter(0))
        assert memory.store.get_messages(self.memory_id) == self.oracle.memory_messages()
        if self.keeps_history:
            assert pending_in(memory) == self.oracle.pending()
            off_path = {each.sequence for each in explained if each.reason == Reason.OFF_PATH}
            assert off_path == self.oracle.parents.keys() - self.oracle.path()


class InTheDatabase(InPlainDicts):
    """The store in the database, with its tables, its files and forks."""

    store_class = DjangoChatMemoryStore

    @precondition(lambda self: self.keeps_history and self.oracle.next > 1)
    @rule(data=st.data(), is_whole=st.booleans(), message=st.sampled_from(POOL))
    def fork(self, data, is_whole, message):
        """Fork the conversation, and go on in the copy."""
        through = None if is_whole else self.some_sequence(data)
        to = self.some_sequence(data)
        conversation = Conversation.objects.get(memory_id=self.memory_id)
        copy = self.oracle.forked(through, self.window) if through in {None, 0, *self.oracle.history()} else None
        try:
            forked = fork(conversation, through=through, window=self.memory.window())
        except MessageNotFoundError:
            assert copy is None
            return
        other = self.build(self.store)
        other.id = forked.memory_id
        self.check_fork(other, copy)
        assert other.add(message) == copy.add([message], self.window)
        self.check_fork(other, copy)
        rewound = outcome_of(lambda memory: memory.rewind(to), other)
        assert rewound == outcome_of(lambda oracle: oracle.rewind(to, self.window), copy)
        self.check_fork(other, copy)
        Conversation.objects.filter(pk=forked.pk).delete()

    def check_fork(self, memory: ChatMemory, oracle: Oracle) -> None:
        assert memory_in_tables(memory) == kept_of(oracle)
        assert tree_in_tables(memory) == tree_of(oracle)
        assert pending_in(memory) == oracle.pending()

    @rule()
    def move_files_there_and_back(self):
        conversations = Conversation.objects.filter(memory_id=self.memory_id)
        moved = move_files(conversations, to_rows=True)
        assert not MediaReference.objects.filter(conversation__in=conversations).exists()
        assert move_files(conversations) == moved

    @invariant()
    def each_file_has_a_message_and_each_message_its_files(self):
        assert_consistent(storages["chats"])

    @invariant()
    def the_tables_hold_the_same(self):
        if not hasattr(self, "oracle"):
            return
        oracle, conversation = self.oracle, Conversation.objects.filter(memory_id=self.memory_id).first()
        if conversation is None:
            assert oracle.next == 1
            return
        assert memory_in_tables(self.memory) == kept_of(oracle)
        assert [row.sequence for row in conversation.history()] == oracle.path()
        assert [row.sequence for row in conversation.history(all_branches=True)] == sorted(oracle.history())
        stored = {row.sequence: row for row in conversation.messages.all()}
        assert stored.keys() >= oracle.messages.keys()
        for sequence, row in stored.items():
            if sequence in oracle.messages:
                assert row.chat_message == as_kept(oracle.messages[sequence])
            else:  # only that there was something is known
                nothing = (row.text, row.payload, row.verbatim, row.metadata, row.token_count, row.counted_by)
                assert nothing == ("", None, None, None, None, "")
        assert {each for each, row in stored.items() if row.is_cleared} == oracle.cleared
        if self.keeps_history:
            assert list(stored) == list(range(1, oracle.next))
            assert tree_in_tables(self.memory) == tree_of(oracle)
            assert conversation.total_messages == len(oracle.parents)
        else:
            assert stored.keys() - oracle.memory() == {each for each in stored if each not in oracle.messages}

    @invariant()
    def the_counters_and_querysets_agree(self):
        conversation = Conversation.objects.filter(memory_id=getattr(self, "memory_id", "")).first()
        if conversation is None:
            return
        rows = list(conversation.memory())
        assert conversation.memory_messages == len(rows)
        if conversation.counted_by:
            assert {row.counted_by for row in rows} <= {conversation.counted_by}
            assert conversation.memory_tokens == sum(row.token_count for row in rows)
        for row in conversation.messages.exclude(counted_by=""):
            estimator = {"words": ADDITIVE_WORDS, "letters": ADDITIVE_LETTERS}[row.counted_by]
            sent = marker(row.chat_message) if row.is_cleared else row.chat_message
            assert row.token_count == estimator.estimate_token_count_in_message(sent)
        sequences = {row.sequence for row in rows}
        remembered = Message.objects.in_memory().filter(conversation=conversation)
        assert set(remembered.values_list("sequence", flat=True)) == sequences
        out = [each for each in self.oracle.path() if each not in sequences]
        assert [row.sequence for row in conversation.evicted()] == out
        evicted = Message.objects.evicted().filter(conversation=conversation)
        assert list(evicted.values_list("sequence", flat=True)) == out
        assert not conversation.messages.filter(on_path=True, in_history=False).exists()


def outcome_of(call: Callable[[Any], Any], memory: Any) -> Any:
    try:
        return call(memory)
    except MissingError as exc:
        return "missing", exc.args[0]
    except MessageNotFoundError as exc:
        return "missing", exc.sequence


def memory_of(oracle: Oracle) -> list[tuple[int, ChatMessage]]:
    return [(each, oracle.messages[each]) for each in oracle.memory()]


def kept_of(oracle: Oracle) -> list[tuple[int, ChatMessage]]:
    """Return the memory with what the tables keep of its files."""
    return [(sequence, as_kept(message)) for sequence, message in memory_of(oracle)]


def tree_of(oracle: Oracle) -> tuple[int, dict[int, int], list[int]]:
    return oracle.head, oracle.parents, oracle.path()


def memory_in_tables(memory: ChatMemory) -> list[tuple[int, ChatMessage]]:
    conversation = Conversation.objects.get(memory_id=memory.id)
    return [(row.sequence, row.chat_message) for row in conversation.memory()]


def tree_in_tables(memory: ChatMemory) -> tuple[int, dict[int, int], list[int]]:
    """Return the head, the parents and the path. A row's parent is the one before it unless it names another."""
    conversation = Conversation.objects.get(memory_id=memory.id)
    parents: dict[int, int] = {}
    before = 0
    for row in conversation.history(all_branches=True):
        parents[row.sequence] = before if row.parent_sequence is None else row.parent_sequence
        before = row.sequence
    head = before if conversation.parent_sequence is None else conversation.parent_sequence
    return head, parents, [row.sequence for row in conversation.history()]


def note_no_failure(memory: ChatMemory) -> None:
    """Let the next summary be as if the one before it had not failed: what follows failures has tests of its own."""
    if isinstance(memory.store, DjangoChatMemoryStore):
        Conversation.objects.filter(memory_id=memory.id).update(summary_failure=None)
    elif memory.id in memory.store.conversations:
        memory.store.conversations[memory.id].failure = None


def pending_in(memory: ChatMemory) -> list[int]:
    pending = memory.store.read_pending(memory.id, memory.window(), EVERYTHING)
    return [] if pending is None else pending.keys


def turn_of(
    memory: ChatMemory,
    persist: str,
    after: int | None,
    messages: list[ChatMessage],
    fails: bool,
    interrupt: Callable[[ChatMemory], None],
    *,
    in_rounds: bool = False,
):
    try:
        with memory.turn(persist, after=after) as turn:
            seen = [turn.messages]
            for message in messages:
                turn.add(message)
                if in_rounds:
                    turn.save()
                if message is messages[0]:
                    interrupt(memory)
            seen.append(turn.messages)
            1 / (not fails)
    except ZeroDivisionError:
        pass
    return seen


class Stores(NamedTuple):
    """What a turn stores before it ends: each user message if it *is_early*, and each message if it is *in_rounds*."""

    is_early: bool
    in_rounds: bool
    keeps_history: bool

    def aside(self, message: ChatMessage, after: int | None) -> bool:
        """Return whether *message* is stored as a branch that nobody has entered yet, which needs a history."""
        return self.is_early and isinstance(message, UserMessage) and after is not None and self.keeps_history

    def now(self, message: ChatMessage, after: int | None) -> bool:
        """Return whether *message* is stored at the end of the path."""
        return self.in_rounds or (self.is_early and isinstance(message, UserMessage) and after is None)


def turn_of_the_oracle(
    oracle: Oracle,
    window: Window,
    stores: Stores,
    after: int | None,
    messages: list[ChatMessage],
    fails: bool,
    interrupt: Callable[[Oracle], None],
    forget: Callable[[Oracle], None],
):
    """
    Return the same for the oracle.

    Nothing leaves the memory for what is stored before the turn ends. An equal system message may be one of before it.
    """
    begun = oracle.seen(window, after)
    seen = [begun.memory_messages()]
    aside: list[int] = []
    turn: list[int] = []
    unwritten: list[ChatMessage] = []
    for message in messages:
        unwritten.append(message)
        if stores.aside(message, after):
            aside += oracle.set_aside(unwritten, aside[-1] if aside else after, window)
            unwritten = []
        if unwritten and stores.now(message, after):
            keys = oracle.add(unwritten, window, after=after, completes=aside, evicts=False)
            added = zip(keys, unwritten, strict=True)
            turn += [*aside, *(key for key, each in added if not isinstance(each, SystemMessage))]
            after, aside, unwritten = None, [], []
        forget(oracle)
        if message is messages[0]:
            interrupt(oracle)
    begun.add(messages, window)
    seen.append(begun.memory_messages())
    if not fails and turn:
        oracle.end_turn(turn, unwritten, window)
    elif not fails and (unwritten or aside):
        oracle.add(unwritten, window, after=after, completes=aside)
    return seen


def test_the_rules_do_what_the_oracle_does():
    run_state_machine_as_test(InPlainDicts)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_store_in_the_database_does_what_the_oracle_does(settings):
    use_storage(settings)
    run_state_machine_as_test(InTheDatabase, settings=IN_DATABASE)
