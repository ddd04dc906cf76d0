"""The requests that every site answers alike. Each checks what its response means."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from importlib.metadata import version
from io import StringIO
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import AsyncClient, Client
from django.urls import reverse
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatRequest
from chatmemory_django.messages import TextContent, UserMessage
from chatmemory_django.models import Conversation
from tests.acceptance.zoo.sites import Site
from tests.asgi import run, send
from tests.faces.chat.scripted import ScriptedModel

CHAT = str(UUID(int=7))
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
JSON = {"Accept": "application/json"}


def echo(request: ChatRequest) -> str:
    """Answer with the number of messages that were sent, and the last text."""
    last = request.messages[-1]
    assert isinstance(last, UserMessage)
    text = next(content.text for content in reversed(last.contents) if isinstance(content, TextContent))
    return f"{len(request.messages)}: {text}"


assistant = Assistant(ScriptedModel(echo), system_message="Repeat.")


class Visitor:
    """Who sends the requests: *ann*, who chats; *bob*, another user; and *root*, who may all."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.rest = f"/{site.rest.replace('<str:version>', 'v1')}"
        self.ann, self.bob = self.user("ann"), self.user("bob")
        self.root = self.user("root", is_staff=True, is_superuser=True)

    @staticmethod
    def user(name: str, **fields: Any) -> Any:
        user = get_user_model()(**{get_user_model().USERNAME_FIELD: f"{name}@example.com"}, **fields)
        user.save()
        return user

    def by(self, user: Any) -> Any:
        """Return a client of *user*, who signs in as programs do on the site."""
        return Client(headers={"Authorization": self.site.authorization(user)})

    def browser(self, user: Any, **options: Any) -> Any:
        """Return a client with a session of *user*."""
        client = Client(**options)
        client.force_login(user, "django.contrib.auth.backends.ModelBackend")
        return client


def question(text: str, chat_id: str = CHAT, *files: dict[str, Any]) -> dict[str, Any]:
    parts = [*files, {"type": "text", "text": text}]
    return {"id": chat_id, "message": {"id": f"id of {text}", "role": "user", "parts": parts}}


def ask(client: Any, text: str, chat_id: str = CHAT, *files: dict[str, Any], **headers: str) -> Any:
    return client.post("/api/chat", question(text, chat_id, *files), "application/json", headers=JSON | headers)


def expect(found: object, wanted: object, of: Any = None) -> None:
    """Fail unless *found* is *wanted*; the failure has the beginning of the response *of*."""
    if found != wanted:
        content = "" if of is None else f" in {getattr(of, 'content', of)[:300]!r}"
        raise AssertionError(f"{found!r}, and not {wanted!r}{content}")


def ok(response: Any, status: int = 200) -> Any:
    """Return the JSON of *response*, if it has any."""
    expect(response.status_code, status, response)
    return json.loads(response.content) if "json" in response.headers.get("Content-Type", "") else None


def texts(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["parts"])


Visit = Callable[[Visitor], None]
VISITS: list[Visit] = []


def visit(function: Visit) -> Visit:
    VISITS.append(function)
    return function


@visit
def the_site_has_no_errors_and_no_migration_is_missing(at: Visitor) -> None:
    call_command("check", stdout=StringIO(), stderr=StringIO())
    call_command("makemigrations", "chatmemory", "chatmemory_chat", check=True, dry_run=True, verbosity=0)


@visit
def an_answer_is_streamed(at: Visitor) -> None:
    headers = {"Authorization": at.site.authorization(at.ann)}

    async def streamed() -> tuple[Any, str]:
        asked = question("Is it raining?")
        response = await AsyncClient().post("/api/chat", asked, "application/json", headers=headers)
        expect(response.status_code, 200, response)
        return response, b"".join([piece async for piece in response.streaming_content]).decode()

    response, body = run(streamed())
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    expect(response["Content-Type"].partition(";")[0], "text/event-stream")
    expect("".join(each.get("delta", "") for each in events).strip(), "2: Is it raining?")
    expect(body.splitlines()[-2:], ["data: [DONE]", ""])


@visit
def an_answer_comes_as_a_whole_and_the_model_was_sent_the_first_one(at: Visitor) -> None:
    expect(texts(ok(ask(at.by(at.ann), "And tomorrow?"))["message"]), "4: And tomorrow?")


