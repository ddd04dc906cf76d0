"""A session of the OpenAI Agents SDK in the site's own tables: an agent's items come back unchanged."""

import asyncio
from typing import ClassVar

import pytest

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

pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")

from agents import Agent, RunConfig, Runner, Session, SessionSettings, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from chatmemory_django.contrib.adapters.histories import PAGE
from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("a_small_memory")]

HI, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "phase": None}
A, B = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}
CONFIG = RunConfig(tracing_disabled=True)
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "They greet."}]}


class TestContract(HistoryContract):
    EVERY: ClassVar = [A, HI, A, REASONING, HELLO, B, HI, {"type": "unheard of", "n": [1, 1.0, True, None, 2**53 + 1]}]
    SHOWN: ClassVar = [
        A,
        HI,
        {"role": "assistant", "content": "Wait."},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "found"},
    ]
    BASE = Session
    WRITES: ClassVar = {"add": 3, "pop_item": 1, "clear": 0}

    def store(self, memory_id="c", user=None):
        return DjangoSession(memory_id, owner=user)

    async def add(self, *items, to="c", user=None):
        await self.store(to, user).add_items(list(items))

    async def read(self, user=None):
        return await self.store(user=user).get_items()

    async def clear(self, user=None):
        await self.store(user=user).clear_session()

    def question(self, text):
        return {"role": "user", "content": text}

    def text(self, item):
        return item["content"]

    def write(self, kind):
        return self.store().pop_item() if kind == "pop_item" else super().write(kind)


class TestItems:
    def test_each_is_a_message_of_the_conversation(self):
        call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}", "status": "completed"}
        output = {"type": "function_call_output", "call_id": "1", "output": "found"}

        run(DjangoSession("c").add_items([HI, call, output, REASONING, HELLO]))

        assert stored() == [
            UserMessage("Hi"),
            AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "look", "{}")]),
            ToolExecutionResultMessage("1", None, "found"),
            CustomMessage({"openai": REASONING}),
            AiMessage("Hello"),
        ]
        assert [row.sequence for row in Message.objects.look_through("greet")] == [4]

    @pytest.mark.parametrize("wrong", ["Hi", None, {"content": b"Hi"}, {"content": {1}}], ids=repr)
    def test_an_invalid_one_is_refused_and_nothing_is_stored(self, wrong):
        with pytest.raises(TypeError, match=r"^items\[1\]"):
            run(DjangoSession("c").add_items([HI, wrong]))

        assert not Message.objects.exists()

    def test_they_can_be_large(self):
        items = [{"role": "user", "content": "😀" * 250_000}, {"role": "user", "content": "'" * 1_000_000}]

        run(DjangoSession("c").add_items(items))

        assert run(DjangoSession("c").get_items()) == items


class TestLimit:
    @pytest.fixture
    def session(self):
        session = DjangoSession("c")
        run(session.add_items([{"role": "user", "content": str(number)} for number in range(2 * PAGE + 7)]))
        return session

    @pytest.mark.parametrize("limit", [0, 1, PAGE, PAGE + 1, 2 * PAGE + 7, 10**6])
    def test_the_last_ones_come_oldest_first(self, session, limit):
        everything = run(session.get_items())

        assert run(session.get_items(limit)) == everything[len(everything) - min(limit, len(everything)) :]

    def test_it_defaults_to_the_settings(self, session):
        session.session_settings = SessionSettings(limit=2)

        assert len(run(session.get_items())) == 2
        assert len(run(session.get_items(3))) == 3

    def test_only_the_last_items_of_a_message_with_several_count(self):
        call = ToolExecutionRequest("1", "look", "{}")
        get_chat_memory("c").add(UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=[call, call]))

        assert [item.get("type") for item in run(DjangoSession("c").get_items(2))] == ["function_call"] * 2

    def test_no_more_is_read_than_requested(self, session, django_assert_num_queries):
        with django_assert_num_queries(1):
            session._history.read(5)

    def test_an_unknown_session_has_no_items(self):
        assert run(DjangoSession("unknown").get_items(5)) == []


