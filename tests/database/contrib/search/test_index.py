"""The search index of each database: how it is created, maintained and dropped, and what it requires."""

import random
import secrets
from datetime import timedelta
from io import StringIO

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, transaction

from chatmemory_django.contrib.search import checks, indexes, migrating, mysql, postgresql, sqlite
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message, finding
from chatmemory_django.models.fields import EncryptedTextField
from chatmemory_django.provider import get_chat_memory
from tests.database.test_search import found, say
from tests.leftovers import leftovers

pytestmark = pytest.mark.django_db(transaction=True)


def only_on(vendor):
    return pytest.mark.skipif(connection.vendor != vendor, reason=f"It is of {vendor}.")


@pytest.fixture
def migrated_back():
    """Restore the index after the test."""
    yield
    call_command("migrate", "chatmemory_search", verbosity=0)


@pytest.fixture
def secret():
    """Return a word of its own for each test."""
    return "".join(random.choices("bcdfghjklmnpqrstvwxz", k=24))


@pytest.fixture
def no_automatic_merges():
    """Let SQLite merge nothing by itself, which it does now and then."""
    query = "INSERT INTO chatmemory_search (chatmemory_search, rank) VALUES (%s, %s)"
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        cursor.executemany(query, [("automerge", 0), ("crisismerge", 1000)])
        yield
        cursor.executemany(query, [("automerge", 4), ("crisismerge", 16)])


def index_names():
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT name FROM sqlite_master WHERE name LIKE 'chatmemory_search%%'")
        elif connection.vendor == "postgresql":
            cursor.execute("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'chatmemory_search%%'")
        else:
            cursor.execute("SHOW INDEX FROM chatmemory_message WHERE Key_name LIKE 'chatmemory_search%%'")
        return [row[0] for row in cursor.fetchall()]


