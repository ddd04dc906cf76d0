"""Memories as programs use them, with stores that need no database."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.stores import InMemoryChatMemoryStore, SingleSlotChatMemoryStore
from tests.estimators import ADDITIVE_WORDS, WORDS, AdditiveWords
from tests.logs import logged_by
from tests.reference_store import ReferenceStore

PRIVATE = "whatnobodyelsemayread"
S1, S2 = SystemMessage("be brief"), SystemMessage("be long")
U1, U2, U3 = UserMessage("one"), UserMessage("two"), UserMessage("three")
A1 = AiMessage("hello")
CALL = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")])
RESULT = ToolExecutionResultMessage("1", "tool", "4")
POOL = [S1, S2, U1, U2, A1, CALL, RESULT]


class Plain:
    """A custom store: three methods, no base class."""

    def __init__(self) -> None:
        self.kept: dict = {}
        self.writes = 0

    def get_messages(self, memory_id):
        return tuple(self.kept.get(memory_id, ()))

    def update_messages(self, memory_id, messages):
        assert type(messages) is list
        self.kept[memory_id] = messages
        self.writes += 1

    def delete_messages(self, memory_id):
        self.kept.pop(memory_id, None)


def message_memory(limit: object = 10, **options: object) -> ChatMemory:
    return MessageWindowChatMemory(max_messages=limit, **options)


def token_memory(limit: object = 100, **options: object) -> ChatMemory:
    return TokenWindowChatMemory(max_tokens=limit, token_count_estimator=WORDS, **options)


def additive_memory(limit: object = 100, **options: object) -> ChatMemory:
    return TokenWindowChatMemory(max_tokens=limit, token_count_estimator=ADDITIVE_WORDS, **options)


def without_systems(messages: list) -> list:
    return [each for each in messages if not isinstance(each, SystemMessage)]


class Limit:
    """A limit that can be changed, and that records the ids it was called with."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.asked: list = []

    def __call__(self, memory_id: object) -> object:
        self.asked.append(memory_id)
        return self.value


each_kind = pytest.mark.parametrize(
    ("build", "name"),
    [(message_memory, "max_messages"), (token_memory, "max_tokens")],
    ids=["messages", "tokens"],
)
each_store = pytest.mark.parametrize("store_class", [InMemoryChatMemoryStore, lambda: None, Plain])
wrong_limits = pytest.mark.parametrize(
    "limit", [0, -1, None, "10", True, 1.5, 10.0, [10]], ids=lambda value: repr(value)
)


