"""One conversation, many frameworks: what a framework, an API client or the site adds, all others read."""

import asyncio

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory

pytest.importorskip("agents", reason="The Agents SDK is needed: pip install openai-agents")
pytest.importorskip("langchain_core", reason="LangChain is needed: pip install langchain-core")
pytest.importorskip("llama_index", reason="LlamaIndex is needed: pip install llama-index-core")
pytest.importorskip("pydantic_ai", reason="pydantic-ai is needed: pip install pydantic-ai-slim")

from langchain_core.messages import AIMessage, HumanMessage
from llama_index.core.base.llms.types import ChatMessage
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation as AgentConversation
from pydantic_ai.models.test import TestModel

from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory
from chatmemory_django.contrib.adapters.llama_index import DjangoChatStore
from chatmemory_django.contrib.adapters.openai_agents import DjangoSession
from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore

pytestmark = pytest.mark.django_db(transaction=True)

WRITERS = ["Agents SDK", "LangChain", "LlamaIndex", "pydantic-ai", "Conversations API", "REST", "site"]


@pytest.fixture
def user():
    return get_user_model().objects.create_superuser("anna")


@pytest.fixture
def faces(user):
    return Faces(user)


class Faces:
    """Ways to add a question and an answer to a conversation, and to read its texts."""

    def __init__(self, user) -> None:
        self.user = user
        self.session = DjangoSession("c", owner=user)
        self.messages = DjangoChatMessageHistory("c", owner=user)
        self.chats = DjangoChatStore(owner=user)
        self.store = DjangoConversationStore()
        self.rest = APIClient()
        self.rest.force_authenticate(user)
        key = Token.objects.create(user=user).key
        self.openai = Client(headers={"Authorization": f"Bearer {key}"})
        self.admin = Client()
        self.admin.force_login(user)

    def write(self, name: str, question: str, answer: str) -> None:
        items = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        match name:
            case "Agents SDK":
                asyncio.run(self.session.add_items(items))
            case "LangChain":
                self.messages.add_messages([HumanMessage(question), AIMessage(answer)])
            case "LlamaIndex":
                messages = [ChatMessage(role="user", content=question), ChatMessage(role="assistant", content=answer)]
                asyncio.run(self.chats.add_messages("c", messages))
            case "pydantic-ai":
                asyncio.run(self._ask(question, answer))
            case "Conversations API":
                body = {"items": items}
                path = "/openai/v1/conversations/c/items"
                assert self.openai.post(path, body, content_type="application/json").status_code == 200
            case "REST":
                body = {"messages": [{"message": item} for item in items]}
                assert self.rest.post("/api/conversations/c/messages/", body, format="json").status_code == 201
            case "site":
                get_chat_memory("c", owner=self.user).add(UserMessage(question), AiMessage(answer))

    async def _ask(self, question: str, answer: str) -> None:
        scope = str(self.user.pk)
        conversation = await self.store.load("c", scope=scope) or AgentConversation(conversation_id="c")
        result = await Agent(TestModel(custom_output_text=answer)).run(question, conversation=conversation)
        await self.store.save(result, scope=scope)

    def read(self, name: str) -> list[str]:
        match name:
            case "Agents SDK":
                return [_text(item["content"]) for item in asyncio.run(self.session.get_items())]
            case "LangChain":
                return [message.text for message in self.messages.messages]
            case "LlamaIndex":
                return [message.content or "" for message in asyncio.run(self.chats.get_messages("c"))]
            case "pydantic-ai":
                conversation = asyncio.run(self.store.load("c", scope=str(self.user.pk)))
                parts = [part for message in conversation.messages for part in message.parts]
                return [part.content for part in parts]
            case "Conversations API":
                items = self.openai.get("/openai/v1/conversations/c/items?order=asc&limit=100").json()["data"]
                return [_text(item["content"]) for item in items]
            case "REST":
                rows = self.rest.get("/api/conversations/c/messages/?as=openai").json()["results"]
                return [row["message"]["content"] for row in rows[::-1]]
            case _:
                return [row.text for row in Conversation.objects.get(memory_id="c").history()]


def _text(content) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("first", WRITERS)
def test_each_reads_what_all_the_others_wrote(faces, user, first):
    Conversation.objects.create(memory_id="c", owner=user)
    texts: list[str] = []
    for name in [first, *(each for each in WRITERS if each != first), first]:
        texts += [f"{name}: where is parcel {len(texts)}?", f"{name}: in Hamburg, of {len(texts)}."]
        faces.write(name, *texts[-2:])

    assert {name: faces.read(name) for name in WRITERS} == dict.fromkeys(WRITERS, texts)
    page = faces.admin.get(reverse("admin:chatmemory_conversation_change", args=[Conversation.objects.get().pk]))
    assert [text for text in texts if text not in page.content.decode()] == []
