"""Reads that may take only so long."""

import time

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from chatmemory_django.db.timeouts import limited
from chatmemory_django.models import Conversation

pytestmark = pytest.mark.django_db(transaction=True)

ENDLESS = {
    "sqlite": (
        "SELECT count(*) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1000000000) "
        "SELECT i FROM n)"
    ),
    "postgresql": "SELECT pg_sleep(60)",
    "mysql": "SELECT SLEEP(60)",
}


def read(sql: str) -> list:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def test_the_database_ends_a_statement_that_takes_longer():
    began = time.monotonic()

    with pytest.raises(DatabaseError), limited(0.05, "default"):
        read(ENDLESS[connection.vendor])

    assert time.monotonic() - began < 50
    assert read("SELECT 1") == [(1,)]


def test_no_statement_begins_once_the_time_is_over():
    with pytest.raises(OperationalError, match="took more than"), limited(0.01, "default"):
        time.sleep(0.02)
        Conversation.objects.first()


def test_what_is_in_time_is_read_and_what_follows_has_all_the_time():
    with limited(5, "default"):
        assert not Conversation.objects.exists()
        assert read("SELECT 1") == [(1,)]
    if connection.vendor == "postgresql":
        assert read("SHOW statement_timeout") == [("0",)]


@pytest.mark.parametrize("seconds", [0.05, 60])
def test_a_transaction_around_it_goes_on(seconds):
    with transaction.atomic():
        Conversation.objects.create(memory_id="before")
        try:
            with limited(seconds, "default"):
                read(ENDLESS[connection.vendor] if seconds < 1 else "SELECT 1")
        except DatabaseError:
            assert seconds < 1
        if connection.vendor == "postgresql":
            assert read("SHOW statement_timeout") == [("0",)]
        Conversation.objects.create(memory_id="after")

    assert Conversation.objects.count() == 2
