"""What the system checks find on a MariaDB server that would refuse messages."""

import pytest
from django.core.checks import Tags, run_checks
from django.db import connection

from chatmemory_django.checks import check_mariadb
from chatmemory_django.models import Message

pytestmark = pytest.mark.django_db(transaction=True)
on_mariadb = pytest.mark.skipif(connection.vendor != "mysql", reason="the checks are for MariaDB and MySQL")


def found() -> dict[str, str]:
    return {message.id: message.msg for message in check_mariadb(databases=["default"])}


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


@pytest.fixture
def latin1():
    """Return a function that changes the character set of the database, or of a column, until the end of the test."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    back = []

    def change(column: str | None = None) -> None:
        if column is None:
            execute(f"ALTER DATABASE {name} CHARACTER SET latin1")
            back.append(f"ALTER DATABASE {name} CHARACTER SET utf8mb4")
        else:
            table = Message._meta.db_table
            execute(f"ALTER TABLE {table} MODIFY {column} longtext CHARACTER SET utf8mb3 NOT NULL")
            back.append(f"ALTER TABLE {table} MODIFY {column} longtext CHARACTER SET utf8mb4 NOT NULL")

    yield change
    for sql in back:
        execute(sql)


def test_the_database_of_the_tests_is_right():
    assert found() == {}


def test_the_checks_run_with_those_of_the_database(settings):
    settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": 2**40}

    ids = [message.id for message in run_checks(tags=[Tags.database], databases=["default"])]

    assert ("chatmemory.W006" in ids) == (connection.vendor == "mysql")
    assert check_mariadb(databases=None) == []


@on_mariadb
def test_W005_the_database_is_not_utf8mb4(latin1):
    latin1()
    connection.close()

    assert "the database 'test_" in found()["chatmemory.W005"]
    assert found()["chatmemory.W005"].endswith("' is latin1, not utf8mb4.")


@on_mariadb
def test_W005_a_column_is_not_utf8mb4(latin1):
    latin1("text")

    assert found() == {
        "chatmemory.W005": "DATABASES['default'] cannot store every character: chatmemory_message.text is utf8mb3, "
        "not utf8mb4."
    }


@on_mariadb
def test_W005_the_connection_is_not_utf8mb4():
    execute("SET character_set_client = latin1")
    try:
        assert "the connection is latin1" in found()["chatmemory.W005"]
    finally:
        connection.close()


@on_mariadb
def test_W006_the_largest_message_does_not_fit_a_packet(settings):
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (packet,) = cursor.fetchone()
    settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": packet // 4}
    assert found() == {}

    settings.CHATMEMORY = {"MAX_MESSAGE_BYTES": packet // 4 + 1}

    assert found()["chatmemory.W006"].startswith(f"DATABASES['default'] accepts statements of {packet} bytes")
