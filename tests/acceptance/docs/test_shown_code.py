"""Runs the blocks of the documentation that need a model, settings, or another package."""

import inspect
import re
import sys
import textwrap
from types import ModuleType, SimpleNamespace

import pytest
from django.apps import AppConfig
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.checks import run_checks
from django.core.exceptions import PermissionDenied
from django.test import Client, override_settings
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.views import SpectacularAPIView
from rest_framework.test import APIClient

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.messages import (
    AiMessage,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from example_project.models import Feedback
from tests.acceptance.docs.pages import DOCS, block_of, execute
from tests.faces.chat.scripted import ScriptedModel


def skipped(page: str) -> list[str]:
    """Return the Python blocks of *page* that Sybil skips because they run here, in order."""
    found = re.findall(
        r'^ *<!-- skip: next "[^"]*test_shown_code\.py" -->\n\n( *```python\n.*?^ *```)$',
        (DOCS / page).read_text(),
        re.DOTALL | re.MULTILINE,
    )
    return ["\n".join(textwrap.dedent(block).splitlines()[1:-1]) for block in found]


@pytest.fixture
def models(monkeypatch):
    """Replace ``OpenAiChatModel`` with a model that needs no network, once it has checked its arguments."""
    made: list[ScriptedModel] = []

    def make(*args, **options):
        OpenAiChatModel(*args, **options)
        made.append(ScriptedModel("On its way.", "Tomorrow."))
        return made[-1]

    monkeypatch.setattr("chatmemory_django.chat.openai.OpenAiChatModel", make)
    return made


@pytest.fixture
def mysite(monkeypatch):
    """Create the modules of the site that the pages describe."""
    modules = {name: ModuleType(f"mysite.{name}") for name in ("access", "assistants", "memories", "urls")}
    monkeypatch.setitem(sys.modules, "mysite", ModuleType("mysite"))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"mysite.{name}", module)
    return SimpleNamespace(**modules)


def problems() -> list[str]:
    return [each.id for each in run_checks() if each.id.startswith("chatmemory.E")]


def assert_installable(apps: list) -> None:
    for each in apps:
        if each is not ...:
            AppConfig.create(each)


class TestSummaries:
    @pytest.mark.django_db
    def test_the_settings_are_valid(self, mysite, settings):
        mysite.memories.summarize = lambda previous, messages: "short"

        settings.CHATMEMORY = execute(skipped("summaries.md")[0])["CHATMEMORY"]

        assert problems() == []
        assert get_chat_memory("c").summary_tokens == 500

    def test_a_model_summarizes(self, models):
        summarize = execute(skipped("summaries.md")[1])["summarize"]

        assert summarize(None, [UserMessage("Where is it?"), AiMessage("In Hamburg.")]) == "On its way."
        assert "user: Where is it?\nassistant: In Hamburg." in models[0].sent[0][0].single_text

    def test_its_model_is_sent_any_message(self, models):
        line = execute(skipped("summaries.md")[1])["line"]
        call = ToolExecutionRequest(None, "look", None)
        image = ImageContent(Image(url="https://a.example/1"), DetailLevel.MEDIUM)
        messages = [
            AiMessage(None),
            AiMessage("Let me see.", tool_execution_requests=[call]),
            ToolExecutionResultMessage(None, "look", [image, TextContent("seen")]),
            UserMessage([None, AudioContent()]),
            CustomMessage({"a": "b"}),
        ]

        assert list(map(line, messages)) == [
            "assistant: ",
            "assistant: Let me see. look(None)",
            "tool: (a file) seen",
            "user: (a file) (a file)",
            "tool: b",
        ]


@pytest.mark.django_db
@pytest.mark.parametrize(("page", "limit"), [("tokens.md", 4000), ("prompt-caching.md", 8000)])
def test_the_settings_of_a_token_window_are_valid(settings, page, limit):
    [block] = skipped(page)

    settings.CHATMEMORY = execute(block)["CHATMEMORY"]

    assert problems() == []
    assert get_chat_memory("c").max_tokens == limit


