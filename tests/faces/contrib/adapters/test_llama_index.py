"""LlamaIndex's chat store: active messages are those in the memory, archived ones the rest of the history."""

import itertools
import pickle
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.contrib.adapters.contract import HistoryContract, owner, stored
from tests.faces.contrib.adapters.running import in_threads, run

pytest.importorskip("llama_index.core", reason="LlamaIndex is needed: pip install llama-index-core")

from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.memory import Memory, StaticMemoryBlock
from llama_index.core.memory.memory import BaseMemoryBlock
from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore

from chatmemory_django.contrib.adapters.llama_index import BATCH, DjangoChatStore
from tests.strategies import IN_DATABASE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("a_small_memory")]

ACTIVE, ARCHIVED = MessageStatus.ACTIVE, MessageStatus.ARCHIVED
HI, HELLO = ChatMessage("Hi"), ChatMessage("Hello", role="assistant")
PNG = b"\x89PNG\r\n\x1a\nIHDR"

EVERY = [
    ChatMessage("Be brief.", role="system"),
    ChatMessage("Be brief.", role="system"),
    ChatMessage("Be kind.", role="developer"),
    ChatMessage(" ", role="system"),
    HI,
    ChatMessage("Hi", additional_kwargs={"user": "anna", "n": [1, 1.0, True, None, 2**53 + 1]}),
    ChatMessage(blocks=[]),
    ChatMessage(
        blocks=[
            TextBlock(text="Look:"),
            ImageBlock(image=PNG, detail="low"),
            ImageBlock(url="https://example.com/cat.png"),
            AudioBlock(audio=b"RIFF", format="wav"),
            VideoBlock(url="https://example.com/film.mp4"),
            DocumentBlock(data=b"%PDF-1.4", document_mimetype="application/pdf"),
            CachePoint(cache_control=CacheControl(type="ephemeral")),
        ]
    ),
    ChatMessage(
        role="assistant",
        blocks=[
            ThinkingBlock(content="They greet.", num_tokens=3, additional_information={"signature": "s"}),
            TextBlock(text="Wait."),
            ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"at": 1}),
            ToolCallBlock(tool_name="look", tool_kwargs='{"at"'),
        ],
    ),
    ChatMessage("found", role="tool", additional_kwargs={"tool_call_id": "1", "name": "look"}),
    ChatMessage("found", role="function", additional_kwargs={"name": "look"}),
    ChatMessage(blocks=[CitableBlock(title="t", source="s", content=[TextBlock(text="It is so.")])]),
    ChatMessage(
        role="model",
        blocks=[
            CitationBlock(
                title="t", source="s", cited_content=TextBlock(text="so"), additional_location_info={"page": 1}
            )
        ],
    ),
    ChatMessage(role="chatbot", content=None),
    HELLO,
]
"""Messages of every kind."""


@pytest.fixture
def store() -> DjangoChatStore:
    return DjangoChatStore()


def numbered(*numbers: int) -> list[ChatMessage]:
    return [ChatMessage(str(number)) for number in numbers]


def texts(messages) -> list[str]:
    return [message.content for message in messages]


def read(store, status=None, key="c", **page) -> list[str]:
    return texts(run(store.get_messages(key, status, **page)))


class TestContract(HistoryContract):
    EVERY = EVERY
    SHOWN: ClassVar = [
        ChatMessage("Be brief.", role="system"),
        HI,
        ChatMessage(
            role="assistant",
            blocks=[
                TextBlock(text="Wait."),
                ToolCallBlock(tool_call_id="1", tool_name="look", tool_kwargs={"at": 1}),
            ],
        ),
        EVERY[9],
    ]
    BASE = AsyncDBChatStore
    WRITES: ClassVar = {
        "add": 3,
        "set_messages": 1,
        "delete_message": 1,
        "clear": 0,
        "delete_oldest_messages": 0,
        "archive_oldest_messages": 0,
    }

    def store(self, memory_id="c", user=None):
        return DjangoChatStore(owner=user)

    async def add(self, *messages, to="c", user=None):
        await self.store(user=user).add_messages(to, messages)

    async def read(self, user=None):
        return await self.store(user=user).get_messages("c", None)

    async def clear(self, user=None):
        await self.store(user=user).delete_messages("c")

    def begin(self, memory_id):
        run(self.add(HI, to=memory_id))

    def question(self, text):
        return ChatMessage(text)

    def write(self, kind):
        arguments = {"set_messages": [HELLO], "delete_message": 1}.get(kind, 2)
        return super().write(kind) if kind in {"add", "clear"} else getattr(self.store(), kind)("c", arguments)

    async def count(self):
        return await self.store().count_messages("c")

    def exactly(self, messages):
        return [repr(message.model_dump()) for message in messages]


