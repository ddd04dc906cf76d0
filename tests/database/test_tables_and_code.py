"""Tables that another version made, or that no migration has made yet: what the checks and the commands print."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.apps import apps
from django.core.checks import Error, Tags, Warning, run_checks  # noqa: A004  # Django's name for it
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, connections, models
from django.db.migrations.recorder import MigrationRecorder

from chatmemory_django.checks import check_tables
from chatmemory_django.models import Conversation, Message

pytestmark = pytest.mark.django_db(transaction=True)

OURS = [
    model for model in apps.get_models() if model.__module__.startswith("chatmemory_django.") and model._meta.managed
]
TABLES = [model for model in OURS if not model._meta.proxy]
COMMANDS = [
    ["check_chatmemory"],
    ["export_chatmemory"],
    ["recount_chatmemory"],
    ["erase_chatmemory", "--memory-id", "c"],
    ["prune_chatmemory", "--idle", "9"],
]


def execute(sql: str, *names: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql.format(*map(connection.ops.quote_name, names)))


@contextmanager
def without(model: type[models.Model], column: str) -> Iterator[str]:
    """Give a column of the table another name, as if it were one of another version."""
    table, rename = model._meta.db_table, "ALTER TABLE {} RENAME COLUMN {} TO {}"
    execute(rename, table, column, "of_another_version")
    try:
        yield f"{table}.{column}"
    finally:
        execute(rename, table, "of_another_version", column)


@contextmanager
def without_tables(*tables: str) -> Iterator[None]:
    """Give tables another name, as if they had not been made yet."""
    for table in tables:
        execute("ALTER TABLE {} RENAME TO {}", table, f"{table}_away")
    try:
        yield
    finally:
        for table in tables:
            execute("ALTER TABLE {} RENAME TO {}", f"{table}_away", table)


@contextmanager
def not_applied(label: str) -> Iterator[None]:
    """Let a migration of an app be one that has not been applied."""
    recorded = MigrationRecorder.Migration.objects.using(connection.alias).filter(app=label)
    rows = list(recorded)
    recorded.delete()
    try:
        yield
    finally:
        MigrationRecorder.Migration.objects.bulk_create(rows)


@pytest.fixture
def another_database(transactional_db, monkeypatch, tmp_path) -> Iterator[None]:
    """Give the site another database, with nothing of this package in it."""
    other = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "other.sqlite3")}
    settings = connections.configure_settings({"default": {}, "other": other})
    monkeypatch.setitem(connections.settings, "other", settings["other"])
    connections["other"].connect()  # which Django allows in tests, of databases that it has not made
    yield
    connections["other"].close()
    del connections["other"]


def found() -> list:
    return check_tables(databases=["default"])


def test_the_tables_of_the_tests_belong_to_the_code(django_assert_max_num_queries):
    with django_assert_max_num_queries(len(TABLES) + 2):
        assert found() == []


def test_nothing_is_asked_where_no_database_is_named(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert check_tables() == check_tables(databases=None) == []


def test_E015_a_column_that_another_version_did_not_make_is_named_in_each_table():
    for model in TABLES:
        with without(model, model._meta.local_concrete_fields[-1].column) as lacking:
            [error] = found()

        assert isinstance(error, Error)
        assert (error.id, error.msg) == (
            "chatmemory.E015",
            f"The tables in DATABASES['default'] and the code do not belong together: they lack {lacking}, which no "
            "migration makes.",
        )
        assert "page on upgrading" in error.hint


def test_W008_a_migration_that_has_not_been_applied_is_named_as_the_cure():
    with without(Message, "text") as lacking, not_applied("chatmemory"):
        [warning] = found()

    assert isinstance(warning, Warning)  # an error would prevent the migration
    assert (warning.id, warning.hint) == ("chatmemory.W008", "Run manage.py migrate --database default.")
    assert f"they lack {lacking}, which a migration makes." in warning.msg


def test_a_migration_of_another_app_does_not_help():
    with without(Message, "text"), not_applied("admin"):
        assert [each.id for each in found()] == ["chatmemory.E015"]


def test_many_are_counted():
    names = [model._meta.db_table for model in TABLES if model not in {Conversation, Message}]

    with without_tables(*names):
        [error] = found()

    assert f" and {len(names) - 3} more, which" in error.msg


def test_a_database_before_its_first_migration_passes():
    with without_tables(*(model._meta.db_table for model in TABLES)), not_applied("chatmemory"):
        assert found() == []


def test_tables_that_a_router_has_elsewhere_are_not_asked_for(settings):
    settings.DATABASE_ROUTERS = [f"{__name__}.Elsewhere"]

    with without(Message, "text"), without_tables("chatmemory_chat_run"):
        assert found() == []


class Elsewhere:
    def allow_migrate(self, db, app_label, **hints):
        return not app_label.startswith("chatmemory")


def test_it_runs_with_the_checks_of_databases_alone():
    assert check_tables.tags == (Tags.database,)

    with without(Message, "text"):
        assert found()[0] in run_checks(tags=[Tags.database], databases=["default"])


def test_the_commands_report_it_in_one_line():
    Conversation.objects.create(memory_id="c")
    expected = r"they lack chatmemory_conversation\.updated_at, .*page on upgrading"

    with without(Conversation, "updated_at"):
        for command in COMMANDS:
            with pytest.raises(CommandError, match=expected) as raised:
                call_command(*command)
            assert "\n" not in str(raised.value)


def test_the_check_of_conversations_reports_it_where_there_are_none():
    with without(Message, "text"), pytest.raises(CommandError, match=r"they lack chatmemory_message\.text"):
        call_command("check_chatmemory")


def test_a_worker_does_not_begin():
    missing = r"they lack chatmemory_message\.text"

    with without(Message, "text"), pytest.raises(CommandError, match=missing):
        call_command("run_chatmemory", once=True, skip_checks=False)


def test_a_command_before_the_first_migration_names_the_cure():
    with (
        without_tables(*(model._meta.db_table for model in TABLES)),
        not_applied("chatmemory"),
        pytest.raises(CommandError, match=r"Run manage\.py migrate --database default\."),
    ):
        call_command("check_chatmemory")


@pytest.mark.usefixtures("another_database")
def test_another_error_of_the_database_stays_what_it_is(monkeypatch):
    def fail(*args, **options):
        execute("SELECT * FROM nowhere")

    monkeypatch.setattr("chatmemory_django.management.commands.check_chatmemory.check", fail)

    with pytest.raises(DatabaseError, match="nowhere"):
        call_command("check_chatmemory")
