"""
What staff may do to conversations of others: each operation needs its permission, the same by REST, by OpenAI's API and
in the admin, and all three write it into the admin's log in the same words.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from django.apps import apps
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.http import HttpResponseBase
from django.test import Client
from django.urls import reverse
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory

pytestmark = pytest.mark.django_db

VIEW, READ = "view_conversation", "view_message_text"
PERMISSIONS = (
    *(f"{verb}_conversation" for verb in ("add", "change", "clear", "delete", "export", "import", "recount", "set")),
    *("add_message", "change_message", "delete_message", "view_message"),
)
SECRET = "the launch code is 0000"
TITLE = "My test was positive"


class Operation(NamedTuple):
    """An operation, the permission it needs, and how it is requested; None where a face does not have it."""

    name: str
    permission: str
    rest: Callable[[APIClient], HttpResponseBase] | None = None
    openai: Callable[[APIClient], HttpResponseBase] | None = None
    admin: Callable[[Client, Conversation], HttpResponseBase] | None = None
    words: str | None = None
    """The entry in the admin's log."""
    flag: int = CHANGE


def rest(verb: str, path: str, body: object = None) -> Callable[[APIClient], HttpResponseBase]:
    return lambda client: getattr(client, verb)(f"/api/conversations/c/{path}", body, format="json")


def openai(verb: str, path: str, body: object = None) -> Callable[[APIClient], HttpResponseBase]:
    return lambda client: getattr(client, verb)(f"/openai/v1/conversations/c{path}", body, format="json")


def item_of(client: APIClient, verb: str) -> HttpResponseBase:
    root = "/openai/v1/conversations/c/items"
    [newest] = client.get(f"{root}?limit=1").json().get("data", [{"id": "msg_1"}])
    return getattr(client, verb)(f"{root}/{newest['id']}")


def in_admin(name: str, *sequence: int) -> Callable[[Client, Conversation], HttpResponseBase]:
    return lambda client, talk: client.post(
        reverse(f"admin:chatmemory_conversation_{name}", args=[talk.pk, *sequence]), {"confirmed": name}
    )


def in_list(action: str, name: str) -> Callable[[Client, Conversation], HttpResponseBase]:
    def post(client: Client, talk: Conversation) -> HttpResponseBase:
        chosen = {"action": action, "_selected_action": [talk.pk], "confirmed": name}
        return client.post(reverse("admin:chatmemory_conversation_changelist"), chosen)

    return post


HELLO = {"messages": [{"message": {"role": "user", "content": "I hereby cancel my contract."}}]}
ANSWER = {"messages": [{"message": {"role": "assistant", "content": "Of course."}}]}
ITEM = {"items": [{"role": "user", "content": "I hereby cancel my contract."}]}

OPERATIONS = (
    Operation("rename", "change_conversation", rest("patch", "", {"title": "other"}), words="Changed title."),
    Operation("pin", "change_conversation", rest("patch", "", {"is_pinned": True}), words="Changed pinned."),
    Operation("archive", "change_conversation", rest("patch", "", {"is_archived": True}), words="Changed archived."),
    Operation(
        "describe", "change_conversation", rest("patch", "", {"metadata": {"a": "b"}}),
        openai("post", "", {"metadata": {"a": "b"}}), words="Changed metadata.",
    ),
    Operation(
        "rewind", "change_conversation", rest("post", "memory/rewind/", {"to": 1}), admin=in_admin("rewind", 1),
        words="Rewound to message #1.",
    ),
    Operation(
        "switch", "change_conversation", rest("post", "memory/switch/", {"to": 1}), admin=in_admin("switch", 1),
        words="Switched to the branch of message #1; the conversation continues from #2.",
    ),
    Operation(
        "clear", "clear_conversation", rest("delete", "memory/"), admin=in_admin("clear"),
        words="Cleared the memory (2 messages).",
    ),
    Operation("clear in the list", "clear_conversation", admin=in_list("clear_memory", "clear")),
    Operation(
        "fork", "add_conversation", rest("post", "fork/", {"memory_id": "chosen"}), admin=in_admin("fork", 2),
        words="Forked from message #2 as “…”.",
    ),
    Operation(
        "erase", "delete_conversation", rest("delete", ""), openai("delete", ""), in_admin("delete"),
        "Erased with 2 messages.", DELETION,
    ),
    Operation("erase in the list", "delete_conversation", admin=in_list("delete_selected", "delete")),
    Operation(
        "erase by filters", "delete_conversation",
        lambda client: client.delete("/api/conversations/?owner=*&active_since=2001-01-01T00:00:00Z"),
        words="Erased with 2 messages.", flag=DELETION,
    ),
    Operation("set", "set_conversation", rest("put", "memory/", HELLO), words="Replaced the memory (1 message)."),
    Operation(
        "remove", "delete_message", rest("delete", "messages/2/"), lambda client: item_of(client, "delete"),
        in_admin("remove", 2), "Removed message #2.",
    ),
    Operation("pop", "delete_message", rest("post", "memory/pop/"), words="Removed message #2."),
    Operation("write", "add_message", rest("post", "messages/", HELLO), openai("post", "/items", ITEM),
              words="Added message #3."),
    Operation("write as the model", "add_message", rest("post", "messages/", ANSWER), words="Added message #3."),
    Operation("annotate", "add_message", rest("patch", "messages/2/", {"metadata": {"feedback": "good"}}),
              words="Changed the metadata of message #2."),
    Operation(
        "export", "export_conversation", rest("get", "export/"), admin=in_admin("export"), words="Exported 2 messages.",
    ),
    Operation("recount", "recount_conversation", admin=in_admin("recount")),
)  # fmt: skip


