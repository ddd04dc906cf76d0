"""Fixtures and helpers shared by the tests of the REST API."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.db import connection
from rest_framework.test import APIClient

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory

ROOT = "/api/conversations/"
MESSAGES = f"{ROOT}c/messages/"
MEMORY = f"{ROOT}c/memory/"
IMPORT = "/api/import/"
USAGE = "/api/usage/"

HI = {"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}]}
ANSWER = {"type": "AI", "text": "hello"}
PROMPT = {"type": "SYSTEM", "text": "be brief"}

SEE, CHANGE, DELETE = "view_conversation", "change_conversation", "delete_conversation"
CLEAR, FORK = "clear_conversation", "add_conversation"
READ, EXPORT = "view_message_text", "export_conversation"
WRITE, SET, BRING = "add_message", "set_conversation", "import_conversation"
REMOVE, APPROVE, REPLY = "delete_message", "approve_conversation", "answer_conversation"
EVERYTHING = (SEE, CHANGE, CLEAR, FORK, DELETE, READ, EXPORT, WRITE, SET, BRING, REMOVE, APPROVE, REPLY)

PEOPLE: dict[str, tuple[str, ...]] = {
    "owner": (),
    "owner who writes": (WRITE,),
    "owner who sets": (SET,),
    "owner who sets and writes": (SET, WRITE),
    "owner who imports": (BRING,),
    "owner who imports and writes": (BRING, WRITE),
    "owner who removes": (REMOVE,),
    "other": (),
    "other with every permission": EVERYTHING,  # not enough without being staff
    "staff": (),
    "staff who see": (SEE,),
    "staff who change": (SEE, CHANGE),
    "staff who clear": (SEE, CLEAR),
    "staff who fork": (SEE, FORK),
    "staff who approve": (SEE, APPROVE),
    "staff who write": (SEE, WRITE),
    "staff who set": (SEE, SET),
    "staff who remove": (SEE, REMOVE),
    "staff who delete": (SEE, DELETE),
    "staff who delete unseen": (DELETE,),
    "staff who read": (SEE, READ),
    "staff who export unread": (SEE, EXPORT),
    "staff who export": (SEE, READ, EXPORT),
    "staff with every permission": EVERYTHING,
}
"""The users and their permissions, in addition to the anonymous user. Every "owner …" is the same user."""


@pytest.fixture(autouse=True)
def small_window(settings) -> None:
    """Use a memory of three messages, and no throttle."""
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}},
        "REST": {"THROTTLE_RATES": {}},
    }
    cache.clear()


@pytest.fixture
def person(db) -> Callable[[str], User | None]:
    """Return a function that returns one of PEOPLE; None for the anonymous user."""

    def person(name: str) -> User | None:
        if name == "anonymous":
            return None
        is_staff = name.startswith("staff")
        username = name if is_staff else name.partition(" who ")[0]
        user, _ = User.objects.get_or_create(username=username, defaults={"is_staff": is_staff})
        user.user_permissions.set(Permission.objects.filter(codename__in=PEOPLE[name]))
        user = User.objects.get(pk=user.pk)
        user.get_all_permissions()  # cached before the same user gets another role
        return user

    return person


@pytest.fixture
def client_of(person) -> Callable[[str], APIClient]:
    """Return a function that returns a client logged in as one of PEOPLE, without the statements of a session."""

    def client_of(name: str) -> APIClient:
        client = APIClient()
        client.force_authenticate(person(name))
        return client

    return client_of


@pytest.fixture
def api(client_of) -> APIClient:
    """Return a client of the owner."""
    return client_of("owner")


@pytest.fixture
def writer(client_of) -> APIClient:
    """Return a client of the owner, who may add messages of every type."""
    return client_of("owner who writes")


@pytest.fixture
def begin(person) -> Callable[..., Conversation]:
    """Return a function that creates a conversation of the owner with the given messages."""

    def begin(memory_id: str, *messages) -> Conversation:
        owner = User.objects.filter(username="owner").first() or person("owner")
        conversation = Conversation.objects.create(memory_id=memory_id, owner=owner)
        get_chat_memory(memory_id).add(*messages)
        conversation.refresh_from_db()
        return conversation

    return begin


@contextmanager
def statements() -> Iterator[list[str]]:
    """Record the executed statements, without the savepoints that replace transactions in a test."""
    run: list[str] = []

    def note(execute, sql, *rest):
        if "SAVEPOINT" not in sql:
            run.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield run


def users(*numbers: int) -> list[UserMessage]:
    return [UserMessage(str(number)) for number in numbers]


def adding(*messages: dict, **others: object) -> dict:
    """Return the body of a POST of *messages*."""
    return {"messages": [{"message": message, **others} for message in messages]}


def text(words: object) -> dict:
    return {"type": "USER", "contents": [{"type": "TEXT", "text": words}]}


def sequences(response) -> list[int]:
    """Return the sequences of a page's or a memory's messages."""
    assert response.status_code in {200, 201}, response.content
    body = response.json()
    return [each["sequence"] for each in body.get("results", body.get("messages"))]


def memory_ids(response) -> list[str]:
    """Return the memory ids of a page of conversations."""
    assert response.status_code == 200, response.content
    return [each["memory_id"] for each in response.json()["results"]]


def paths(response) -> list[str]:
    """Return the paths of a problem's errors."""
    return [each["path"] for each in response.json()["errors"]]


def pages(client, where: str, direction: str = "next") -> Iterator[dict]:
    """Yield the page at *where* and those that follow in that direction."""
    following: str | None = where
    seen = set()
    while following:
        assert following not in seen, "The pages go round in circles."
        seen.add(following)
        response = client.get(following)
        assert response.status_code == 200, response.content
        yield response.json()
        following = response.json()[direction]
