"""A removed message, whichever way it came in and is removed: its text is nowhere, and everything else still works."""

import asyncio
import base64
import json
import random
from collections.abc import Callable, Sequence
from string import ascii_lowercase

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client, RequestFactory
from django.urls import reverse
from langchain_core.messages import HumanMessage
from llama_index.core.base.llms.types import ChatMessage as LlamaMessage
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation as AgentConversation
from pydantic_ai.models.test import TestModel
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django import operations
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.contrib.adapters.langchain import DjangoChatMessageHistory
from chatmemory_django.contrib.adapters.llama_index import ACTIVE, ARCHIVED, DjangoChatStore
from chatmemory_django.contrib.adapters.openai_agents import DjangoSession
from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore
from chatmemory_django.contrib.mcp import tools
from chatmemory_django.db.threads import close_thread_sensitive
from chatmemory_django.memory import SummarizingChatMemory
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    Image,
    ImageContent,
    NewMessage,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message, finding
from chatmemory_django.operations.jsonl import export_lines, import_lines
from chatmemory_django.provider import get_chat_memory, known_window
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import ScriptedModel
from tests.leftovers import leftovers
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(transaction=True)

SUMMARY = "You talked about"
CHAT = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"


def summarized(summary: str | None, messages: Sequence[object]) -> str:
    """Return a summary that repeats the secrets, as a model may."""
    words = f"{summary} {messages}".replace("'", " ").replace('"', " ").split()
    secrets = dict.fromkeys(word for word in words if word.startswith("zaquixo"))
    return " ".join([SUMMARY, *secrets])


@pytest.fixture(autouse=True)
def summarizing(settings) -> None:
    options = {
        "max_tokens": 80,
        "token_count_estimator": ADDITIVE_WORDS,
        "summarize": summarized,
        "summary_tokens": 20,
        "after_tokens": 50,
    }
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.SummarizingChatMemory", "OPTIONS": options},
        "REST": {"THROTTLE_RATES": {}},
        "CHAT": {"THROTTLE_RATE": None, "ASSISTANT": Assistant(ScriptedModel("Noted."))},
    }


@pytest.fixture(autouse=True)
def no_connection_is_left():
    yield
    asyncio.run(close_thread_sensitive())


@pytest.fixture
def secret() -> str:
    """Return a text of its own for each test: MariaDB's index keeps the words of earlier ones."""
    return f"zaquixo{''.join(random.choices(ascii_lowercase, k=24))}"


@pytest.fixture
def site(secret):
    return Site(secret)