class TestLimit:
    """A limit is a positive integer; otherwise an error names the parameter and the value."""

    @each_kind
    @wrong_limits
    def test_an_invalid_limit_fails_when_the_memory_is_created(self, build, name, limit):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number above 0, not ") as error:
            build(limit)

        assert str(error.value).endswith(f"not {limit!r}.")

    @each_kind
    @wrong_limits
    def test_a_function_that_returns_an_invalid_limit_fails_when_the_memory_is_created(self, build, name, limit):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number above 0, not ") as error:
            build(Limit(limit))

        assert str(error.value).endswith(f"not {limit!r}.")

    @pytest.mark.parametrize("evict_to", [0, -1, True, "5", 2.5, 20, 21], ids=repr)
    @pytest.mark.parametrize("is_dynamic", [False, True])
    def test_a_lower_mark_is_a_whole_number_between_0_and_the_limit(self, evict_to, is_dynamic):
        asked = {"evict_to": Limit(evict_to) if is_dynamic else evict_to}
        expected = (
            rf"^evict_to must be less than max_(messages|tokens), which is 20, not {evict_to}\.$"
            if evict_to in {20, 21}
            else rf"^evict_to must be a whole number above 0, not {evict_to!r}\.$"
        )

        with pytest.raises(ValueError, match=expected):
            MessageWindowChatMemory(max_messages=20, **asked)
        with pytest.raises(ValueError, match=expected):
            TokenWindowChatMemory(max_tokens=20, token_count_estimator=WORDS, **asked)

    @each_kind
    @wrong_limits
    @pytest.mark.parametrize(
        "use",
        [lambda memory: memory.add(U2), lambda memory: memory.set([U2]), lambda memory: memory.messages()],
        ids=["add", "set", "messages"],
    )
    def test_a_limit_that_becomes_invalid_fails_on_each_use_and_changes_nothing(self, build, name, limit, use):
        dynamic = Limit(100)
        memory = build(dynamic)
        memory.add(U1)

        dynamic.value = limit
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number above 0, not "):
            use(memory)

        dynamic.value = 100
        assert memory.messages() == [U1]

    @each_kind
    def test_a_memory_can_be_cleared_although_its_limit_became_invalid(self, build, name):
        limit = Limit(100)
        memory = build(limit)
        memory.add(U1)

        limit.value = None
        memory.clear()

        limit.value = 100
        assert memory.messages() == []

    @each_kind
    def test_a_limit_function_is_called_with_the_id_on_each_use(self, build, name):
        limit = Limit(100)
        memory = build(limit, id=12345)
        limit.asked.clear()

        for use in (lambda: memory.add(U1), lambda: memory.set([U1]), memory.messages):
            use()
            assert limit.asked == [12345]
            limit.asked.clear()

    def test_an_error_of_the_function_propagates(self):
        def limit(memory_id: object) -> int:
            raise LookupError("no such tenant")

        with pytest.raises(LookupError, match="no such tenant"):
            message_memory(limit)

    @each_store
    def test_a_limit_that_shrinks_and_grows_again_loses_nothing(self, store_class):
        limit = Limit(3)
        memory = message_memory(limit, store=store_class())
        memory.add(U1, U2, U3)

        limit.value = 1
        shrunk = memory.messages()
        limit.value = 3

        assert shrunk == [U3]
        assert memory.messages() == [U1, U2, U3]

    def test_an_add_under_a_smaller_limit_trims_the_stored_messages(self):
        limit = Limit(3)
        memory = message_memory(limit)
        memory.add(U1, U2, U3)

        limit.value = 1
        memory.add(A1)
        limit.value = 3

        assert memory.messages() == [A1]


class TestId:
    def test_the_default_id_is_default(self):
        assert message_memory().id == "default"
        assert token_memory().id == "default"

    @pytest.mark.parametrize("id", ["12345", 12345, ("a", 1), 0, False, "x" * 255], ids=lambda value: repr(value)[:9])
    def test_an_id_is_returned_unchanged(self, id):
        memory = message_memory(id=id)

        memory.add(U1)

        assert memory.id is id
        assert memory.messages() == [U1]

    def test_a_text_may_look_like_an_address(self):
        assert message_memory(id="<Order at 0x7f>").id == "<Order at 0x7f>"

    def test_ids_with_the_same_str_are_the_same_memory(self):
        store = InMemoryChatMemoryStore()

        message_memory(id=1, store=store).add(U1)

        assert message_memory(id="1", store=store).messages() == [U1]
        assert message_memory(id=2, store=store).messages() == []

    @pytest.mark.parametrize("build", [message_memory, token_memory])
    @pytest.mark.parametrize(
        ("id", "error", "reason"),
        [
            (None, TypeError, r"must not be None"),
            ("", ValueError, r"must have 1 to 255 characters; this one has 0"),
            ("x" * 256, ValueError, r"must have 1 to 255 characters; this one has 256: 'x{20}'\.$"),
            ("a\0b", ValueError, r"must not hold NUL characters or lone surrogates, but is 'a\\x00b'"),
            ("a\ud800", ValueError, r"must not hold NUL characters or lone surrogates, but is 'a\\ud800'"),
            (object(), ValueError, r"must have a stable str\(\), but this object has an address in it: '<obj"),
            (("a", object()), ValueError, r"must have a stable str\(\), but this tuple has an address in it"),
            (message_memory, ValueError, r"must have a stable str\(\), but this function has an address in it"),
        ],
        ids=["None", "empty", "too_long", "NUL", "surrogate", "object", "with_an_object", "function"],
    )
    def test_an_invalid_id_is_rejected(self, build, id, error, reason):
        with pytest.raises(error, match=f"^A memory id {reason}"):
            build(id=id)
        with pytest.raises(error, match=f"^A memory id {reason}"):
            InMemoryChatMemoryStore().get_messages(id)