@pytest.fixture(autouse=True)
def without_rates(settings) -> None:
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}}
    cache.clear()


@pytest.fixture
def talk() -> Conversation:
    talk = Conversation.objects.create(memory_id="c", owner=User.objects.create_user("ann"), title=TITLE)
    get_chat_memory("c").add(UserMessage(SECRET), AiMessage("noted"))
    talk.refresh_from_db()
    return talk


@pytest.fixture
def staff() -> User:
    return User.objects.create_user("staff", is_staff=True)


def granted(user: User, *codenames: str) -> User:
    chosen = Permission.objects.filter(content_type__app_label__startswith="chatmemory", codename__in=codenames)
    assert chosen.count() == len(codenames)
    user.user_permissions.set(chosen)
    return User.objects.get(pk=user.pk)  # which has no permissions cached


def request(face: str, operation: Operation, user: User, talk: Conversation) -> HttpResponseBase:
    if face == "admin":
        client = Client()
        client.force_login(user)
        response = operation.admin(client, talk)
    elif face == "openai":
        key = Token.objects.get_or_create(user=user)[0].key
        response = operation.openai(APIClient(headers={"Authorization": f"Bearer {key}"}))
    else:
        client = APIClient()
        client.force_authenticate(user)
        response = operation.rest(client)
    if response.streaming:
        b"".join(response.streaming_content)
    return response


def state() -> list:
    return [list(each.messages.values()) for each in Conversation.objects.all()] + list(Conversation.objects.values())


ALL = [
    pytest.param(face, operation, id=f"{operation.name} by {face}")
    for operation in OPERATIONS
    for face in ("rest", "openai", "admin")
    if getattr(operation, face) is not None
]


@pytest.mark.parametrize(("face", "operation"), ALL)
def test_each_operation_needs_its_permission_and_no_other_allows_it(face, operation, talk, staff):
    """None of the others: all of them together do not."""
    others = [each for each in PERMISSIONS if each != operation.permission]
    before = state()

    response = request(face, operation, granted(staff, VIEW, READ, *others), talk)

    # Django's admin ignores an action of its list that is not offered.
    assert response.status_code in ({200, 302, 403} if "list" in operation.name else {403}) or (
        operation.name == "erase by filters" and response.json()["erased"] == 0
    )
    assert state() == before
    assert not LogEntry.objects.exists()

    response = request(face, operation, granted(staff, VIEW, READ, operation.permission), talk)

    assert response.status_code < 400
    assert operation.name in {"export", "recount", "switch"} or state() != before


@pytest.mark.parametrize(("face", "operation"), [case for case in ALL if case.values[1].words is not None], ids=str)
def test_what_staff_do_is_in_the_admins_log_without_texts(face, operation, talk, staff):
    request(face, operation, granted(staff, VIEW, READ, operation.permission), talk)

    [entry] = LogEntry.objects.all()
    words = re.sub("“.*”", "“…”", entry.change_message)
    assert (words, entry.action_flag, entry.user, entry.object_repr) == (operation.words, operation.flag, staff, "c")
    assert entry.get_edited_object().memory_id == "c" if operation.flag == CHANGE else True
    assert entry.content_type.model_class() is Conversation


def test_what_owners_do_to_their_own_is_not_logged(talk, staff):
    Conversation.objects.update(owner=staff)
    user = granted(staff, VIEW, READ, *PERMISSIONS)
    for operation in sorted(OPERATIONS, key=lambda each: each.permission == "delete_message"):
        if operation.rest is not None and not operation.name.startswith("erase"):
            assert request("rest", operation, user, talk).status_code < 400, operation.name

    assert not LogEntry.objects.exists()


def test_a_repeated_request_is_logged_once(talk, staff):
    body = {"messages": [{**HELLO["messages"][0], "client_message_id": "x"}]}
    operation = Operation("write", "add_message", rest("post", "messages/", body))
    user = granted(staff, VIEW, "add_message")

    assert [request("rest", operation, user, talk).status_code for _ in range(2)] == [201, 201]
    assert LogEntry.objects.count() == 1


def test_a_refused_or_failed_request_is_not_logged(talk, staff):
    user = granted(staff, VIEW, "add_message", "change_conversation")
    for failing in (rest("post", "memory/rewind/", {"to": 99}), rest("post", "messages/", {**HELLO, "after": 99})):
        assert request("rest", Operation("x", "", failing), user, talk).status_code == 404

    assert not LogEntry.objects.exists()


def test_without_the_admin_nothing_is_logged(talk, staff, monkeypatch):
    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django.contrib.admin" and installed(name))
    user = granted(staff, VIEW, "clear_conversation")

    response = request("rest", Operation("clear", "", rest("delete", "memory/")), user, talk)

    assert response.status_code == 204
    assert not LogEntry.objects.exists()