class Site:
    """A conversation, the ways to write a secret into it and to remove it, and everything that shows it."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.user = get_user_model().objects.create_superuser("anna")
        self.rest = APIClient()
        self.rest.force_authenticate(self.user)
        self.openai = Client(headers={"Authorization": f"Bearer {Token.objects.create(user=self.user).key}"})
        self.admin = Client()
        self.admin.force_login(self.user)
        self.session = DjangoSession(CHAT, owner=self.user)
        self.chats = DjangoChatStore(owner=self.user)
        memory = self.memory
        assert isinstance(memory, SummarizingChatMemory)
        memory.add(SystemMessage("Be brief."), UserMessage("Hello there."), AiMessage("Hi."))

    @property
    def memory(self):
        return get_chat_memory(CHAT, owner=self.user)

    @property
    def conversation(self) -> Conversation:
        return Conversation.objects.get(memory_id=CHAT)

    def talk(self, topic: str, times: int = 12) -> None:
        """Go on until the messages up to here are summarized, several times."""
        for number in range(times):
            self.memory.add(UserMessage(f"What about {topic} number {number} of these here?"))
            self.memory.add(AiMessage(f"I know nothing of {topic} number {number}, sorry for that."))

    def newest(self) -> int:
        return self.conversation.history().order_by("sequence").values_list("sequence", flat=True).last()

    def sequences(self) -> list[int]:
        """Return the messages of the path with the secret."""
        return [
            row.sequence
            for row in self.conversation.history()
            if self.secret in f"{row.text}{row.payload}{row.metadata}" or self.encoded in str(row.payload)
        ]

    @property
    def encoded(self) -> str:
        return base64.b64encode(f"PNG {self.secret} ".encode()).decode().rstrip("=")[8:-4]

    def summarized_on_two_branches(self, at: int) -> None:
        """Go on from message *at* on two branches, so that both have summaries of what is before it."""
        self.talk("cats")
        self.memory.rewind(at)
        self.talk("dogs")

    def summaries(self) -> list[Message]:
        return list(self.conversation.messages.filter(in_history=False, text__startswith=SUMMARY))

    def read(self) -> dict[str, str]:
        """Return everything that shows messages, for readers with every permission."""
        base, talk = f"/api/conversations/{CHAT}/", self.conversation
        everyone = Conversation.objects.all()
        rows = list(talk.history(all_branches=True))
        shown = {
            "messages": str(self.memory.messages()),
            "memory": str([(row.text, row.payload) for row in talk.memory()]),
            "history": str([row.chat_message for row in rows]),
            "explain": str(self.memory.explain()),
            "search": str(list(Message.objects.search(self.secret))),
            "conversations": str(list(Conversation.objects.search(self.secret))),
            "export": "".join(operations.export(everyone)),
            "lines": "".join(export_lines(everyone)),
            "admin": self._page("change", talk.pk),
            "admin, all branches": self._page("change", talk.pk, branches="all"),
            "admin, search": self._page("change", talk.pk, q=self.secret).replace(self.secret, ""),
            "admin, list": self._page("changelist"),
            "admin, export": _content(self._admin_export()),
            "admin, export of one": self._page("export", talk.pk),
            "admin, OpenAI": self._page("openai", talk.pk),
            "MCP": str(self._mcp(tools.ReadConversation(CHAT))),
            "MCP, search": str(self._mcp(tools.SearchConversations(self.secret))),
            "Agents SDK": str(asyncio.run(self.session.get_items())),
            "LangChain": str(DjangoChatMessageHistory(CHAT, owner=self.user).messages),
            "LlamaIndex": str(asyncio.run(self.chats.get_messages(CHAT, None))),
            "pydantic-ai": str(asyncio.run(DjangoConversationStore().load(CHAT, scope=str(self.user.pk)))),
            "OpenAI": _content(self.openai.get(f"/openai/v1/conversations/{CHAT}/items?limit=100")),
            "chat": _content(self.openai.get(f"/api/chat/{CHAT}/messages")),
        }
        for name in ("", "messages/?all_branches=true&page_size=200", "memory/?explain=true", "export/"):
            shown[f"REST, {name}"] = _content(self.rest.get(base + name))
        shown["REST, list"] = _content(self.rest.get("/api/conversations/"))
        found = self.rest.get(f"/api/conversations/?search={self.secret}").json()
        assert found["results"] == []
        return shown

    def _page(self, name: str, *args: object, **query: object) -> str:
        return _content(self.admin.get(reverse(f"admin:chatmemory_conversation_{name}", args=args), query))

    def _admin_export(self):
        data = {"action": "export_conversations", "_selected_action": [self.conversation.pk], "confirmed": "export"}
        return self.admin.post(reverse("admin:chatmemory_conversation_changelist"), data)

    def _mcp(self, tool):
        request = RequestFactory().get("/")
        request.user = request.auth_user = self.user
        return tool.run(request)


def _content(response) -> str:
    assert response.status_code == 200, response.content
    streamed = getattr(response, "streaming_content", None)
    return (response.content if streamed is None else b"".join(streamed)).decode()


def _written(*messages: object) -> Callable[[Site], None]:
    """Return how the site itself writes *messages*, with SECRET in place of the secret."""

    def write(site: Site) -> None:
        new = [message(site.secret) for message in messages]
        site.memory.add(*new)

    return write


def _call(secret: str) -> NewMessage:
    request = ToolExecutionRequest(id="1", name="look_up", arguments=json.dumps({"name": secret}))
    return NewMessage(AiMessage(tool_execution_requests=[request]), client_message_id="m2")


def _by_rest(site: Site) -> None:
    item = {"role": "user", "content": f"My name is {site.secret}."}
    body = {"messages": [{"message": item, "client_message_id": "m1", "metadata": {"name": site.secret}}]}
    assert site.rest.post(f"/api/conversations/{CHAT}/messages/", body, format="json").status_code == 201


def _by_openai(site: Site) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": f'{{"at": "{site.secret}"'}
    items = [{"role": "user", "content": f"My name is {site.secret}."}, call]
    path = f"/openai/v1/conversations/{CHAT}/items"
    assert site.openai.post(path, {"items": items}, content_type="application/json").status_code == 200


def _by_agents_sdk(site: Site) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": f'{{"at": "{site.secret}"'}
    asyncio.run(site.session.add_items([{"role": "user", "content": site.secret}, call]))


def _by_langchain(site: Site) -> None:
    message = HumanMessage(f"My name is {site.secret}.", additional_kwargs={"name": site.secret})
    DjangoChatMessageHistory(CHAT, owner=site.user).add_messages([message])


def _by_llama_index(site: Site) -> None:
    message = LlamaMessage(role="user", content=site.secret, additional_kwargs={"name": site.secret})
    asyncio.run(site.chats.add_messages(CHAT, [message]))


async def _ask(site: Site, **options: object) -> None:
    store, scope = DjangoConversationStore(), str(site.user.pk)
    conversation = await store.load(CHAT, scope=scope) or AgentConversation(conversation_id=CHAT)
    model = TestModel(custom_output_text="Noted.")
    result = await Agent(model, **options).run(f"My name is {site.secret}.", conversation=conversation)
    await store.save(result, scope=scope)


def _by_pydantic_ai(site: Site) -> None:
    asyncio.run(_ask(site))


WRITERS: dict[str, Callable[[Site], None]] = {
    "a text": _written(
        lambda secret: NewMessage(UserMessage(f"My name is {secret}."), {"name": secret}, client_message_id="m1")
    ),
    "a tool call": _written(
        _call, lambda secret: ToolExecutionResultMessage(id="1", tool_name="look_up", contents=f"Found {secret}.")
    ),
    "thinking": _written(lambda secret: AiMessage("Hm.", thinking=f"The name is {secret}.")),
    "a file": _written(
        lambda secret: UserMessage(
            [
                TextContent(f"My name is {secret}."),
                ImageContent(Image(base64_data=base64.b64encode(f"PNG {secret} ".encode()).decode())),
            ]
        )
    ),
    "a custom message": _written(lambda secret: CustomMessage({"name": secret})),
    "a system message": _written(lambda secret: SystemMessage(f"The user's name is {secret}.")),
    "REST": _by_rest,
    "OpenAI": _by_openai,
    "Agents SDK": _by_agents_sdk,
    "LangChain": _by_langchain,
    "LlamaIndex": _by_llama_index,
    "pydantic-ai": _by_pydantic_ai,
}


def _remove_by_rest(site: Site, sequence: int, query: str = "") -> None:
    response = site.rest.delete(f"/api/conversations/{CHAT}/messages/{sequence}/{query}")
    assert response.status_code == 200, response.content


def _remove_item(site: Site, sequence: int) -> None:
    path = f"/openai/v1/conversations/{CHAT}/items"
    items = site.openai.get(f"{path}?limit=100").json()["data"]
    item = next(item for item in items if site.secret in json.dumps(item))
    response = site.openai.delete(f"{path}/{item['id']}")
    assert response.status_code == 200, response.content


def _remove_in_the_admin(site: Site, sequence: int, **also: str) -> None:
    path = reverse("admin:chatmemory_conversation_remove", args=[site.conversation.pk, sequence])
    response = site.admin.post(path, {"confirmed": "remove", **also})
    assert response.status_code == 302, response.content


BY_SEQUENCE: dict[str, Callable[[Site, int], object]] = {
    "memory.remove": lambda site, sequence: site.memory.remove(sequence),
    "memory.remove with results": lambda site, sequence: site.memory.remove(sequence, with_results=True),
    "memory.aremove": lambda site, sequence: asyncio.run(site.memory.aremove(sequence)),
    "REST": _remove_by_rest,
    "REST with results": lambda site, sequence: _remove_by_rest(site, sequence, "?with_results=true"),
    "OpenAI": _remove_item,
    "admin": _remove_in_the_admin,
    "admin with results": lambda site, sequence: _remove_in_the_admin(site, sequence, with_counterparts="on"),
    "LlamaIndex": lambda site, sequence: asyncio.run(site.chats.delete_message(CHAT, sequence)),
    "LlamaIndex, archived": lambda site, sequence: asyncio.run(site.chats.delete_messages(CHAT, ARCHIVED)),
}

NEWEST: dict[str, Callable[[Site], object]] = {
    "memory.pop": lambda site: site.memory.pop(),
    "memory.apop": lambda site: asyncio.run(site.memory.apop()),
    "REST": lambda site: site.rest.post(f"/api/conversations/{CHAT}/memory/pop/"),
    "Agents SDK": lambda site: asyncio.run(site.session.pop_item()),
    "LlamaIndex, active": lambda site: asyncio.run(site.chats.delete_messages(CHAT, ACTIVE)),
    "LlamaIndex, oldest": lambda site: asyncio.run(site.chats.delete_oldest_messages(CHAT, 100)),
}


def nowhere(site: Site) -> None:
    """Check that the secret is neither stored nor shown, and that everything that shows messages works."""
    if finding.index is not None:
        call_command("prune_chatmemory", "--search-index", verbosity=0)
    assert leftovers(site.secret) == []
    assert [name for name, shown in site.read().items() if site.secret in shown or site.encoded in shown] == []


def everything_works(site: Site) -> None:
    """Check what reads or copies whole conversations, and that the next summary does not bring the secret back."""
    findings: list[object] = []
    conversations = Conversation.objects.all()
    operations.check(conversations, known_window, findings.append)
    assert findings == []
    operations.recount(conversations, known_window)
    operations.fork(site.conversation, "fork", owner=site.user)
    lines = list(export_lines(conversations.filter(memory_id=CHAT)))
    import_lines(lines, rename=True)
    site.talk("birds")
    assert site.summaries() != []
    operations.check(conversations, known_window, findings.append)
    assert findings == []


@pytest.mark.parametrize("writer", mostly_slow(WRITERS))
def test_nothing_is_left_of_it_whatever_it_is(site, writer):
    WRITERS[writer](site)
    before = site.sequences()
    site.summarized_on_two_branches(site.newest())
    assert before != []
    assert leftovers(site.secret) != []

    site.memory.remove(*before)

    nowhere(site)
    everything_works(site)
    nowhere(site)


@pytest.mark.parametrize("remove", mostly_slow(BY_SEQUENCE))
@pytest.mark.parametrize("writer", mostly_slow(["a text", "a tool call"]))
def test_nothing_is_left_of_it_whichever_way_it_is_removed(site, writer, remove):
    WRITERS[writer](site)
    site.summarized_on_two_branches(site.newest())
    assert len([row for row in site.summaries() if site.secret in row.text]) >= 4

    while there := site.sequences():
        BY_SEQUENCE[remove](site, there[0])
        assert site.sequences() != there

    nowhere(site)
    everything_works(site)


@pytest.mark.parametrize("remove", mostly_slow(NEWEST))
@pytest.mark.parametrize("writer", mostly_slow(["a text", "a tool call", "Agents SDK"]))
def test_nothing_is_left_of_the_newest_message(site, writer, remove):
    WRITERS[writer](site)
    at = site.newest()
    site.summarized_on_two_branches(at)
    site.memory.rewind(at)
    assert len([row for row in site.summaries() if site.secret in row.text]) >= 4

    while there := site.sequences():
        NEWEST[remove](site)
        assert site.sequences() != there

    nowhere(site)
    everything_works(site)


def test_no_summary_is_left_on_any_branch_after_clear(site):
    WRITERS["a text"](site)
    site.summarized_on_two_branches(site.newest())

    site.memory.clear()

    assert site.summaries() == []
    everything_works(site)


@pytest.mark.parametrize("prompts", ["{}|Hello.", "Be brief.|{}", "{}|{}"])
def test_a_part_of_an_agents_request_leaves_nothing_in_its_other_part(site, prompts):
    """A request of several parts is several messages, and as it was given it is stored next to the last of them."""
    system, question = (prompt.format(site.secret) for prompt in prompts.split("|"))

    async def ask() -> None:
        agent = Agent(TestModel(custom_output_text="Noted."), system_prompt=system)
        result = await agent.run(question, conversation=AgentConversation(conversation_id="agent"))
        await DjangoConversationStore().save(result, scope=str(site.user.pk))

    asyncio.run(ask())
    rows = Message.objects.filter(conversation__memory_id="agent").order_by("sequence")
    assert [row.text for row in rows] == [system, question, "Noted."]

    get_chat_memory("agent", owner=site.user).remove(*[row.sequence for row in rows if site.secret in row.text])

    nowhere(site)


def test_nothing_is_left_of_an_answer_in_its_stream(site, settings):
    """The stream is kept for a minute after its end, so that pages can resume it."""
    settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(ScriptedModel(f"Your name is {site.secret}."))
    message = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": f"My name is {site.secret}."}]}
    headers = {"Accept": "application/json"}
    asked = site.openai.post(
        "/api/chat", {"id": CHAT, "message": message}, content_type="application/json", headers=headers
    )
    assert asked.status_code == 200

    for sequence in site.sequences():
        _remove_by_rest(site, sequence)

    nowhere(site)


class TestSentAgain:
    """With the client message id of a removed message, nothing is stored."""

    @pytest.fixture
    def removed(self, site):
        WRITERS["a text"](site)
        [sequence] = site.sequences()
        site.memory.remove(sequence)
        return sequence

    def test_the_site_is_given_its_sequence(self, site, removed):
        new = NewMessage(UserMessage(f"My name is {site.secret}."), client_message_id="m1")

        assert site.memory.add(new) == [removed]
        nowhere(site)

    @pytest.mark.parametrize("words", ["My name is {}.", "I am {}."])
    def test_rest_accepts_the_retry_and_shows_nothing(self, site, removed, words):
        item = {"role": "user", "content": words.format(site.secret)}
        body = {"messages": [{"message": item, "client_message_id": "m1", "metadata": {"name": site.secret}}]}

        response = site.rest.post(f"/api/conversations/{CHAT}/messages/", body, format="json")

        assert (response.status_code, response.json()) == (201, {"messages": []})
        nowhere(site)

    def test_so_for_an_idempotency_key(self, site):
        body = {"messages": [{"message": {"role": "user", "content": f"My name is {site.secret}."}}]}
        url, headers = f"/api/conversations/{CHAT}/messages/", {"Idempotency-Key": "once"}
        site.rest.post(url, body, format="json", headers=headers)
        site.memory.remove(*site.sequences())

        response = site.rest.post(url, body, format="json", headers=headers)

        assert (response.status_code, response.json()) == (201, {"messages": []})
        nowhere(site)

    def test_the_chat_refuses_it(self, site, removed):
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": f"My name is {site.secret}."}]}
        body = {"id": CHAT, "message": message}

        response = site.openai.post(
            "/api/chat", body, content_type="application/json", headers={"Accept": "application/json"}
        )

        assert response.status_code == 409
        nowhere(site)
