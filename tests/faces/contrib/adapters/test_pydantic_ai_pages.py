"""pydantic-ai's own adapters on a Django site: useChat and AG-UI talk to an agent whose store is ours."""

import json

import pytest
from django.contrib.auth import get_user_model
from django.http import StreamingHttpResponse
from django.test import AsyncClient
from django.urls import path

from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run

pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")
pytest.importorskip("ag_ui", reason="AG-UI's protocol is needed: pip install 'pydantic-ai-slim[ag-ui]'")

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.ui.ag_ui import AGUIAdapter
from pydantic_ai.ui.vercel_ai import VercelAIAdapter

from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore

pytestmark = pytest.mark.django_db(transaction=True)

agent = Agent(TestModel(call_tools=[], custom_output_text="Hello"), output_type=[str, DeferredToolRequests])
deleted: list[str] = []


@agent.tool_plain
def look_up(name: str) -> str:
    """Look up a file."""
    return f"{name} is 3 years old"


@agent.tool_plain(requires_approval=True)
def delete(name: str) -> str:
    """Delete a file."""
    deleted.append(name)
    return "gone"


async def use_chat(request):
    user = await request.auser()
    adapter = VercelAIAdapter(
        agent=agent,
        run_input=VercelAIAdapter.build_run_input(request.body),
        sdk_version=6,
        conversation_store=DjangoConversationStore(),
        conversation_scope=str(user.pk),
    )
    return StreamingHttpResponse(adapter.encode_stream(adapter.run_stream()), content_type="text/event-stream")


async def ag_ui(request):
    user = await request.auser()
    adapter = AGUIAdapter(
        agent=agent,
        run_input=AGUIAdapter.build_run_input(request.body),
        conversation_store=DjangoConversationStore(),
        conversation_scope=str(user.pk),
    )
    return StreamingHttpResponse(adapter.encode_stream(adapter.run_stream()), content_type="text/event-stream")


urlpatterns = [path("chat/", use_chat), path("ag-ui/", ag_ui)]


@pytest.fixture(autouse=True)
def the_site(settings):
    settings.ROOT_URLCONF = __name__
    deleted.clear()


def user(name: str):
    return get_user_model().objects.create_user(name)


def events(asking, url: str, body: dict) -> list[dict]:
    """Return the events of the answer to *body*, posted by the user *asking*."""

    async def ask() -> list[dict]:
        client = AsyncClient()
        await client.aforce_login(asking)
        response = await client.post(url, json.dumps(body), content_type="application/json")
        text = b"".join([part async for part in response]).decode()
        lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
        return [json.loads(line) for line in lines if line != "[DONE]"]

    return run(ask())


def text_of(found: list[dict]) -> str:
    return "".join(event["delta"] for event in found if event["type"] in {"text-delta", "TEXT_MESSAGE_CONTENT"})


def question(text: str, **more) -> dict:
    asked = {"id": f"ask-{text}", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"trigger": "submit-message", "id": "c", "messages": [asked], **more}


def running(text: str, **more) -> dict:
    asked = {"id": f"ask-{text}", "role": "user", "content": text}
    empty = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
    return {"threadId": "c", "runId": f"run-{text}", "messages": [asked], **empty, **more}


def types(memory_id: str = "c") -> list[str]:
    return [row.type for row in Conversation.objects.get(memory_id=memory_id).history()]


class TestUseChat:
    def test_a_turn_with_a_tool_is_stored_for_its_user(self):
        anna = user("anna")
        with agent.override(model=TestModel(call_tools=["look_up"], custom_output_text="It is old.")):
            found = events(anna, "/chat/", question("How old is it?"))
            events(anna, "/chat/", question("And now?"))

        assert text_of(found) == "It is old."
        assert types() == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI", "USER", "AI"]
        assert Conversation.objects.get().owner == anna
        saved = next(event for event in found if event["type"] == "data-conversation-saved")
        assert saved["data"]["conversation_id"] == "c"
        ids = Conversation.objects.get().messages.values_list("client_message_id", flat=True)
        assert saved["data"]["entry_ids"] == list(ids)[:4]

    def test_a_call_waits_for_the_users_approval(self):
        anna = user("anna")
        with agent.override(model=TestModel(call_tools=["delete"], custom_output_text="Done.")):
            asked = events(anna, "/chat/", question("Delete it."))
            request = next(event for event in asked if event["type"] == "tool-approval-request")
            assert deleted == []
            part = {
                "type": "tool-delete",
                "toolCallId": request["toolCallId"],
                "state": "approval-responded",
                "input": {"name": "a"},
                "approval": {"id": request["approvalId"], "approved": True},
            }
            answer = {"id": "answer", "role": "assistant", "parts": [part]}
            body = question("Delete it.")
            found = events(anna, "/chat/", {**body, "messages": [*body["messages"], answer]})

        assert deleted == ["a"]
        assert text_of(found) == "Done."
        assert types() == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI"]

    def test_a_question_can_be_asked_again_and_the_old_answer_is_a_branch(self):
        anna = user("anna")
        asked = question("Hi")
        events(anna, "/chat/", asked)
        events(anna, "/chat/", {**asked, "trigger": "regenerate-message"})

        conversation = Conversation.objects.get()
        assert types() == ["USER", "AI"]
        assert conversation.history(all_branches=True).count() == 4

    def test_it_continues_a_conversation_of_the_site(self):
        anna = user("anna")
        get_chat_memory("c", owner=anna).add(UserMessage("Hi"), AiMessage("Hello"))

        events(anna, "/chat/", question("And now?"))

        assert types() == ["USER", "AI"] * 2

    def test_another_users_conversation_is_not_found(self):
        events(user("anna"), "/chat/", question("Hi"))

        found = events(user("ben"), "/chat/", question("What did she say?"))

        assert [event["errorText"] for event in found if event["type"] == "error"] == [
            "Conversation 'c' was not found."
        ]
        assert types() == ["USER", "AI"]


class TestAgUi:
    def test_a_turn_with_a_tool_is_stored_for_its_user(self):
        anna = user("anna")
        with agent.override(model=TestModel(call_tools=["look_up"], custom_output_text="It is old.")):
            found = events(anna, "/ag-ui/", running("How old is it?"))
            events(anna, "/ag-ui/", running("And now?"))

        assert text_of(found) == "It is old."
        assert types() == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI", "USER", "AI"]
        assert Conversation.objects.get().owner == anna

    def test_a_call_waits_for_the_users_approval(self):
        anna = user("anna")
        with agent.override(model=TestModel(call_tools=["delete"], custom_output_text="Done.")):
            asked = events(anna, "/ag-ui/", running("Delete it."))
            outcome = asked[-1]["outcome"]
            assert deleted == []
            resume = [
                {"interruptId": each["id"], "status": "resolved", "payload": {"approved": True}}
                for each in outcome["interrupts"]
            ]
            found = events(anna, "/ag-ui/", running("Delete it.", runId="again", messages=[], resume=resume))

        assert deleted == ["a"]
        assert text_of(found) == "Done."
        assert types() == ["USER", "AI", "TOOL_EXECUTION_RESULT", "AI"]

    def test_another_users_conversation_is_not_found(self):
        events(user("anna"), "/ag-ui/", running("Hi"))

        found = events(user("ben"), "/ag-ui/", running("What did she say?"))

        assert [event["message"] for event in found if event["type"] == "RUN_ERROR"] == [
            "Conversation 'c' was not found."
        ]
