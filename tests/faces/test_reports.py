"""An error report has no message: not the debug page, not the mail to the admins, and not the log."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from django import VERSION
from django.contrib.auth.models import User
from django.core import mail
from django.core.cache import cache
from django.test import Client
from django.utils.log import AdminEmailHandler
from django.views.debug import ExceptionReporter
from rest_framework.authtoken.models import Token

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Message
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest.parsers import JSONRenderer
from chatmemory_django.stores.django.writes import Write
from tests.asgi import run, send
from tests.faces.chat.scripted import ScriptedModel, calling

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:Django 2028 will not have a default mailer"),
]

SECRET = "Marzipan"


class BrokenError(OSError):
    """What fails; the model does not read its text."""


def fails(*args: Any, **kwargs: Any) -> NoReturn:
    held = [args, kwargs]
    raise BrokenError(len(held))


def careless(what: str) -> str:
    """Fail with what it was given."""
    held = what
    raise BrokenError(len(held))


async def careless_later(what: str) -> str:
    """Fail with what it was given."""
    held = what
    await asyncio.sleep(0)
    raise BrokenError(len(held))


@pytest.fixture
def reports(settings, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    """Return a function that returns all that was mailed to the admins and logged, which must be something."""
    settings.ADMINS = ["admin@example.com"] if VERSION >= (6,) else [("Admin", "admin@example.com")]
    handler = AdminEmailHandler(include_html=True)
    loggers = [logging.getLogger(name) for name in ("django.request", "chatmemory_django")]
    for logger in loggers:
        logger.addHandler(handler)

    def reported() -> str:
        sent = [part for each in mail.outbox for part in (each.body, *(content for content, _ in each.alternatives))]
        assert sent
        assert "BrokenError" in caplog.text
        return "\n".join([*sent, caplog.text])

    yield reported
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture
def ann() -> User:
    return User.objects.create_superuser("ann")


def report_of(error: BaseException) -> str:
    """Return the debug page and its text for *error*, as if the first function to fail were that below the test's."""
    assert error.__traceback__ is not None
    reporter = ExceptionReporter(None, type(error), error, error.__traceback__.tb_next)
    return reporter.get_traceback_html() + reporter.get_traceback_text()


async def collected(events: Any) -> list[Any]:
    return [event async for event in events]


WAYS: dict[str, Callable[[Any], Any]] = {
    "chat": lambda asking: asking.chat("c1", UserMessage(SECRET)),
    "stream": lambda asking: list(asking.stream("c1", UserMessage(SECRET))),
    "achat": lambda asking: run(asking.achat("c1", UserMessage(SECRET))),
    "astream": lambda asking: run(collected(asking.astream("c1", UserMessage(SECRET)))),
}


@pytest.mark.parametrize("way", WAYS)
def test_of_a_model_that_fails_in_the_middle(way: str):
    def ask(assistant: Assistant) -> None:
        WAYS[way](assistant)

    with pytest.raises(BrokenError) as caught:
        ask(Assistant(ScriptedModel(BrokenError(), words_before_error=2), system_message=SECRET))

    assert "scripted.py" in report_of(caught.value)
    assert SECRET not in report_of(caught.value)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("verb", ["add", "aadd", "turn", "set"])
def test_of_a_database_that_fails(verb: str, debug: bool, settings, monkeypatch: pytest.MonkeyPatch):
    settings.DEBUG = debug
    monkeypatch.setattr(Write, "run", fails)
    memory = get_chat_memory("c1")

    def add() -> None:
        if verb == "turn":
            with memory.turn("early") as turn:
                turn.add(UserMessage(SECRET))
        elif verb == "aadd":
            run(memory.aadd(UserMessage(SECRET)))
        elif verb == "set":
            memory.set([UserMessage(SECRET)])
        else:
            memory.add(UserMessage(SECRET))

    with pytest.raises(BrokenError) as caught:
        add()

    assert "chatmemory_django" in report_of(caught.value)
    assert SECRET not in report_of(caught.value)


@pytest.mark.parametrize("function", [careless, careless_later])
@pytest.mark.parametrize("way", WAYS)
def test_of_a_tool(way: str, function: Callable[..., Any], reports: Callable[[], str]):
    calls = calling(("1", function.__name__, json.dumps({"what": SECRET})))

    WAYS[way](Assistant(ScriptedModel(calls, "done"), tools=[function]))

    assert SECRET not in reports()


