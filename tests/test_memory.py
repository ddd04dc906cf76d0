"""Memories, as a program uses them, on the stores that need no database."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.stores import InMemoryChatMemoryStore, SingleSlotChatMemoryStore
from tests.estimators import WORDS

PRIVATE = "whatnobodyelsemayread"
S1, S2 = SystemMessage("be brief"), SystemMessage("be long")
U1, U2, U3 = UserMessage("one"), UserMessage("two"), UserMessage("three")
A1 = AiMessage("hello")
CALL = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")])
RESULT = ToolExecutionResultMessage("1", "tool", "4")


class Plain:
    """A store of somebody's own: three methods, no base class."""

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


class Limit:
    """A limit that can be told to change, and notes who asked."""

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
    """A whole number above 0, else an error that names the parameter and the value."""

    @each_kind
    @wrong_limits
    def test_a_wrong_limit_fails_when_the_memory_is_built(self, build, name, limit):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number above 0, not ") as error:
            build(limit)

        assert str(error.value).endswith(f"not {limit!r}.")

    @each_kind
    @wrong_limits
    def test_a_function_that_returns_a_wrong_limit_fails_when_the_memory_is_built(self, build, name, limit):
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number above 0, not ") as error:
            build(Limit(limit))

        assert str(error.value).endswith(f"not {limit!r}.")

    @each_kind
    @wrong_limits
    @pytest.mark.parametrize(
        "use",
        [lambda memory: memory.add(U2), lambda memory: memory.set([U2]), lambda memory: memory.messages()],
        ids=["add", "set", "messages"],
    )
    def test_a_limit_that_turns_wrong_fails_at_each_use_and_changes_nothing(self, build, name, limit, use):
        dynamic = Limit(100)
        memory = build(dynamic)
        memory.add(U1)

        dynamic.value = limit
        with pytest.raises(ValueError, match=rf"^{name} must be a whole number above 0, not "):
            use(memory)

        dynamic.value = 100
        assert memory.messages() == [U1]

    @each_kind
    def test_a_limit_that_turned_wrong_does_not_keep_a_memory_from_being_cleared(self, build, name):
        limit = Limit(100)
        memory = build(limit)
        memory.add(U1)

        limit.value = None
        memory.clear()

        limit.value = 100
        assert memory.messages() == []

    @each_kind
    def test_a_limit_is_asked_for_with_the_id_and_anew_each_time(self, build, name):
        limit = Limit(100)
        memory = build(limit, id=12345)
        limit.asked.clear()

        for use in (lambda: memory.add(U1), lambda: memory.set([U1]), memory.messages):
            use()
            assert limit.asked == [12345]
            limit.asked.clear()

    def test_an_error_of_the_function_comes_through(self):
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

    def test_what_is_added_under_a_smaller_limit_trims_what_is_stored(self):
        limit = Limit(3)
        memory = message_memory(limit)
        memory.add(U1, U2, U3)

        limit.value = 1
        memory.add(A1)
        limit.value = 3

        assert memory.messages() == [A1]


class TestId:
    def test_a_memory_is_called_default_unless_told_otherwise(self):
        assert message_memory().id == "default"
        assert token_memory().id == "default"

    @pytest.mark.parametrize("id", ["12345", 12345, ("a", 1), 0, False, "x" * 255], ids=lambda value: repr(value)[:9])
    def test_an_id_is_given_back_as_it_was_given(self, id):
        memory = message_memory(id=id)

        memory.add(U1)

        assert memory.id is id
        assert memory.messages() == [U1]

    def test_ids_with_the_same_str_name_the_same_memory(self):
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
        ],
        ids=["None", "empty", "too_long", "NUL", "surrogate"],
    )
    def test_a_wrong_id_is_refused(self, build, id, error, reason):
        with pytest.raises(error, match=f"^A memory id {reason}"):
            build(id=id)
        with pytest.raises(error, match=f"^A memory id {reason}"):
            InMemoryChatMemoryStore().get_messages(id)


