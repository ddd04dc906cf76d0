"""The partitions of docs/scaling.md."""

import pytest
from django.contrib.auth.models import User
from django.db import connection

from chatmemory_django.messages import AiMessage, NewMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import check, erase, fork
from chatmemory_django.provider import get_chat_memory, known_window
from tests.acceptance.docs.pages import block_of


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only PostgreSQL has these partitions")
def test_everything_works_on_a_partitioned_table():
    anna = User.objects.create_user("anna")
    get_chat_memory("before", anna).add(UserMessage("kept"))
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # nothing must be pending when the table changes
        cursor.execute(block_of("scaling.md", "PARTITION BY", "sql"))

    assert get_chat_memory("before", anna).messages() == [UserMessage("kept")]
    for number in range(20):
        memory = get_chat_memory(f"c{number}", anna, max_messages=2)
        memory.add(
            NewMessage(UserMessage("one"), client_message_id="a"), NewMessage(AiMessage("two"), client_message_id="b")
        )
        memory.add(NewMessage(UserMessage("one"), client_message_id="a"))  # a retry
        with memory.turn(after=1) as turn:
            turn.add(AiMessage("three"))
        memory.switch(2)
        assert memory.messages() == [UserMessage("one"), AiMessage("two")]
        fork(Conversation.objects.get(memory_id=f"c{number}"), f"fork of c{number}")

    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT tableoid::regclass::text FROM chatmemory_message")
        assert {name for (name,) in cursor.fetchall()} == {f"chatmemory_message_{each}" for each in range(4)}
    assert Message.objects.search("kept").count() == 1
    assert check(Conversation.objects.all(), known_window, print) == 0
    assert len(erase(Conversation.objects.owned_by(anna)).messages) == 41
    assert not Message.objects.exists()