class TestPop:
    def test_it_removes_and_returns_the_last_item(self):
        session = DjangoSession("c")
        run(session.add_items([HI, REASONING, HELLO]))

        assert [run(session.pop_item()) for _ in range(4)] == [HELLO, REASONING, HI, None]
        assert run(session.get_items()) == []
        assert get_chat_memory("c").messages() == []

    def test_an_unknown_session_returns_none(self):
        assert run(DjangoSession("c").pop_item()) is None
        assert not Conversation.objects.exists()

    def test_the_other_items_of_the_same_message_stay(self):
        calls = [ToolExecutionRequest(name, "look", "{}") for name in ("1", "2")]
        get_chat_memory("c").add(UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=calls))
        session = DjangoSession("c")

        assert run(session.pop_item())["call_id"] == "2"
        assert [item.get("call_id") for item in run(session.get_items())] == [None, None, "1"]

    def test_it_skips_messages_without_items(self):
        session = DjangoSession("c")
        run(session.add_items([HI]))
        get_chat_memory("c").add(CustomMessage({"of": "others"}))

        assert run(session.pop_item()) == HI
        assert stored() == [CustomMessage({"of": "others"})]

    def test_there_is_none_for_another_user(self):
        run(DjangoSession("c", owner=owner("anna")).add_items([HI]))
        session = DjangoSession("c", owner=owner("ben"))

        assert run(session.get_items(5)) == []
        assert run(session.pop_item()) is None
        assert stored() == [UserMessage("Hi")]

    def test_each_item_is_popped_once(self):
        run(DjangoSession("c").add_items([{"role": "user", "content": str(number)} for number in range(20)]))

        popped = in_threads(20, lambda _: run(DjangoSession("c").pop_item())["content"])

        assert sorted(popped, key=int) == list(map(str, range(20)))


class TestConstruction:
    def test_it_has_the_id_and_default_settings(self):
        session = DjangoSession("c")

        assert (session.session_id, session.session_settings) == ("c", SessionSettings())

    def test_its_settings_can_be_a_dict(self):
        assert DjangoSession("c", session_settings={"limit": 3}).session_settings == SessionSettings(limit=3)
        with pytest.raises(TypeError, match="Unknown session settings: many"):
            DjangoSession("c", session_settings={"many": 3})


class TestRunner:
    @pytest.mark.parametrize("city", ["Rome", "Köln"])
    def test_an_agent_with_a_tool_remembers_across_threads_and_event_loops(self, city):
        @function_tool
        def get_weather(city: str) -> str:
            """Return the weather in a city."""
            return f"sunny in {city}"

        model = ScriptedModel(
            [[function_call("get_weather", {"city": city}, call_id="1")], [assistant_message("It is sunny.")]]
        )
        agent = Agent(name="Assistant", model=model, tools=[get_weather])

        def ask(text: str) -> str:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            try:
                return Runner.run_sync(agent, text, session=DjangoSession("c"), run_config=CONFIG).final_output
            finally:
                loop.close()
                asyncio.set_event_loop(None)

        assert in_threads(1, lambda _: ask("What is the weather?")) == ["It is sunny."]
        model.enqueue([assistant_message("Still sunny.")])
        assert in_threads(1, lambda _: ask("And now?")) == ["Still sunny."]

        sent = model.last_call.input
        assert [item.get("type", item.get("role")) for item in sent] == [
            "user",
            "function_call",
            "function_call_output",
            "message",
            "user",
        ]
        assert [type(message) for message in stored()] == [
            UserMessage,
            AiMessage,
            ToolExecutionResultMessage,
            AiMessage,
            UserMessage,
            AiMessage,
        ]
        assert stored()[2].text == f"sunny in {city}"

    def test_a_retried_run_removes_its_own_items(self):
        session = DjangoSession("c")
        run(session.add_items([HI, HELLO]))
        agent = Agent(name="Assistant", model=ScriptedModel([ValueError("busy"), [assistant_message("Hello again")]]))

        with pytest.raises(ValueError, match="busy"):
            run(Runner.run(agent, "Hi again", session=session, run_config=CONFIG))
        run(Runner.run(agent, "Hi again", session=session, run_config=CONFIG))

        assert run(session.get_items())[:2] == [HI, HELLO]
