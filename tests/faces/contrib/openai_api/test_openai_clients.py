"""OpenAI's published client and Agents SDK, against the example site as a server."""

import asyncio
from typing import Required, get_args, get_origin

import openai
import pytest
from django.contrib.auth.models import Permission, User
from openai.types.responses import ResponseInputItemParam
from rest_framework.authtoken.models import Token
from typing_extensions import get_type_hints

from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.contrib.openai_api.conversations import REQUIRED
from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.scripted import calling
from tests.faces.rest.conftest import REMOVE, WRITE

pytestmark = pytest.mark.django_db(transaction=True)

HI = {"role": "user", "content": "Hi"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x=="}


@pytest.fixture(autouse=True)
def _no_connection_is_left():
    yield
    asyncio.run(close_thread_sensitive())


@pytest.fixture
def options(live_server) -> dict[str, str]:
    user = User.objects.create_user("server")
    user.user_permissions.set(Permission.objects.filter(codename__in=(WRITE, REMOVE)))
    return {"base_url": f"{live_server.url}/openai/v1", "api_key": Token.objects.create(user=user).key}


@pytest.fixture
def client(options):
    with openai.OpenAI(**options, max_retries=0) as client:
        yield client


class TestOpenAI:
    def test_requires_the_same_fields_of_an_item(self):
        required: dict[str, set[str]] = {}
        for item in get_args(ResponseInputItemParam):
            hints = get_type_hints(item, include_extras=True)
            keys = {name for name, hint in hints.items() if get_origin(hint) is Required}
            [kind] = [each for each in _literals(hints["type"]) if each]
            required[kind] = required.get(kind, keys) & keys

        for kind, keys in REQUIRED.items():
            assert set(keys) <= required[kind], kind

    def test_creates_reads_changes_and_deletes_a_conversation(self, client):
        made = client.conversations.create(items=[HI], metadata={"topic": "greetings"})

        assert client.conversations.retrieve(made.id) == made
        assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
        assert client.conversations.delete(made.id).deleted is True
        with pytest.raises(openai.NotFoundError) as caught:
            client.conversations.retrieve(made.id)
        assert caught.value.request_id.startswith("req_")
        assert caught.value.code == "not_found"

    def test_reads_items_as_its_own_models(self, client):
        call = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "found"}]}
        search = {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "q"},
        }
        conversation = client.conversations.create().id

        made = client.conversations.items.create(
            conversation, items=[HI, REASONING, call, output, search, {"role": "assistant", "content": "Hello"}]
        )

        assert [type(item).__name__ for item in made.data] == [
            "Message",
            "ResponseReasoningItem",
            "ResponseFunctionToolCallItem",
            "ResponseFunctionToolCallOutputItem",
            "ResponseFunctionWebSearch",
            "Message",
        ]
        for item in made.data:
            assert item.model_extra == {}, "a key that the model of the type lacks"
            assert client.conversations.items.retrieve(item.id, conversation_id=conversation) == item

    @pytest.mark.slow
    def test_pages_through_all_items(self, client):
        conversation = client.conversations.create().id
        for start in range(0, 60, 20):
            items = [{"role": "user", "content": f"{start + number}"} for number in range(20)]
            client.conversations.items.create(conversation, items=items)

        texts = [item.content[0].text for item in client.conversations.items.list(conversation, limit=7, order="asc")]

        assert texts == [f"{number}" for number in range(60)]
        assert len(list(client.conversations.items.list(conversation, include=["reasoning.encrypted_content"]))) == 60

    def test_deletes_an_item(self, client):
        conversation = client.conversations.create(items=[HI, REASONING])

        assert client.conversations.items.delete("rs_1", conversation_id=conversation.id) == conversation
        assert len(list(client.conversations.items.list(conversation.id))) == 1

    def test_raises_its_own_errors(self, client, options):
        conversation = client.conversations.create().id

        with pytest.raises(openai.BadRequestError) as caught:
            client.conversations.items.create(conversation, items=[HI, {"role": "critic", "content": ""}])
        assert (caught.value.param, caught.value.type) == ("items[1].role", "invalid_request_error")
        with openai.OpenAI(**{**options, "api_key": "wrong"}) as stranger, pytest.raises(openai.AuthenticationError):
            stranger.conversations.retrieve(conversation)
        with pytest.raises(openai.NotFoundError):
            client.files.list()

    def test_does_not_try_again_to_delete_what_is_protected(self, options):
        sent = []
        http = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
        with openai.OpenAI(**options, max_retries=2, http_client=http) as client:
            conversation = client.conversations.create(items=[HI])
            [item] = client.conversations.items.list(conversation.id)
            LegalHold.objects.create(conversation_id=Conversation.objects.get().pk, reason="Case 7", placed_by="eve")
            sent.clear()

            with pytest.raises(openai.ConflictError) as caught:
                client.conversations.delete(conversation.id)
            with pytest.raises(openai.ConflictError):
                client.conversations.items.delete(item.id, conversation_id=conversation.id)

        assert caught.value.code == "protected"
        assert len(sent) == 2


def _literals(hint: object) -> list[str]:
    """Return the texts in *hint* at any depth."""
    if isinstance(hint, str):
        return [hint]
    return [each for part in get_args(hint) for each in _literals(part)]


