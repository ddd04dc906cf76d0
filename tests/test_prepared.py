"""Prepared querysets: the same SQL and the same rows as the querysets that they come from."""

import datetime
import uuid

import pytest
from django.db import connection
from django.utils import timezone
from msgspec.structs import astuple

from chatmemory_django import statements
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.prepared import Parameter, Prepared, insert_query, update_query
from chatmemory_django.statements import NewRow
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db

CALL = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")])


@pytest.fixture
def cursor():
    with connection.cursor() as cursor:
        yield cursor


@pytest.fixture
def conversation() -> Conversation:
    memory = MessageWindowChatMemory(max_messages=4, id="c", store=DjangoChatMemoryStore())
    for message in (SystemMessage("Be brief."), UserMessage("one"), CALL, UserMessage("two"), UserMessage("three")):
        memory.add(message)
    MessageWindowChatMemory(max_messages=4, id="other", store=DjangoChatMemoryStore()).add(UserMessage("not mine"))
    return Conversation.objects.get(memory_id="c")


def sql_of(queryset) -> tuple[str, tuple]:
    return queryset.query.get_compiler(connection.alias).as_sql()


def parameter(model, column: str) -> Parameter:
    return Parameter(column, model._meta.get_field(column))


class TestAnyQueryset:
    @pytest.mark.parametrize("text", ["two", "100 %", "'; DROP TABLE", "日本", ""])
    def test_it_has_the_sql_and_the_values_of_the_queryset(self, text):
        moment = timezone.now()
        prepared = Prepared(
            lambda: (
                Message.objects.filter(
                    text=parameter(Message, "text"),
                    created_at__lt=parameter(Message, "created_at"),
                    client_id=parameter(Message, "client_id"),
                    superseded=False,
                )
                .values_list("sequence")
                .query
            )
        )
        values = {"text": text, "created_at": moment, "client_id": uuid.UUID(int=7)}

        sql, parameters = prepared.sql(connection, values)

        expected = Message.objects.filter(
            text=text, created_at__lt=moment, client_id=uuid.UUID(int=7), superseded=False
        ).values_list("sequence")
        assert (sql, tuple(parameters)) == sql_of(expected)

    def test_it_is_compiled_once_and_gives_the_rows_of_other_values(self, conversation, cursor):
        built = []

        def build():
            built.append(1)
            return Message.objects.filter(text=parameter(Message, "text")).values_list("sequence", "text").query

        prepared = Prepared(build)

        found = [prepared.rows(cursor, {"text": text}) for text in ("one", "two", "nobody said this")]

        assert [list(map(tuple, rows)) for rows in found] == [[(2, "one")], [(4, "two")], []]
        assert built == [1]

    def test_an_update_does_what_that_of_the_queryset_does(self, conversation, cursor):
        prepared = Prepared(
            lambda: update_query(
                Conversation.objects.filter(id=parameter(Conversation, "id")),
                title=parameter(Conversation, "title"),
                updated_at=parameter(Conversation, "updated_at"),
                pinned_sequence=parameter(Conversation, "pinned_sequence"),
            )
        )
        moment = datetime.datetime(2026, 11, 21, 7, 8, 9, 123456, tzinfo=datetime.UTC)

        values = {"id": conversation.pk, "title": "A talk", "updated_at": moment, "pinned_sequence": None}
        prepared.run(cursor, values)

        conversation.refresh_from_db()
        assert (conversation.title, conversation.updated_at) == ("A talk", moment)
        assert conversation.pinned_sequence is None
        assert Conversation.objects.get(memory_id="other").title == ""

    def test_an_insert_does_what_save_does(self, conversation, cursor):
        columns = ("conversation_id", "sequence", "created_at", "type", "text", "client_id", "metadata")
        names = {column: parameter(Message, column.removesuffix("_id")) for column in columns[:1]}
        names |= {column: parameter(Message, column) for column in columns[1:]}
        prepared = Prepared(lambda: insert_query(Message, [Message(**names)]))
        values = {
            "conversation": conversation.pk,
            "sequence": 100,
            "created_at": timezone.now(),
            "type": "USER",
            "text": "100 % 'mine'",
            "client_id": uuid.uuid4(),
            "metadata": {"usage": [1, None, "日本"]},
        }
        Message.objects.create(**values | {"conversation": conversation, "sequence": 99, "client_id": None})

        prepared.run(cursor, values)

        def without_its_name(row: dict) -> dict:
            return {key: value for key, value in row.items() if key not in {"sequence", "client_id"}}

        saved, prepared_row = Message.objects.filter(sequence__in=(99, 100)).order_by("sequence").values()
        assert without_its_name(saved) == without_its_name(prepared_row)
        assert prepared_row["client_id"] == values["client_id"]

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has statements within statements")
    @pytest.mark.parametrize("count", [1, 2])
    def test_an_insert_after_an_update_happens_if_that_changes_a_row_and_not_otherwise(
        self, conversation, cursor, count
    ):
        columns = ("created_at", "token_count", "type", "text", "client_id", "metadata")
        rename = Prepared(
            lambda: update_query(
                Conversation.objects.filter(title=parameter(Conversation, "memory_id")),
                title=parameter(Conversation, "title"),
            )
        )
        say = Prepared(
            lambda: insert_query(
                Message,
                [
                    Message(
                        conversation_id=parameter(Message, "conversation"),
                        sequence=Parameter(f"sequence_{row}", Message._meta.get_field("sequence")),
                        **{column: parameter(Message, column) for column in columns},
                    )
                    for row in range(count)
                ],
            ),
            after=rename,
        )
        values = dict.fromkeys(columns) | {"created_at": timezone.now(), "type": "USER", "text": "100 % mine"}
        values |= {"conversation": conversation.pk, "sequence_0": 99, "sequence_1": 100, "title": "A talk"}

        not_run = say.run(cursor, values | {"memory_id": "no title of any"})
        Conversation.objects.filter(pk=conversation.pk).update(title="A chat")
        run = say.run(cursor, values | {"memory_id": "A chat"})

        conversation.refresh_from_db()
        assert (not_run, run) == (0, count)
        assert conversation.title == "A talk"
        added = Message.objects.filter(sequence__gte=99)
        assert list(added.values_list("text", "client_id")) == [("100 % mine", None)] * count


