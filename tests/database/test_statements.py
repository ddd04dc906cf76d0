"""Recorded statements: the ORM's own SQL, executed repeatedly with different values."""

import datetime

import pytest
from django.db import connection, transaction
from django.utils import timezone

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, NewMessage, SystemMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore, snapshots, statements
from chatmemory_django.stores.django.rows import PINNED, WINDOW
from chatmemory_django.stores.django.statements import Parameter, Statement

pytestmark = pytest.mark.django_db

CALL = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")])


@pytest.fixture
def conversation() -> Conversation:
    memory = MessageWindowChatMemory(max_messages=4, id="c", store=DjangoChatMemoryStore())
    for message in (SystemMessage("Be brief."), UserMessage("one"), CALL, UserMessage("two"), UserMessage("three")):
        memory.add(message)
    MessageWindowChatMemory(max_messages=4, id="other", store=DjangoChatMemoryStore()).add(UserMessage("not mine"))
    return Conversation.objects.get(memory_id="c")


def texts_like(using: str) -> object:
    rows = Message.objects.using(using).filter(text=Parameter(Message, "text"), superseded=False)
    return list(rows.values_list("sequence", "text"))


class TestRecording:
    @pytest.mark.parametrize("text", ["two", "100 %", "'; DROP TABLE", "日本", ""])
    def test_a_statement_finds_what_its_queryset_finds(self, conversation, text):
        memory = MessageWindowChatMemory(max_messages=9, id="c", store=DjangoChatMemoryStore())
        memory.add(UserMessage(text))
        statement = Statement(texts_like)

        with connection.cursor() as cursor:
            for value in ("no one wrote this", text):
                statement.run(cursor, {"text": value})
                found = [tuple(row) for row in cursor.fetchall()]
                expected = Message.objects.filter(text=value, superseded=False)
                assert sorted(found) == sorted(expected.values_list("sequence", "text"))

    def test_the_queryset_is_built_once_and_never_executed(self, conversation, django_assert_num_queries):
        built: list[str] = []

        def run(using: str) -> object:
            built.append(using)
            return texts_like(using)

        statement = Statement(run)

        with django_assert_num_queries(2), connection.cursor() as cursor:
            for text in ("one", "two"):
                statement.run(cursor, {"text": text})

        assert built == ["default"]

    @pytest.mark.parametrize("debug", [True, False])
    def test_writes_are_recorded_without_being_executed(self, conversation, settings, debug):
        settings.DEBUG = debug
        update = Statement(
            lambda using: Conversation.objects.using(using).update(title=Parameter(Conversation, "title"))
        )

        with transaction.atomic():
            update.on(connection)
            statements._insert(3).on(connection)
            assert not transaction.get_rollback()

        assert set(Conversation.objects.values_list("title", flat=True)) == {""}
        assert Message.objects.count() == 6

    def test_nobody_who_counts_queries_sees_one_that_is_only_recorded(self, conversation):
        seen = []

        def count(execute, sql, *arguments):
            seen.append(sql)
            return execute(sql, *arguments)

        with connection.execute_wrapper(count):
            Statement(
                lambda using: Conversation.objects.using(using).update(title=Parameter(Conversation, "title"))
            ).on(connection)
            assert seen == []
            Message.objects.count()

        assert len(seen) == 1

    def test_values_are_adapted_by_their_fields(self, conversation):
        moment = datetime.datetime(2026, 11, 21, 7, 8, 9, 123456, tzinfo=datetime.UTC)
        metadata = {"usage": [1, None, "日本"]}
        update = Statement(
            lambda using: (
                Conversation.objects.using(using)
                .filter(memory_id=Parameter(Conversation, "memory_id"))
                .update(updated_at=Parameter(Conversation, "updated_at"), metadata=Parameter(Conversation, "metadata"))
            )
        )

        with connection.cursor() as cursor:
            assert update.run(cursor, {"memory_id": "c", "updated_at": moment, "metadata": metadata}) == 1

        conversation.refresh_from_db()
        assert (conversation.updated_at, conversation.metadata) == (moment, metadata)
        assert Conversation.objects.get(memory_id="other").updated_at != moment


class TestReading:
    @pytest.mark.parametrize("pinned", [1, 4, None])
    def test_a_memory_matches_the_model(self, conversation, pinned):
        Conversation.objects.filter(memory_id="c").update(pinned_sequence=pinned)
        conversation.refresh_from_db()

        with connection.cursor() as cursor:
            rows = statements.read_memory(cursor, "c", "", None)

        expected = conversation.memory().values_list("type", "text", "payload", "sequence", "conversation_id")
        assert [(*row[:3], *row[4:5], row[6]) for row in rows] == list(expected)
        assert [row[5] for row in rows] == [PINNED if row[4] == pinned else WINDOW for row in rows]

    def test_the_front_of_a_window_excludes_pinned_messages(self, conversation):
        with connection.cursor() as cursor:
            snapshot = snapshots.read(cursor, "c", None)

        assert (snapshot.state.id, snapshot.state.version) == (conversation.pk, conversation.version)
        assert [(row.sequence, row.type) for row in snapshot.front] == [(3, "AI"), (4, "USER"), (5, "USER")]
        assert snapshot.front[0].payload == conversation.messages.get(sequence=3).payload
        assert snapshot.front[1].payload is None

    def test_an_unknown_conversation_reads_nothing(self):
        with connection.cursor() as cursor:
            assert snapshots.read(cursor, "unknown", None) is None
            assert statements.read_memory(cursor, "unknown", "", None) == []


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL writes both in one statement")
def test_no_text_is_truncated_where_a_statement_names_the_types(conversation):
    memory = MessageWindowChatMemory(max_messages=9, id="c", store=DjangoChatMemoryStore())

    memory.add(
        NewMessage(UserMessage("x" * 5000), client_message_id="i" * 64),
        NewMessage(UserMessage("y"), client_message_id="j" * 64),
    )

    assert [len(message.single_text) for message in memory.messages()[-2:]] == [5000, 1]
    assert set(Message.objects.exclude(client_message_id=None).values_list("client_message_id", flat=True)) == {
        "i" * 64,
        "j" * 64,
    }
    assert timezone.now() - Message.objects.latest("created_at").created_at < datetime.timedelta(minutes=5)


def test_a_history_is_read_by_few_statements_whatever_is_asked_for(conversation):
    store = DjangoChatMemoryStore()

    for count in range(1, 80):
        assert len(store.read_history("c", count=count)) == min(count, 5)

    assert statements._history.cache_info().currsize <= 64
