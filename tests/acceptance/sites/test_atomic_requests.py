"""Transactions that see the database as of their first read, while others write to it."""

import threading

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection, transaction
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.messages import SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore

IS_SQLITE = settings.DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3"

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not settings.DATABASES["default"].get("ATOMIC_REQUESTS"), reason="No site with ATOMIC_REQUESTS"),
    pytest.mark.skipif(IS_SQLITE, reason="SQLite's test database is in memory, where threads cannot race"),
]

S1, S2 = SystemMessage("Brief"), SystemMessage("Long")


def user(number: int) -> UserMessage:
    return UserMessage(str(number))


def elsewhere(*calls) -> None:
    """Run all *calls* at once, each in a thread with its own connection."""

    def run(call) -> None:
        barrier.wait()
        try:
            call()
        finally:
            connection.close()

    barrier = threading.Barrier(len(calls))
    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def assert_it_adds_up(conversation: Conversation) -> None:
    rows = list(conversation.memory())
    assert conversation.memory_messages == len(rows)
    assert conversation.memory_tokens == sum(row.token_count for row in rows)
    assert conversation.total_messages == conversation.history().count()
    assert [row.sequence for row in conversation.messages.all()] == list(range(1, conversation.next_sequence))
    assert sum(row.type == "SYSTEM" for row in rows) <= 1


def recount() -> None:
    DjangoChatMemoryStore().recount("c", get_chat_memory("c").window())


@pytest.mark.parametrize(
    ("write", "left"),
    [
        (lambda: get_chat_memory("c").add(S2, user(3)), [S2, user(2), user(3)]),
        (lambda: get_chat_memory("c").set([S2, user(2)]), [S2, user(2)]),
        (lambda: get_chat_memory("c").clear(), []),
        (recount, [user(1), S2, user(2)]),
    ],
    ids=["add", "set", "clear", "recount"],
)
def test_writes_since_the_first_read_are_noticed(write, left):
    get_chat_memory("c").add(S1, user(1))

    try:
        with transaction.atomic():
            assert Conversation.objects.exists()  # the first read
            elsewhere(lambda: get_chat_memory("c").add(S2, user(2)))
            write()
    except OperationalError:
        assert connection.vendor == "postgresql"  # the database refuses writes based on an old snapshot
        write()

    assert get_chat_memory("c").messages() == left
    assert_it_adds_up(Conversation.objects.get())


def test_concurrent_creators_of_a_conversation_all_add_to_it():
    elsewhere(*[lambda: [get_chat_memory("c").add(S1, user(number)) for number in range(3)]] * 6)

    conversation = Conversation.objects.get()
    assert conversation.total_messages == 6 * 3 + 1
    assert_it_adds_up(conversation)


def test_concurrent_requests_store_what_they_report():
    ann = get_user_model().objects.create_user("ann")
    token = Token.objects.create(user=ann)
    get_chat_memory("c", ann).add(S1)
    message = {"type": "USER", "contents": [{"type": "TEXT", "text": "Tea?"}]}
    statuses = []

    def post() -> None:
        client = APIClient(raise_request_exception=False)
        client.credentials(HTTP_AUTHORIZATION=f"Token {token.key}")
        for _ in range(3):
            answer = client.post("/api/conversations/c/messages/", {"messages": [{"message": message}]}, format="json")
            statuses.append(answer.status_code)

    elsewhere(*[post] * 4)

    conversation = Conversation.objects.get()
    assert conversation.total_messages == 1 + statuses.count(201)
    assert set(statuses) <= ({201, 500} if connection.vendor == "postgresql" else {201})
    assert_it_adds_up(conversation)