class TestMessages:
    def test_each_is_a_message_of_the_conversation(self, store):
        run(store.add_messages("c", [HI, EVERY[8], EVERY[9], HELLO]))

        calls = [ToolExecutionRequest("1", "look", '{"at": 1}'), ToolExecutionRequest(None, "look", '{"at"')]
        assert stored() == [
            UserMessage("Hi"),
            AiMessage("Wait.", "They greet.", calls),
            ToolExecutionResultMessage("1", "look", "found"),
            AiMessage("Hello"),
        ]
        assert [row.sequence for row in Message.objects.look_through("found")] == [3]

    def test_they_are_active_with_any_size_of_the_sites_memory(self, store):
        run(store.add_messages("c", EVERY))

        assert run(store.get_messages("c", ACTIVE)) == EVERY
        assert run(store.get_messages("c", ARCHIVED)) == []

    def test_the_sites_messages_evict_what_exceeds_its_memory(self, store):
        run(store.add_messages("c", numbered(1, 2, 3, 4)))

        get_chat_memory("c").add(UserMessage("5"))

        assert read(store, ACTIVE) == ["3", "4", "5"]
        assert read(store, ARCHIVED) == ["1", "2"]

    def test_setting_no_messages_creates_nothing(self, store):
        run(store.set_messages("c", []))

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("wrong", ["Hi", None, {"role": "user"}], ids=repr)
    @pytest.mark.parametrize("call", ["add_messages", "set_messages"])
    def test_other_objects_are_refused_and_nothing_changes(self, store, call, wrong):
        run(store.add_message("c", HI))

        with pytest.raises(TypeError, match=r"^messages\[1\] must be a ChatMessage, not "):
            run(getattr(store, call)("c", [HELLO, wrong]))

        assert read(store) == ["Hi"]

    def test_what_is_not_json_is_refused_and_nothing_is_stored(self, store):
        with pytest.raises(ValueError, match="object"):
            run(store.add_messages("c", [HI, ChatMessage("Hi", additional_kwargs={"what": object()})]))

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize(("status", "count"), [(ACTIVE, 1), (ARCHIVED, 2), (None, 2)])
    def test_reading_takes_few_statements(self, store, status, count, django_assert_num_queries):
        run(store.add_messages("c", numbered(*range(300))))
        run(store.archive_oldest_messages("c", 100))

        with django_assert_num_queries(count):
            store._queue("c").read(status, None, 0)


class TestStatus:
    def test_it_can_be_given(self, store):
        run(store.add_messages("c", numbered(1, 2), status=ARCHIVED))
        run(store.add_message("c", ChatMessage("3")))
        run(store.add_message("c", ChatMessage("4"), status=ARCHIVED))

        assert read(store, ACTIVE) == ["3"]
        assert read(store, ARCHIVED) == ["1", "2", "4"]
        assert read(store) == ["1", "2", "3", "4"]

    def test_counts_are_of_one_status_or_both(self, store):
        assert [run(store.count_messages("c", status)) for status in (ACTIVE, ARCHIVED, None)] == [0, 0, 0]

        run(store.add_messages("c", numbered(1, 2, 3)))
        run(store.archive_oldest_messages("c", 1))

        assert run(store.count_messages("c")) == 2
        assert [run(store.count_messages("c", status)) for status in (ACTIVE, ARCHIVED, None)] == [2, 1, 3]

    @pytest.mark.parametrize("status", [ACTIVE, ARCHIVED, None])
    @pytest.mark.parametrize("limit", [1, 2, 3, 100])
    def test_pages_cover_everything_once_despite_unreadable_messages(self, store, status, limit):
        for number in range(5):
            run(store.add_message("c", ChatMessage(str(number)), status or ACTIVE))
            get_chat_memory("c", max_messages=100).add(CustomMessage({"of": "others"}))

        pages = [read(store, status, limit=limit, offset=offset) for offset in range(0, 6, limit)]

        assert [text for page in pages for text in page] == ["0", "1", "2", "3", "4"]
        assert read(store, status, limit=0) == read(store, status, offset=5) == []
        assert read(store, status, offset=3) == ["3", "4"]


