"""A session of the OpenAI Agents SDK in the site's own tables: an agent's items come back unchanged."""

import asyncio
import subprocess
import sys

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
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

pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")

from agents import Agent, RunConfig, Runner, Session, SessionSettings, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from chatmemory_django.integrations.histories import PAGE
from chatmemory_django.integrations.openai_agents import DjangoSession

pytestmark = pytest.mark.django_db(transaction=True)

HI, HELLO = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "phase": None}
A, B = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be kind."}
CONFIG = RunConfig(tracing_disabled=True)
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "They greet."}]}


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


def history(memory_id: str = "s") -> list:
    return [row.chat_message for row in Conversation.objects.get(memory_id=memory_id).history()]


def owner(name: str):
    return get_user_model().objects.create_user(name)


class TestItems:
    def test_they_come_back_unchanged_with_any_size_of_the_memory(self):
        items = [A, HI, A, REASONING, HELLO, B, HI, {"type": "unheard of", "n": [1, 1.0, True, None, 2**53 + 1]}]
        session = DjangoSession("s")

        run(session.add_items(items[:3]))
        run(session.add_items(items[3:]))

        assert repr(run(session.get_items())) == repr(items)
        assert len(get_chat_memory("s").messages()) == 3

    def test_each_is_a_message_of_the_conversation(self):
        call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}", "status": "completed"}
        output = {"type": "function_call_output", "call_id": "1", "output": "found"}

        run(DjangoSession("s").add_items([HI, call, output, REASONING, HELLO]))

        assert history() == [
            UserMessage("Hi"),
            AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "look", "{}")]),
            ToolExecutionResultMessage("1", None, "found"),
            CustomMessage({"openai": REASONING}),
            AiMessage("Hello"),
        ]
        assert [row.sequence for row in Message.objects.look_through("greet")] == [4]

    def test_messages_of_the_site_are_included(self):
        memory = get_chat_memory("s")
        call = ToolExecutionRequest("1", "look", "{}")
        memory.add(SystemMessage("Be brief."), UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=[call]))
        memory.add(CustomMessage({"of": "others"}), ToolExecutionResultMessage("1", "look", "found"))

        assert run(DjangoSession("s").get_items()) == [
            A,
            HI,
            {"role": "assistant", "content": "Wait."},
            {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "found"},
        ]

    def test_a_rewind_removes_them(self):
        session = DjangoSession("s")
        run(session.add_items([HI, HELLO, HI]))

        get_chat_memory("s").rewind(1)

        assert run(session.get_items()) == [HI]

    def test_an_empty_list_adds_nothing(self):
        run(DjangoSession("s").add_items([]))

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("wrong", ["Hi", None, {"content": b"Hi"}, {"content": {1}}], ids=repr)
    def test_an_invalid_one_is_refused_and_nothing_is_stored(self, wrong):
        with pytest.raises(TypeError, match=r"^items\[1\]"):
            run(DjangoSession("s").add_items([HI, wrong]))

        assert not Message.objects.exists()

    def test_they_can_be_large(self):
        items = [{"role": "user", "content": "😀" * 250_000}, {"role": "user", "content": "'" * 1_000_000}]

        run(DjangoSession("s").add_items(items))

        assert run(DjangoSession("s").get_items()) == items


class TestLimit:
    @pytest.fixture
    def session(self):
        session = DjangoSession("s")
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
        get_chat_memory("s").add(UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=[call, call]))

        assert [item.get("type") for item in run(DjangoSession("s").get_items(2))] == ["function_call"] * 2

    def test_no_more_is_read_than_requested(self, session, django_assert_num_queries):
        with django_assert_num_queries(1):
            session._history.read(5)

    def test_an_unknown_session_has_no_items(self):
        assert run(DjangoSession("unknown").get_items(5)) == []


class TestPop:
    def test_it_removes_and_returns_the_last_item(self):
        session = DjangoSession("s")
        run(session.add_items([HI, REASONING, HELLO]))

        assert [run(session.pop_item()) for _ in range(4)] == [HELLO, REASONING, HI, None]
        assert run(session.get_items()) == []
        assert get_chat_memory("s").messages() == []

    def test_an_unknown_session_returns_none(self):
        assert run(DjangoSession("s").pop_item()) is None
        assert not Conversation.objects.exists()

    def test_the_other_items_of_the_same_message_stay(self):
        calls = [ToolExecutionRequest(name, "look", "{}") for name in ("1", "2")]
        get_chat_memory("s").add(UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=calls))
        session = DjangoSession("s")

        assert run(session.pop_item())["call_id"] == "2"
        assert [item.get("call_id") for item in run(session.get_items())] == [None, None, "1"]

    def test_it_skips_messages_without_items(self):
        session = DjangoSession("s")
        run(session.add_items([HI]))
        get_chat_memory("s").add(CustomMessage({"of": "others"}))

        assert run(session.pop_item()) == HI
        assert history() == [CustomMessage({"of": "others"})]

    def test_each_item_is_popped_once(self):
        run(DjangoSession("s").add_items([{"role": "user", "content": str(number)} for number in range(20)]))

        popped = in_threads(20, lambda _: run(DjangoSession("s").pop_item())["content"])

        assert sorted(popped, key=int) == list(map(str, range(20)))