WRITES = [(lambda _, state, rows, cursor: statements.write(state, rows, cursor), count) for count in (0, 1, 3, 130)]
if connection.vendor == "postgresql":
    WRITES += [(statements.write_if_unchanged, count) for count in (1, 3, 64)]


class TestTheStatementsOfTheHotPath:
    """Each beside what the plain ORM says of the same conversation."""

    def test_the_lock_reads_the_row_of_the_conversation(self, conversation, cursor):
        expected = Conversation.objects.filter(pk=conversation.pk).values(*statements.State._fields).get()

        state = statements.lock("c", cursor)

        assert state is not None
        assert state._asdict() == expected
        assert statements.lock("nobody", cursor) is None

    def test_the_memory_is_that_of_the_conversation(self, conversation, cursor):
        rows = statements.memory("c", cursor, "")

        assert conversation.pinned_sequence == 1
        assert [(row.sequence, row.type, row.text, row.payload, row.tokens) for row in rows] == list(
            conversation.memory().values_list("sequence", "type", "text", "payload", "token_count")
        )

    def test_the_front_is_the_first_rows_of_the_window(self, conversation, cursor):
        state = statements.lock("c", cursor)

        rows = statements.front(state, 2, 4, cursor)

        expected = conversation.messages.filter(sequence__gte=2).order_by("sequence")[:4]
        assert [(row.sequence, row.type) for row in rows] == [(row.sequence, row.type) for row in expected]
        assert [row.payload for row in rows] == [row.payload if row.type == "AI" else None for row in expected]

    @pytest.mark.parametrize(("write", "count"), WRITES)
    def test_a_write_is_what_the_orm_would_have_written(self, conversation, cursor, write, count):
        state = statements.lock("c", cursor)
        rows = [
            NewRow("AI", f"text {n}", None, uuid.UUID(int=n), {"n": n}, 200 + n, n, "words", n % 2 == 0, n % 3 == 0)
            for n in range(count)
        ]
        moved = {
            "next_sequence": 500,
            "said_messages": 400,
            "window_start": 300,
            "pinned_sequence": None,
            "memory_messages": 7,
            "memory_tokens": 77,
            "token_counter": "words",
            "front": "4,8",
        }

        write(state, state._replace(**moved), rows, cursor)

        conversation.refresh_from_db()
        assert {name: getattr(conversation, name) for name in moved} == moved
        written = conversation.messages.filter(sequence__gte=200).order_by("sequence")
        assert list(written.values_list(*NewRow.__struct_fields__)) == list(map(astuple, rows))
        assert all(row.created_at == conversation.updated_at for row in written)

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="others write under the lock")
    @pytest.mark.parametrize("column", statements.UNCHANGED)
    def test_a_write_without_a_lock_is_none_if_the_conversation_has_changed(self, conversation, cursor, column):
        state = statements.unlocked("c", cursor)
        before = state._replace(**{column: "x" if column in {"front", "token_counter"} else getattr(state, column) + 1})

        done = statements.write_if_unchanged(before, state, [NewRow("USER", "hi", None, sequence=99)], cursor)

        assert not done
        assert not conversation.messages.filter(sequence=99).exists()