class TestOldest:
    def test_archived_ones_are_returned_in_order_and_stay_in_the_history(self, store):
        run(store.add_messages("c", numbered(1, 2, 3, 4)))

        assert texts(run(store.archive_oldest_messages("c", 2))) == ["1", "2"]
        assert texts(run(store.archive_oldest_messages("c", 1))) == ["3"]

        assert read(store, ACTIVE) == ["4"]
        assert read(store, ARCHIVED) == ["1", "2", "3"]
        assert texts(run(store.archive_oldest_messages("c", 9))) == ["4"]
        assert run(store.archive_oldest_messages("c", 9)) == []
        assert read(store) == ["1", "2", "3", "4"]

    def test_deleted_ones_are_returned_in_order_and_removed(self, store):
        run(store.add_messages("c", numbered(0, 1, 2, 3, 4)))
        run(store.archive_oldest_messages("c", 1))

        assert texts(run(store.delete_oldest_messages("c", 2))) == ["1", "2"]

        assert (read(store, ARCHIVED), read(store, ACTIVE)) == (["0"], ["3", "4"])
        assert texts(run(store.delete_oldest_messages("c", 9))) == ["3", "4"]
        assert run(store.delete_oldest_messages("c", 9)) == []

    @pytest.mark.parametrize("call", ["archive_oldest_messages", "delete_oldest_messages"])
    def test_an_empty_store_returns_none_and_creates_no_conversation(self, store, call):
        assert run(getattr(store, call)("c", 3)) == []
        assert not Conversation.objects.exists()
        run(store.add_message("c", HI))
        assert run(getattr(store, call)("c", 0)) == []
        assert read(store, ACTIVE) == ["Hi"]

    def test_unreadable_messages_are_not_counted(self, store):
        get_chat_memory("c").add(CustomMessage({"of": "others"}), UserMessage("1"), CustomMessage({"of": "others"}))
        run(store.add_message("c", ChatMessage("2")))

        assert texts(run(store.archive_oldest_messages("c", 1))) == ["1"]
        assert read(store, ACTIVE) == ["2"]

    @pytest.mark.parametrize("call", ["archive_oldest_messages", "delete_oldest_messages"])
    def test_6_concurrent_callers_get_different_ones(self, store, call):
        run(store.add_messages("c", numbered(*range(20))))

        found = in_threads(6, lambda _: texts(run(getattr(DjangoChatStore(), call)("c", 3))))

        assert sorted(map(tuple, found)) == sorted(
            tuple(map(str, range(first, first + 3))) for first in range(0, 18, 3)
        )
        assert read(store, ACTIVE) == ["18", "19"]


class TestSet:
    @pytest.mark.parametrize("status", [ACTIVE, ARCHIVED])
    def test_it_replaces_all_messages_including_archived_ones(self, store, status):
        run(store.add_messages("c", [*numbered(1, 2, 3), EVERY[0]]))
        run(store.archive_oldest_messages("c", 2))

        run(store.set_messages("c", [HELLO, HI], status))

        assert run(store.get_messages("c", None)) == run(store.get_messages("c", status)) == [HELLO, HI]
        run(store.set_messages("c", [], status))
        assert read(store) == []

    def test_it_creates_a_missing_conversation(self, store):
        run(store.set_messages("c", [HI, HELLO]))

        assert read(store, ACTIVE) == ["Hi", "Hello"]

    def test_of_concurrent_calls_one_wins(self, store):
        in_threads(10, lambda number: run(DjangoChatStore().set_messages("c", numbered(number, number))))

        first, second = read(store)
        assert first == second


class TestDelete:
    def test_a_message_is_identified_by_its_sequence(self, store):
        run(store.add_messages("c", numbered(1, 2, 3)))
        run(store.archive_oldest_messages("c", 1))

        assert run(store.delete_message("c", 1)).content == "1"
        assert run(store.delete_message("c", 3)).content == "3"
        assert [run(store.delete_message("c", sequence)) for sequence in (1, 0, -1, 4)] == [None] * 4
        assert run(store.delete_message("unknown", 1)) is None
        assert read(store) == ["2"]

    def test_a_message_of_an_unused_branch_is_not_found(self, store):
        run(store.add_messages("c", numbered(1, 2)))
        get_chat_memory("c").rewind(1)

        assert run(store.delete_message("c", 2)) is None

    @pytest.mark.parametrize(("status", "left"), [(ACTIVE, ["1", "2"]), (ARCHIVED, ["3", "4"]), (None, [])])
    def test_those_of_a_status_are_deleted_and_the_others_stay(self, store, status, left):
        run(store.add_messages("c", numbered(1, 2, 3, 4)))
        run(store.archive_oldest_messages("c", 2))

        run(store.delete_messages("c", status))

        assert read(store) == left
        run(store.add_message("c", ChatMessage("5")))
        assert read(store) == [*left, "5"]
        assert read(store, ACTIVE)[-1] == "5"

    def test_they_can_be_many(self, store):
        run(store.add_messages("c", numbered(*range(2 * BATCH + 3))))
        run(store.archive_oldest_messages("c", 2 * BATCH + 1))

        run(store.delete_messages("c", ARCHIVED))

        assert read(store) == [str(2 * BATCH + 1), str(2 * BATCH + 2)]

    def test_an_unknown_key_is_not_created(self, store):
        for status in (ACTIVE, ARCHIVED, None):
            run(store.delete_messages("c", status))

        assert not Conversation.objects.exists()