class TestAgentsSdk:
    """The SDK's own session over the Conversations API."""

    @pytest.fixture(autouse=True)
    def _needs_the_sdk(self):
        pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")

    def run(self, options, work):
        from agents.memory import OpenAIConversationsSession

        async def main():
            async with openai.AsyncOpenAI(**options, max_retries=0) as client:
                return await work(OpenAIConversationsSession(openai_client=client))

        return asyncio.run(main())

    def test_stores_messages_of_agents(self, options):
        from agents import Agent, RunConfig, Runner, function_tool
        from agents.testing import ScriptedModel, assistant_message, function_call

        @function_tool
        def get_weather(city: str) -> str:
            """Return the weather."""
            return f"Sunny in {city}."

        call = function_call("get_weather", {"city": "Rome"}, call_id="call-1")
        script = [[call], [assistant_message("Sunny, as ever.")], [assistant_message("You asked about Rome.")]]
        agent = Agent(name="Assistant", tools=[get_weather], model=ScriptedModel(script))
        config = RunConfig(tracing_disabled=True)

        async def work(session) -> list:
            await Runner.run(agent, "What is the weather in Rome?", session=session, run_config=config)
            await Runner.run(agent, "What did I ask?", session=session, run_config=config)
            return await session.get_items()

        items = self.run(options, work)

        types = ["message", "function_call", "function_call_output", "message", "message", "message"]
        assert [item["type"] for item in items] == types
        assert [row.type for row in Conversation.objects.get().history()] == [
            "USER", "AI", "TOOL_EXECUTION_RESULT", "AI", "USER", "AI",
        ]  # fmt: skip

    def test_adds_pops_limits_and_clears(self, options):
        async def work(session) -> None:
            await session.add_items([{"role": "user", "content": f"{number}"} for number in range(45)])
            await session.add_items([REASONING])
            assert len(await session.get_items()) == 46
            assert [item.get("id") for item in await session.get_items(limit=1)] == ["rs_1"]
            assert (await session.pop_item())["id"] == "rs_1"
            await session.add_items([REASONING])
            assert (await session.pop_item())["id"] == "rs_1"
            assert (await session.pop_item())["content"][0]["text"] == "44"
            assert len(await session.get_items()) == 44
            conversation = session.session_id
            await session.clear_session()
            assert await session.get_items() == []
            assert session.session_id != conversation

        self.run(options, work)

        assert Conversation.objects.count() == 1

    def test_shares_the_conversation_with_the_site_and_the_other_session(self, options):
        from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

        async def work(session) -> list:
            await session.add_items([HI])
            session_id = session.session_id
            await DjangoSession(session_id).add_items([{"role": "assistant", "content": "Hello"}])
            memory = get_chat_memory(session_id)
            await memory.aadd(UserMessage("Still there?"), AiMessage("Yes."))
            return [await session.get_items(), await DjangoSession(session_id).get_items()]

        there, here = self.run(options, work)

        assert [item["content"][0]["text"] for item in there] == ["Hi", "Hello", "Still there?", "Yes."]
        assert [item["content"] for item in here] == ["Hi", "Hello", "Still there?", "Yes."]

    def test_has_the_sites_assistant_for_a_model_and_the_site_for_a_session(self, options, site):
        from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool

        @function_tool
        def weather(city: str) -> str:
            """Return the weather."""
            return f"Sunny in {city}."

        model = site(calling(("c1", "weather", '{"city": "Rome"}')), "Sunny.", "You asked about Rome.", "Bye now")
        config = RunConfig(tracing_disabled=True)

        async def work(session) -> list[str]:
            own = OpenAIResponsesModel("assistant", session._openai_client)
            agent = Agent(name="Agent", tools=[weather], model=own, model_settings=ModelSettings(store=False))
            answers = [
                (await Runner.run(agent, text, session=session, run_config=config)).final_output
                for text in ("What is the weather in Rome?", "What did I ask?")
            ]
            streamed = Runner.run_streamed(agent, "Bye", session=session, run_config=config)
            async for _event in streamed.stream_events():
                pass
            return [*answers, streamed.final_output]

        assert self.run(options, work) == ["Sunny.", "You asked about Rome.", "Bye now"]
        assert [len(sent) for sent in model.sent] == [1, 3, 5, 7]
        assert [row.type for row in Conversation.objects.get().history()] == [
            "USER", "AI", "TOOL_EXECUTION_RESULT", "AI", "USER", "AI", "USER", "AI",
        ]  # fmt: skip


class TestPydanticAi:
    @pytest.mark.parametrize("kind", ["OpenAIChatModel", "OpenAIResponsesModel"])
    def test_has_the_sites_assistant_for_a_model(self, options, site, kind):
        pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")
        from pydantic_ai import Agent
        from pydantic_ai.models import openai as models
        from pydantic_ai.providers.openai import OpenAIProvider

        site("Hello", calling(("c1", "weather", '{"city": "Rome"}')), "Sunny.", "Bye now")

        async def main() -> list[str]:
            async with openai.AsyncOpenAI(**options, max_retries=0) as client:
                model = getattr(models, kind)("assistant", provider=OpenAIProvider(openai_client=client))
                agent = Agent(model, instructions="Be brief.")

                @agent.tool_plain
                def weather(city: str) -> str:
                    return f"Sunny in {city}."

                first = await agent.run("Hi")
                second = await agent.run("And the weather in Rome?", message_history=first.all_messages())
                async with agent.run_stream("Bye", message_history=second.all_messages()) as streamed:
                    return [first.output, second.output, await streamed.get_output()]

        assert asyncio.run(main()) == ["Hello", "Sunny.", "Bye now"]
