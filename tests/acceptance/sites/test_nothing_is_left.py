"""
Erased is gone: a site is filled by every feature there is, its user is erased, and the texts are looked for everywhere.

What looks for them finds tables, indexes and keys by itself, so that a new feature that keeps texts is not forgotten.
Whatever is new has to be used here, and nothing else.
"""

import asyncio
import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from itertools import product
from typing import Any, NamedTuple

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connections, router
from django.test import AsyncClient, Client
from django.urls import reverse
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatRequest
from chatmemory_django.chat.runs.streams import streams
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    MessageType,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message, finding
from chatmemory_django.operations import erase, export_lines, import_lines, prune
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.leftovers import leftovers
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

SERVER = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/9").rpartition("/")[0]
REDIS = f"{SERVER}/{10 + int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:]) % 6}"
"""Not that of other tests, which run beside: the site counts the streams of all conversations that it does not have."""
CHATS = "/api/conversations/"
OPENAI = "/openai/v1/conversations"


class Secrets(NamedTuple):
    """A word that is in texts, titles and metadata, and one that is in memory ids."""

    text: str
    memory_id: str


def a_word() -> str:
    """Return a word of its own for each test: MariaDB's index may still have those of earlier tests."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz", k=24))


def summarize(previous: str | None, messages: list[Any]) -> str:
    return previous or f"about {messages[0].single_text.split()[-1]}"


class Site:
    """The site as Ann uses it, and all ways to erase what she did."""

    def __init__(self, ann: Any, settings: Any) -> None:
        self.ann = ann
        self.secrets = Secrets(a_word(), a_word())
        self.settings = settings
        self.api = APIClient()
        self.api.force_login(ann)
        key = Token.objects.get_or_create(user=ann)[0].key
        self.headers = {"Authorization": f"Bearer {key}"}

    def fill(self) -> None:
        self.say()
        self.use_rest()
        self.use_openai()
        self.use_frameworks()
        self.use_memory()
        self.use_admin()
        self.move()

    def say(self) -> None:
        """Chat with a tool and a file, edit the question, and have the answer generated again."""
        secret, chat_id = self.secrets.text, self.secrets.memory_id

        def look(place: str) -> str:
            """Look."""
            return f"There is {secret} in {place}."

        def answer(request: ChatRequest) -> str | AiMessage:
            if request.messages[-1].type == MessageType.USER:
                return calling(("1", "look", json.dumps({"place": secret})), text=f"I look for {secret}.")
            return f"It is {secret} indeed."

        self.settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(
            ScriptedModel(answer), tools=[look], system_message=f"You know {secret}."
        )
        pdf = base64.b64encode(f"%PDF-1.4 {secret}".encode()).decode()
        file = {"type": "file", "mediaType": "application/pdf", "url": f"data:application/pdf;base64,{pdf}"}

        async def talk() -> None:
            for text in ("What is", "No, what was"):
                await self.post(
                    {"id": "u1", "role": "user", "parts": [{"type": "text", "text": f"{text} {secret}?"}, file]}
                )
            await self.post(id=chat_id, trigger="regenerate-message", messages=[])

        run(talk())

    async def post(self, *messages: dict[str, Any], **body: Any) -> str:
        content = {"id": self.secrets.memory_id, "messages": messages, **body}
        response = await AsyncClient().post(
            "/api/chat", json.dumps(content), content_type="application/json", headers=self.headers
        )
        assert response.status_code == 200
        return b"".join([piece async for piece in response.streaming_content]).decode()

    def use_rest(self) -> None:
        secret = self.secrets.text
        made = self.api.post(CHATS, {"title": secret, "metadata": {"about": secret}}, format="json").json()
        here = f"{CHATS}{made['memory_id']}/"
        question = {"type": "USER", "contents": [{"type": "TEXT", "text": f"Is it {secret}?"}]}
        for _ in range(2):
            posted = {"messages": [{"message": question, "metadata": {"feedback": secret}}]}
            assert self.api.post(f"{here}messages/", posted, format="json").status_code == 201
        assert self.api.patch(f"{here}messages/1/", {"metadata": {"note": secret}}, format="json").status_code == 200
        assert self.api.post(f"{here}fork/", {"through": 1}, format="json").status_code == 201
        assert self.api.post(f"{here}memory/rewind/", {"to": 1}, format="json").status_code == 200
        assert self.api.get(f"{here}messages/", {"search": secret}).json()["results"]
        if not apps.is_installed("chatmemory_django.contrib.encryption"):
            assert self.api.get(CHATS, {"search": secret}).json()["results"]
        for where in ("messages/", "memory/?explain=true", "export/"):
            assert self.api.get(here + where).status_code == 200

    def use_openai(self) -> None:
        secret = self.secrets.text
        items = [
            {"role": "user", "content": f"Where is {secret}?", "unheard_of": secret},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": secret}]},
        ]
        made = Client(headers=self.headers).post(
            OPENAI, {"items": items, "metadata": {"a": secret}}, content_type="application/json"
        )
        assert made.status_code == 200, made.content

    def use_frameworks(self) -> None:
        self.use_pydantic_ai()
        secret = self.secrets.text
        langchain = pytest.importorskip("langchain_core.messages")
        from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory

        history = DjangoChatMessageHistory(f"lc-{self.secrets.memory_id}", owner=self.ann)
        history.add_messages([langchain.HumanMessage(secret, additional_kwargs={"more": secret})])
        llama = pytest.importorskip("llama_index.core.base.llms.types")
        from chatmemory_django.contrib.adapters.llama_index import DjangoChatStore

        store = DjangoChatStore(owner=self.ann)
        run(store.add_messages("li", [llama.ChatMessage(secret, additional_kwargs={"more": secret})]))
        run(store.archive_oldest_messages("li", 1))
        pytest.importorskip("agents")
        from chatmemory_django.contrib.adapters.openai_agents import DjangoSession

        run(DjangoSession("session", owner=self.ann).add_items([{"role": "user", "content": secret}]))

    def use_pydantic_ai(self) -> None:
        pytest.importorskip("pydantic_ai")
        from pydantic_ai.conversation import Conversation as Carried
        from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart
        from pydantic_ai.tools import DeferredToolRequests

        from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore

        secret = self.secrets.text
        call = ToolCallPart("look", {"for": secret}, "c1")
        carried = Carried(
            conversation_id=f"pa-{self.secrets.memory_id}",
            messages=[ModelRequest.user_text_prompt(secret), ModelResponse(parts=[call])],
            deferred_tool_requests=DeferredToolRequests(approvals=[call]),
        )
        run(DjangoConversationStore().save(carried, scope=str(self.ann.pk)))

    def use_memory(self) -> None:
        """Have a summary, every kind of message, and rows that no memory has."""
        secret = self.secrets.text
        memory = get_chat_memory("summarized", self.ann)
        for _ in range(12):
            memory.add(UserMessage(f"I say {secret}"))
        assert "SUMMARY" in set(Message.objects.values_list("type", flat=True)) or Conversation.objects.filter(
            memory_id="summarized", summary_sequence__gt=0
        )
        call = ToolExecutionRequest("1", "look", json.dumps({"for": secret}))
        get_chat_memory("kinds", self.ann, max_tokens=1000).add(
            SystemMessage(secret),
            NewMessage(AiMessage(secret, f"I think of {secret}", [call], {"mood": secret}), {"model": secret}),
            ToolExecutionResultMessage.from_request(call, secret),
            CustomMessage({"any": [secret]}),
            NewMessage(UserMessage(secret, name=secret), client_message_id=secret),
        )
        memory.clear()

    def use_admin(self) -> None:
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("root"))
        for conversation in Conversation.objects.all():
            page = client.get(reverse("admin:chatmemory_conversation_change", args=[conversation.pk]))
            assert page.status_code == 200
        last = Conversation.objects.get(memory_id="kinds")
        url = reverse("admin:chatmemory_conversation_clear", args=[last.pk])
        assert client.post(url, {"confirmed": "clear"}).status_code == 302

    def move(self) -> None:
        """Export everything, and import it again with other memory ids."""
        lines = list(export_lines(Conversation.objects.owned_by(self.ann)))
        assert import_lines(lines, owner=self.ann, rename=True) > 5

    def by_rest(self) -> None:
        for memory_id in Conversation.objects.owned_by(self.ann).values_list("memory_id", flat=True):
            assert self.api.delete(f"{CHATS}{memory_id}/").status_code == 204

    def by_openai(self) -> None:
        for memory_id in Conversation.objects.owned_by(self.ann).values_list("memory_id", flat=True):
            assert Client(headers=self.headers).delete(f"{OPENAI}/{memory_id}").status_code == 200

    def by_admin(self) -> None:
        client = Client()
        client.force_login(get_user_model().objects.get(username="root"))
        for conversation in Conversation.objects.all():
            url = reverse("admin:chatmemory_conversation_delete", args=[conversation.pk])
            assert client.post(url, {"confirmed": "delete"}).status_code == 302

    def by_model(self) -> None:
        for conversation in Conversation.objects.owned_by(self.ann):
            conversation.delete()


WAYS: dict[str, Callable[[Site], object]] = {
    "REST": Site.by_rest,
    "OpenAI's API": Site.by_openai,
    "the admin": Site.by_admin,
    "operations.erase": lambda site: erase(Conversation.objects.owned_by(site.ann)),
    "operations.prune": lambda site: prune(Conversation.objects.all(), idle=timedelta(0)),
    "erase_chatmemory": lambda site: call_command("erase_chatmemory", user="ann", stdout=StringIO(), verbosity=0),
    "QuerySet.delete": lambda site: Conversation.objects.owned_by(site.ann).delete(),
    "Model.delete": Site.by_model,
    "deleting the user": lambda site: site.ann.delete(),
    "deleting users": lambda site: get_user_model().objects.filter(pk=site.ann.pk).delete(),
}


TEXTS = (
    *(f"chatmemory_message.{column}" for column in ("text", "payload", "verbatim")),
    "chatmemory_conversation.title",
    "chatmemory_records_record.text",
)
QUERIED = ("chatmemory_message.metadata", "chatmemory_message.client_message_id", "chatmemory_conversation.metadata")
"""What no app encrypts, since it is looked up."""

STREAMS = {
    "DatabaseStreams": "chatmemory_chat_answerchunk.data",
    "RedisStreams": "redis: chatmemory:{",
}


@pytest.fixture
def site(request, ann, trusted, settings) -> Iterator[Site]:
    chat = {"THROTTLE_RATE": None}
    if request.param == "redis":
        redis = pytest.importorskip("redis")
        try:
            redis.Redis.from_url(REDIS).ping()
        except redis.ConnectionError:
            pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")
        chat |= {"STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams", "REDIS_URL": REDIS}
    settings.CHATMEMORY = {
        "MEMORY": {
            "CLASS": "chatmemory_django.memory.SummarizingChatMemory",
            "OPTIONS": {
                "max_tokens": 60,
                "summary_tokens": 20,
                "after_tokens": 10,
                "summarize": summarize,
                "token_count_estimator": ADDITIVE_WORDS,
            },
        },
        "REST": {"THROTTLE_RATES": {}},
        "CHAT": chat,
    }
    cache.clear()
    return Site(trusted(ann), settings)


@pytest.mark.parametrize(
    ("site", "way"),
    mostly_slow([*product(["database"], WAYS), *product(["redis"], ["REST", "QuerySet.delete", "deleting the user"])]),
    indirect=["site"],
)
def test_nothing_is_left_of_an_erased_user(site, way):
    site.fill()
    secret, memory_id = site.secrets
    key = str(site.ann.pk)
    assert what_the_site_finds(key)
    places = leftovers(secret)
    is_encrypted = apps.is_installed("chatmemory_django.contrib.encryption")
    for place in (*TEXTS, STREAMS[type(streams()).__name__]):
        assert any(place in each for each in places) is not is_encrypted, place
    for place in QUERIED:
        assert any(place in each for each in places), place
    if finding.index is not None:
        index = {"sqlite": "chatmemory_search (FTS5)", "mysql": "INNODB_FT"}.get(vendor(), "")
        assert any(index in place for place in places)
    assert leftovers(memory_id)

    found = run(erased_while_it_answers(site, WAYS[way]))

    assert "[DONE]" in found
    assert not Conversation.objects.exists()
    if finding.index is not None:
        call_command("prune_chatmemory", search_index=True, verbosity=0)
    assert leftovers(secret) == []
    assert what_the_site_finds(key) == []
    # The log of the admin names the erased conversations.
    assert [place for place in leftovers(memory_id) if "django_admin_log" not in place] == []


def what_the_site_finds(user_key: str) -> list[str]:
    """Return what ``verify_chatmemory`` prints, without the calls of models, which name an owner for longer."""
    out = StringIO()
    with suppress(CommandError):
        call_command("verify_chatmemory", user_key=user_key, stdout=out)
    is_kept = "chatmemory_chat_modelcall: rows of the user", "Nothing is left in"
    return [line for line in out.getvalue().splitlines() if not any(each in line for each in is_kept)]


def vendor() -> str:
    return connections[router.db_for_read(Message)].vendor


async def erased_while_it_answers(site: Site, way: Callable[[Site], object]) -> str:
    """Erase the user while an answer is generated, and return the stream of the answer."""
    model = ScriptedModel(f"word {site.secrets.text} word", gate=asyncio.Event())
    site.settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(model)
    asking = asyncio.create_task(
        site.post({"id": "u9", "role": "user", "parts": [{"type": "text", "text": site.secrets.text}]})
    )
    while not model.open_streams:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # so that its first piece is written
    await sync_to_async(way)(site)
    async with asyncio.timeout(300):
        found = await asking
    await asyncio.sleep(0.6)  # a late writer would write now
    return found