class TestKeys:
    def test_each_with_messages_is_listed_once(self, store):
        run(store.add_messages("a", numbered(1, 2)))
        run(store.add_message("b", HI, ARCHIVED))
        run(store.add_message("c", HI))
        run(store.delete_messages("c"))
        get_chat_memory("d").add(UserMessage("Hi"))
        Conversation.objects.create(memory_id="e")

        assert run(store.get_keys()) == ["a", "b", "d"]


class TestOwner:
    def test_another_users_messages_are_neither_counted_nor_taken(self):
        anna, ben = DjangoChatStore(owner=owner("anna")), DjangoChatStore(owner=owner("ben"))
        run(anna.add_messages("c", [HI, HELLO]))
        run(anna.archive_oldest_messages("c", 1))

        for status in (ACTIVE, ARCHIVED, None):
            assert run(ben.get_messages("c", status)) == []
            assert run(ben.count_messages("c", status)) == 0
        assert run(ben.get_keys()) == []
        assert run(ben.delete_message("c", 1)) is None
        assert run(ben.archive_oldest_messages("c", 1)) == run(ben.delete_oldest_messages("c", 1)) == []
        for status in (ACTIVE, ARCHIVED):
            run(ben.delete_messages("c", status))
        with pytest.raises(PermissionDenied):
            run(ben.set_messages("c", [HI]))
        assert (read(anna, ARCHIVED), read(anna, ACTIVE)) == (["Hi"], ["Hello"])

    def test_it_survives_serialization_of_the_store(self):
        anna = owner("anna")
        run(DjangoChatStore(owner=anna).add_message("c", HI))
        store = DjangoChatStore(owner=owner("ben"))

        for again in (
            DjangoChatStore.model_validate(store.model_dump()),
            DjangoChatStore.model_validate_json(store.model_dump_json()),
            pickle.loads(pickle.dumps(store)),
            store.model_copy(),
            store.model_copy(deep=True),
        ):
            assert again.owner == store.owner
            assert run(again.get_messages("c")) == []
        assert DjangoChatStore.model_validate(DjangoChatStore().model_dump()).owner is None

    def test_an_unsaved_one_is_refused(self):
        with pytest.raises(ValueError, match="saved user"):
            DjangoChatStore(owner=get_user_model()())


def test_a_rolled_back_archiving_archives_nothing(store):
    run(store.add_message("c", HI))

    with transaction.atomic():
        async_to_sync(store.archive_oldest_messages)("c", 1)
        transaction.set_rollback(True)

    assert read(store, ACTIVE) == ["Hi"]


@pytest.mark.parametrize("keeps", [True, False])
def test_without_history_nothing_is_archived(store, settings, keeps):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "KEEP_HISTORY": keeps}
    run(store.add_messages("c", numbered(1, 2, 3)))
    run(store.add_message("c", ChatMessage("4"), ARCHIVED))

    assert texts(run(store.archive_oldest_messages("c", 1))) == ["1"]

    assert read(store) == (["1", "2", "3", "4"] if keeps else ["2", "3"])
    assert texts(run(store.delete_oldest_messages("c", 1))) == ["2"]
    run(store.set_messages("c", numbered(5, 6)))
    assert read(store, ACTIVE) == ["5", "6"]


class Seen(BaseMemoryBlock[str]):
    """A memory block that returns the texts it was given."""

    received: list[str] = Field(default_factory=list)

    async def _aget(self, messages=None, **options) -> str:
        return " ".join(self.received)

    async def _aput(self, messages) -> None:
        self.received.extend(texts(messages))


@asynccontextmanager
async def llama_indexs_own(folder):
    store = SQLAlchemyChatStore("messages", async_database_uri=f"sqlite+aiosqlite:///{folder}/own.sqlite3")
    try:
        yield store
    finally:
        if store._async_engine is not None:
            await store._async_engine.dispose()