def post(client: Client, user: User, path: str, body: object) -> None:
    client.raise_request_exception = False
    headers = {"Authorization": f"Bearer {Token.objects.get_or_create(user=user)[0].key}"}
    response = client.post(path, body, content_type="application/json", headers=headers)
    assert response.status_code in {200, 500}, (response.status_code, response.content)


CHAT_ID = "11111111-1111-4111-8111-111111111111"
ASKED = {
    "id": CHAT_ID,
    "trigger": "submit-message",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": SECRET}]}],
}


@pytest.mark.parametrize("where", ["the model", "the policy"])
def test_of_the_chat(
    where: str, ann: User, client: Client, settings, monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]
):
    model = ScriptedModel(BrokenError(), words_before_error=2)
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(model), "THROTTLE_RATE": None}}
    cache.clear()
    if where == "the policy":
        monkeypatch.setattr(AccessPolicy, "may_link_files", fails)

    post(client, ann, "/api/chat", ASKED)

    assert SECRET not in reports()


def test_of_the_rest_api(ann: User, client: Client, monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]):
    get_chat_memory("c1", owner=ann).add(UserMessage("Hi"))
    monkeypatch.setattr(Write, "run", fails)

    message = {"type": "USER", "contents": [{"type": "TEXT", "text": SECRET}]}
    post(client, ann, "/api/conversations/c1/messages/", {"messages": [{"message": message}]})

    assert SECRET not in reports()


def test_of_the_admin(ann: User, client: Client, monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]):
    get_chat_memory("c1", owner=ann).add(UserMessage(SECRET))
    row = Message.objects.get()
    monkeypatch.setattr(Message, "chat_message", property(fails))
    client.force_login(ann)
    client.raise_request_exception = False

    client.get(f"/admin/chatmemory/conversation/{row.conversation_id}/messages/{row.sequence}/openai/")

    assert SECRET not in reports()


def fails_with_it(value: object, *args: Any, **kwargs: Any) -> str:
    """Fail where the secret is rendered."""
    if SECRET in str(value):
        raise BrokenError(len(args))
    return str(value)


@pytest.mark.parametrize("page", ["", "{pk}/change/", "{pk}/messages/{sequence}/", "{pk}/messages/{sequence}/remove/"])
def test_of_a_template_of_the_admin(
    page: str, ann: User, client: Client, monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]
):
    get_chat_memory("c1", owner=ann).add(UserMessage(SECRET))
    row = Message.objects.get()
    for module in ("base", "defaulttags"):
        monkeypatch.setattr(f"django.template.{module}.render_value_in_context", fails_with_it)
    client.force_login(ann)
    client.raise_request_exception = False

    url = page.format(pk=row.conversation_id, sequence=row.sequence)
    assert client.get(f"/admin/chatmemory/conversation/{url}").status_code == 500

    assert SECRET not in reports()


def test_of_a_response_of_the_rest_api(
    ann: User, client: Client, monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]
):
    get_chat_memory("c1", owner=ann).add(UserMessage(SECRET))
    monkeypatch.setattr(JSONRenderer, "render", fails)
    client.force_login(ann)
    client.raise_request_exception = False

    assert client.get("/api/conversations/c1/messages/").status_code == 500

    assert SECRET not in reports()


@pytest.mark.parametrize("where", ["find_answers", "aware"])
def test_of_a_tool_of_mcp(where: str, ann: User, monkeypatch: pytest.MonkeyPatch, reports: Callable[[], str]):
    mcp = pytest.importorskip(
        "chatmemory_django.contrib.mcp", reason="This test requires the MCP server: pip install mcp"
    )
    get_chat_memory("c1", owner=ann).add(UserMessage(SECRET))
    monkeypatch.setattr(mcp.tools, where, fails)
    headers = {
        "Authorization": f"Bearer {Token.objects.create(user=ann).key}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    }
    params = {"name": "search_conversations", "arguments": {"query": SECRET}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()

    status, answer = run(send(mcp.get_mcp_app(), "/mcp", headers, body))

    assert (status, json.loads(answer)["result"]["isError"]) == (200, True)
    assert SECRET not in reports()


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_title(is_async: bool, reports: Callable[[], str]):
    async def title(question: UserMessage, answer: AiMessage) -> str:
        return fails(question, answer)

    assistant = Assistant(ScriptedModel("Yes"), title=title if is_async else fails)

    WAYS["achat" if is_async else "chat"](assistant)

    assert SECRET not in reports()
