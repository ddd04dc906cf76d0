"""Other programs can insert rows with nothing but their content: the columns have their defaults in the database."""

import datetime

import pytest
from django.db import connection
from django.utils import timezone

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db(transaction=True)


def run(sql: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def insert() -> Conversation:
    """Insert a conversation and two messages, as a program would that knows only their content."""
    run("INSERT INTO chatmemory_conversation (memory_id) VALUES (%s)", "c")
    conversation = Conversation.objects.get(memory_id="c")
    for sequence, (kind, text) in enumerate((("USER", "hi"), ("AI", "hello")), 1):
        run(
            "INSERT INTO chatmemory_message (conversation_id, sequence, type, text) VALUES (%s, %s, %s, %s)",
            conversation.pk,
            sequence,
            kind,
            text,
        )
    return conversation


def test_each_column_gets_the_value_that_a_new_row_of_django_has():
    inserted = insert()
    made = Conversation.objects.create(memory_id="other")
    made.refresh_from_db()
    moments = {"created_at", "updated_at", "active_hour"}
    for field in Conversation._meta.concrete_fields:
        if field.name not in {"id", "memory_id", *moments}:
            assert getattr(inserted, field.name) == getattr(made, field.name), field.name
    row = Message.objects.get(conversation=inserted, sequence=1)
    new = Message(conversation=made, sequence=1, type="USER", text="hi")
    for field in Message._meta.concrete_fields:
        if field.name not in {"conversation", "created_at"}:
            assert getattr(row, field.attname) == getattr(new, field.attname), field.name


def test_moments_are_those_of_now_in_utc_whatever_the_time_zone_of_the_connection_is():
    zone = {"postgresql": "SET TIME ZONE 'Asia/Tokyo'", "mysql": "SET time_zone = '+09:00'"}.get(connection.vendor)
    with connection.cursor() as cursor:
        if zone is not None:
            cursor.execute(zone)
        cursor.execute("INSERT INTO chatmemory_conversation (memory_id) VALUES ('c')")
    connection.close()  # with its time zone
    conversation = Conversation.objects.get(memory_id="c")

    for moment in (conversation.created_at, conversation.updated_at):
        assert abs(moment - timezone.now()) < datetime.timedelta(minutes=5)
    assert Conversation.objects.active_since(timezone.now() - datetime.timedelta(hours=1)).get() == conversation


def test_a_memory_goes_on_from_them_once_the_conversation_counts_them():
    insert()
    run("UPDATE chatmemory_conversation SET next_sequence = 3, total_messages = 2, memory_messages = 2")
    memory = MessageWindowChatMemory(max_messages=3, id="c", store=DjangoChatMemoryStore())
    memory.add(UserMessage("again"))

    assert memory.messages() == [UserMessage("hi"), AiMessage("hello"), UserMessage("again")]


def test_statements_of_django_neither_leave_values_to_the_database_nor_ask_for_them(django_assert_num_queries):
    with django_assert_num_queries(1) as ran:
        conversation = Conversation(memory_id="c")
        super(Conversation, conversation).save(force_insert=True)
    [query] = ran.captured_queries
    _, _, returned = query["sql"].partition("RETURNING")

    assert "next_sequence" in query["sql"].partition("VALUES")[0]
    assert "next_sequence" not in returned
    assert list(Message._meta.db_returning_fields) == []
    assert {each.name for each in Conversation._meta.db_returning_fields} == {"id", "active_hour"}
