"""
Conversations of others, on every face: to a user who may not see one, it is as if it did not exist.

What REST answers to each of its users is in ``rest.test_access``, what staff may do with which permission in
``test_permissions``.
"""

import asyncio
import json
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import Client
from django.urls import resolve
from django.utils import timezone
from rest_framework.authtoken.models import Token

from chatmemory_django.chat import urls as chat_urls
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.contrib.openai_api import urls as openai_urls
from chatmemory_django.messages import AiMessage, Image, ImageContent, TextContent, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations.recall import Recall
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rest import urls as rest_urls
from tests.faces.chat.scripted import ScriptedModel
from tests.faces.rest.conftest import ANSWER, HI, adding

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "swordfish"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

THEIRS, NOBODYS, NOWHERE = (f"0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a1{number}" for number in range(3))
"""The ids of a conversation of another user, one without an owner, and one that does not exist."""

ITEM = {"items": [{"role": "user", "content": "hi"}]}
QUESTION = {"id": "q1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}


class Row(NamedTuple):
    """A verb and a path, what users get who do not see the conversation, and what its owner gets."""

    verb: str
    path: str
    hidden: int | set[int]
    shown: int
    body: Any = None


# "…" stands for the memory id, in the admin for the primary key; "#" for the id of an item.
REST = [
    Row("get", "conversations/…/", 404, 200),
    Row("patch", "conversations/…/", 404, 200, {"title": "new"}),
    Row("delete", "conversations/…/", 404, 204),
    Row("get", "conversations/…/messages/", 404, 200),
    Row("get", f"conversations/…/messages/?search={SECRET}", 404, 200),
    Row("post", "conversations/…/messages/", 404, 201, adding(HI)),
    Row("post", "conversations/…/messages/", {403, 404}, 403, adding(ANSWER)),
    Row("get", "conversations/…/messages/1/", 404, 200),
    Row("patch", "conversations/…/messages/1/", 404, 200, {"metadata": {"feedback": 1}}),
    Row("delete", "conversations/…/messages/1/", 404, 403),
    Row("get", "conversations/…/messages/1/alternatives/", 404, 200),
    Row("get", "conversations/…/messages/1/media/0/", 404, 200),
    Row("get", "conversations/…/memory/", 404, 200),
    Row("put", "conversations/…/memory/", {403, 404}, 403, adding(HI)),
    Row("delete", "conversations/…/memory/", 404, 204),
    Row("post", "conversations/…/memory/rewind/", 404, 200, {"to": 1}),
    Row("post", "conversations/…/memory/switch/", 404, 200, {"to": 1}),
    Row("post", "conversations/…/memory/pop/", 404, 403),
    Row("post", "conversations/…/fork/", 404, 201, {}),
    Row("get", "conversations/…/export/", 404, 200),
    Row("get", "conversations/…/approvals/", 404, 200),
    Row("put", "conversations/…/approvals/0/person/", 404, 404),
    Row("put", "conversations/…/person/", 404, 403, {}),
    Row("delete", "conversations/…/person/", 404, 403),
    Row("post", "conversations/…/answers/", 404, 403, {"text": "Yes."}),
    Row("post", "conversations/…/messages/1/pin/", 404, 200),
    Row("delete", "conversations/…/messages/1/pin/", 404, 200),
    Row("get", "conversations/", 200, 200),
    Row("get", f"conversations/?search={SECRET}", 200, 200),
    Row("get", "conversations/?owner=*", 200, 200),
    Row("delete", f"conversations/?owner=*&search={SECRET}", 200, 200),
    Row("get", f"messages/?search={SECRET}", 200, 200),
]
OPENAI = [
    Row("get", "…", 404, 200),
    Row("post", "…", 404, 200, {"metadata": {}}),
    Row("delete", "…", 404, 200),
    Row("get", "…/items", 404, 200),
    Row("get", "…/items?after=#", 404, 200),
    Row("get", "…/items?after=nothing", 404, 400),
    Row("post", "…/items", 404, 200, ITEM),
    Row("get", "…/items/#", 404, 200),
    Row("delete", "…/items/#", 404, 403),
]
CHAT = [
    Row("get", "/…/messages", 200, 200),  # an empty list: every id can be that of a new chat
    Row("get", "/…/stream", 204, 204),
    Row("post", "/…/stop", 200, 200, {}),
    Row("get", "/…/files/1/0", 404, 200),
    Row("post", "/…/rating", 404, 404, {"messageId": "none", "rating": 1}),
]
MCP = [
    Row("read_conversation", "…", 200, 200),  # the error is in the body
    Row("search_conversations", SECRET, 200, 200),
]
ADMIN_PAGES = ("change", "history", "openai", "clear", "delete", "export", "recount")
ADMIN = [
    Row("get", "", 403, 200),
    *(Row("get", f"…/{name}/", 403, 200) for name in ADMIN_PAGES),
    *(Row("get", f"…/messages/1/{end}", 403, 200) for end in ("", "json/", "openai/", "files/0/")),
    *(Row("post", f"…/{name}/", 403, 302, {"confirmed": name}) for name in ("clear", "delete", "recount")),
    Row("post", "…/export/", 403, 200, {"confirmed": "export"}),
    Row("post", "", 403, 302, {"action": "clear_memory", "_selected_action": "…", "confirmed": "clear"}),
    Row("post", "", 403, 302, {"action": "delete_selected", "_selected_action": "…", "confirmed": "delete"}),
    *(Row("post", f"…/messages/1/{name}/", 403, 302, {"confirmed": name}) for name in ("rewind", "fork", "remove")),
    Row("post", "…/messages/2/switch/", 403, 302, {"confirmed": "switch"}),
]
FACES = {"rest": REST, "openai": OPENAI, "chat": CHAT, "mcp": MCP, "admin": ADMIN}
ROOTS = {
    "rest": "/api/",
    "openai": "/openai/v1/conversations/",
    "chat": "/api/chat",
    "admin": "/admin/chatmemory/conversation/",
}

SEEING = {"view_conversation", "change_conversation"}  # in Django's admin, the permission to change implies the other
ANONYMOUS = {"rest": 401, "openai": 401, "chat": 401, "mcp": 401, "admin": 302}
NOT_STAFF = {"admin": 302}
USERS: dict[str, tuple[dict[str, bool], bool, dict[str, int]]] = {
    "anonymous": ({}, False, ANONYMOUS),
    "other": ({}, False, NOT_STAFF),
    "other with every permission": ({}, True, NOT_STAFF),
    "staff": ({"is_staff": True}, False, {}),
    "staff with every permission but to see": ({"is_staff": True}, True, {}),
    "superuser": ({"is_staff": True, "is_superuser": True}, True, {}),
}
"""The columns of each user, whether all permissions are theirs, and what they get where that is not a row's."""


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.CHATMEMORY = {
        "CHAT": {"ASSISTANT": Assistant(ScriptedModel("Yes."))},
        "REST": {"THROTTLE_RATES": {}},
        "MCP_THROTTLE_RATE": None,
    }
    settings.CHATMEMORY["CHAT"] |= {"THROTTLE_RATE": None, "READ_THROTTLE_RATE": None}
    settings.ALLOWED_HOSTS = ["example.com", "testserver"]
    cache.clear()


def begin(memory_id: str, owner: User | None) -> Conversation:
    Conversation.objects.filter(memory_id=memory_id).delete()
    image = ImageContent(Image(base64_data=PIXEL, mime_type="image/png"))
    get_chat_memory(memory_id, owner=owner).add(
        UserMessage([image, TextContent(SECRET)]), AiMessage(f"{SECRET}? No."), AiMessage(f"{SECRET}!")
    )
    Conversation.objects.filter(memory_id=memory_id).update(title=SECRET)
    return Conversation.objects.get(memory_id=memory_id)


def user_named(name: str) -> User | None:
    if name == "anonymous":
        return None
    columns, has_permissions, _ = USERS[name]
    user = User.objects.create_user(name.replace(" ", "_"), **columns)
    if has_permissions:
        permissions = Permission.objects.filter(content_type__app_label="chatmemory")
        user.user_permissions.set(permissions.exclude(codename__in=SEEING) if user.is_staff else permissions)
    return user


class Caller:
    """A *user* at a *face*."""

    def __init__(self, face: str, user: User | None) -> None:
        self.face = face
        self.token = None if user is None else Token.objects.get_or_create(user=user)[0].key
        self.client = Client(headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
        if user is not None and face == "admin":
            self.client.force_login(user)

    def __call__(self, row: Row, memory_id: str, item: str = "") -> tuple[int, str]:
        """Return the status and the body of the response."""
        if self.face == "mcp":
            return self._of_tool(row, memory_id)
        key, send = memory_id, getattr(self.client, row.verb)
        if self.face == "admin":
            key = str(Conversation.objects.filter(memory_id=memory_id).values_list("pk", flat=True).first() or 4711)
        path = ROOTS[self.face] + row.path.replace("…", key).replace("#", item)
        if row.body is None:
            response = send(path)
        elif self.face == "admin":
            response = send(path, {name: value.replace("…", key) for name, value in row.body.items()})
        else:
            response = send(path, json.dumps(row.body), content_type="application/json")
        content = b"".join(response.streaming_content) if response.streaming else response.content
        return response.status_code, content.decode(errors="replace")

    def _of_tool(self, row: Row, memory_id: str) -> tuple[int, str]:
        from tests.faces.contrib.mcp.test_mcp_attacks import post  # which skips the test where MCP is not installed

        given = {"conversation_id": memory_id} if row.path == "…" else {"query": row.path}
        called = {"name": row.verb, "arguments": given}
        response = post(self.token, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called})
        return response.status, response.text


def state() -> list:
    return [list(Conversation.objects.order_by("pk").values()), list(Message.objects.order_by("pk").values())]


def item_of(owner: User) -> str:
    """Return the id of the owner's last item for OpenAI's API."""
    _, body = Caller("openai", owner)(Row("get", "…/items", 404, 200), THEIRS)
    return json.loads(body)["data"][-1]["id"]


HIDDEN = [
    pytest.param(face, name, id=f"{name} by {face}")
    for face in FACES
    for name in USERS
    if name != "superuser" or face in {"chat", "mcp"}  # where even they see only their own
]


@pytest.mark.parametrize(("face", "name"), HIDDEN)
def test_a_conversation_of_another_user_is_as_one_that_does_not_exist(face, name):
    """In the admin, it is forbidden; its pages tell staff whether a conversation exists, as those of any model do."""
    ann = User.objects.create_user("ann")
    begin(THEIRS, ann)
    begin(NOBODYS, None)
    item, caller, before = item_of(ann), Caller(face, user_named(name)), state()
    everywhere, wrong = USERS[name][2].get(face), {}
    for row in FACES[face]:
        hidden = row.hidden if isinstance(row.hidden, set) else {row.hidden}
        nowhere = None if face == "admin" else caller(row, NOWHERE, item)
        for whose, memory_id in (("theirs", THEIRS), ("nobody's", NOBODYS)):
            found = status, body = caller(row, memory_id, item)
            if status not in ({everywhere} if everywhere else hidden) or SECRET in body or nowhere not in {None, found}:
                wrong[row.verb, row.path, whose] = status, body[:200], nowhere
            if row.verb != "get" and state() != before:
                wrong[row.verb, row.path, whose] = status, "changed something"
                before = state()
    assert wrong == {}
    assert state() == before


@pytest.mark.parametrize("face", ["rest", "openai", "chat", "mcp"])
@pytest.mark.parametrize("is_superuser", [False, True], ids=["owner", "superuser"])
def test_a_temporary_one_whose_time_has_passed_is_as_one_that_does_not_exist_before_it_is_erased(face, is_superuser):
    ann = User.objects.create_user("ann")
    asking = User.objects.create_superuser("root") if is_superuser else ann
    begin(THEIRS, ann)
    item, caller = item_of(ann), Caller(face, asking)
    Conversation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    before, wrong = state(), {}
    asked = Row("post", "", 404, 200, {"id": THEIRS, "messages": [QUESTION]})
    for row in (*FACES[face], *([asked] if face == "chat" and not is_superuser else [])):
        hidden = row.hidden if isinstance(row.hidden, set) else {row.hidden}
        status, body = caller(row, THEIRS, item)
        if status not in hidden or SECRET in body:
            wrong[row.verb, row.path] = status, body[:200]
        if state() != before:
            wrong[row.verb, row.path] = status, "changed something"
            before = state()
    assert wrong == {}
    assert "no earlier conversation" in asyncio.run(Recall(ann).aread_conversation(THEIRS, 1))
    assert SECRET not in Recall(ann).search_conversations(SECRET)


@pytest.mark.parametrize("face", FACES)
def test_its_owner_gets_what_others_do_not(face):
    """In the admin, that is a superuser: no one has conversations of their own there."""
    owner = User.objects.create_superuser("ann") if face == "admin" else User.objects.create_user("ann")
    caller, wrong = Caller(face, owner), {}
    for row in FACES[face]:
        begin(THEIRS, owner)
        item = item_of(owner) if "#" in row.path else ""
        if "switch" in row.path:
            get_chat_memory(THEIRS).rewind(1)
        status, body = caller(row, THEIRS, item)
        if status != row.shown or (face == "mcp" and SECRET not in body):
            wrong[row.verb, row.path] = status, body[:200]
    assert wrong == {}


@pytest.mark.parametrize("face", ["rest", "openai", "chat"])
def test_every_path_of_a_conversation_is_in_the_table(face):
    there = {resolve(f"{ROOTS[face]}{row.path.partition('?')[0]}".replace("…", THEIRS)).url_name for row in FACES[face]}
    urls = {"rest": rest_urls, "openai": openai_urls, "chat": chat_urls}[face].urlpatterns

    # A response is named by its own id: tests/faces/contrib/openai_api/test_openai_responses.py attacks those.
    patterns = {each.name: str(each.pattern).replace("response_id>", "") for each in urls}
    assert there >= {name for name, pattern in patterns.items() if "_id>" in pattern}
