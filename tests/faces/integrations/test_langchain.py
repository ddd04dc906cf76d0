"""LangChain's chat message history in the site's own tables: a chain's messages come back unchanged."""

import asyncio
import datetime
import subprocess
import sys

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, SynchronousOnlyOperation
from django.db import connection, transaction

from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.integrations.running import in_threads, run

pytest.importorskip("langchain_core", reason="LangChain is needed: pip install langchain-core")

import langchain_core.messages as lc
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from chatmemory_django.integrations.langchain import DjangoChatMessageHistory

pytestmark = pytest.mark.django_db(transaction=True)

HI, HELLO = lc.HumanMessage("Hi"), lc.AIMessage("Hello")
CALL = {"name": "look", "args": {"at": [1, 1.0, True, None]}, "id": None}

EVERY = [
    lc.SystemMessage("Be brief."),
    lc.SystemMessage("Be brief."),
    lc.SystemMessage(" "),
    lc.HumanMessage("Hi", id="h1", name="Anna", additional_kwargs={"n": 2**53 + 1}),
    lc.HumanMessage(["Look:", {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}]),
    lc.HumanMessage([]),
    lc.AIMessage(
        [{"type": "thinking", "thinking": "They greet.", "signature": "s"}, {"type": "text", "text": "Hello"}],
        response_metadata={"model_name": "m", "logprobs": None},
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        id="run-1",
    ),
    lc.AIMessage("", tool_calls=[CALL]),
    lc.AIMessage("", invalid_tool_calls=[{"name": "look", "args": "{", "id": "1", "error": "no JSON"}]),
    lc.ToolMessage("found", tool_call_id="1", name="look", artifact={"rows": [1, 1.0, True]}),
    lc.ToolMessage([{"type": "text", "text": "no"}], tool_call_id="1", status="error"),
    lc.FunctionMessage("found", name="look"),
    lc.ChatMessage("Hm.", role="critic"),
    lc.ChatMessage("Hi", role="user"),
    lc.AIMessageChunk("Hel", tool_call_chunks=[{"name": "look", "args": '{"at"', "id": "1", "index": 0}]),
    lc.AIMessageChunk("lo", chunk_position="last"),
    lc.HumanMessageChunk("Hi"),
    lc.SystemMessageChunk("Be brief."),
    lc.ToolMessageChunk("found", tool_call_id="1"),
    lc.FunctionMessageChunk("found", name="look"),
    lc.ChatMessageChunk("Hm.", role="critic"),
    lc.RemoveMessage(id="h1"),
    HELLO,
]
"""Messages of every kind."""


@pytest.fixture(autouse=True)
def a_small_memory(settings):
    settings.CHATMEMORY = {
        "MEMORY": {
            "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
            "OPTIONS": {"max_messages": 3},
        }
    }


@pytest.fixture(autouse=True)
def _no_connection_is_left():
    yield
    asyncio.run(close_thread_sensitive())


def stored(memory_id: str = "s") -> list:
    return [row.chat_message for row in Conversation.objects.get(memory_id=memory_id).history()]


def owner(name: str):
    return get_user_model().objects.create_user(name)