@visit
def the_page_gets_the_messages(at: Visitor) -> None:
    listed = ok(at.by(at.ann).get(f"/api/chat/{CHAT}/messages"))
    wanted = [
        ("user", "Is it raining?"),
        ("assistant", "2: Is it raining?"),
        ("user", "And tomorrow?"),
        ("assistant", "4: And tomorrow?"),
    ]
    expect([(each["role"], texts(each)) for each in listed], wanted)


@visit
def nothing_is_to_be_resumed_or_stopped(at: Visitor) -> None:
    expect(at.by(at.ann).get(f"/api/chat/{CHAT}/stream").status_code, 204)
    expect(ok(at.by(at.ann).post(f"/api/chat/{CHAT}/stop")), {"stopped": False})


@visit
def a_file_comes_back(at: Visitor) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    ok(ask(at.by(at.ann), "What is this?", "files", {"type": "file", "mediaType": "image/png", "url": url}))
    [part, _text] = ok(at.by(at.ann).get("/api/chat/files/messages"))[0]["parts"]
    response = at.by(at.ann).get(part["url"])
    expect((response.status_code, response.content), (200, PNG))
    expect(at.by(at.bob).get(part["url"]).status_code, 404)


@visit
def another_user_does_not_find_the_chat(at: Visitor) -> None:
    expect(ask(at.by(at.bob), "What did she write?").status_code, 404)
    expect(ok(at.by(at.bob).get(f"/api/chat/{CHAT}/messages")), [])
    expect(at.by(at.bob).get(f"/api/chat/{CHAT}/stream").status_code, 204)


@visit
def the_chat_refuses_nobody_and_wrong_tokens_with_401(at: Visitor) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        client = Client(headers=headers)
        for response in (ask(client, "Who am I?"), client.get(f"/api/chat/{CHAT}/messages")):
            expect(response.status_code, 401, response)
            expect(response["WWW-Authenticate"].partition(" ")[0] in {"Bearer", "Token"}, True)


@visit
def a_session_chats_with_the_csrf_token_of_the_page(at: Visitor) -> None:
    browser = at.browser(at.ann, enforce_csrf_checks=True)
    expect(ask(browser, "From a page", "page").status_code, 403)
    token = browser.get("/page/").content.decode()
    answer = ok(ask(browser, "From a page", "page", **{"X-CSRFToken": token}))
    expect(texts(answer["message"]), "2: From a page")


@visit
def rest_lists_the_conversations_of_the_user(at: Visitor) -> None:
    listed = ok(at.by(at.ann).get(f"{at.rest}conversations/"))["results"]
    expect([each["title"] for each in listed], ["From a page", "What is this?", "Is it raining?"])
    expect(ok(at.by(at.bob).get(f"{at.rest}conversations/"))["results"], [])


@visit
def rest_shows_one_and_changes_its_title_and_metadata(at: Visitor) -> None:
    path = f"{at.rest}conversations/{CHAT}/"
    expect(ok(at.by(at.ann).get(path))["total_messages"], 5)
    changed = {"title": "The weather", "metadata": {"ticket_number": "7", "someKey": "a"}}
    shown = ok(at.by(at.ann).patch(path, changed, "application/json"))
    expect((shown["title"], shown["metadata"]), (changed["title"], changed["metadata"]))


@visit
def rest_has_the_history_and_finds_a_message(at: Visitor) -> None:
    history = ok(at.by(at.ann).get(f"{at.rest}conversations/{CHAT}/messages/"))["results"]
    expect([each["sequence"] for each in history], [5, 4, 3, 2, 1])
    expect(history[0]["message"], {"type": "AI", "text": "4: And tomorrow?"})
    found = ok(at.by(at.ann).get(f"{at.rest}messages/", {"search": "raining"}))["results"]
    expect({(each["memory_id"], each["type"]) for each in found}, {(CHAT, "USER"), (CHAT, "AI")})


@visit
def rest_hides_it_from_others_and_refuses_nobody(at: Visitor) -> None:
    for path in ("", "messages/", "memory/"):
        expect(at.by(at.bob).get(f"{at.rest}conversations/{CHAT}/{path}").status_code, 404)
        response = Client().get(f"{at.rest}conversations/{CHAT}/{path}")
        expect(response.status_code in {401, 403}, True, response)


