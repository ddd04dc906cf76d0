"""The rules of a window, individually and compared with a simple reference implementation on lists."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.core.tool_calls import in_order_of_calls, repair_tools, tool_answers
from chatmemory_django.core.windows import Entry, Eviction, Window, continuation, start_on_user, to_entry
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    MessageType,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.estimators import ADDITIVE_WORDS, JOINT, WORDS

S1, S2, S3 = SystemMessage("be brief"), SystemMessage("be long"), SystemMessage("a b c d e f")
U1, U2, U3 = UserMessage("one"), UserMessage("two words"), UserMessage("a few more words")
A1, A2 = AiMessage("hello"), AiMessage("hello again")
C1 = CustomMessage({"k": 1})


def call(*ids: str | None, text: str | None = None, name: str = "tool") -> AiMessage:
    return AiMessage(text, tool_execution_requests=[ToolExecutionRequest(each, name, "{}") for each in ids])


def result(id: str | None, name: str = "tool") -> ToolExecutionResultMessage:
    return ToolExecutionResultMessage(id, name, "4")


CALL, TWO_CALLS, R1, R2 = call("1"), call("1", "2"), result("1"), result("2")


# The reference implementation: the rules as designed, on a list, as slow as they are simple.


def trimmed(messages: list[ChatMessage], window: Window) -> list[ChatMessage]:
    left = list(messages)
    total = window.total(left)
    low = window.limit if window.evict_to is None or total <= window.limit else window.evict_to
    while total > low:
        place = 1 if left and isinstance(left[0], SystemMessage) else 0
        if place >= len(left):
            break
        behind = place + 1
        if isinstance(left[place], AiMessage) and left[place].tool_execution_requests:
            while behind < len(left) and isinstance(left[behind], ToolExecutionResultMessage):
                behind += 1
        if total <= window.limit and behind == len(left):
            break  # the newest message stays, where only the lower mark is exceeded
        total -= sum(window.cost(each) for each in left[place:behind])
        del left[place:behind]
    return left


def with_one_more(messages: list[ChatMessage], message: ChatMessage, window: Window) -> list[ChatMessage]:
    left = trimmed(messages, window)
    if isinstance(message, SystemMessage):
        present = [each for each in left if isinstance(each, SystemMessage)]
        if present and present[0] == message:
            return messages
        if present:
            left.remove(present[0])
        left.insert(0 if window.always_keep_system_message_first else len(left), message)
    else:
        left.append(message)
    return trimmed(left, window)


def with_more(messages: list[ChatMessage], new: list[ChatMessage], window: Window) -> list[ChatMessage]:
    for message in new:
        messages = with_one_more(messages, message, window)
    return messages


pools = st.sampled_from([S1, S2, S3, U1, U2, U3, A1, A2, CALL, TWO_CALLS, R1, R2, R2, R1, C1, U1])
memories = st.lists(pools, max_size=12)


def to_entries(messages: list[ChatMessage]) -> list[Entry]:
    return [to_entry(key, message) for key, message in enumerate(messages)]


def windows(*estimators) -> st.SearchStrategy[Window]:
    return st.builds(
        lambda limit, estimator, low, first: Window(
            limit,
            estimator,
            evict_to=None if low >= limit else low,
            always_keep_system_message_first=first,
        ),
        st.integers(1, 8) | st.integers(1, 40),
        st.sampled_from(estimators),
        st.integers(1, 60),
        st.booleans(),
    )


def additive_eviction(memory: list[ChatMessage], window: Window, *, pin: bool) -> Eviction:
    """Create an eviction as a store with counts does: with a total, costs, and perhaps a pinned system message."""
    entries = [to_entry(10 + place, message, window.cost(message)) for place, message in enumerate(memory)]
    pinned = entries[0] if pin and memory and isinstance(memory[0], SystemMessage) else None
    return Eviction(
        window,
        entries if pinned is None else entries[1:],
        next_key=10 + len(entries),
        pinned=pinned,
        systems=[entry for entry in entries if entry.type == "SYSTEM"],
        total=window.overhead + sum(entry.cost for entry in entries),
    )


class TestAnyMessages:
    """For any messages in a memory and any added ones, the result follows the rules."""

    @given(memories, windows(None, ADDITIVE_WORDS, WORDS, JOINT))
    def test_trim_follows_the_rules(self, memory, window):
        before = list(memory)

        left = window.trim(memory)

        assert left == trimmed(memory, window)
        assert memory == before
        assert left is not memory

    @given(memories, windows(None, ADDITIVE_WORDS))
    def test_known_costs_lead_to_the_same_result(self, memory, window):
        assert window.trim(memory, [window.cost(message) for message in memory]) == trimmed(memory, window)

    @given(memories, memories, windows(None, ADDITIVE_WORDS, WORDS, JOINT))
    def test_adding_several_at_once_equals_adding_one_by_one(self, memory, new, window):
        eviction = Eviction.of(memory, window)

        for message in new:
            eviction.add(message)

        assert eviction.messages() == with_more(memory, new, window)

    @given(memories, memories, windows(None, ADDITIVE_WORDS), st.booleans(), st.booleans())
    def test_stored_counts_lead_to_the_same_result(self, memory, new, window, pin, given_costs):
        eviction = additive_eviction(memory, window, pin=pin)

        for message in new:
            eviction.add(message, window.cost(message) if given_costs else None)

        left = with_more(memory, new, window)
        assert eviction.messages() == left
        assert eviction.total == window.total(left)

    @given(memories, memories, windows(None, ADDITIVE_WORDS), st.booleans())
    def test_the_result_is_described_by_the_pinned_message_and_the_start_of_the_rest(self, memory, new, window, pin):
        eviction = additive_eviction(memory, window, pin=pin)
        stored = {10 + place: message for place, message in enumerate(memory)}

        for message in new:
            eviction.add(message)

        everything = stored | {entry.key: entry.message for entry in eviction.added}
        pinned = None if eviction.pinned is None else eviction.pinned.key
        start = 10 if eviction.start is None else eviction.start
        replaced = {entry.key for entry in eviction.replaced}
        evicted = {entry.key for entry in eviction.evicted}
        window_keys = [key for key in everything if key >= start and key != pinned and key not in replaced]
        kept = window_keys if pinned is None else [pinned, *window_keys]
        assert [everything[key] for key in kept] == eviction.messages()
        assert sorted([*(entry.key for entry in eviction.entries()), *replaced, *evicted]) == sorted(everything)
        assert not replaced & evicted

    @given(memories, memories, windows(None, ADDITIVE_WORDS))
    def test_lost_all_is_true_only_if_no_added_message_is_left(self, memory, new, window):
        eviction = Eviction.of(memory, window)

        for message in new:
            eviction.add(message)

        added = {entry.key for entry in eviction.added}
        left = {entry.key for entry in eviction.entries()}
        assert eviction.lost_all == (bool(added) and not added & left)


class TestTrim:
    """Each rule by itself."""

    @pytest.mark.parametrize(
        ("limit", "memory", "left"),
        [
            (2, [U1, A1, U2], [A1, U2]),
            (3, [U1, A1, U2], [U1, A1, U2]),
            (2, [], []),
            (2, [S1, U1, A1, U2], [S1, U2]),
            (1, [S1, U1], [S1]),
            (2, [U1, S1, U2, U3], [S1, U3]),
            (3, [U1, S1, U2, U3], [S1, U2, U3]),
            (2, [S1, S2, U1], [S1, U1]),
            (2, [CALL, R1, U1, U2], [U1, U2]),
            (3, [CALL, R1, U1, U2], [U1, U2]),
            (3, [CALL, R2, R1, result("unknown"), U1], [U1]),
            (2, [TWO_CALLS, R1, R2], []),
            (2, [TWO_CALLS, R1, S1, R2], [S1, R2]),
            (3, [S1, CALL, R1, U1], [S1, U1]),
            (2, [R1, R2, U1], [R2, U1]),
            (2, [A1, R1, R2], [R1, R2]),
            (2, [CALL, U1, R1], [U1, R1]),
        ],
        ids=[
            "the_first_is_evicted_first",
            "at_the_limit_nothing_is_evicted",
            "an_empty_memory",
            "after_a_system_message_at_the_front",
            "a_system_message_is_never_evicted",
            "a_system_message_in_the_middle_is_protected_once_first",
            "a_system_message_that_reached_the_front_stays",
            "a_second_system_message_is_not_protected",
            "results_leave_with_their_call",
            "results_leave_with_their_call_even_below_the_limit",
            "results_leave_with_the_call_before_them_for_any_id",
            "results_and_call_may_be_all",
            "results_after_another_message_stay",
            "results_leave_with_a_call_after_the_system_message",
            "results_without_a_call_leave_one_by_one",
            "an_ai_message_without_calls_leaves_alone",
            "results_not_directly_after_their_call_stay",
        ],
    )
    def test_trimming_messages(self, limit, memory, left):
        assert Window(limit).trim(memory) == left

    def test_a_system_message_above_the_limit_stays_alone(self):
        window = Window(5, WORDS)

        assert window.total([S3]) == 12
        assert window.trim([S3]) == [S3]
        assert window.trim([S3, U1, A1]) == [S3]

    def test_another_message_above_the_limit_is_evicted(self):
        assert Window(5, WORDS).trim([U3]) == []

    def test_evicted_tokens_are_subtracted_from_the_total(self):
        memory = [U1, U1, U1]  # 4 each; the total is 3 + 12 or, non-additive, 4 more.

        assert Window(15, WORDS).trim(memory) == memory
        assert Window(15, JOINT).trim(memory) == [U1, U1]
        assert JOINT.estimate_token_count_in_messages(memory) == 19
        assert Window(13, WORDS).trim(memory) == [U1, U1]
        assert Window(13, JOINT).trim(memory) == [U1]

    def test_trimming_a_tuple_returns_a_list(self):
        assert Window(1).trim((U1, U2)) == [U2]


class TestAdd:
    def test_a_system_message_replaces_the_first_at_the_end(self):
        eviction = Eviction.of([S1, U1], Window(3))

        eviction.add(S2)

        assert eviction.messages() == [U1, S2]
        assert [entry.message for entry in eviction.replaced] == [S1]
        assert eviction.evicted == []

    def test_a_system_message_replaces_the_first_at_the_front_if_kept_first(self):
        eviction = Eviction.of([U1, S1, U2], Window(3, always_keep_system_message_first=True))

        eviction.add(S2)

        assert eviction.messages() == [S2, U1, U2]

    def test_of_two_system_messages_the_first_is_replaced(self):
        eviction = Eviction.of([U1, S1, S2], Window(5))

        eviction.add(S3)

        assert eviction.messages() == [U1, S2, S3]

    def test_an_equal_system_message_changes_nothing(self):
        eviction = Eviction.of([U1, S1, U2], Window(1, always_keep_system_message_first=True))

        eviction.add(S1)

        assert eviction.messages() == [U1, S1, U2]
        assert (eviction.added, eviction.evicted, eviction.start) == ([], [], None)
        assert not eviction.lost_all

    def test_a_system_message_equal_to_the_second_replaces_the_first(self):
        eviction = Eviction.of([S1, U1, S2], Window(5))

        eviction.add(S2)

        assert eviction.messages() == [U1, S2, S2]

    def test_an_added_message_can_be_evicted_immediately(self):
        eviction = Eviction.of([S3, U1], Window(5, ADDITIVE_WORDS))

        eviction.add(U2)

        assert eviction.messages() == [S3]
        assert eviction.lost_all

    def test_while_one_added_message_remains_not_all_are_lost(self):
        eviction = Eviction.of([], Window(1))

        eviction.add(U1)
        eviction.add(U2)

        assert eviction.messages() == [U2]
        assert not eviction.lost_all

    def test_an_entry_without_cost_or_message_cannot_be_evicted(self):
        eviction = Eviction(Window(1), [Entry(1, "USER"), Entry(2, "USER", cost=1)], next_key=3, total=2)

        with pytest.raises(ValueError, match="The entry with key 1 has neither a cost nor a message to count"):
            eviction.trim()


class TestLazyReading:
    """A memory read from its front reads no more than what is evicted."""

    @staticmethod
    def reading(entries: list[Entry], at_most: int) -> Iterator[Entry]:
        for count, entry in enumerate(entries):
            if count == at_most:
                raise AssertionError(f"more than {at_most} entries were read")
            yield entry

    def test_nothing_is_read_while_everything_fits(self):
        stored = self.reading(to_entries([U1] * 9), at_most=0)
        eviction = Eviction(Window(10), stored, next_key=9, total=9)

        eviction.add(U2)

        assert (eviction.start, eviction.evicted, eviction.total) == (None, [], 10)

    def test_only_the_evicted_message_is_read(self):
        stored = self.reading([Entry(key, "USER", cost=1) for key in range(10)], at_most=1)
        eviction = Eviction(Window(10), stored, next_key=10, total=10)

        eviction.add(U2)

        assert (eviction.start, [entry.key for entry in eviction.evicted]) == (1, [0])

    def test_after_a_tool_call_its_results_and_one_more_are_read(self):
        entries = [to_entry(key, message, 1) for key, message in enumerate([TWO_CALLS, R1, R2, U1, U1])]
        eviction = Eviction(Window(5), self.reading(entries, at_most=4), next_key=5, total=5)

        eviction.add(U2)

        assert (eviction.start, [entry.key for entry in eviction.evicted]) == (3, [0, 1, 2])

    def test_a_system_message_that_reaches_the_front_is_pinned(self):
        entries = [to_entry(key, message, 1) for key, message in enumerate([S1, U1, U2, U3])]
        stored = self.reading(entries, at_most=2)
        eviction = Eviction(Window(4), stored, next_key=4, systems=entries[:1], total=4)

        eviction.add(U2)

        assert (eviction.pinned, eviction.start) == (entries[0], 2)

    def test_an_equal_system_message_reads_nothing(self):
        entries = to_entries([S1, U1, U2])
        stored = self.reading(entries, at_most=0)
        eviction = Eviction(Window(1), stored, next_key=3, systems=entries[:1], total=3)

        eviction.add(S1)

        assert eviction.added == []

    def test_a_large_message_reads_everything_it_evicts(self):
        entries = [Entry(key, "USER", cost=4) for key in range(5)]
        eviction = Eviction(Window(23, ADDITIVE_WORDS), self.reading(entries, at_most=2), next_key=5, total=23)

        eviction.add(U3)  # 7 tokens

        assert (eviction.start, eviction.total) == (2, 22)


class TestEvictTo:
    """A memory that exceeds its limit is evicted down to a lower mark."""

    @pytest.mark.parametrize(
        ("limit", "evict_to", "memory", "left"),
        [
            (4, 2, [U1, A1, U2, A2], [U1, A1, U2, A2]),
            (4, 2, [U1, A1, U2, A2, U3], [A2, U3]),
            (4, 2, [S1, U1, A1, U2, A2], [S1, A2]),
            (4, 1, [S1, U1, A1, U2, A2], [S1, A2]),
            (4, 1, [U1, S1, U2, A1, U3], [S1, U3]),
            (4, 3, [U1, CALL, R1, A1, U2], [A1, U2]),
            (4, 2, [U1, A1, CALL, R1, U2], [U2]),
            (4, 1, [U1, A1, U2, CALL, R1], [CALL, R1]),
            (4, 2, [U1, A1, TWO_CALLS, R1, R2], [TWO_CALLS, R1, R2]),
            (1, 1, [U1, A1], [A1]),
        ],
    )
    def test_messages_are_evicted_down_to_it_but_not_the_newest(self, limit, evict_to, memory, left):
        window = Window(limit, evict_to=evict_to)

        assert window.trim(memory) == left
        assert trimmed(memory, window) == left

    def test_a_message_that_takes_more_than_the_mark_stays_alone(self):
        window = Window(12, ADDITIVE_WORDS, evict_to=8)

        assert window.cost(U3) + window.overhead > 8
        assert window.trim([U1, A1, U3]) == [U3]

    def test_a_message_that_does_not_fit_the_limit_is_evicted_like_any_other(self):
        assert Window(9, ADDITIVE_WORDS, evict_to=8).trim([U1, U3]) == []

    @given(memories, st.integers(2, 40), st.data())
    def test_what_is_sent_begins_with_the_same_messages_until_the_limit_is_exceeded(self, messages, limit, data):
        window = Window(limit, evict_to=data.draw(st.integers(1, limit - 1)))
        eviction = Eviction(window, [], next_key=0, total=0)
        for message in messages:
            before = eviction.messages()
            eviction.add(message)
            after = eviction.messages()
            if len(before) < limit and message.type != MessageType.SYSTEM:
                assert after == [*before, message]


class TestKeepsFrom:
    @pytest.mark.parametrize(
        ("memory", "limit", "evict_to", "keeps_from", "left"),
        [
            ([U1, U2, A1], 1, None, 2, [A1]),
            ([U1, U2, A1], 1, None, 1, [U2, A1]),  # above the limit
            ([U1, U2, A1], 1, None, 0, [U1, U2, A1]),
            ([U1, U2, A1], 1, None, 9, [A1]),
            ([S1, U1, U2, A1], 1, None, 2, [S1, U2, A1]),
            ([U1, CALL, R1], 1, None, 2, [R1]),
            ([CALL, R1, R1], 1, None, 2, [R1]),  # a result that must stay does
            ([U1, S1, A1], 1, None, 1, [S1, A1]),
            ([U1, U2, A1, A2], 3, 1, 3, [A2]),  # the newest is the last that may be evicted
            ([U1, U2, A1, A2], 3, 1, 2, [A1, A2]),
            ([U1, CALL, R1, A1], 3, 1, 3, [A1]),
            ([U1, CALL, R1], 2, 1, 2, [R1]),
            ([U1, U2, A1, A2], 3, 1, 9, [A2]),
        ],
    )
    def test_what_must_stay_stays_and_the_rest_follows_the_rules(self, memory, limit, evict_to, keeps_from, left):
        entries = [to_entry(key, message, 1) for key, message in enumerate(memory)]
        window = Window(limit, evict_to=evict_to)
        eviction = Eviction.of_entries(entries, window, next_key=len(entries), keeps_from=keeps_from)

        eviction.trim()

        assert eviction.messages() == left

    def test_what_is_added_stays_and_the_summary_leaves_for_it(self):
        entries = [to_entry(0, U1, 1), to_entry(1, U2, 1)]
        summary = to_entry(-1, S1, 1)
        eviction = Eviction.of_entries(entries, Window(3), next_key=2, summary=summary, keeps_from=2)

        for message in (CALL, R1):
            eviction.add(message)
        assert eviction.messages() == [S1, CALL, R1]

        for message in (TWO_CALLS, R1, R2):
            eviction.add(message)
        assert eviction.messages() == [CALL, R1, TWO_CALLS, R1, R2]
        assert eviction.total == 5


class TestWindow:
    def test_a_message_window_counts_messages(self):
        window = Window(5)

        assert (window.cost(U3), window.total([U1, U2]), window.overhead, window.counter) == (1, 2, 0, "")
        assert window.is_additive

    def test_a_token_window_counts_with_its_estimator(self):
        window = Window(5, WORDS)

        assert (window.cost(U3), window.total([U1, U2])) == (7, 3 + 4 + 5)
        assert (window.is_additive, window.overhead, window.counter) == (False, 0, "")

    def test_counts_of_an_additive_estimator_can_be_stored_under_its_name(self):
        window = Window(5, ADDITIVE_WORDS)

        assert (window.is_additive, window.overhead, window.counter) == (True, 3, "words")

    def test_an_estimator_is_not_additive_by_default(self):
        assert not Window(5, JOINT).is_additive

    def test_an_estimator_with_only_a_name_is_not_additive(self):
        named = type("Named", (type(JOINT),), {"name": "joint"})()

        window = Window(13, named)

        assert not window.is_additive
        assert window.counter == ""
        assert window.trim([U1, U1, U1]) == [U1]

    def test_an_entry_knows_whether_its_message_calls_tools(self):
        assert [entry.calls_tools for entry in to_entries([CALL, A1, R1, U1])] == [True, False, False, False]


few = st.lists(st.sampled_from([S1, S2, U1, A1]), max_size=6)
alike = st.lists(st.sampled_from([S1, U1, A1]), max_size=12)


def tried(old: list[ChatMessage], new: list[ChatMessage]) -> tuple[bool, int] | None:
    """Find how *new* continues *old* by trying every position in turn."""
    if not old:
        return False, 0
    for index in range(len(old)):
        if old[index:] == new[: len(old) - index]:
            return False, index
    if new and old[0].type == MessageType.SYSTEM and old[0] == new[0]:
        for index in range(2, len(old)):
            if old[index:] == new[1 : len(old) - index + 1]:
                return True, index
    return None


class Letter:
    """A message that counts comparisons."""

    compared = 0

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.type = MessageType.SYSTEM if letter == "S" else MessageType.USER

    def __eq__(self, other: object) -> bool:
        Letter.compared += 1
        return isinstance(other, Letter) and self.letter == other.letter

    __hash__ = None


class TestContinuation:
    @pytest.mark.parametrize(
        ("old", "new", "kept"),
        [
            ([], [], (False, 0)),
            ([], [U1], (False, 0)),
            ([U1, A1], [U1, A1], (False, 0)),
            ([U1, A1], [U1, A1, U2], (False, 0)),
            ([U1, A1, U2], [A1, U2], (False, 1)),
            ([U1, A1, U2], [U2, A2, U3], (False, 2)),
            ([S1, U1, A1, U2], [S1, U2, A2], (True, 3)),
            ([S1, U1, A1], [S1, U1, A1, U2], (False, 0)),
            ([S1, U1, A1], [U1, A1], (False, 1)),
            ([S1, U1], [S1], None),
            ([S1, U1, A1], [S1, U2], None),
            ([U1, A1], [], None),
            ([U1, A1], [U2], None),
            ([U1, A1], [U1], None),
            ([U1, A1, U2], [U1, U2], None),
            ([S1, U1, A1], [S2, A1], None),
            ([U1, U1, U1], [U1, U1], (False, 1)),
            ([S1], [S1, U1], (False, 0)),
        ],
        ids=[
            "empty_to_empty",
            "anything_continues_an_empty_memory",
            "unchanged",
            "one_added",
            "the_first_dropped",
            "some_dropped_and_some_added",
            "after_a_protected_system_message",
            "everything_kept_needs_no_protection",
            "without_the_system_message",
            "only_the_system_message",
            "a_system_message_and_something_else",
            "emptied",
            "something_else",
            "the_last_dropped",
            "one_dropped_in_the_middle",
            "another_system_message_at_the_front",
            "repeated_messages_keep_as_many_as_possible",
            "messages_added_to_a_lone_system_message",
        ],
    )
    def test_continuation(self, old, new, kept):
        assert continuation(old, new) == kept

    @given(few, few, st.integers(0, 6), st.booleans())
    def test_kept_messages_and_the_rest_of_the_new_ones_make_the_new_list(self, old, more, cut, protect):
        new = [*(old[:1] if protect and old and old[0].type == "SYSTEM" else []), *old[cut:], *more]
        ways = [
            (keeps_first, index)
            for keeps_first in (False, True)
            for index in range(2 if keeps_first else 0, len(old))
            if not keeps_first or old[0].type == "SYSTEM"
            if new[: len(old) - index + keeps_first] == [*old[:keeps_first], *old[index:]]
        ]

        found = continuation(old, new)

        assert found == ((False, 0) if not old else ways[0] if ways else None)

    @given(alike, alike)
    def test_the_result_equals_that_of_trying_every_position(self, old, new):
        assert continuation(old, new) == tried(old, new)

    @pytest.mark.parametrize(
        ("old", "new", "kept"),
        [
            ("a" * 2_000 + "b", "a" * 2_000, None),
            ("a" * 2_000, "a" * 1_999 + "b", (False, 1)),
            ("ab" * 1_000 + "a", "ab" * 1_000 + "c", (False, 2)),
            ("S" + "a" * 2_000 + "b", "S" + "a" * 2_000, None),
        ],
        ids=["all_except_the_last", "all_except_the_last_added", "one_after_the_other", "after_a_system_message"],
    )
    def test_each_message_is_compared_a_few_times_even_if_many_are_equal(self, old, new, kept):
        Letter.compared = 0

        found = continuation(list(map(Letter, old)), list(map(Letter, new)))

        assert found == kept
        assert Letter.compared <= 6 * (len(old) + len(new))

    def test_tuples_are_accepted(self):
        assert continuation((U1, A1), (A1, U2)) == (False, 1)


class TestStartOnUser:
    @pytest.mark.parametrize(
        ("memory", "read"),
        [
            ([], []),
            ([U1, A1], [U1, A1]),
            ([A1, U1, A2], [U1, A2]),
            ([S1, A1, U1], [S1, U1]),
            ([CALL, R1, A1, S1, U1, A1], [S1, U1, A1]),
            ([A1, C1, R1], []),
            ([S1, A1], [S1]),
            ([A1, S1], [S1]),
        ],
        ids=[
            "nothing",
            "starts_with_a_user_message",
            "an_ai_message_at_the_front_is_dropped",
            "after_the_system_message",
            "a_system_message_in_between_stays",
            "without_a_user_message_nothing_is_left",
            "without_a_user_message_only_the_system_message_is_left",
            "at_any_position",
        ],
    )
    def test_start_on_user(self, memory, read):
        before = list(memory)

        assert start_on_user(memory) == read
        assert memory == before


some_ids = st.sampled_from(["1", "2", "", None])
some_names = st.sampled_from(["a", "b", None])
tool_talk = st.lists(
    st.one_of(
        st.builds(
            AiMessage,
            st.sampled_from([None, "text"]),
            tool_execution_requests=st.lists(
                st.builds(ToolExecutionRequest, some_ids, some_names, st.none()), max_size=3
            ),
        ),
        st.builds(ToolExecutionResultMessage, some_ids, some_names, st.just("4")),
        st.sampled_from([S1, U1]),
    ),
    max_size=12,
)


def key_of(id: str | None, name: str | None) -> tuple:
    """Return what matches a call and its result: the id, or without one the name."""
    return ("named", name) if id is None else ("id", id)


def open_calls(messages: list[ChatMessage]) -> tuple[dict[tuple, int], int, int]:
    """Return, by key, the open calls at the end; the number of results without a call; and that of results with one."""
    waiting: dict[tuple, int] = {}
    orphans = answers = 0
    for message in messages:
        if isinstance(message, AiMessage):
            for request in message.tool_execution_requests:
                key = key_of(request.id, request.name)
                waiting[key] = waiting.get(key, 0) + 1
        elif isinstance(message, ToolExecutionResultMessage):
            key = key_of(message.id, message.tool_name)
            if waiting.get(key, 0):
                waiting[key] -= 1
                answers += 1
            else:
                orphans += 1
    return {key: count for key, count in waiting.items() if count}, orphans, answers


class TestRepairTools:
    @pytest.mark.parametrize(
        ("memory", "read"),
        [
            ([U1, CALL, R1, A1], [U1, CALL, R1, A1]),
            ([U1, CALL], [U1]),
            ([R1, U1], [U1]),
            ([R1, CALL], []),
            ([call("1", text="See."), U1], [AiMessage("See."), U1]),
            ([call("1", text="")], [AiMessage("")]),
            ([TWO_CALLS, R2, R1], [TWO_CALLS, R2, R1]),
            ([TWO_CALLS, R2], [call("2"), R2]),
            ([call("1", "2", text="See."), R1], [call("1", text="See."), R1]),
            ([CALL, U1, A1, R1], [CALL, U1, A1, R1]),
            ([CALL, R1, R1], [CALL, R1]),
            ([CALL, R1, CALL, R1], [CALL, R1, CALL, R1]),
            ([CALL, CALL, R1], [CALL, R1]),
            ([call(None), result(None)], [call(None), result(None)]),
            ([call(None), result(None, "other")], []),
            ([call("1"), result(None)], []),
            ([call(None), result("1")], []),
            ([call("1"), result("1", "other")], [call("1"), result("1", "other")]),
            ([S1, A1, C1], [S1, A1, C1]),
            ([AiMessage()], [AiMessage()]),
        ],
        ids=[
            "a_call_and_its_result_stay",
            "a_call_without_result_is_dropped",
            "a_result_without_call_is_dropped",
            "a_result_before_its_call_is_dropped",
            "text_of_a_call_without_result_stays",
            "empty_text_of_a_call_without_result_stays",
            "parallel_calls_may_be_answered_in_any_order",
            "answered_parallel_calls_stay",
            "text_of_answered_parallel_calls_stays",
            "a_result_may_come_later",
            "a_second_result_is_dropped",
            "an_id_may_be_reused",
            "one_result_answers_one_of_two_calls_with_the_same_id",
            "without_an_id_names_are_matched",
            "without_an_id_another_name_does_not_match",
            "a_result_without_id_does_not_match_a_call_with_one",
            "a_result_with_id_does_not_match_a_call_without",
            "with_an_id_names_are_ignored",
            "messages_without_tools_stay",
            "an_empty_ai_message_without_calls_stays",
        ],
    )
    def test_repair_tools(self, memory, read):
        before = list(memory)

        assert repair_tools(memory) == read
        assert memory == before

    def test_a_result_answers_the_latest_open_call(self):
        first, second = call("1", text="first"), call("1", text="second")

        assert repair_tools([first, second, R1]) == [AiMessage("first"), second, R1]

    def test_a_repaired_message_keeps_its_other_fields(self):
        message = AiMessage("text", "thinking", TWO_CALLS.tool_execution_requests, {"k": 1})

        repaired = repair_tools([message, R1])

        assert repaired[0] == AiMessage("text", "thinking", CALL.tool_execution_requests, {"k": 1})

    @given(tool_talk)
    def test_every_call_has_one_later_result_and_every_result_one_earlier_call(self, memory):
        repaired = repair_tools(memory)

        unanswered, orphans, answers = open_calls(repaired)
        assert (unanswered, orphans) == ({}, 0)
        assert answers == open_calls(memory)[2]  # And nothing was dropped needlessly.

    @given(tool_talk)
    def test_repairing_twice_changes_nothing_more(self, memory):
        once = repair_tools(memory)

        assert repair_tools(once) == once

    @given(tool_talk)
    def test_all_texts_keep_their_order(self, memory):
        def texts(messages: list[ChatMessage]) -> list:
            return [
                message.text if isinstance(message, AiMessage) else message
                for message in messages
                if message in (S1, U1) or (isinstance(message, AiMessage) and message.text is not None)
            ]

        assert texts(repair_tools(memory)) == texts(memory)


class TestToolAnswers:
    def test_parallel_calls_are_matched_for_any_order_of_results(self):
        assert tool_answers([TWO_CALLS, R2, U1, R1]) == {(0, 0): 3, (0, 1): 1}

    @pytest.mark.parametrize("call_id", ["1", None])
    def test_parallel_calls_with_one_id_are_answered_in_their_order(self, call_id):
        calls = AiMessage(tool_execution_requests=[ToolExecutionRequest(call_id, "tool", each) for each in "ab"])
        answer = result(call_id)

        assert tool_answers([calls, calls, answer, answer, answer]) == {(1, 0): 2, (1, 1): 3, (0, 0): 4}
        assert repair_tools([calls, answer])[0].tool_execution_requests == calls.tool_execution_requests[:1]

    def test_results_can_be_read_behind_their_calls(self):
        memory = [result("0"), TWO_CALLS, U1, R2, call("3"), R1]
        assert list(in_order_of_calls(memory)) == [
            (1, None),
            (5, None),
            (3, None),
            (2, None),
            (4, None),
            (4, 0),  # the first call there has no result
        ]

    def test_unmatched_calls_and_results_are_in_no_pair(self):
        assert tool_answers([R1, CALL, U1]) == {}