class TestMessages:
    def test_they_come_back_unchanged_with_any_size_of_the_memory(self):
        history = DjangoChatMessageHistory("s")

        history.add_messages(EVERY[:5])
        run(history.aadd_messages(EVERY[5:]))

        assert history.messages == EVERY
        assert list(map(repr, run(history.aget_messages()))) == list(map(repr, EVERY))
        assert len(get_chat_memory("s").messages()) == 3

    def test_each_is_a_message_of_the_conversation(self):
        history = DjangoChatMessageHistory("s")
        history.add_user_message("Hi")
        history.add_messages([EVERY[7], EVERY[9], lc.ChatMessage("Hm, greetings.", role="critic")])
        history.add_ai_message("Hello")

        call, custom = ToolExecutionRequest(None, "look", '{"at": [1, 1.0, true, null]}'), stored()[3]
        assert stored() == [
            UserMessage("Hi"),
            AiMessage(tool_execution_requests=[call]),
            ToolExecutionResultMessage("1", "look", "found", is_error=False),
            custom,
            AiMessage("Hello"),
        ]
        assert isinstance(custom, CustomMessage)
        assert [row.sequence for row in Message.objects.look_through("greetings")] == [4]

    def test_messages_of_the_site_are_included(self):
        memory = get_chat_memory("s")
        call = ToolExecutionRequest("1", "look", '{"at": 1}')
        memory.add(SystemMessage("Be brief."), UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=[call]))
        memory.add(CustomMessage({"of": "others"}), ToolExecutionResultMessage("1", "look", "found"))

        assert DjangoChatMessageHistory("s").messages == [
            lc.SystemMessage("Be brief."),
            HI,
            lc.AIMessage("Wait.", tool_calls=[{"name": "look", "args": {"at": 1}, "id": "1"}]),
            lc.ToolMessage("found", tool_call_id="1", name="look"),
        ]

    def test_the_list_is_a_new_one_each_time(self):
        history = DjangoChatMessageHistory("s")
        history.add_messages([HI])

        history.messages.append(HELLO)

        assert history.messages == [HI]
        assert str(history) == "Human: Hi"

    def test_a_rewind_removes_them(self):
        history = DjangoChatMessageHistory("s")
        history.add_messages([HI, HELLO, HI])

        get_chat_memory("s").rewind(1)

        assert history.messages == [HI]

    def test_an_empty_list_adds_nothing(self):
        DjangoChatMessageHistory("s").add_messages([])

        assert not Conversation.objects.exists()
        assert DjangoChatMessageHistory("s").messages == []

    @pytest.mark.parametrize(
        ("wrong", "where"),
        [
            (lc.ToolMessage("found", tool_call_id="1", artifact={1}), r"\.artifact, of type set, "),
            (lc.ToolMessage("found", tool_call_id="1", artifact=[Document("found")]), r"\.artifact, of type list, "),
            (lc.ToolMessage("found", tool_call_id="1", artifact=(1, 2)), r"\.artifact, of type tuple, "),
            (lc.HumanMessage("Hi", additional_kwargs={1: "one"}), r"\.additional_kwargs, "),
            (lc.AIMessage("Hi", response_metadata={"at": datetime.date(2026, 1, 1)}), r"\.response_metadata, "),
            ("Hi", " must be a BaseMessage, not str"),
            (None, " must be a BaseMessage, not NoneType"),
            (type("Mine", (lc.HumanMessage,), {})("Hi"), " is a Mine; only "),
            (type("Mine", (lc.BaseMessage,), {})("Hi", type="mine"), " is a Mine; only "),
        ],
        ids=ascii,
    )
    def test_an_invalid_one_is_refused_and_nothing_is_stored(self, wrong, where):
        history = DjangoChatMessageHistory("s")

        with pytest.raises(TypeError, match=rf"^messages\[1\]{where}"):
            history.add_messages([HI, wrong])
        with pytest.raises(TypeError, match=rf"^messages\[1\]{where}"):
            run(history.aadd_messages([HI, wrong]))

        assert not Message.objects.exists()

    def test_reading_and_writing_takes_few_statements(self, django_assert_num_queries):
        history = DjangoChatMessageHistory("s")
        history.add_messages([HI] * 200)

        with django_assert_num_queries(1):
            assert len(history.messages) == 200


class TestClear:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_it_starts_again_and_keeps_the_old_messages_as_a_branch(self, is_async):
        history = DjangoChatMessageHistory("s")
        history.add_messages([HI, HELLO])

        run(history.aclear()) if is_async else history.clear()

        assert history.messages == []
        history.add_messages([HI])
        assert history.messages == [HI]
        assert Conversation.objects.get().history(all_branches=True).count() == 3

    def test_an_unknown_session_is_not_created(self):
        DjangoChatMessageHistory("s").clear()

        assert not Conversation.objects.exists()


class TestOwner:
    def test_a_new_conversation_belongs_to_the_owner(self):
        anna = owner("anna")

        DjangoChatMessageHistory("s", owner=anna).add_messages([HI])

        assert Conversation.objects.get().owner == anna

    def test_another_users_conversation_is_refused(self):
        DjangoChatMessageHistory("s", owner=owner("anna")).add_messages([HI])
        history = DjangoChatMessageHistory("s", owner=owner("ben"))

        assert history.messages == run(history.aget_messages()) == []
        for call in (lambda: history.add_messages([HELLO]), history.clear, lambda: run(history.aclear())):
            with pytest.raises(PermissionDenied):
                call()
        assert stored() == [UserMessage("Hi")]