numbers = itertools.count()
some_messages = st.lists(
    st.builds(
        ChatMessage,
        st.sampled_from(["one", "one two", "one two three four five six seven"]),
        role=st.sampled_from([MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SYSTEM, MessageRole.TOOL]),
    ),
    min_size=1,  # without a block, LlamaIndex's memory fails
    max_size=4,
)
statuses = st.sampled_from([ACTIVE, ACTIVE, ARCHIVED])
any_status = st.sampled_from([ACTIVE, ARCHIVED, None])
calls = st.one_of(
    st.tuples(st.just("add_messages"), some_messages, statuses),
    st.tuples(st.just("add_messages"), some_messages, statuses),
    st.tuples(st.just("set_messages"), some_messages, statuses),
    st.tuples(st.just("delete_messages"), any_status),
    st.tuples(st.sampled_from(["archive_oldest_messages", "delete_oldest_messages"]), st.integers(0, 5)),
    st.tuples(st.just("get_messages"), any_status, st.integers(0, 5), st.integers(0, 5)),
)


class TestMemory:
    """LlamaIndex's ``Memory`` on top of the store."""

    @staticmethod
    def memory(**options) -> Memory:
        return Memory.from_defaults(
            session_id="c", chat_store=DjangoChatStore(), token_limit=10, tokenizer_fn=str.split, **options
        )

    def test_it_flushes_into_the_archive_and_the_history_keeps_everything(self):
        memory = self.memory(token_flush_size=1, chat_history_token_ratio=1.0)

        for number in range(4):
            run(memory.aput(ChatMessage(f"{number} two three four")))

        assert texts(run(memory.aget())) == ["2 two three four", "3 two three four"]
        assert [row.sequence for row in Conversation.objects.get().evicted()] == [1, 2]
        assert [row.sequence for row in Conversation.objects.get().memory()] == [3, 4]

    def test_its_synchronous_methods_work_with_and_without_an_event_loop(self):
        def talk() -> list[str]:
            memory = self.memory(chat_history=[HI])
            memory.put(HELLO)
            return texts(memory.get_all())

        async def talk_in_a_loop() -> list[str]:
            return talk()

        assert in_threads(1, lambda _: talk()) == [["Hi", "Hello"]]
        assert run(talk_in_a_loop()) == ["Hi", "Hello"]
        assert async_to_sync(talk_in_a_loop)() == ["Hi", "Hello"]


class TestComparedWithLlamaIndex:
    """After any steps, the store holds the same as LlamaIndex's own ``SQLAlchemyChatStore``."""

    @pytest.mark.slow
    @given(calls=st.lists(calls, max_size=12))
    @IN_DATABASE
    def test_as_a_store(self, calls, tmp_path):
        async def walk() -> None:
            key, ours = f"walk {next(numbers)}", DjangoChatStore()
            async with llama_indexs_own(tmp_path) as theirs:
                for call, *arguments in calls:
                    found, expected = [await getattr(each, call)(key, *arguments) for each in (ours, theirs)]
                    assert found == expected
                    for status in (ACTIVE, ARCHIVED, None):
                        assert await ours.get_messages(key, status) == await theirs.get_messages(key, status)
                        assert await ours.count_messages(key, status) == await theirs.count_messages(key, status)
                    assert (key in await ours.get_keys()) == (key in await theirs.get_keys())

        run(walk())

    @pytest.mark.slow
    @given(
        turns=st.lists(some_messages, max_size=10),
        limit=st.integers(3, 40),
        flush=st.integers(1, 20),
        singly=st.booleans(),
    )
    @IN_DATABASE
    def test_below_a_memory_with_blocks(self, turns, limit, flush, singly, tmp_path):
        async def talk() -> None:
            key = f"talk {next(numbers)}"
            async with llama_indexs_own(tmp_path) as own:
                memories = [
                    Memory.from_defaults(
                        session_id=key,
                        chat_store=store,
                        token_limit=limit,
                        token_flush_size=flush,
                        tokenizer_fn=str.split,
                        memory_blocks=[
                            Seen(name="seen"),
                            StaticMemoryBlock(name="facts", static_content="They greet."),
                        ],
                    )
                    for store in (DjangoChatStore(), own)
                ]
                for turn in turns:
                    for memory in memories:
                        given = [message.model_copy(deep=True) for message in turn]
                        if singly:
                            for message in given:
                                await memory.aput(message)
                        else:
                            await memory.aput_messages(given)
                    ours, theirs = memories
                    assert await ours.aget() == await theirs.aget()
                    for status in (ACTIVE, ARCHIVED, None):
                        assert await ours.aget_all(status) == await theirs.aget_all(status)
                    assert ours.memory_blocks[0].received == theirs.memory_blocks[0].received
                for memory in memories:
                    await memory.aset([HI])
                    assert await memory.aget_all() == [HI]
                    await memory.areset()
                    assert await memory.aget_all() == []

        run(talk())
