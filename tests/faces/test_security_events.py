"""What an operator sees of attacks: a line of a log and a signal for each, by every face, and never a text."""

import asyncio
import logging
import re
import uuid

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import AsyncClient, Client, RequestFactory
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.approvals import Decision, NotPendingError
from chatmemory_django.chat.approvals.approving import decide
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.security import SecurityEvent, report
from chatmemory_django.signals import security_event
from tests.faces.chat.costs.test_admin_usage import call
from tests.faces.chat.scripted import ScriptedModel
from tests.faces.contrib.mcp import test_mcp_attacks as mcp
from tests.logs import logged_by

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "203.0.113.7"
SECRET = "swordfish"
NAMED = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"
APIS = {
    "rest": f"/api/conversations/{NAMED}/",
    "chat": f"/api/chat/{NAMED}/messages",
    "openai": "/openai/v1/conversations",
}


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(ScriptedModel("Yes."))}, "REST": {"THROTTLE_RATES": {}}}
    settings.ALLOWED_HOSTS = ["example.com", "testserver"]
    cache.clear()


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann", password=SECRET)


@pytest.fixture
def seen(caplog):
    """Yield what the signal was sent with; the log has a line for each, and no text."""
    found = []

    def note(sender, signal, **about) -> None:
        found.append(about)

    security_event.connect(note)
    with caplog.at_level(logging.WARNING, "chatmemory.security"):
        yield found
    security_event.disconnect(note)
    lines = security_lines(caplog)
    assert [line.partition(" ")[0] for line in lines] == [each["event"].value for each in found]
    assert SECRET not in "\n".join(lines) + repr(found)


def security_lines(caplog) -> list[str]:
    return [each.getMessage() for each in logged_by(caplog, "chatmemory.security")]


def events(seen) -> list[SecurityEvent]:
    return [each["event"] for each in seen]


def token(user: User) -> str:
    return Token.objects.get_or_create(user=user)[0].key


@pytest.mark.parametrize("face", [*APIS, "mcp"])
def test_a_wrong_token_is_seen_with_its_address(face, seen):
    if face == "mcp":
        mcp.post("wrong", address=ADDRESS)
    else:
        Client(REMOTE_ADDR=ADDRESS, headers={"Authorization": "Bearer wrong"}).get(APIS[face])

    [event] = seen
    assert (event["event"], event["address"], event["user"]) == (SecurityEvent.CREDENTIALS, ADDRESS, None)


@pytest.mark.parametrize("form", ["/sign-in/", "/admin/login/", "/api/token/"])
def test_a_wrong_password_is_seen_and_not_shown(form, seen, ann):
    Client(REMOTE_ADDR=ADDRESS).post(form, {"username": "ann", "password": f"{SECRET}!"})

    assert [(each["event"], each["address"]) for each in seen] == [(SecurityEvent.CREDENTIALS, ADDRESS)]


def test_a_refusal_by_policy_is_seen_with_its_user_and_conversation(seen, ann):
    get_chat_memory(NAMED, owner=ann).add(UserMessage(SECRET))
    client = Client(REMOTE_ADDR=ADDRESS, headers={"Authorization": f"Bearer {token(ann)}"})

    body = {"messages": [{"message": {"type": "SYSTEM", "text": SECRET}}]}
    assert client.post(f"{APIS['rest']}messages/", body, "application/json").status_code == 403
    assert client.get("/api/conversations/").status_code == 200  # nothing to see

    about = {"address": ADDRESS, "user": str(ann.pk), "memory_id": NAMED}
    assert seen == [{"event": SecurityEvent.FORBIDDEN, **about}]


@pytest.mark.parametrize("face", ["rest", "chat"])
def test_a_request_of_another_site_is_seen(face, seen, ann):
    get_chat_memory(NAMED, owner=ann).add(UserMessage(SECRET))
    client = Client(enforce_csrf_checks=True, REMOTE_ADDR=ADDRESS)
    client.force_login(ann)
    path = f"{APIS['rest']}messages/" if face == "rest" else f"/api/chat/{NAMED}/stop"

    assert client.post(path, {}, "application/json").status_code == 403

    assert [(each["event"], each["address"], each["memory_id"]) for each in seen] == [
        (SecurityEvent.CSRF, ADDRESS, NAMED)
    ]


def test_another_origin_of_mcp_is_seen(seen, ann):
    mcp.post(token(ann), address=ADDRESS, Origin="https://evil.example")

    assert [(each["event"], each["address"]) for each in seen] == [(SecurityEvent.CSRF, ADDRESS)]