class TestClear:
    def test_it_starts_again(self):
        session = DjangoSession("s")
        run(session.add_items([HI, HELLO]))

        run(session.clear_session())

        assert run(session.get_items()) == []
        run(session.add_items([HI]))
        assert run(session.get_items()) == [HI]

    def test_old_messages_stay_as_a_branch(self):
        session = DjangoSession("s")
        run(session.add_items([HI, HELLO]))

        run(session.clear_session())

        assert Conversation.objects.get().history(all_branches=True).count() == 2

    def test_an_unknown_session_is_not_created(self):
        run(DjangoSession("s").clear_session())

        assert not Conversation.objects.exists()


class TestOwner:
    def test_a_new_conversation_belongs_to_the_owner(self):
        anna = owner("anna")

        run(DjangoSession("s", owner=anna).add_items([HI]))

        assert Conversation.objects.get().owner == anna

    def test_another_users_conversation_is_refused(self):
        run(DjangoSession("s", owner=owner("anna")).add_items([HI]))
        session = DjangoSession("s", owner=owner("ben"))

        assert run(session.get_items()) == []
        assert run(session.get_items(5)) == []
        assert run(session.pop_item()) is None
        for call in (session.add_items([HELLO]), session.clear_session()):
            with pytest.raises(PermissionDenied):
                run(call)
        assert history() == [UserMessage("Hi")]


class TestConstruction:
    def test_it_is_a_session_and_reads_nothing_even_in_an_event_loop(self, django_assert_num_queries):
        async def make() -> DjangoSession:
            return DjangoSession("s")

        with django_assert_num_queries(0):
            session = run(make())

        assert isinstance(session, Session)
        assert (session.session_id, session.session_settings) == ("s", SessionSettings())

    def test_its_settings_can_be_a_dict(self):
        assert DjangoSession("s", session_settings={"limit": 3}).session_settings == SessionSettings(limit=3)
        with pytest.raises(TypeError, match="Unknown session settings: many"):
            DjangoSession("s", session_settings={"many": 3})

    @pytest.mark.parametrize("session_id", ["", "x" * 256, None])
    def test_an_invalid_id_is_refused(self, session_id):
        with pytest.raises((TypeError, ValueError), match="memory id"):
            DjangoSession(session_id)

    def test_without_the_sdk_the_error_names_the_extra(self):
        script = (
            "import sys, django; django.setup(); sys.modules['agents'] = None\n"
            "import chatmemory_django.integrations.openai_agents"
        )
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

        assert "pip install 'chatmemory_django[openai-agents]'" in ended.stderr.splitlines()[-1]


class TestConcurrency:
    def test_50_concurrent_writers_lose_and_split_nothing(self):
        def write(number: int) -> None:
            items = [{"role": "user", "content": f"{number}.{place}"} for place in range(3)]
            run(DjangoSession("s").add_items(items))

        in_threads(50, write)

        found = [item["content"] for item in run(DjangoSession("s").get_items())]
        assert len(found) == 150
        for place in range(0, 150, 3):
            number = found[place].partition(".")[0]
            assert found[place : place + 3] == [f"{number}.0", f"{number}.1", f"{number}.2"]

    def test_nor_do_50_tasks_in_one_event_loop(self):
        async def talk() -> None:
            await asyncio.gather(*(DjangoSession("s").add_items([HI, HELLO]) for _ in range(50)))

        run(talk())

        assert run(DjangoSession("s").get_items()) == [HI, HELLO] * 50

    @pytest.mark.parametrize("call", ["add_items", "pop_item", "clear_session"])
    def test_a_cancelled_task_ends_after_its_write(self, call):
        session = DjangoSession("s")
        run(session.add_items([HI]))
        arguments = [[HELLO]] if call == "add_items" else []

        async def give_up() -> None:
            calling = asyncio.create_task(getattr(session, call)(*arguments))
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.sleep(0)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            assert calling.cancelled()
            assert len(await session.get_items()) == (2 if call == "add_items" else 0)

        run(give_up())

    def test_threads_keep_no_connection(self):
        before = in_threads(1, lambda _: connection.connection)

        in_threads(10, lambda number: run(DjangoSession(f"s{number}").add_items([HI])))

        assert before == [None]
        assert in_threads(10, lambda _: connection.connection) == [None] * 10

    def test_a_rolled_back_transaction_stores_nothing(self):
        session = DjangoSession("s")
        add = async_to_sync(session.add_items)

        with transaction.atomic():
            add([HI])
            transaction.set_rollback(True)

        assert run(session.get_items()) == []


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
                return Runner.run_sync(agent, text, session=DjangoSession("s"), run_config=CONFIG).final_output
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
        assert [type(message) for message in history()] == [
            UserMessage,
            AiMessage,
            ToolExecutionResultMessage,
            AiMessage,
            UserMessage,
            AiMessage,
        ]
        assert history()[2].text == f"sunny in {city}"

    def test_a_retried_run_removes_its_own_items(self):
        session = DjangoSession("s")
        run(session.add_items([HI, HELLO]))
        agent = Agent(name="Assistant", model=ScriptedModel([ValueError("busy"), [assistant_message("Hello again")]]))

        with pytest.raises(ValueError, match="busy"):
            run(Runner.run(agent, "Hi again", session=session, run_config=CONFIG))
        run(Runner.run(agent, "Hi again", session=session, run_config=CONFIG))

        assert run(session.get_items())[:2] == [HI, HELLO]