class TestAdd:
    @each_store
    def test_messages_come_back_in_the_order_they_were_added(self, store_class):
        memory = message_memory(store=store_class())

        memory.add(U1)
        memory.add(A1, U2)

        assert memory.messages() == [U1, A1, U2]

    @each_store
    def test_the_oldest_leaves_when_the_window_is_full(self, store_class):
        memory = message_memory(3, store=store_class())

        memory.add(S1, U1, A1, U2)

        assert memory.messages() == [S1, A1, U2]
        assert memory.store.get_messages("default") == [S1, A1, U2]

    def test_a_token_window_holds_as_much_as_its_estimator_says(self):
        memory = token_memory(3 + 4 + 4)

        memory.add(U1, U2, U3)

        assert memory.messages() == [U2, U3]

    def test_nothing_added_is_nothing_done(self):
        limit, store = Limit(2), Plain()
        memory = message_memory(limit, store=store)
        memory.add(U1, U2)
        limit.value = 1

        memory.add()

        assert store.kept == {"default": [U1, U2]}
        assert store.writes == 1

    @pytest.mark.parametrize("wrong", [None, "hello", [U1], {"type": "USER"}], ids=["None", "str", "list", "dict"])
    def test_what_is_no_message_is_refused_with_its_place_and_nothing_is_stored(self, wrong):
        memory = message_memory()
        memory.add(A1)

        with pytest.raises(TypeError, match=rf"^messages\[1\] must be a message, not {type(wrong).__name__}\.$"):
            memory.add(U1, wrong, U2)

        assert memory.messages() == [A1]

    def test_several_are_written_in_one_step(self):
        store = Plain()

        message_memory(2, store=store).add(U1, A1, U2, CALL)

        assert store.writes == 1
        assert store.kept == {"default": [U2, CALL]}

    def test_after_a_message_they_take_the_place_of_what_followed_it(self):
        memory = message_memory(store=InMemoryChatMemoryStore(keep_history=True))
        memory.add(U1, A1, U2)

        assert memory.add(U3, after=1) == [4]
        assert memory.messages() == [U1, U3]
        assert asyncio.run(memory.aadd(U2, after=0)) == [5]
        assert memory.messages() == [U2]
        assert memory.switch(3) == 3
        assert memory.messages() == [U1, A1, U2]

    def test_after_a_message_they_need_a_store_that_has_a_history(self):
        store = Plain()

        with pytest.raises(NotImplementedError, match=r"keeps no history"):
            message_memory(store=store).add(U1, after=0)

        assert store.writes == 0

    @pytest.mark.parametrize("build", [message_memory, token_memory])
    def test_the_list_that_comes_back_is_the_callers(self, build):
        memory = build()
        memory.add(U1)

        memory.messages().clear()

        assert memory.messages() == [U1]