class TestTheNameOfAnEstimator:
    @pytest.mark.parametrize(
        ("name", "error", "reason"),
        [
            ("x" * 65, ValueError, r"must have at most 64 characters; 'x{20}'… has 65"),
            ("a\0", ValueError, "must not hold NUL characters"),
            (5, TypeError, "must be a str, not int"),
        ],
        ids=["too_long", "NUL", "int"],
    )
    def test_one_that_cannot_be_stored_with_a_count_is_refused_when_the_memory_is_made(self, name, error, reason):
        estimator = AdditiveWords()
        estimator.name = name

        with pytest.raises(error, match=f"The name of an estimator {reason}"):
            TokenWindowChatMemory(max_tokens=5, token_count_estimator=estimator)

    def test_64_characters_are_enough(self):
        estimator = AdditiveWords()
        estimator.name = "x" * 64

        assert TokenWindowChatMemory(max_tokens=5, token_count_estimator=estimator).window().counter == "x" * 64


class TestAdd:
    @each_store
    def test_messages_are_returned_in_the_order_they_were_added(self, store_class):
        memory = message_memory(store=store_class())

        memory.add(U1)
        memory.add(A1, U2)

        assert memory.messages() == [U1, A1, U2]

    @each_store
    def test_the_oldest_message_is_evicted_when_the_window_is_full(self, store_class):
        memory = message_memory(3, store=store_class())

        memory.add(S1, U1, A1, U2)

        assert memory.messages() == [S1, A1, U2]
        assert memory.store.get_messages("default") == [S1, A1, U2]

    def test_a_token_window_holds_messages_up_to_its_token_limit(self):
        memory = token_memory(3 + 4 + 4)

        memory.add(U1, U2, U3)

        assert memory.messages() == [U2, U3]

    def test_adding_nothing_does_nothing(self):
        limit, store = Limit(2), Plain()
        memory = message_memory(limit, store=store)
        memory.add(U1, U2)
        limit.value = 1

        memory.add()

        assert store.kept == {"default": [U1, U2]}
        assert store.writes == 1

    @pytest.mark.parametrize("wrong", [None, "hello", [U1], {"type": "USER"}], ids=["None", "str", "list", "dict"])
    def test_an_invalid_message_is_rejected_with_its_index_and_nothing_is_stored(self, wrong):
        memory = message_memory()
        memory.add(A1)

        with pytest.raises(TypeError, match=rf"^messages\[1\] must be a message, not {type(wrong).__name__}\.$"):
            memory.add(U1, wrong, U2)

        assert memory.messages() == [A1]

    def test_several_messages_are_written_at_once(self):
        store = Plain()

        message_memory(2, store=store).add(U1, A1, U2, CALL)

        assert store.writes == 1
        assert store.kept == {"default": [U2, CALL]}

    def test_messages_added_after_an_earlier_one_replace_those_that_followed_it(self):
        memory = message_memory(store=ReferenceStore())
        memory.add(U1, A1, U2)

        assert memory.add(U3, after=1) == [4]
        assert memory.messages() == [U1, U3]
        assert asyncio.run(memory.aadd(U2, after=0)) == [5]
        assert memory.messages() == [U2]
        assert memory.switch(3) == 3
        assert memory.messages() == [U1, A1, U2]

    def test_messages_of_a_store_without_keys_are_numbered_from_1(self):
        memory = message_memory(3, store=Plain())

        assert memory.add(U1, A1) == [1, 2]
        assert memory.add(U2, U3) == [3, 4]
        assert [(each.sequence, each.message) for each in memory.explain()] == [(1, A1), (2, U2), (3, U3)]

    def test_adding_after_an_earlier_message_requires_a_store_with_history(self):
        store = Plain()

        with pytest.raises(NotImplementedError, match=r"keeps no history"):
            message_memory(store=store).add(U1, after=0)

        assert store.writes == 0

    @pytest.mark.parametrize("build", [message_memory, token_memory])
    def test_the_returned_list_belongs_to_the_caller(self, build):
        memory = build()
        memory.add(U1)

        memory.messages().clear()

        assert memory.messages() == [U1]