@pytest.mark.django_db
def test_a_view_sends_a_memory_with_the_client_of_openai(monkeypatch, rf):
    sent = []

    def create(*, model, messages):
        sent.append(messages)
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="On its way."))])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    monkeypatch.setattr("openai.OpenAI", lambda: client)
    [block] = skipped("messages.md")
    view = execute(block)["ask"]
    request = rf.post("/", {"question": "Where is it?"})
    request.user = User.objects.create_user("ann")

    response = view(request, "orders")

    assert b"On its way." in response.content
    assert sent == [[{"role": "user", "content": "Where is it?"}]]
    assert len(get_chat_memory("orders", owner=request.user).messages()) == 2
    request.user = AnonymousUser()
    assert view(request, "orders").status_code == 302


def test_the_feedback_model_is_the_one_of_the_example_site():
    source = inspect.getsource(Feedback)

    [block] = skipped("history.md")

    assert block.strip() == source[: source.index("\n    def __str__")].strip()


def test_the_app_of_the_search_can_be_installed():
    [block] = skipped("searching.md")

    assert_installable(execute(block)["INSTALLED_APPS"])


@pytest.mark.django_db(transaction=True)
class TestChat:
    def test_the_assistant_answers_and_its_view_streams(self, models, rf, capsys):
        first, second, _ = skipped("chat.md")
        names = execute(first)
        assert capsys.readouterr().out == "On its way.\n"
        view = execute(second, **names)["chat"]
        ann = User.objects.create_user("ann")
        request = rf.post("/", {"message": "And when?"})
        request.user = ann

        assert list(view(request, "orders").render()) == [b"Tomorrow. "]
        assert [message.type for message in models[0].sent[1]] == ["SYSTEM", "USER"]

    def test_the_models_can_be_created(self, models):
        execute(skipped("chat.md")[2], OpenAiChatModel=sys.modules["chatmemory_django.chat.openai"].OpenAiChatModel)

        assert len(models) == 2


@pytest.mark.django_db(transaction=True)
class TestChatOverHttp:
    def test_the_steps_set_up_a_chat(self, models, mysite, settings):
        assistants, shown, urls, *_ = skipped("chat-over-http.md")
        mysite.assistants.assistant = execute(assistants)["assistant"]
        names = execute(shown)
        mysite.urls.urlpatterns = execute(urls)["urlpatterns"]
        assert_installable(names["INSTALLED_APPS"])
        settings.CHATMEMORY, settings.ROOT_URLCONF = names["CHATMEMORY"], "mysite.urls"
        assert problems() == []
        client = Client(headers={"Accept": "application/json"})
        client.force_login(User.objects.create_user("ann"))
        message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}

        response = client.post("/api/chat", {"id": "orders", "messages": [message]}, "application/json")

        assert response.json()["message"]["parts"][-1]["text"] == "On its way."
        assert len(client.get("/api/chat/orders/messages").json()) == 2

    def test_the_settings_of_assistants_by_name_are_valid(self, mysite, settings):
        for name in ("assistant", "support", "sales"):
            setattr(mysite.assistants, name, Assistant(ScriptedModel("")))

        settings.CHATMEMORY = execute(skipped("assistants-by-name.md")[0])["CHATMEMORY"]

        assert problems() == []

    def test_the_settings_of_redis_are_valid(self, mysite, settings):
        pytest.importorskip("redis")
        mysite.assistants.assistant = Assistant(ScriptedModel(""))

        settings.CHATMEMORY = execute(skipped("chat-over-http.md")[3])["CHATMEMORY"]

        assert problems() == []

    def test_the_greeting_is_shown(self, mysite, settings, client):
        mysite.assistants.assistant = Assistant(ScriptedModel(""))
        client.force_login(User.objects.create_user("ann"))

        settings.CHATMEMORY = execute(skipped("chat-over-http.md")[4])["CHATMEMORY"]

        assert problems() == []
        assert "What can I do for you?" in client.get("/api/chat/orders/messages").content.decode()


