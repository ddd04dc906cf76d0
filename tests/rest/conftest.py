"""What the tests of the REST API share."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from rest_framework.test import APIClient

from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory

ROOT = "/api/conversations/"


@pytest.fixture(autouse=True)
def small_window(settings) -> None:
    """A memory of three messages, and no throttle."""
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}},
        "REST": {"THROTTLE_RATES": {}},
    }
    cache.clear()


@pytest.fixture
def people(db) -> dict[str, User | None]:
    """Everybody there is."""
    boss = User.objects.create_user("boss", is_staff=True)
    names = ["view_conversation", "change_conversation", "delete_conversation"]
    boss.user_permissions.set(Permission.objects.filter(codename__in=names))
    return {
        "anonymous": None,
        "other": User.objects.create_user("other"),
        "owner": User.objects.create_user("owner"),
        "staff without": User.objects.create_user("clerk", is_staff=True),
        "staff with": boss,
        # A permission alone is not enough.
        "no staff but with": _with_permissions(User.objects.create_user("odd"), names),
    }


def _with_permissions(user: User, names: list[str]) -> User:
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return user


@pytest.fixture
def client_of(people) -> Callable[[str], APIClient]:
    """A client that is signed in as one of them, without a session in the way of counting statements."""

    def client_of(name: str) -> APIClient:
        client = APIClient()
        client.force_authenticate(people[name])
        return client

    return client_of


@pytest.fixture
def api(client_of) -> APIClient:
    """The client of the owner."""
    return client_of("owner")


@pytest.fixture
def begin(people) -> Callable[..., Conversation]:
    """Begins a conversation of the owner with these messages."""

    def begin(memory_id: str, *messages) -> Conversation:
        conversation = Conversation.objects.create(memory_id=memory_id, owner=people["owner"])
        get_chat_memory(memory_id).add(*messages)
        conversation.refresh_from_db()
        return conversation

    return begin