class TestSystemMessages:
    @each_store
    def test_an_equal_system_message_changes_nothing_even_under_a_smaller_limit(self, store_class):
        limit = Limit(3)
        memory = message_memory(limit, store=store_class())
        memory.add(S1, U1, U2)

        limit.value = 1
        memory.add(SystemMessage("be brief"))

        assert memory.store.get_messages("default") == [S1, U1, U2]

    def test_an_equal_system_message_is_not_written(self):
        store = Plain()
        memory = message_memory(store=store)
        memory.add(S1, U1)

        memory.add(S1)

        assert store.writes == 1

    @each_store
    def test_another_system_message_replaces_it_at_the_end(self, store_class):
        memory = message_memory(store=store_class())

        memory.add(S1, U1)
        memory.add(S2)

        assert memory.messages() == [U1, S2]

    @each_store
    @pytest.mark.parametrize("build", [message_memory, token_memory])
    def test_another_system_message_replaces_it_at_the_front_if_kept_first(self, store_class, build):
        memory = build(store=store_class(), always_keep_system_message_first=True)

        memory.add(U1)
        memory.add(S1)
        before = memory.messages()
        memory.add(S2)

        assert before == [S1, U1]
        assert memory.messages() == [S2, U1]


class TestSet:
    @each_store
    def test_the_messages_become_the_whole_memory(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(U1, A1)

        memory.set([S1, U2])

        assert memory.messages() == [S1, U2]

    @each_store
    def test_messages_are_trimmed_to_the_limit(self, store_class):
        memory = message_memory(2, store=store_class())

        memory.set([S1, U1, A1, U2])

        assert memory.store.get_messages("default") == [S1, U2]

    @each_store
    def test_an_empty_list_empties_the_memory(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(S1, U1)

        memory.set([])

        assert memory.messages() == []

    def test_all_system_messages_keep_their_positions(self):
        memory = message_memory(always_keep_system_message_first=True)

        memory.set([U1, S1, S2, S1])

        assert memory.messages() == [U1, S1, S2, S1]

    @each_store
    def test_the_given_list_is_neither_kept_nor_changed(self, store_class):
        given = [S1, U1, A1, U2]
        memory = message_memory(3, store=store_class())

        memory.set(given)
        unchanged = list(given)
        given.append(U3)

        assert unchanged == [S1, U1, A1, U2]
        assert memory.messages() == [S1, A1, U2]

    def test_any_iterable_is_accepted(self):
        memory = message_memory()

        memory.set(message for message in (U1, A1))

        assert memory.messages() == [U1, A1]

    def test_an_invalid_message_is_rejected_with_its_index_and_nothing_is_stored(self):
        memory = message_memory()
        memory.add(A1)

        with pytest.raises(TypeError, match=r"^messages\[2\] must be a message, not str\.$"):
            memory.set([U1, U2, PRIVATE])

        assert memory.messages() == [A1]


class TestClear:
    @each_store
    def test_everything_is_cleared_including_the_system_message(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(S1, U1)

        memory.clear()
        memory.clear()

        assert memory.messages() == []

    @each_store
    def test_a_cleared_memory_can_be_filled_again(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(S1, U1)

        memory.clear()
        memory.add(S1, U2)

        assert memory.messages() == [S1, U2]

    def test_other_memories_are_kept(self):
        store = InMemoryChatMemoryStore()
        mine, yours = message_memory(id="mine", store=store), message_memory(id="yours", store=store)
        mine.add(U1)
        yours.add(U2)

        mine.clear()

        assert yours.messages() == [U2]


class TestWarning:
    """A warning is logged when a message that was just added is not sent."""

    @each_store
    def test_a_message_larger_than_the_window_logs_sizes_without_its_text(self, store_class, caplog):
        memory = token_memory(9, id="chat-7", store=store_class())

        with caplog.at_level(logging.WARNING):
            memory.add(UserMessage(f"{PRIVATE} " * 50))

        assert memory.messages() == []
        [record] = logged_by(caplog, "chatmemory_django.memory")
        assert record.levelname == "WARNING"
        assert record.getMessage() == (
            "None of the 1 messages just added to memory 'chat-7' fits: the last one costs 53, and the limit is 9."
        )
        assert PRIVATE not in caplog.text

    def test_a_window_filled_by_the_system_message_is_logged(self, caplog):
        memory = message_memory(1)

        memory.add(S1)
        memory.add(U1, U2)

        assert memory.messages() == [S1]
        assert "None of the 2 messages just added to memory 'default' fits" in caplog.text

    def test_no_warning_is_logged_if_some_of_the_messages_remain(self, caplog):
        memory = message_memory(1)

        memory.add(U1, U2)
        memory.add(S1)
        memory.add(S1)
        memory.add()

        assert memory.messages() == [S1]
        assert not logged_by(caplog, "chatmemory_django.memory")


class TestReadOptions:
    """Two options change what is read, and never what is stored."""

    @each_store
    def test_start_on_user_omits_messages_before_the_first_user_message(self, store_class):
        stored = [S1, CALL, RESULT, A1, U1, A1]
        memory = message_memory(store=store_class(), start_on_user=True)

        memory.add(*stored)

        assert memory.messages() == [S1, U1, A1]
        assert memory.store.get_messages("default") == stored

    @each_store
    def test_repair_tools_omits_calls_without_result_and_results_without_call(self, store_class):
        stored = [ToolExecutionResultMessage("0", "tool", "4"), U1, CALL, RESULT, A1, CALL]
        memory = message_memory(store=store_class(), repair_tools=True)

        memory.add(*stored)

        assert memory.messages() == [U1, CALL, RESULT, A1]
        assert memory.store.get_messages("default") == stored

    def test_a_later_result_restores_its_call(self):
        memory = message_memory(repair_tools=True)

        memory.add(U1, CALL)
        before = memory.messages()
        memory.add(RESULT)

        assert before == [U1]
        assert memory.messages() == [U1, CALL, RESULT]

    def test_both_options_can_be_combined(self):
        memory = message_memory(start_on_user=True, repair_tools=True)

        memory.add(S1, CALL, U1, RESULT, A1)

        assert memory.messages() == [S1, U1, A1]

    def test_both_options_are_off_by_default(self):
        memory = message_memory()

        memory.add(RESULT, CALL)

        assert memory.messages() == [RESULT, CALL]


class TestEstimator:
    @pytest.mark.parametrize("missing", ["in_text", "in_message", "in_messages"])
    def test_an_estimator_without_all_three_methods_is_rejected(self, missing):
        methods = {
            f"estimate_token_count_{name}": lambda self, counted: 1
            for name in ("in_text", "in_message", "in_messages")
            if name != missing
        }
        incomplete = type("Incomplete", (), methods)()

        with pytest.raises(
            TypeError,
            match=rf"^token_count_estimator, of type Incomplete, has no estimate_token_count_{missing}\(\)\.$",
        ):
            TokenWindowChatMemory(max_tokens=10, token_count_estimator=incomplete)

    @pytest.mark.parametrize("wrong", [None, "gpt-4o", len], ids=["None", "name", "function"])
    def test_an_object_that_is_not_an_estimator_is_rejected(self, wrong):
        with pytest.raises(TypeError, match=rf", of type {type(wrong).__name__}, has no "):
            TokenWindowChatMemory(max_tokens=10, token_count_estimator=wrong)

    def test_the_name_of_a_model_is_for_settings(self):
        with pytest.raises(
            TypeError, match=r"Settings take a model's name; here, write OpenAiTokenCountEstimator\(…\)"
        ):
            TokenWindowChatMemory(max_tokens=10, token_count_estimator="gpt-4o")  # type: ignore[arg-type]

    def test_options_are_keyword_only_and_unknown_ones_are_rejected(self):
        with pytest.raises(TypeError):
            MessageWindowChatMemory(10)
        with pytest.raises(TypeError, match="max_message"):
            MessageWindowChatMemory(max_messages=10, max_message=5)


class TestStores:
    def test_a_memory_without_a_store_creates_its_own(self):
        one, other = message_memory(), message_memory()

        one.add(U1)

        assert isinstance(one.store, SingleSlotChatMemoryStore)
        assert (one.messages(), other.messages()) == ([U1], [])

    def test_a_plain_object_with_three_methods_is_called_with_the_original_id(self):
        store = Plain()
        memory = message_memory(id=7, store=store)

        memory.add(S1, U1)
        memory.set([U2])
        kept = dict(store.kept)
        memory.clear()

        assert kept == {7: [U2]}
        assert store.kept == {}

    @each_store
    def test_what_needs_a_history_names_a_store_that_has_one(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(U1, A1)

        for verb in (
            lambda: memory.rewind(1),
            lambda: memory.switch(1),
            lambda: memory.remove(1),
            lambda: memory.evict(1),
            memory.pop,
            memory.turn(after=1).begin,
        ):
            with pytest.raises(NotImplementedError, match=r"^\w+ keeps no history; use DjangoChatMemoryStore\.$"):
                verb()
        assert memory.messages() == [U1, A1]

    @given(
        before=st.lists(st.sampled_from(POOL), max_size=8),
        rounds=st.lists(st.lists(st.sampled_from(POOL), max_size=3), max_size=5),
        limit=st.integers(2, 40),
        build=st.sampled_from([message_memory, token_memory, additive_memory]),
        options=st.sampled_from([{}, {"evict_to": 1}, {"always_keep_system_message_first": True}]),
    )
    def test_what_a_turn_saves_evicts_nothing_before_its_end(self, before, rounds, limit, build, options):
        memory = build(limit, store=Plain(), **options)
        memory.add(*before)
        expected = memory.store.get_messages("default")

        with memory.turn() as turn:
            for messages in [[U3], *rounds]:
                turn.add(*messages)
                turn.save()
                expected += messages
            whole = memory.store.get_messages("default")

        assert without_systems(whole) == without_systems(expected)  # a system message replaces the one before it
        assert memory.store.get_messages("default") == memory.window().trim(whole)

    def test_a_single_slot_store_is_an_in_memory_store_except_for_its_key(self):
        """What the recorded windows show of the one holds for the other."""

        class Bare(InMemoryChatMemoryStore):
            """The same without anything of its own."""

        assert SingleSlotChatMemoryStore.__bases__ == (InMemoryChatMemoryStore,)
        assert vars(SingleSlotChatMemoryStore).keys() - vars(Bare) == {"__init__", "_key"}

    @pytest.mark.parametrize("method", ["get_messages", "delete_messages"])
    def test_a_single_slot_store_rejects_other_ids(self, method):
        store = SingleSlotChatMemoryStore("mine")

        with pytest.raises(ValueError, match=r"^This store only has the memory 'mine', not 'yours'\.$"):
            getattr(store, method)("yours")

    def test_a_single_slot_store_rejects_calls_for_another_id(self):
        store = SingleSlotChatMemoryStore(7)

        with pytest.raises(ValueError, match="'7', not 'yours'"):
            store.update_messages("yours", [U1])
        with pytest.raises(ValueError, match="'7', not 'yours'"):
            message_memory(id="yours", store=store).add(U1)

        assert store.get_messages("7") == []

    @pytest.mark.parametrize(
        "store", [InMemoryChatMemoryStore(), SingleSlotChatMemoryStore("a")], ids=["in_memory", "single_slot"]
    )
    def test_an_in_memory_store_copies_what_it_stores_and_returns(self, store):
        given = [U1]

        store.update_messages("a", given)
        given.append(U2)
        store.get_messages("a").append(U3)

        assert store.get_messages("a") == [U1]

    def test_an_in_memory_store_rejects_invalid_messages(self):
        store = InMemoryChatMemoryStore()

        with pytest.raises(TypeError, match=r"^messages\[0\] must be a message, not NoneType\.$"):
            store.update_messages("a", [None])

        assert store.get_messages("a") == []

    def test_deleting_an_unknown_memory_is_not_an_error(self):
        store = InMemoryChatMemoryStore()

        store.delete_messages("a")

        assert store.get_messages("a") == []

    def test_eight_threads_lose_nothing(self):
        memory = message_memory(1000, id="a", store=InMemoryChatMemoryStore())

        def add(thread: int) -> None:
            for number in range(25):
                memory.add(UserMessage(f"{thread}:{number}"))

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(add, range(8)))

        texts = [message.single_text for message in memory.messages()]
        assert len(texts) == 200
        for thread in range(8):  # Each thread's messages are in the order it added them.
            assert [text for text in texts if text.startswith(f"{thread}:")] == [f"{thread}:{n}" for n in range(25)]


class TestAsync:
    @each_store
    def test_async_methods_behave_like_their_sync_versions(self, store_class):
        async def talk(memory: ChatMemory) -> list:
            seen = []
            await memory.aadd(S1, U1)
            seen.append(await memory.amessages())
            await memory.aset([U2])
            seen.append(await memory.amessages())
            await memory.aclear()
            seen.append(await memory.amessages())
            return seen

        assert asyncio.run(talk(message_memory(store=store_class()))) == [[S1, U1], [U2], []]

    def test_errors_propagate(self):
        memory = message_memory()

        with pytest.raises(TypeError, match=r"^messages\[0\] must be a message, not NoneType\.$"):
            asyncio.run(memory.aadd(None))

    def test_concurrent_calls_lose_nothing(self):
        memory = message_memory(1000)

        async def talk() -> None:
            await asyncio.gather(*(memory.aadd(UserMessage(str(number))) for number in range(100)))

        asyncio.run(talk())

        assert sorted(int(message.single_text) for message in memory.messages()) == list(range(100))

    def test_the_event_loop_is_not_blocked_by_a_slow_store(self):
        class Slow(InMemoryChatMemoryStore):
            def get_messages(self, memory_id):
                released.wait(timeout=10)
                return super().get_messages(memory_id)

        async def talk() -> bool:
            adding = asyncio.ensure_future(memory.aadd(U1))
            await asyncio.sleep(0)
            was_done = adding.done()
            released.set()
            await adding
            return was_done

        released = threading.Event()
        memory = message_memory(store=Slow())

        assert asyncio.run(talk()) is False
        assert memory.messages() == [U1]


class TestOverloads:
    """LangChain4j's memories take messages one by one, and in one list."""

    @pytest.mark.parametrize("collected", [list, tuple, iter])
    @pytest.mark.parametrize("verb", ["add", "set"])
    def test_messages_may_be_passed_in_one_iterable(self, collected, verb):
        memory = MessageWindowChatMemory(max_messages=9)
        getattr(memory, verb)(collected([U1, A1]))

        assert memory.messages() == [U1, A1]

    @pytest.mark.parametrize("verb", ["add", "set", "aadd", "aset"])
    def test_or_one_by_one(self, verb):
        memory = MessageWindowChatMemory(max_messages=9)
        called = getattr(memory, verb)(U1, A1)
        if verb.startswith("aa") or verb == "aset":
            asyncio.run(called)

        assert memory.messages() == [U1, A1]

    def test_nothing_is_not_a_memory(self):
        memory = MessageWindowChatMemory(max_messages=9)
        memory.add(U1)

        assert memory.add([]) == []
        with pytest.raises(TypeError, match="at least one message"):
            memory.set()
        with pytest.raises(TypeError, match=r"messages\[0\] must be a message, not str"):
            memory.add("Hi")
        assert memory.messages() == [U1]
        memory.set([])
        assert memory.messages() == []