class TestConstruction:
    def test_it_is_a_history_and_reads_nothing_even_in_an_event_loop(self, django_assert_num_queries):
        async def make() -> DjangoChatMessageHistory:
            return DjangoChatMessageHistory("s")

        with django_assert_num_queries(0):
            history = run(make())

        assert isinstance(history, BaseChatMessageHistory)
        assert history.session_id == "s"

    def test_in_an_event_loop_it_is_only_read_with_await(self):
        async def read() -> list:
            return DjangoChatMessageHistory("s").messages

        with pytest.raises(SynchronousOnlyOperation):
            run(read())

    @pytest.mark.parametrize("session_id", ["", "x" * 256, None])
    def test_an_invalid_id_is_refused(self, session_id):
        with pytest.raises((TypeError, ValueError), match="memory id"):
            DjangoChatMessageHistory(session_id)

    def test_without_langchain_the_error_names_the_extra(self):
        script = (
            "import sys, django; django.setup(); sys.modules['langchain_core'] = None\n"
            "import chatmemory_django.integrations.langchain"
        )
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

        assert "pip install 'chatmemory_django[langchain]'" in ended.stderr.splitlines()[-1]

    def test_it_does_not_warn_of_its_deprecated_base_class(self):
        script = (
            "import django; django.setup()\n"
            "from chatmemory_django.integrations.langchain import DjangoChatMessageHistory\n"
            "DjangoChatMessageHistory('s')"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


class TestConcurrency:
    def test_50_concurrent_writers_lose_and_split_nothing(self):
        def write(number: int) -> None:
            DjangoChatMessageHistory("s").add_messages([lc.HumanMessage(f"{number}.{place}") for place in range(3)])

        in_threads(50, write)

        found = [message.content for message in DjangoChatMessageHistory("s").messages]
        assert len(found) == 150
        for place in range(0, 150, 3):
            number = found[place].partition(".")[0]
            assert found[place : place + 3] == [f"{number}.0", f"{number}.1", f"{number}.2"]

    def test_nor_do_50_tasks_in_one_event_loop(self):
        async def talk() -> None:
            await asyncio.gather(*(DjangoChatMessageHistory("s").aadd_messages([HI, HELLO]) for _ in range(50)))

        run(talk())

        assert DjangoChatMessageHistory("s").messages == [HI, HELLO] * 50

    @pytest.mark.parametrize("call", ["aadd_messages", "aclear"])
    def test_a_cancelled_task_ends_after_its_write(self, call):
        history = DjangoChatMessageHistory("s")
        history.add_messages([HI])
        arguments = [[HELLO]] if call == "aadd_messages" else []

        async def give_up() -> None:
            calling = asyncio.create_task(getattr(history, call)(*arguments))
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            assert calling.cancelled()
            assert len(await history.aget_messages()) == (2 if call == "aadd_messages" else 0)

        run(give_up())

    def test_langchains_threads_keep_no_connection(self):
        history = DjangoChatMessageHistory("s")

        def use(number: int):
            history.add_messages([HI])
            assert history.messages
            return connection.connection

        assert in_threads(5, use) == [None] * 5

    def test_a_rolled_back_transaction_stores_nothing(self):
        history = DjangoChatMessageHistory("s")
        add = async_to_sync(history.aadd_messages)

        with transaction.atomic():
            add([HI])
            history.add_messages([HELLO])
            transaction.set_rollback(True)

        assert history.messages == []


class TestRunnable:
    @pytest.fixture
    def chain(self):
        prompt = ChatPromptTemplate.from_messages(
            [("system", "Be brief."), MessagesPlaceholder("history"), ("human", "{question}")]
        )
        model = GenericFakeChatModel(messages=iter([lc.AIMessage(text) for text in ("Hello", "You wrote hi", "Bye")]))
        return RunnableWithMessageHistory(
            prompt | model,
            DjangoChatMessageHistory,
            input_messages_key="question",
            history_messages_key="history",
        )

    def test_it_remembers_earlier_messages(self, chain):
        config = {"configurable": {"session_id": "s"}}

        assert chain.invoke({"question": "Hi"}, config).content == "Hello"
        assert run(chain.ainvoke({"question": "What did I say?"}, config)).content == "You wrote hi"
        assert "".join(chunk.content for chunk in chain.stream({"question": "Bye"}, config)) == "Bye"

        assert [row.chat_message.type for row in Conversation.objects.get().history()] == ["USER", "AI"] * 3
        assert [message.content for message in DjangoChatMessageHistory("s").messages][-2:] == ["Bye", "Bye"]

    def test_it_reads_the_whole_history(self):
        def count(messages: list) -> str:
            return str(len(messages))

        chain = RunnableWithMessageHistory(RunnableLambda(count), DjangoChatMessageHistory)
        config = {"configurable": {"session_id": "s"}}

        assert [chain.invoke([HI], config) for _ in range(4)] == ["1", "3", "5", "7"]
        assert [message.content for message in DjangoChatMessageHistory("s").messages] == [
            "Hi", "1", "Hi", "3", "Hi", "5", "Hi", "7",
        ]  # fmt: skip

    def test_a_failed_turn_stores_nothing(self):
        def fail(messages: list) -> str:
            raise ValueError("busy")

        chain = RunnableWithMessageHistory(RunnableLambda(fail), DjangoChatMessageHistory)

        with pytest.raises(ValueError, match="busy"):
            chain.invoke([HI], {"configurable": {"session_id": "s"}})

        assert DjangoChatMessageHistory("s").messages == []