@visit
def openai_s_api_creates_lists_and_deletes(at: Visitor) -> None:
    client = Client(headers={"Authorization": f"Bearer {Token.objects.get_or_create(user=at.ann)[0].key}"})
    items = [{"type": "message", "role": "user", "content": "By a client"}]
    made = ok(client.post("/openai/v1/conversations", {"items": items}, "application/json"))
    path = f"/openai/v1/conversations/{made['id']}"
    [item] = ok(client.get(f"{path}/items"))["data"]
    expect((item["role"], item["content"][0]["text"]), ("user", "By a client"))
    expect(ok(client.delete(path))["deleted"], True)
    expect(client.get(path).status_code, 404)
    expect(Client().get(path).status_code, 401)


@visit
def mcp_initializes(at: Visitor) -> None:
    from chatmemory_django.contrib.mcp import get_mcp_app

    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "zoo", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}).encode()
    key = Token.objects.get_or_create(user=at.ann)[0].key
    accepted = {"Accept": "application/json, text/event-stream"}
    status, content = run(send(get_mcp_app(), "/mcp", accepted | {"Authorization": f"Bearer {key}"}, body))
    expect(status, 200, content)
    server = json.loads(content)["result"]["serverInfo"]
    expect((server["name"], server["version"]), ("chatmemory", version("chatmemory_django")))
    expect(run(send(get_mcp_app(), "/mcp", accepted, body))[0], 401)


@visit
def the_schema_has_rest_and_the_chat(at: Visitor) -> None:
    schema = ok(at.browser(at.root).get("/api/schema/", {"format": "json"}))
    paths = set(schema["paths"])
    expect({f"{at.rest.replace('v1', '{version}')}conversations/", "/api/chat"} - paths, set())


@visit
def the_admin_lists_and_finds_conversations(at: Visitor) -> None:
    root, listed = at.browser(at.root), reverse("admin:chatmemory_conversation_changelist")
    expect([name in root.get(listed).content.decode() for name in ("The weather", "What is this?")], [True, True])
    found = root.get(listed, {"q": "raining"})
    expect(found.status_code, 200, found)
    expect([name in found.content.decode() for name in ("The weather", "What is this?")], [True, False])


@visit
def the_admin_shows_a_conversation_as_a_chat(at: Visitor) -> None:
    shown = at.browser(at.root).get(
        reverse("admin:chatmemory_conversation_change", args=[Conversation.objects.get(memory_id=CHAT).pk])
    )
    expect(shown.status_code, 200)
    html = shown.content.decode()
    expect([words in html for words in ("Is it raining?", "4: And tomorrow?", "chatmemory/admin")], [True] * 3)


@visit
def the_admin_clears_a_memory_after_it_has_asked(at: Visitor) -> None:
    talk, root = Conversation.objects.get(memory_id=CHAT), at.browser(at.root)
    path = reverse("admin:chatmemory_conversation_clear", args=[talk.pk])
    expect(root.get(path).status_code, 200)
    talk.refresh_from_db()
    expect(talk.memory_messages, 5)
    expect(root.post(path, {"confirmed": "clear"}).status_code, 302)
    talk.refresh_from_db()
    expect((talk.memory_messages, talk.total_messages), (0, 5))


@visit
def the_admin_is_for_staff(at: Visitor) -> None:
    listed = reverse("admin:chatmemory_conversation_changelist")
    for client in (Client(), at.browser(at.ann)):
        response = client.get(listed)
        expect((response.status_code, "login" in response.headers.get("Location", "")), (302, True))


@visit
def rest_clears_a_memory_and_erases(at: Visitor) -> None:
    path = f"{at.rest}conversations/{at.ann.pk}:page/"
    expect(at.by(at.bob).delete(f"{path}memory/").status_code, 404)
    expect(len(ok(at.by(at.ann).get(f"{path}memory/"))["messages"]) > 1, True)
    expect(at.by(at.ann).delete(f"{path}memory/").status_code, 204)
    expect(ok(at.by(at.ann).get(f"{path}memory/"))["messages"], [])
    expect(at.by(at.ann).delete(path).status_code, 204)
    expect(at.by(at.ann).get(path).status_code, 404)


def failures(site: Site) -> dict[str, str]:
    """Make all visits to *site*; return what was wrong with each that failed."""
    expect(settings.ZOO is site, True)
    at, found = Visitor(site), {}
    for each in VISITS:
        try:
            each(at)
        except Exception as exc:  # noqa: BLE001  # the site may do anything, and the other visits go on
            found[each.__name__] = f"{type(exc).__name__}: {exc}"
    return found