class TestMigration:
    def test_indexes_existing_messages_and_can_be_undone(self, migrated_back):
        say("one parcel")

        call_command("migrate", "chatmemory_search", "zero", verbosity=0)
        assert index_names() == []
        get_chat_memory("d").add(UserMessage("two parcels"))
        call_command("migrate", "chatmemory_search", verbosity=0)

        assert index_names() != []
        assert sorted(found("parcel")) == ["one parcel", "two parcels"]

    def test_can_run_again_after_it_failed(self, migrated_back):
        if connection.vendor != "postgresql":
            pytest.skip("The others build all or nothing.")
        call_command("migrate", "chatmemory_search", "zero", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("CREATE INDEX chatmemory_search_words ON chatmemory_message (text)")

        call_command("migrate", "chatmemory_search", verbosity=0)

        assert len(index_names()) == 5

    @only_on("postgresql")
    def test_supports_a_partitioned_table(self, migrated_back):
        call_command("migrate", "chatmemory_search", "zero", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE parted (LIKE chatmemory_message) PARTITION BY HASH (conversation_id)")
            cursor.execute("CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
        try:
            with connection.schema_editor(atomic=False) as editor:
                postgresql.create(editor, "parted")
                assert len(index_names()) == 5
                postgresql.drop(editor, "parted")
            assert index_names() == []
        finally:
            connection.cursor().execute("DROP TABLE parted")

    def test_shows_its_sql(self):
        out = StringIO()

        call_command("sqlmigrate", "chatmemory_search", "0001", stdout=out)

        assert "chatmemory_search" in out.getvalue()
        assert "chatmemory_message" in out.getvalue()

    def test_leaves_the_models_unchanged(self):
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)

    @only_on("postgresql")
    def test_names_who_can_create_the_extension(self):
        class Editor:
            def execute(self, sql, params):
                raise DatabaseError("permission denied")

        with pytest.raises(
            ImproperlyConfigured,
            match=r"\(permission denied\)\. .*the database owner or a superuser run CREATE EXTENSION pg_trgm",
        ):
            postgresql.create(Editor(), "chatmemory_message")


class TestIndex:
    def test_is_used(self):
        say(*["something else"] * 50, "parcel")

        sql = str(Message.objects.search("parcel").query)

        assert {"sqlite": "MATCH", "postgresql": "to_tsvector", "mysql": "AGAINST"}[connection.vendor] in sql

    @only_on("sqlite")
    def test_keeps_the_messages_keys_when_the_file_is_vacuumed(self, tmp_path):
        say("one parcel", "a letter", "two parcels")
        Message.objects.filter(sequence__lt=3).delete()

        connection.cursor().execute("VACUUM")

        assert found("parcel") == ["two parcels"]
        assert found("letter") == []

    @only_on("sqlite")
    def test_holds_no_text_and_no_trace_of_erased_messages(self):
        say("parcel")
        with connection.cursor() as cursor:
            cursor.execute("SELECT rowid >> 31, rowid & 2147483647, text FROM chatmemory_search")
            assert cursor.fetchall() == [(Conversation.objects.get().pk, 1, None)]

        Conversation.objects.all().delete()

        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM chatmemory_search WHERE chatmemory_search MATCH 'parcel'")
            assert cursor.fetchone() == (0,)

    @pytest.mark.parametrize("erase", [True, False], ids=["erased", "removed"])
    def test_pruning_removes_the_words_of_deleted_messages(self, secret, no_automatic_merges, erase):
        say(f"My secret is {secret}.", memory_id="private")
        say(*[f"{word} is here" for word in ("parcel", "letter")] * 20)
        if erase:
            Conversation.objects.filter(memory_id="private").delete()
        else:
            Message.objects.filter(conversation__memory_id="private").update(text="")
        assert bool(leftovers(secret)) == (connection.vendor != "postgresql")

        for _ in range(2):
            call_command("prune_chatmemory", search_index=True, verbosity=0)

        assert leftovers(secret) == []
        assert found("parcel") == ["parcel is here"] * 20
        say(f"Another {secret}", memory_id="new")
        assert found(secret) == [f"Another {secret}"]

    @only_on("sqlite")
    def test_every_run_of_prune_removes_them(self, secret, no_automatic_merges):
        say(secret)
        Conversation.objects.all().delete()
        say(*["parcel"] * 50)

        call_command("prune_chatmemory", idle=timedelta(days=9), dry_run=True, verbosity=0)
        assert leftovers(secret) != []
        call_command("prune_chatmemory", idle=timedelta(days=9), verbosity=0)
        assert leftovers(secret) == []

    @only_on("sqlite")
    def test_is_merged_in_short_steps(self, secret, monkeypatch, no_automatic_merges):
        monkeypatch.setattr(sqlite, "PAGES", 1)
        say(secret)
        say(*[f"{number} {secrets.token_hex(500)}" for number in range(40)], memory_id="d")
        Conversation.objects.filter(memory_id="c").delete()

        steps = 0
        for _ in sqlite.merge(connection):
            steps += 1
            say(f"written in between {steps}", memory_id=f"new-{steps}")

        assert steps > 3
        assert leftovers(secret) == []
        list(sqlite.merge(connection))  # of what was written in between
        assert list(sqlite.merge(connection)) == []
        assert sorted(found("between")) == sorted(f"written in between {step + 1}" for step in range(steps))

    @only_on("mysql")
    def test_is_rebuilt_only_on_request(self, secret):
        say(secret)
        Conversation.objects.all().delete()

        call_command("prune_chatmemory", idle=timedelta(days=9), verbosity=0)

        assert leftovers(secret) != []

    @only_on("mysql")
    def test_a_rebuild_that_fails_is_an_error(self):
        with pytest.raises(DatabaseError, match="doesn't exist"):
            mysql.rebuild(connection, "missing")

    @only_on("sqlite")
    def test_is_rebuilt_when_a_migration_has_rebuilt_the_table(self):
        say("parcel")
        with connection.schema_editor() as editor:
            editor._remake_table(Message)
        assert sqlite.lacks_triggers(connection)
        Message.objects.update(text="letter")

        call_command("migrate", verbosity=0)

        assert not sqlite.lacks_triggers(connection)
        assert found("letter") == ["letter"]
        assert found("parcel") == []

    @only_on("sqlite")
    def test_is_left_alone_otherwise(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            migrating.mend(using="default")

    @only_on("sqlite")
    def test_is_rolled_back_with_its_transaction(self):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            say("parcel")
            assert found("parcel") == ["parcel"]
            raise ZeroDivisionError

        assert found("parcel") == []

    @only_on("mysql")
    def test_has_committed_messages(self):
        with transaction.atomic():
            say("parcel")
            assert found("parcel") == []

        assert found("parcel") == ["parcel"]

    @only_on("mysql")
    @pytest.mark.parametrize(
        ("terms", "words"),
        [
            (["foo_bar.baz()"], ["foo_bar", "baz"]),
            (["+parcel*", "~(kiel)"], ["parcel", "kiel"]),
            (["the", "to", "I", "x" * 85], []),
            (["京都タワー", "ไทย", "😀"], []),
            (["서울에서", "Straße", "مرحبا"], ["서울에서", "straße", "مرحبا"]),
            (["PARCEL", "parcel"], ["parcel"]),
        ],
    )
    def test_is_used_for_whole_words_only(self, terms, words):
        assert mysql.words_of(terms) == words

    @only_on("postgresql")
    def test_common_words_are_searched_among_the_newest(self, monkeypatch):
        monkeypatch.setattr(finding, "RANKED", 5)
        say(*["an old parcel"] * 5, *["a parcel"] * 20)

        assert found("parcel")[:5] == ["a parcel"] * 5
        assert len(found("parcel")) <= 10

    @only_on("postgresql")
    def test_parts_of_words_outside_the_newest_are_found_by_trigrams(self, monkeypatch):
        monkeypatch.setattr(postgresql, "RECENT", 2)
        say("Postpaket", "a", "b", "c")

        assert found("paket") == ["Postpaket"]
        assert found("pa") == []  # too short to have trigrams

    @only_on("postgresql")
    def test_parts_of_words_are_searched_only_if_no_word_begins_with_them(self):
        say("Postpaket", "Paketnummer")

        assert found("paket") == ["Paketnummer"]

    @only_on("postgresql")
    @pytest.mark.parametrize("unit", ["{:x} ", "{:x}-", "{}/", "𠀀"])
    def test_text_that_fits_no_tsvector_is_stored_anyway(self, unit):
        text = "".join(unit.format(number) for number in range(400_000))
        if unit == "𠀀":
            text = "".join(map(chr, range(0x20000, 0x2FFFF)))
        get_chat_memory("c").add(UserMessage(text[: 4_000_000 // len(text[-1].encode())]))

        assert Message.objects.count() == 1


class TestChecks:
    def test_a_supported_database_passes(self):
        ids = {"chatmemory.E042", "chatmemory.W041", "chatmemory.W042", "chatmemory.E055"}
        assert not ids & {each.id for each in run_checks(databases=["default"])}
        assert checks.check_index(databases=None) == []

    def test_W042_an_engine_whose_index_was_not_tried(self, monkeypatch):
        monkeypatch.setattr(connections["default"], "display_name", "CockroachDB")

        (warning,) = checks.check_index(databases=["default"])

        assert warning.id == "chatmemory.W042"
        assert "CockroachDB" in warning.msg
        assert indexes.index_of(connections["default"]) is None
        say("Where is my parcel?")
        assert found("parcel") == ["Where is my parcel?"]
        assert found("arcel") == ["Where is my parcel?"]

    @only_on("sqlite")
    def test_E042_sqlite_without_trigrams(self):
        def refuse(execute, sql, params, many, context):
            raise DatabaseError("no such module: fts5")

        with connection.execute_wrapper(refuse):
            (error,) = checks.check_index(databases=["default"])

        assert error.id == "chatmemory.E042"
        assert "no such module: fts5" in error.msg

    def test_E055_texts_that_are_encrypted(self, monkeypatch):
        monkeypatch.setattr(EncryptedTextField, "is_plain", False)

        (error,) = checks.check_texts()

        assert error.id == "chatmemory.E055"

    @only_on("mysql")
    def test_W041_a_server_that_skips_short_words(self, monkeypatch):
        monkeypatch.setattr(mysql, "SHORTEST", 2)

        (warning,) = checks.check_index(databases=["default"])

        assert warning.id == "chatmemory.W041"
        assert "fewer than 3 characters" in warning.msg