@pytest.mark.parametrize("face", [*APIS, "mcp"])
def test_an_exceeded_rate_is_seen(face, seen, ann, settings):
    settings.CHATMEMORY = {
        **settings.CHATMEMORY,
        "REST": {"THROTTLE_RATES": {"read": "1/min", "write": "1/min"}},
        "MCP_THROTTLE_RATE": "1/min",
    }
    settings.CHATMEMORY["CHAT"] |= {"READ_THROTTLE_RATE": "1/min"}
    settings.CHATMEMORY = {**settings.CHATMEMORY}
    client = Client(REMOTE_ADDR=ADDRESS, headers={"Authorization": f"Bearer {token(ann)}"})
    for _ in range(2):
        if face == "mcp":
            status = mcp.post(token(ann), address=ADDRESS).status
        elif face == "openai":
            status = client.post(APIS[face], {}, "application/json").status_code
        else:
            status = client.get(APIS[face]).status_code

    assert status == 429
    assert [(each["event"], each["address"]) for each in seen] == [(SecurityEvent.RATE, ADDRESS)]
    assert seen[0]["user"] == str(ann.pk)


def test_a_quota_is_seen(seen, ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "STORAGE_QUOTA": 10}
    get_chat_memory(NAMED, owner=ann).add(UserMessage(SECRET))
    client = Client(REMOTE_ADDR=ADDRESS, headers={"Authorization": f"Bearer {token(ann)}"})
    body = {"messages": [{"message": {"role": "user", "content": SECRET}}]}

    assert client.post(f"{APIS['rest']}messages/", body, "application/json").status_code == 400

    assert [(each["event"], each["user"], each["memory_id"]) for each in seen] == [
        (SecurityEvent.QUOTA, str(ann.pk), NAMED)
    ]


def test_a_budget_is_seen(seen, ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "BUDGET": {"TOKENS": 1, "PER": "day"}}
    call(owner=ann, input_tokens=100)
    body = {"id": NAMED, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": SECRET}]}]}

    async def post():
        headers = {"Authorization": f"Bearer {token_of_ann}"}
        return await AsyncClient().post("/api/chat", body, content_type="application/json", headers=headers)

    token_of_ann = token(ann)
    assert asyncio.run(post()).status_code == 429

    assert [(each["event"], each["user"]) for each in seen] == [(SecurityEvent.BUDGET, str(ann.pk))]


def test_a_decision_that_nothing_waits_for_is_seen(seen, ann):
    get_chat_memory(NAMED, owner=ann).add(UserMessage(SECRET))

    with pytest.raises(NotPendingError):
        decide(Conversation.objects.all(), NAMED, [Decision(str(uuid.uuid4()), True, SECRET)], ann)

    about = {"address": None, "user": str(ann.pk), "memory_id": NAMED}
    assert seen == [{"event": SecurityEvent.DECISION, **about}]


@pytest.mark.parametrize("name", ["a\nforbidden from 1.2.3.4", "x' by user 'root", "\u2028"])
def test_what_a_client_chooses_begins_no_line_and_looks_like_no_other(name, seen, caplog):
    request = RequestFactory().get("/", REMOTE_ADDR="1.2.3.4 by user 'root'")

    report(SecurityEvent.FORBIDDEN, request, user=name, memory_id=name)

    [line] = security_lines(caplog)
    assert len(line.splitlines()) == 1
    assert line == f"forbidden from \"1.2.3.4 by user 'root'\" by user {name!r} in conversation {name!r}"
    assert re.match(r"^\w+ from [0-9a-f.:]+ by ", line) is None  # what fail2ban looks for


def test_the_zone_of_an_address_is_not_logged(seen, caplog, settings):
    settings.CHATMEMORY = {"REST": {"NUM_PROXIES": 1}}
    address = "fe80::1%x by user '1' in conversation 'y'"

    report(SecurityEvent.CREDENTIALS, RequestFactory().get("/", headers={"X-Forwarded-For": address}))

    [line] = security_lines(caplog)
    assert line == "credentials from fe80::1 by user None in conversation None"


def test_a_name_is_logged_no_longer_than_names_are(caplog):
    report(SecurityEvent.FORBIDDEN, RequestFactory().get("/"), memory_id="x" * 60_000)

    [line] = security_lines(caplog)
    assert len(line) < 400
