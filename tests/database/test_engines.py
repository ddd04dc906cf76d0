"""What is asked of an engine, and what is done on one that declares nothing known: the ORM, and several statements."""

import datetime
from types import SimpleNamespace

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import F

from chatmemory_django.db.engines import Dialect, combines, dialect, queues
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, fields, lookups
from chatmemory_django.models.conversations import hour_of
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import snapshots, statements

pytestmark = pytest.mark.django_db

U1, A1, U2 = UserMessage("Tea?"), AiMessage("Please"), UserMessage("Milk?")


@pytest.fixture
def unknown(monkeypatch):
    """Let the engine of the tests declare nothing known."""
    for module in (fields, lookups, statements):
        monkeypatch.setattr(module, "dialect", lambda connection: None)
    monkeypatch.setattr(statements, "combines", lambda connection: False)
    monkeypatch.setattr(statements, "_read", statements._read.__wrapped__)  # what other tests have recorded
    monkeypatch.setattr(statements, "_memory", statements._memory.__wrapped__)


def test_each_database_of_the_tests_declares_its_sql():
    assert dialect(connection) is Dialect[connection.vendor.upper()]
    assert combines(connection) is (connection.vendor == "postgresql")
    assert queues(connection) is (connection.vendor != "sqlite")


@pytest.mark.parametrize(("stored", "found"), [("jsonb", Dialect.POSTGRESQL), ("text", Dialect.SQLITE)])
def test_a_backend_of_others_is_known_by_how_it_stores_json_and_combines_nothing(stored, found):
    other = SimpleNamespace(vendor="other", display_name="Other", data_types={"JSONField": stored})

    assert dialect(other) is found
    assert not combines(other)


def test_a_backend_that_stores_json_as_nobody_else_is_not_known():
    assert dialect(SimpleNamespace(data_types={"JSONField": "JSON"})) is None
    assert dialect(SimpleNamespace(data_types={})) is None


@pytest.mark.usefixtures("unknown")
def test_the_hours_that_the_orm_computes_are_in_the_order_of_moments():
    Conversation.objects.create()
    begin = datetime.datetime(2023, 12, 30, 22, 59, tzinfo=datetime.UTC)
    moments = [begin + datetime.timedelta(hours=hours) for hours in (0, 1, 2, 24, 25, 26, 24 * 33, 24 * 62, 24 * 430)]

    hours = [Conversation.objects.values_list(hour_of(each), flat=True).get() for each in moments]

    assert hours == sorted(set(hours))
    later = moments[0] + datetime.timedelta(seconds=59)
    assert Conversation.objects.values_list(hour_of(later), flat=True).get() == hours[0]


@pytest.mark.usefixtures("unknown")
def test_the_orm_finds_metadata():
    made = [Conversation.objects.create(metadata=each) for each in ({"k": "x"}, {"k": 5}, {"k": True}, {"other": "x"})]

    for text, found in (("x", made[0]), ("5", made[1]), ("true", made[2])):
        assert list(Conversation.objects.with_metadata("k", text)) == [found]


@pytest.mark.usefixtures("unknown")
def test_a_turn_reads_the_conversation_and_its_memory_apart():
    memory = get_chat_memory("c", get_user_model().objects.create_user("ann"))
    memory.add(U1)

    with memory.turn() as turn:
        assert turn.messages == [U1]
        turn.add(A1)
    assert memory.messages() == [U1, A1]


@pytest.mark.usefixtures("unknown")
def test_it_reads_both_again_if_another_writer_was_in_between():
    get_chat_memory("c").add(U1)
    others = [
        lambda: get_chat_memory("c").add(U2),
        lambda: Conversation.objects.update(version=F("version") + 1),
        lambda: None,
    ]
    read = statements.read_memory

    def read_and_wait(*args):
        rows = read(*args)
        others.pop(0)()
        return rows

    with pytest.MonkeyPatch.context() as patch, connection.cursor() as cursor:
        patch.setattr(statements, "read_memory", read_and_wait)
        snapshot, rows = snapshots.read_with_memory(cursor, "c", "", None)

    assert not others
    assert snapshot.state.version == Conversation.objects.get().version
    assert [row[1] for row in rows] == ["Tea?", "Milk?"]
