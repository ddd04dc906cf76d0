"""LangChain's chat message history in the site's own tables: a chain's messages come back unchanged."""

import datetime
import subprocess
import sys
from typing import ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied, SynchronousOnlyOperation
from django.db import connection, transaction

from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from tests.faces.contrib.adapters.contract import HistoryContract, owner, stored
from tests.faces.contrib.adapters.running import in_threads, run

pytest.importorskip("langchain_core", reason="LangChain is needed: pip install langchain-core")

import langchain_core.messages as lc
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory

from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("a_small_memory")]

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


class TestContract(HistoryContract):
    EVERY = EVERY
    SHOWN: ClassVar = [
        lc.SystemMessage("Be brief."),
        HI,
        lc.AIMessage("Wait.", tool_calls=[{"name": "look", "args": {"at": 1}, "id": "1"}]),
        lc.ToolMessage("found", tool_call_id="1", name="look"),
    ]
    BASE = BaseChatMessageHistory

    def store(self, memory_id="c", user=None):
        return DjangoChatMessageHistory(memory_id, owner=user)

    async def add(self, *messages, to="c", user=None):
        await self.store(to, user).aadd_messages(messages)

    async def read(self, user=None):
        return await self.store(user=user).aget_messages()

    async def clear(self, user=None):
        await self.store(user=user).aclear()

    def question(self, text):
        return lc.HumanMessage(text)


class TestSync:
    """The same without an event loop."""

    def test_messages_are_added_read_and_cleared(self):
        history = DjangoChatMessageHistory("c")

        history.add_messages(EVERY)

        assert list(map(repr, history.messages)) == list(map(repr, EVERY))
        history.clear()
        assert history.messages == []
        assert Conversation.objects.get().history(all_branches=True).count() == len(EVERY)

    def test_another_users_conversation_is_refused(self):
        DjangoChatMessageHistory("c", owner=owner("anna")).add_messages([HI])
        history = DjangoChatMessageHistory("c", owner=owner("ben"))

        assert history.messages == []
        for call in (lambda: history.add_messages([HELLO]), history.clear):
            with pytest.raises(PermissionDenied):
                call()
        assert stored() == [UserMessage("Hi")]


class TestMessages:
    def test_each_is_a_message_of_the_conversation(self):
        history = DjangoChatMessageHistory("c")
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

    def test_the_list_is_a_new_one_each_time(self):
        history = DjangoChatMessageHistory("c")
        history.add_messages([HI])

        history.messages.append(HELLO)

        assert history.messages == [HI]
        assert str(history) == "Human: Hi"

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
        history = DjangoChatMessageHistory("c")

        with pytest.raises(TypeError, match=rf"^messages\[1\]{where}"):
            history.add_messages([HI, wrong])
        with pytest.raises(TypeError, match=rf"^messages\[1\]{where}"):
            run(history.aadd_messages([HI, wrong]))

        assert not Message.objects.exists()

    def test_reading_and_writing_takes_few_statements(self, django_assert_num_queries):
        history = DjangoChatMessageHistory("c")
        history.add_messages([HI] * 200)

        with django_assert_num_queries(1):
            assert len(history.messages) == 200


class TestConstruction:
    def test_in_an_event_loop_it_is_only_read_with_await(self):
        async def read() -> list:
            return DjangoChatMessageHistory("c").messages

        with pytest.raises(SynchronousOnlyOperation):
            run(read())

    def test_it_does_not_warn_of_its_deprecated_base_class(self):
        script = (
            "import django; django.setup()\n"
            "from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory\n"
            "DjangoChatMessageHistory('c')"
        )
        subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


class TestConcurrency:
    def test_langchains_threads_keep_no_connection(self):
        history = DjangoChatMessageHistory("c")

        def use(number: int):
            history.add_messages([HI])
            assert history.messages
            return connection.connection

        assert in_threads(5, use) == [None] * 5

    def test_a_rolled_back_transaction_stores_nothing(self):
        history = DjangoChatMessageHistory("c")
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
        config = {"configurable": {"session_id": "c"}}

        assert chain.invoke({"question": "Hi"}, config).content == "Hello"
        assert run(chain.ainvoke({"question": "What did I say?"}, config)).content == "You wrote hi"
        assert "".join(chunk.content for chunk in chain.stream({"question": "Bye"}, config)) == "Bye"

        assert [row.chat_message.type for row in Conversation.objects.get().history()] == ["USER", "AI"] * 3
        assert [message.content for message in DjangoChatMessageHistory("c").messages][-2:] == ["Bye", "Bye"]

    def test_it_reads_the_whole_history(self):
        def count(messages: list) -> str:
            return str(len(messages))

        chain = RunnableWithMessageHistory(RunnableLambda(count), DjangoChatMessageHistory)
        config = {"configurable": {"session_id": "c"}}

        assert [chain.invoke([HI], config) for _ in range(4)] == ["1", "3", "5", "7"]
        assert [message.content for message in DjangoChatMessageHistory("c").messages] == [
            "Hi", "1", "Hi", "3", "Hi", "5", "Hi", "7",
        ]  # fmt: skip

    def test_a_failed_turn_stores_nothing(self):
        def fail(messages: list) -> str:
            raise ValueError("busy")

        chain = RunnableWithMessageHistory(RunnableLambda(fail), DjangoChatMessageHistory)

        with pytest.raises(ValueError, match="busy"):
            chain.invoke([HI], {"configurable": {"session_id": "c"}})

        assert DjangoChatMessageHistory("c").messages == []
