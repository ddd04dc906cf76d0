"""A conversation belongs to the assistant that was asked first, also of two that are asked at once."""

from uuid import uuid4

import pytest
from django.db import connection, transaction

from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.leases import OtherAssistantError, State, Taken
from chatmemory_django.models import Conversation
from tests.database.interleaving import another_writer

pytestmark = pytest.mark.django_db(transaction=True)


def take(assistant: str | None) -> Taken | float:
    return leases.take("default", "c", None, uuid4(), assistant)


def ask(assistant: str) -> bool:
    """Ask an assistant, and let it end; return whether the conversation is another one's."""
    try:
        taken = take(assistant)
    except OtherAssistantError:
        return True
    if isinstance(taken, Taken):
        Conversation.objects.filter(memory_id="c").update(version=2, next_sequence=3)  # it stores something
        leases.end(taken, State.DONE)
    return False


def test_a_new_conversation_belongs_to_the_one_that_is_asked():
    taken = take("support")

    assert isinstance(taken, Taken)
    assert Conversation.objects.get().assistant == Run.objects.get().assistant == "support"


# The tests' one connection to SQLite cannot commit while the fourth statement, an INSERT that returns a row, runs.
@pytest.mark.parametrize("after", [1, 2, 3, *([] if connection.vendor == "sqlite" else [4]), 5, 6])
def test_of_two_that_are_asked_first_between_any_two_statements_one_gets_it(after):
    with another_writer(lambda: ask("sales"), after):
        ask("support")

    [winner] = set(Run.objects.filter(state=State.DONE).values_list("assistant", flat=True))
    assert Conversation.objects.get().assistant == winner
    loser = ({"support", "sales"} - {winner}).pop()
    fence = Conversation.objects.get().fence
    assert ask(loser)
    assert Conversation.objects.get().fence == fence  # an answer in progress would lose its lease
    assert not ask(winner)
    assert set(Run.objects.values_list("assistant", flat=True)) == {winner}


def test_the_name_is_compared_exactly():
    ask("support")

    assert ask("Support")


def test_who_asks_for_any_gets_it_and_changes_nothing():
    ask("support")

    assert isinstance(take(None), Taken)
    assert Conversation.objects.get().assistant == "support"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="other databases have no such statement")
def test_it_takes_no_statement_more(django_assert_num_queries):
    ask("support")

    with django_assert_num_queries(1):
        take("support")


@pytest.mark.parametrize("name", ["support", "Support", ""])
def test_the_conversations_of_one_are_found(name):
    Conversation.objects.bulk_create([Conversation(memory_id=each, assistant=each) for each in ("support", "sales")])
    Conversation.objects.create(memory_id="")

    assert [each.memory_id for each in Conversation.objects.begun_with(name)] == ([] if name == "Support" else [name])


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB has no partial indexes, and chooses by the rows")
def test_they_are_found_by_the_index_of_those_with_a_name():
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")  # of few rows, it reads all
        plan = Conversation.objects.begun_with("support").order_by("-active_hour", "-updated_at").explain()

    assert "chatmemory_by_assistant" in plan
