"""Threads of django-ai-assistant, in the site's own database, are imported with their users, names and times."""

import json
import sqlite3
from datetime import datetime
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError
from django.db import connection

from chatmemory_django.contrib.importing import tables
from chatmemory_django.models import Conversation
from tests.database.contrib.importing.record import DATA, TEXT
from tests.database.contrib.importing.sources import messages_of, moved, refused
from tests.database.test_operations import everything_is_whole

pytestmark = pytest.mark.django_db(transaction=True)

RECORDED = json.loads((DATA / "django_ai_assistant.json").read_text(encoding="utf-8"))
THREAD, MESSAGE = "django_ai_assistant_thread", "django_ai_assistant_message"
ALL = "Imported 3 conversations, added to 0; 0 already existed.\n"


@pytest.fixture(autouse=True)
def anna():
    """Create the tables, with what the package itself has written for anna."""
    user = get_user_model().objects.create_user("anna")
    with connection.cursor() as cursor:
        for statement in RECORDED["tables"][connection.vendor]:
            cursor.execute(statement)
        try:
            for row in RECORDED["threads"]:
                insert(THREAD, row | {"created_by_id": row["created_by_id"] and user.pk})
            for row in RECORDED["messages"]:
                insert(MESSAGE, row | {"message": json.dumps(row["message"])})
            yield user
        finally:
            cursor.execute(f"DROP TABLE {MESSAGE}")
            cursor.execute(f"DROP TABLE {THREAD}")


def insert(table: str, row: dict) -> None:
    values = {name: of_column(name, value) for name, value in row.items()}
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(['%s'] * len(values))})", [*values.values()]
        )


def of_column(name: str, value: object) -> object:
    """Return *value* as Django writes it there: only PostgreSQL's moments have a time zone."""
    is_naive = name.endswith("_at") and connection.vendor != "postgresql"
    return str(value).removesuffix("+00:00") if is_naive else value


def change(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_they_keep_users_names_assistants_and_times(anna):
    assert moved("django-ai-assistant", "default", "--prefix", "thread-") == ALL

    rows = [(each.memory_id, each.owner, each.title, each.assistant) for each in Conversation.objects.order_by("pk")]
    assert rows == [
        ("thread-1", anna, "Zeit 🕛", "clock_assistant"),
        ("thread-2", None, "", "other_assistant"),
        ("thread-3", anna, "", "other_assistant"),
    ]
    for conversation, thread in zip(Conversation.objects.order_by("pk"), RECORDED["threads"], strict=True):
        written = [each["created_at"] for each in RECORDED["messages"] if each["thread_id"] == thread["id"]]
        assert [each.created_at for each in conversation.history()] == list(map(datetime.fromisoformat, written))
        assert conversation.created_at == datetime.fromisoformat(thread["created_at"])
        assert conversation.updated_at == datetime.fromisoformat(max(thread["updated_at"], *written))
    everything_is_whole()


def test_their_messages_are_langchains():
    moved("django-ai-assistant", "default")

    question, asked, answered, answer = messages_of("1")
    assert question.single_text == TEXT
    assert asked.tool_execution_requests[0].name == answered.tool_name == "clock"
    assert (answered.text, answer.text) == ("noon", "Noon.")


def test_a_second_run_adds_what_is_new():
    moved("django-ai-assistant", "default")
    last = RECORDED["messages"][-1]
    insert(MESSAGE, last | {"id": 99, "thread_id": 2, "message": json.dumps(last["message"])})

    assert moved("django-ai-assistant", "default") == "Imported 0 conversations, added to 1; 2 already existed.\n"

    assert len(messages_of("2")) == 3


def test_another_owner_may_be_named_for_all_of_them():
    ben = get_user_model().objects.create_user("ben")

    moved("django-ai-assistant", "default", "--user", "ben")

    assert set(Conversation.objects.values_list("owner", flat=True)) == {ben.pk}


def test_keys_of_the_users_of_another_database_are_not_taken_for_those_of_this_one(tmp_path: Path):
    file = tmp_path / "old.db"
    with sqlite3.connect(file) as old:
        for statement in RECORDED["tables"]["sqlite"]:
            old.execute(statement)
    old.close()

    with pytest.raises(CommandError, match=r"^Its owners are users of its own database; pass 'default', "):
        moved("django-ai-assistant", file)
    get_user_model().objects.create_user("ben")
    assert moved("django-ai-assistant", file, "--user", "ben").startswith("Imported 0 conversations")


def test_a_thread_of_an_unknown_user_is_refused_by_name():
    change(f"UPDATE {THREAD} SET created_by_id = 999999 WHERE id = 1")

    assert refused("django-ai-assistant", "default") == ["'1': There is no user with the key 999999."]
    assert list(everything_is_whole()) == ["2", "3"]


def test_a_message_that_is_not_langchains_is_refused_by_name():
    insert(MESSAGE, RECORDED["messages"][0] | {"id": 99, "message": "{}"})
    assert refused("django-ai-assistant", "default") == ["'1': row 99 has no 'type'."]


@pytest.mark.parametrize("table", [THREAD, MESSAGE])
def test_a_missing_table_is_named(table: str):
    change(f"ALTER TABLE {table} RENAME TO other")
    try:
        with pytest.raises(CommandError, match=f"There is no table '{table}'"):
            moved("django-ai-assistant", "default")
    finally:
        change(f"ALTER TABLE other RENAME TO {table}")


def test_it_has_no_file(tmp_path: Path):
    with pytest.raises(CommandError, match="django-ai-assistant stores messages in a table; pass its database"):
        moved("django-ai-assistant", tmp_path / "x.json")


def test_the_users_and_titles_of_many_threads_are_read_at_once(monkeypatch):
    read = []
    fetch = tables._Rows._fetch
    monkeypatch.setattr(
        tables._Rows,
        "_fetch",
        lambda *given, table="", **rest: read.append(table) or fetch(*given, table=table, **rest),
    )
    for number in (4, 5, 6):
        user = get_user_model().objects.create_user(f"user-{number}")
        insert(THREAD, RECORDED["threads"][0] | {"id": number, "created_by_id": user.pk})
        message = json.dumps(RECORDED["messages"][0]["message"])
        insert(MESSAGE, RECORDED["messages"][0] | {"id": 90 + number, "thread_id": number, "message": message})

    read_users = []

    def note(execute, sql, *rest):
        read_users.extend([sql] if f"FROM {users}" in sql else [])
        return execute(sql, *rest)

    users = connection.ops.quote_name(get_user_model()._meta.db_table)
    with connection.execute_wrapper(note):
        moved("django-ai-assistant", "default")

    owners = set(Conversation.objects.values_list("owner__username", flat=True))
    assert owners == {"anna", None, "user-4", "user-5", "user-6"}
    assert read.count(THREAD) == len(read_users) == 1
