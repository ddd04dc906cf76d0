"""Who reads what of others is a signal, and one entry a request in the admin's log, if ``LOG_READS`` is on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from rest_framework.authtoken.models import Token

from chatmemory_django.access import AccessPolicy
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.signals import conversations_read
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.pictures import picture

pytestmark = pytest.mark.django_db

TEXT = "Zaquixo wrote a letter"
TITLE = "About Zaquixo"
REST = "/api/conversations/"


@pytest.fixture(autouse=True)
def reads(settings) -> None:
    settings.CHATMEMORY = {"LOG_READS": True, "REST": {"THROTTLE_RATES": {}}}
    cache.clear()


@pytest.fixture
def ann() -> User:
    """Return the owner of two conversations."""
    ann = User.objects.create_superuser("ann")
    for memory_id in ("a", "b"):
        store = DjangoChatMemoryStore(owner=ann)
        MessageWindowChatMemory(max_messages=9, id=memory_id, store=store).add(UserMessage(TEXT), picture(1, TEXT))
        Conversation.objects.filter(memory_id=memory_id).update(title=TITLE)
    return ann


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


@pytest.fixture
def reported() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    def receive(sender: object, **kwargs: Any) -> None:
        found.append(kwargs)

    conversations_read.connect(receive)
    yield found
    conversations_read.disconnect(receive)


def signed_in(user: User) -> Client:
    client = Client(headers={"Authorization": f"Bearer {Token.objects.get_or_create(user=user)[0].key}"})
    client.force_login(user)
    return client


def page(name: str, *more: object) -> str:
    return reverse(f"admin:chatmemory_conversation_{name}", args=[Conversation.objects.get(memory_id="a").pk, *more])


def the_list() -> str:
    return reverse("admin:chatmemory_conversation_changelist")


def exported(client: Client) -> Any:
    return client.post(page("export"), {"confirmed": "export", "form": "text"})


READS: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "REST, a conversation": ("read", lambda client: client.get(f"{REST}a/")),
    "REST, its messages": ("read", lambda client: client.get(f"{REST}a/messages/")),
    "REST, found messages": ("read", lambda client: client.get(f"{REST}a/messages/?search=letter")),
    "REST, a message": ("read", lambda client: client.get(f"{REST}a/messages/1/")),
    "REST, a file": ("read", lambda client: client.get(f"{REST}a/messages/2/media/1/")),
    "REST, the memory": ("read", lambda client: client.get(f"{REST}a/memory/")),
    "REST, an export": ("exported", lambda client: client.get(f"{REST}a/export/")),
    "REST, a search": ("searched", lambda client: client.get(f"{REST}?owner=*&search=letter")),
    "REST, a list": ("listed", lambda client: client.get(f"{REST}?owner=*")),
    "OpenAI's items": ("read", lambda client: client.get("/openai/v1/conversations/a/items")),
    "the page": ("read", lambda client: client.get(page("change"))),
    "a search in the page": ("searched", lambda client: client.get(page("change"), {"q": "letter"})),
    "the page of a message": ("read", lambda client: client.get(page("message", 1))),
    "its JSON": ("read", lambda client: client.get(page("json", 1))),
    "its JSON for OpenAI": ("read", lambda client: client.get(page("message_openai", 1))),
    "the memory for OpenAI": ("read", lambda client: client.get(page("openai"))),
    "a file": ("read", lambda client: client.get(page("file", 2, 1))),
    "the list": ("listed", lambda client: client.get(the_list())),
    "a search": ("searched", lambda client: client.get(the_list(), {"q": "letter"})),
    "an export": ("exported", exported),
    "what is to be exported": ("listed", lambda client: client.get(page("export"))),
    "what is to be removed": ("read", lambda client: client.get(page("remove", 1))),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_of_another_s_conversation_is_reported_once_a_request_and_logged_without_text(ann, root, reported, read):
    way, request = READS[read]

    response = request(signed_in(root))

    assert response.status_code == 200
    [one] = reported
    assert (one["reader"].pk, one["way"]) == (root.pk, way)
    several = read.endswith(("list", "search"))
    assert sorted(each.memory_id for each in one["conversations"]) == (["a", "b"] if several else ["a"])
    [entry] = LogEntry.objects.all()
    assert entry.user == root
    assert entry.object_id == (None if several else str(Conversation.objects.get(memory_id="a").pk))
    logged = f"{entry.object_repr} {entry.get_change_message()}"
    assert "Zaquixo" not in logged
    assert "letter" not in logged
    if several:
        assert entry.object_repr == "2 conversations"
        assert entry.get_change_message().endswith((": a, b.", ": b, a."))


def statements(request: Callable[[Client], Any], client: Client) -> int:
    request(client)  # what is read once a process
    with CaptureQueriesContext(connection) as found:
        request(client)
    return len(found)


@pytest.mark.parametrize("read", READS)
def test_nobody_is_reported_what_owners_read_and_it_takes_no_statement_more(ann, reported, read, settings):
    client, (_, request) = signed_in(ann), READS[read]

    count = statements(request, client)

    assert not reported
    settings.CHATMEMORY["LOG_READS"] = False
    assert statements(request, client) == count


@pytest.mark.parametrize("read", READS)
def test_nobody_is_reported_anything_while_the_setting_is_off(ann, root, reported, read, settings):
    settings.CHATMEMORY["LOG_READS"] = False

    READS[read][1](signed_in(root))

    assert not reported
    assert LogEntry.objects.count() == ("an export" in read and 1)  # which is logged in any case


def test_what_is_not_shown_is_not_reported(ann, root, reported):
    client = signed_in(root)
    etag = client.get(f"{REST}a/")["ETag"]
    reported.clear()

    assert client.get(f"{REST}a/", headers={"If-None-Match": etag}).status_code == 304
    assert client.head(f"{REST}a/").status_code == 200
    assert client.get(f"{REST}a/messages/99/").status_code == 404
    assert signed_in(User.objects.create_user("eve")).get(f"{REST}a/").status_code == 404
    assert not reported


def test_only_others_conversations_of_a_list_are_reported(ann, root, reported):
    MessageWindowChatMemory(max_messages=9, id="own", store=DjangoChatMemoryStore(owner=root)).add(UserMessage("Mine"))

    signed_in(root).get(f"{REST}?owner=*")
    signed_in(root).get(the_list())

    assert [sorted(each.memory_id for each in one["conversations"]) for one in reported] == [["a", "b"]] * 2


class Colleagues(AccessPolicy):
    """Let all read everything as if it was their own."""

    def conversations(self, request, verb):
        return Conversation.objects.all()


def test_what_counts_as_one_s_own_for_the_policy_is_not_reported(ann, reported, settings):
    settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Colleagues"

    assert signed_in(User.objects.create_user("bob")).get(f"{REST}a/").status_code == 200
    assert not reported


def test_a_receiver_that_fails_keeps_nobody_from_reading(ann, root):
    def fail(**kwargs: object) -> None:
        raise ZeroDivisionError

    conversations_read.connect(fail)
    try:
        assert signed_in(root).get(f"{REST}a/").status_code == 200
    finally:
        conversations_read.disconnect(fail)
    assert LogEntry.objects.count() == 1


def test_a_change_that_changes_nothing_is_a_read(ann, root, reported):
    for url in (f"{REST}a/", f"{REST}a/messages/1/"):
        response = signed_in(root).patch(url, "{}", "application/json")
        assert TEXT in response.content.decode()

    assert [one["way"] for one in reported] == ["read", "read"]


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("patch", "", {"title": "Another"}, "Changed title."),
        ("patch", "messages/1/", {"metadata": {"feedback": "up"}}, "Changed the metadata of message #1."),
        ("put", "memory/", {"messages": [{"message": {"role": "user", "content": "Hi"}}]}, "Replaced the memory (1"),
    ],
)
def test_a_change_is_one_entry_with_what_was_changed(ann, root, reported, method, path, body, words):
    response = getattr(signed_in(root), method)(f"{REST}a/{path}", body, "application/json")

    assert response.status_code == 200
    [one] = reported
    assert (one["way"], [each.memory_id for each in one["conversations"]]) == ("changed", ["a"])
    [entry] = LogEntry.objects.all()
    assert entry.get_change_message().startswith(words)


def test_a_list_that_is_posted_to_is_read(ann, root, reported):
    response = signed_in(root).post(f"{the_list()}?q=Zaquixo", {"index": "0", "_save": "1"})

    assert TITLE in response.content.decode()
    assert [one["way"] for one in reported] == ["searched"]