@pytest.mark.django_db
class TestRest:
    def test_the_steps_set_up_the_api(self, mysite):
        shown, urls, _ = skipped("rest.md")
        names = execute(shown)
        mysite.urls.urlpatterns = execute(urls)["urlpatterns"]
        assert_installable(names["INSTALLED_APPS"])
        ann = User.objects.create_user("ann", password="secret")

        with override_settings(ROOT_URLCONF="mysite.urls", REST_FRAMEWORK=names["REST_FRAMEWORK"]):
            client = APIClient()
            assert client.get("/api/conversations/").status_code == 401
            token = client.post("/api/token/", {"username": "ann", "password": "secret"}).json()["token"]
            created = client.post("/api/conversations/", headers={"Authorization": f"Token {token}"})
            assert resolve("/api/schema/").func.view_class is SpectacularAPIView

        assert created.status_code == 201
        assert Conversation.objects.owned_by(ann).count() == 1

    def test_cors_allows_all_headers_in_the_schema(self, monkeypatch):
        defaults = ModuleType("corsheaders.defaults")
        defaults.default_headers = ("authorization", "content-type", "x-csrftoken")
        monkeypatch.setitem(sys.modules, "corsheaders", ModuleType("corsheaders"))
        monkeypatch.setitem(sys.modules, "corsheaders.defaults", defaults)
        schema = SchemaGenerator().get_schema(public=True)
        operations = [
            each
            for path, methods in schema["paths"].items()
            if path.startswith("/api/conversations")
            for each in methods.values()
        ]
        sent = {
            each["name"].lower()
            for operation in operations
            for each in operation.get("parameters", [])
            if each["in"] == "header"
        }
        returned = {
            name.lower()
            for operation in operations
            for response in operation["responses"].values()
            for name in response.get("headers", {})
        }

        names = execute(skipped("rest.md")[2], INSTALLED_APPS=[], MIDDLEWARE=[])

        assert {"idempotency-key", "if-match"} <= sent <= set(names["CORS_ALLOW_HEADERS"])
        assert {"etag", "retry-after"} <= returned <= set(names["CORS_EXPOSE_HEADERS"])
        assert re.match(names["CORS_URLS_REGEX"], "/api/conversations/")

    def test_members_of_a_team_read_each_others_conversations(self, mysite, settings):
        mysite.access.TeamPolicy = execute(block_of("rest-permissions.md", "TeamPolicy("))["TeamPolicy"]
        [shown] = skipped("rest-permissions.md")
        settings.CHATMEMORY = execute(shown)["CHATMEMORY"]
        assert issubclass(mysite.access.TeamPolicy, AccessPolicy)
        assert problems() == []
        ann, bob, cleo = (User.objects.create_user(name) for name in ("ann", "bob", "cleo"))
        Group.objects.create(name="team").user_set.set([ann, bob])
        memory = get_chat_memory("team", owner=ann)
        memory.add(SystemMessage("Secret"), UserMessage("Hello"))
        client = APIClient()

        client.force_authenticate(bob)
        assert [each["memory_id"] for each in client.get("/api/conversations/").json()["results"]] == ["team"]
        [hello, secret] = client.get("/api/conversations/team/messages/").json()["results"]
        assert hello["message"]["contents"] == [{"type": "TEXT", "text": "Hello"}]
        assert secret["message"] is None
        assert client.delete("/api/conversations/team/").status_code == 403
        client.force_authenticate(cleo)
        assert client.get("/api/conversations/team/").status_code == 404
        with pytest.raises(PermissionDenied):
            get_chat_memory("team", owner=bob).add(UserMessage("Hi"))

    def test_the_viewsets_of_tickets_show_conversations_with_a_ticket(self, mysite):
        mysite.urls.urlpatterns = execute(block_of("rest-extending.md", "urlpatterns"))["urlpatterns"]
        ann = User.objects.create_user("ann")
        for name in ("ticket", "other"):
            get_chat_memory(name, owner=ann).add(UserMessage("Hello"))
        Conversation.objects.filter(memory_id="ticket").update(metadata={"ticket": 7})
        client = APIClient()
        client.force_authenticate(ann)

        with override_settings(ROOT_URLCONF="mysite.urls"):
            tickets = client.get("/tickets/").json()

            assert [(each["memory_id"], each["ticket"]) for each in tickets["results"]] == [("ticket", 7)]
            assert len(client.get("/tickets/ticket/messages/").json()["results"]) == 1
            assert client.get("/tickets/other/messages/").status_code == 404