class TestSystemMessages:
    @each_store
    def test_an_equal_one_changes_nothing_not_even_what_a_smaller_limit_would_trim(self, store_class):
        limit = Limit(3)
        memory = message_memory(limit, store=store_class())
        memory.add(S1, U1, U2)

        limit.value = 1
        memory.add(SystemMessage("be brief"))

        assert memory.store.get_messages("default") == [S1, U1, U2]

    def test_an_equal_one_is_not_written(self):
        store = Plain()
        memory = message_memory(store=store)
        memory.add(S1, U1)

        memory.add(S1)

        assert store.writes == 1

    @each_store
    def test_another_one_takes_its_place_at_the_end(self, store_class):
        memory = message_memory(store=store_class())

        memory.add(S1, U1)
        memory.add(S2)

        assert memory.messages() == [U1, S2]

    @each_store
    @pytest.mark.parametrize("build", [message_memory, token_memory])
    def test_another_one_takes_its_place_in_front_if_it_is_kept_there(self, store_class, build):
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
    def test_as_far_as_they_fit(self, store_class):
        memory = message_memory(2, store=store_class())

        memory.set([S1, U1, A1, U2])

        assert memory.store.get_messages("default") == [S1, U2]

    @each_store
    def test_an_empty_list_empties_the_memory(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(S1, U1)

        memory.set([])

        assert memory.messages() == []

    def test_system_messages_stay_where_and_as_many_as_they_are(self):
        memory = message_memory(always_keep_system_message_first=True)

        memory.set([U1, S1, S2, S1])

        assert memory.messages() == [U1, S1, S2, S1]

    @each_store
    def test_the_list_that_is_given_is_neither_kept_nor_changed(self, store_class):
        given = [S1, U1, A1, U2]
        memory = message_memory(3, store=store_class())

        memory.set(given)
        unchanged = list(given)
        given.append(U3)

        assert unchanged == [S1, U1, A1, U2]
        assert memory.messages() == [S1, A1, U2]

    def test_any_iterable_will_do(self):
        memory = message_memory()

        memory.set(message for message in (U1, A1))

        assert memory.messages() == [U1, A1]

    def test_what_is_no_message_is_refused_with_its_place_and_nothing_is_stored(self):
        memory = message_memory()
        memory.add(A1)

        with pytest.raises(TypeError, match=r"^messages\[2\] must be a message, not str\.$"):
            memory.set([U1, U2, PRIVATE])

        assert memory.messages() == [A1]


class TestClear:
    @each_store
    def test_everything_is_forgotten_the_system_message_too(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(S1, U1)

        memory.clear()
        memory.clear()

        assert memory.messages() == []

    @each_store
    def test_a_memory_can_be_filled_again(self, store_class):
        memory = message_memory(store=store_class())
        memory.add(S1, U1)

        memory.clear()
        memory.add(S1, U2)

        assert memory.messages() == [S1, U2]

    def test_other_memories_stay(self):
        store = InMemoryChatMemoryStore()
        mine, yours = message_memory(id="mine", store=store), message_memory(id="yours", store=store)
        mine.add(U1)
        yours.add(U2)

        mine.clear()

        assert yours.messages() == [U2]


class TestWarning:
    """Somebody has to know when what was just said is not sent."""

    @each_store
    def test_a_message_larger_than_the_window_is_warned_of_with_sizes_and_without_its_text(self, store_class, caplog):
        memory = token_memory(9, id="chat-7", store=store_class())

        with caplog.at_level(logging.WARNING):
            memory.add(UserMessage(f"{PRIVATE} " * 50))

        assert memory.messages() == []
        [record] = caplog.records
        assert (record.name, record.levelname) == ("chatmemory_django.memory", "WARNING")
        assert record.getMessage() == (
            "None of the 1 messages just added to memory 'chat-7' is left in it: the last costs 53, the limit is 9."
        )
        assert PRIVATE not in caplog.text

    def test_so_is_a_window_that_the_system_message_fills(self, caplog):
        memory = message_memory(1)

        memory.add(S1)
        memory.add(U1, U2)

        assert memory.messages() == [S1]
        assert "None of the 2 messages just added to memory 'default' is left in it" in caplog.text

    def test_where_something_of_it_is_left_nobody_is_warned(self, caplog):
        memory = message_memory(1)

        memory.add(U1, U2)
        memory.add(S1)
        memory.add(S1)
        memory.add()

        assert memory.messages() == [S1]
        assert caplog.records == []


class TestWhatIsRead:
    """Two options change what is read, and never what is stored."""

    @each_store
    def test_start_on_user_leaves_out_what_comes_before_the_first_user_message(self, store_class):
        stored = [S1, CALL, RESULT, A1, U1, A1]
        memory = message_memory(store=store_class(), start_on_user=True)

        memory.add(*stored)

        assert memory.messages() == [S1, U1, A1]
        assert memory.store.get_messages("default") == stored

    @each_store
    def test_repair_tools_leaves_out_calls_without_result_and_results_without_call(self, store_class):
        stored = [ToolExecutionResultMessage("0", "tool", "4"), U1, CALL, RESULT, A1, CALL]
        memory = message_memory(store=store_class(), repair_tools=True)

        memory.add(*stored)

        assert memory.messages() == [U1, CALL, RESULT, A1]
        assert memory.store.get_messages("default") == stored

    def test_a_result_that_comes_later_brings_its_call_back(self):
        memory = message_memory(repair_tools=True)

        memory.add(U1, CALL)
        before = memory.messages()
        memory.add(RESULT)

        assert before == [U1]
        assert memory.messages() == [U1, CALL, RESULT]

    def test_both_together(self):
        memory = message_memory(start_on_user=True, repair_tools=True)

        memory.add(S1, CALL, U1, RESULT, A1)

        assert memory.messages() == [S1, U1, A1]

    def test_unless_told_so_a_memory_does_neither(self):
        memory = message_memory()

        memory.add(RESULT, CALL)

        assert memory.messages() == [RESULT, CALL]


class TestEstimator:
    @pytest.mark.parametrize("missing", ["in_text", "in_message", "in_messages"])
    def test_one_without_all_three_methods_is_refused(self, missing):
        methods = {
            f"estimate_token_count_{name}": lambda self, counted: 1
            for name in ("in_text", "in_message", "in_messages")
            if name != missing
        }
        incomplete = type("Incomplete", (), methods)()

        with pytest.raises(
            TypeError, match=rf"^token_count_estimator has no estimate_token_count_{missing}\(\), being Incomplete\.$"
        ):
            TokenWindowChatMemory(max_tokens=10, token_count_estimator=incomplete)

    @pytest.mark.parametrize("wrong", [None, "gpt-4o", len], ids=["None", "name", "function"])
    def test_what_is_no_estimator_is_refused(self, wrong):
        with pytest.raises(TypeError, match=rf"being {type(wrong).__name__}\.$"):
            TokenWindowChatMemory(max_tokens=10, token_count_estimator=wrong)

    def test_options_are_given_by_name_and_unknown_ones_are_refused(self):
        with pytest.raises(TypeError):
            MessageWindowChatMemory(10)
        with pytest.raises(TypeError, match="max_message"):
            MessageWindowChatMemory(max_messages=10, max_message=5)


class TestStores:
    def test_a_memory_without_a_store_has_one_of_its_own(self):
        one, other = message_memory(), message_memory()

        one.add(U1)

        assert isinstance(one.store, SingleSlotChatMemoryStore)
        assert (one.messages(), other.messages()) == ([U1], [])

    def test_a_plain_object_with_three_methods_is_asked_with_the_id_as_given(self):
        store = Plain()
        memory = message_memory(id=7, store=store)

        memory.add(S1, U1)
        memory.set([U2])
        kept = dict(store.kept)
        memory.clear()

        assert kept == {7: [U2]}
        assert store.kept == {}

    @pytest.mark.parametrize("method", ["get_messages", "delete_messages"])
    def test_a_single_slot_store_refuses_other_ids(self, method):
        store = SingleSlotChatMemoryStore("mine")

        with pytest.raises(ValueError, match=r"^This store keeps the memory 'mine' and no other, so not 'yours'\.$"):
            getattr(store, method)("yours")

    def test_a_single_slot_store_refuses_what_is_meant_for_another_id(self):
        store = SingleSlotChatMemoryStore(7)

        with pytest.raises(ValueError, match="'7' and no other, so not 'yours'"):
            store.update_messages("yours", [U1])
        with pytest.raises(ValueError, match="'7' and no other, so not 'yours'"):
            message_memory(id="yours", store=store).add(U1)

        assert store.get_messages("7") == []

    @pytest.mark.parametrize(
        "store", [InMemoryChatMemoryStore(), SingleSlotChatMemoryStore("a")], ids=["in_memory", "single_slot"]
    )
    def test_a_store_in_the_process_keeps_a_copy_and_gives_copies(self, store):
        given = [U1]

        store.update_messages("a", given)
        given.append(U2)
        store.get_messages("a").append(U3)

        assert store.get_messages("a") == [U1]

    def test_a_store_in_the_process_refuses_what_is_no_message(self):
        store = InMemoryChatMemoryStore()

        with pytest.raises(TypeError, match=r"^messages\[0\] must be a message, not NoneType\.$"):
            store.update_messages("a", [None])

        assert store.get_messages("a") == []

    def test_deleting_what_was_never_there_is_no_error(self):
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
        for thread in range(8):  # each one's in the order it said them
            assert [text for text in texts if text.startswith(f"{thread}:")] == [f"{thread}:{n}" for n in range(25)]


class TestAsynchronously:
    @each_store
    def test_the_twins_do_the_same(self, store_class):
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

    def test_errors_come_through(self):
        memory = message_memory()

        with pytest.raises(TypeError, match=r"^messages\[0\] must be a message, not NoneType\.$"):
            asyncio.run(memory.aadd(None))

    def test_many_at_once_lose_nothing(self):
        memory = message_memory(1000)

        async def talk() -> None:
            await asyncio.gather(*(memory.aadd(UserMessage(str(number))) for number in range(100)))

        asyncio.run(talk())

        assert sorted(int(message.single_text) for message in memory.messages()) == list(range(100))

    def test_the_event_loop_goes_on_while_a_store_takes_its_time(self):
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
