"""The app ``encryption`` in the database: what is stored, what is read, and what is refused. See docs/encryption.md."""

import base64
import io
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.templatetags.admin_list import result_headers
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.core.exceptions import FieldError, ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import OperationalError, connection, models, transaction
from django.utils.html import escape
from django.utils.translation import gettext_lazy
from django.views.debug import ExceptionReporter
from rest_framework.test import APIClient

from chatmemory_django.chat.answers.recall import of_question, tools
from chatmemory_django.contrib.encryption import ciphers, encrypting, renewing
from chatmemory_django.contrib.encryption.ciphers import for_owner, installed
from chatmemory_django.contrib.encryption.encrypting import encrypt
from chatmemory_django.contrib.encryption.kept import keys_in_use
from chatmemory_django.contrib.encryption.keys import Keys
from chatmemory_django.contrib.encryption.models import OwnerKey
from chatmemory_django.contrib.encryption.values import EncryptionError, MissingKeyError
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address, EncryptedError
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message, messages
from chatmemory_django.models.columns import to_message
from chatmemory_django.operations import entitle, erase, export_lines, fork, import_lines
from chatmemory_django.operations.one_by_one import in_lock
from chatmemory_django.operations.recall import Recall
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.encryption.dumps import dump, restore
from tests.database.interleaving import in_another_connection, set_isolation
from tests.leftovers import leftovers

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "Zwiebelkuchen am Donnerstag"
QUESTION, ANSWER = UserMessage(SECRET), AiMessage(SECRET[::-1])

ENCRYPTED = {
    "chatmemory_notes.Note": {"text"},
    "chatmemory.Message": {"text", "payload", "verbatim", "rating_reason"},
    "chatmemory.Conversation": {"title"},
    "chatmemory_chat.ToolApproval": {"asks", "reason"},
    "chatmemory_chat.Run": {"asked"},
    "chatmemory_encryption.Origin": {"text"},
    "chatmemory_records.Record": {"text"},
}
ENCRYPTED_BY_THE_STREAMS = {"chatmemory_chat.AnswerChunk": {"data"}}
QUERIED = {
    "chatmemory.Conversation": {"metadata", "summary_failure"},
    "chatmemory.Message": {"metadata"},
    "chatmemory_chat.CallSum": {"labels"},
    "chatmemory_chat.ModelCall": {"labels"},
    "chatmemory_chat.Run": {"labels"},
}
"""What is not encrypted, see docs/encryption.md: what is looked up; a failure is numbers only."""


def key(name: str) -> str:
    return f"{name}:{base64.b64encode(name.encode().ljust(32)).decode()}"


@pytest.fixture(params=["a key of the site", "keys of owners"])
def site(request, settings) -> Callable[..., None]:
    """Set the keys of the site, the first of which encrypts."""
    has_owner_keys = request.param == "keys of owners"

    def keys(*names: str) -> None:
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 10}},
            "ENCRYPTION": {"KEYS": [key(name) for name in names], "OWNER_KEYS": has_owner_keys},
            "REST": {"THROTTLE_RATES": {}},
        }

    keys.has_owner_keys = has_owner_keys
    keys("old")
    return keys


@pytest.fixture
def with_owner_keys(settings) -> None:
    settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [key("old")], "OWNER_KEYS": True}}


@pytest.fixture
def ben() -> Any:
    return get_user_model().objects.create_user("ben")


def begin(memory_id: str, owner: Any = None, *added: Any) -> Conversation:
    """Store a conversation with *added*, by default a question and an answer, and a title."""
    get_chat_memory(memory_id, owner=owner).add(*(added or (QUESTION, ANSWER)))
    conversation = Conversation.objects.get(memory_id=memory_id)
    conversation.title = SECRET
    conversation.save(update_fields=["title"])
    return conversation


def read(memory_id: str) -> list[Any]:
    return get_chat_memory(memory_id).messages()


def sql(statement: str, *values: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def another_process() -> Iterator[None]:
    """Do what is in this block as another process would, which remembers nothing of this one."""
    own = row_codec.installed
    ciphers.install()
    try:
        yield
    finally:
        row_codec.installed = own


def stored(column: str = "text", table: str = "chatmemory_message") -> list[str]:
    order = "conversation_id, sequence" if table == "chatmemory_message" else "id"
    return [value for (value,) in sql(f"SELECT {column} FROM {table} ORDER BY {order}")]


class TestStored:
    def test_each_column_for_text_is_encrypted_or_named_as_queried(self):
        found: dict[str, set[str]] = {}
        for model in apps.get_models():
            if model._meta.app_label.startswith("chatmemory") and model is not OwnerKey and not model._meta.proxy:
                for field in model._meta.concrete_fields:
                    if isinstance(field, models.TextField | models.JSONField | models.BinaryField):
                        found.setdefault(model._meta.label, set()).add(field.name)

        for label, names in found.items():
            is_known = (each.get(label, set()) for each in (ENCRYPTED, ENCRYPTED_BY_THE_STREAMS, QUERIED))
            assert names <= set().union(*is_known), label
        assert all(names <= found[label] for label, names in ENCRYPTED.items())

    def test_texts_and_titles_are_values_of_the_key(self, site, ann):
        begin("a", ann)

        prefix = "enc2:@" if site.has_owner_keys else "enc2:old:"
        assert all(value.startswith(prefix) for value in stored() + stored("title", "chatmemory_conversation"))
        assert leftovers(SECRET) == []
        assert read("a") == [QUESTION, ANSWER]
        assert Conversation.objects.get().title == SECRET

    def test_a_title_may_be_lazy(self, site, ann):
        Conversation.objects.create(memory_id="a", owner=ann, title=gettext_lazy(SECRET))

        assert leftovers(SECRET) == []
        assert Conversation.objects.get().title == SECRET

    def test_equal_texts_are_stored_differently(self, site):
        begin("a", None, QUESTION, QUESTION)

        assert len(set(stored())) == 2

    def test_an_empty_text_stays_empty_and_nothing_stays_null(self, site, ann):
        get_chat_memory("a", owner=ann).add(UserMessage(SECRET))

        assert stored("title", "chatmemory_conversation") == [""]
        assert stored("verbatim") == [None]
        assert Message.objects.filter(verbatim=None, verbatim__isnull=True).exclude(text="").count() == 1

    @pytest.mark.parametrize(
        "text", ["enc1:", "enc1:old:", "enc1:old:c2hvcnQ=", f"enc1:lost:{'A' * 60}", f"enc1:old:{'A' * 60}"]
    )
    def test_a_message_may_look_like_a_value(self, site, ann, text):
        begin("a", ann, UserMessage(text))

        assert read("a") == [UserMessage(text)]
        assert [row.text for row in Message.objects.all()] == [text]

    @pytest.mark.parametrize("text", ["enc1:", "enc1:lost:", "enc1:lost:c2hvcnQ=", "enc1:lost:not Base64"])
    def test_a_plain_text_is_read_as_it_is(self, site, ann, text):
        begin("a", ann)
        for plain in (SECRET, text):
            sql("UPDATE chatmemory_message SET text = %s", plain)
            assert {row.text for row in Message.objects.all()} == {plain}

    def test_owners_with_the_same_key_in_schemas_of_tenants_are_apart(self, with_owner_keys, monkeypatch):
        """Their conversations may have the same keys, too. The engines keep the schema in the connection."""

        def at(schema: str) -> None:
            monkeypatch.setattr(connection._connections["default"], "schema_name", schema, raising=False)

        keys = installed().owner_keys
        at("acme")
        own = keys.of("7", "default", living=1)
        assert keys.of("7", "default", living=1) is own
        sql("DELETE FROM chatmemory_encryption_ownerkey")  # in the other schema, there is none yet
        at("globex")

        assert keys.of("7", "default", living=1).id != own.id
        assert keys.get(own.id, "default") is None
        at("acme")
        assert keys.of("7", "default", living=1) is own

    def test_a_fork_for_another_owner_is_encrypted_for_them(self, with_owner_keys, ann, ben):
        begin("a", ann)
        fork(Conversation.objects.get(), "b", owner=ben)

        erase(Conversation.objects.filter(owner=ann))

        assert read("b") == [QUESTION, ANSWER]
        assert Conversation.objects.get().title == SECRET

    def test_a_conversation_given_away_is_encrypted_for_its_new_owner_at_once(self, with_owner_keys, ann, ben):
        begin("a", ann)
        eve = get_user_model().objects.create_user("eve")
        given = fork(Conversation.objects.get(), "b")
        given.owner = ben
        given.save(update_fields=["owner"])

        fork(given, "c", owner=eve)
        ann.delete()

        assert read("b") == read("c") == [QUESTION, ANSWER]
        assert [each.title for each in Conversation.objects.all()] == [SECRET, SECRET]

    def test_an_update_of_the_owner_makes_nobody_read_what_another_owner_wrote(self, with_owner_keys, ann, ben):
        begin("a", ann)
        Conversation.objects.update(owner=ben)

        for way in (
            lambda: read("a"),
            lambda: list(Message.objects.all()),
            lambda: encrypt(Conversation.objects.all()),
        ):
            with pytest.raises(EncryptionError, match="another owner's"):
                way()
        Conversation.objects.update(owner=ann)
        assert read("a") == [QUESTION, ANSWER]

    def test_a_title_follows_its_conversation_to_another_memory_id(self, site, ann):
        begin("a", ann)
        for name, fields in (("b%_", ["memory_id"]), ("c\x1f:", None)):
            renamed = Conversation.objects.defer("title").get()
            renamed.memory_id = name
            renamed.save(update_fields=fields)
            assert renamed.title == SECRET

        assert Conversation.objects.get().title == SECRET
        assert encrypt(Conversation.objects.all()) == 0

    def test_json_lines_are_plain_and_encrypted_when_they_are_imported(self, site, ann, ben):
        begin("a", ann)
        lines = list(export_lines(Conversation.objects.all()))
        erase(Conversation.objects.all())

        import_lines(lines, owner=ben)

        assert sum(SECRET in line for line in lines) == 2
        assert leftovers(SECRET) == []
        assert read("a") == [QUESTION, ANSWER]


class TestRefused:
    def test_a_value_moved_to_another_column(self, site, ann):
        begin("a", ann)
        sql("UPDATE chatmemory_conversation SET title = (SELECT text FROM chatmemory_message WHERE sequence = 1)")

        with pytest.raises(EncryptionError, match=r"chatmemory\.conversation\.title is not what was encrypted"):
            Conversation.objects.get()

    def test_a_value_moved_to_a_message_of_another_owner(self, with_owner_keys, ann, ben):
        begin("a", ann)
        begin("b", ben)
        (theirs,) = sql(
            "SELECT text FROM chatmemory_message m JOIN chatmemory_conversation c ON c.id = m.conversation_id "
            "WHERE c.memory_id = 'a' AND m.sequence = 1"
        )
        own = Conversation.objects.get(memory_id="b").pk
        sql("UPDATE chatmemory_message SET text = %s WHERE conversation_id = %s AND sequence = 2", *theirs, own)

        with pytest.raises(EncryptionError, match="which is another owner's"):
            get_chat_memory("b", owner=ben).messages()
        with pytest.raises(EncryptionError, match="which is another owner's"):
            DjangoChatMemoryStore(owner=ben).read_history("b")

    def test_a_changed_value_and_half_a_conversation_is_never_read(self, site, ann):
        begin("a", ann)
        sql("UPDATE chatmemory_message SET text = SUBSTR(text, 1, LENGTH(text) - 8) WHERE sequence = 2")

        with pytest.raises(EncryptionError, match="changed, truncated or moved"):
            read("a")
        with pytest.raises(EncryptionError):
            list(export_lines(Conversation.objects.all()))

    def test_a_missing_key_is_named_by_each_way_to_read(self, site, ann):
        begin("a", ann)
        site("new")
        ways: list[Callable[[], object]] = [
            lambda: read("a"),
            lambda: DjangoChatMemoryStore().read_history("a"),
            lambda: list(Message.objects.all()),
            lambda: Conversation.objects.get(),
            lambda: list(export_lines(Conversation.objects.all())),
            lambda: fork(Conversation.objects.defer("title").get(), "b"),
        ]

        for way in ways:
            with pytest.raises(MissingKeyError, match="'old'"):
                way()
        for command in ("export_chatmemory", "encrypt_chatmemory"):
            with pytest.raises(CommandError, match="'old'"):
                call_command(command, stdout=io.StringIO())
        out = io.StringIO()
        with pytest.raises(CommandError, match="1 findings"):
            call_command("check_chatmemory", stdout=out)
        assert "'a' content: A value of" in out.getvalue()
        assert "'old'" in out.getvalue()

    @pytest.mark.parametrize("way", ["the command", "QuerySet.delete", "User.delete", "the admin", "prune"])
    def test_what_nobody_can_read_can_be_erased(self, site, ann, admin_client, way):
        ways: dict[str, Callable[[], object]] = {
            "the command": lambda: call_command("erase_chatmemory", "--memory-id", "a", stdout=io.StringIO()),
            "QuerySet.delete": lambda: Conversation.objects.all().delete(),
            "User.delete": ann.delete,
            "the admin": lambda: admin_client.post(f"/admin/auth/user/{ann.pk}/delete/", {"post": "yes"}),
            "prune": lambda: call_command("prune_chatmemory", "--idle", "1", stdout=io.StringIO()),
        }
        begin("a", ann)
        Conversation.objects.update(updated_at="2020-01-01T00:00:00Z")
        site("new")

        ways[way]()

        assert not Message.objects.exists()
        assert not Conversation.objects.defer("title").exists()

    def test_writing_where_the_owner_is_unknown(self, with_owner_keys, ann):
        with pytest.raises(EncryptionError, match="can only be written where its owner is known"):
            installed().at(Address("default")).encode(SECRET, "site.note.text", (7,))
        with for_owner(ann.pk):
            installed().at(Address("default")).encode(SECRET, "site.note.text", (7,))

    @pytest.mark.parametrize("lookup", ["text", "text__contains", "text__in", "payload__startswith", "verbatim__gt"])
    def test_a_lookup_of_what_the_database_cannot_know(self, site, lookup):
        with pytest.raises(FieldError, match=r"chatmemory\.message\.\w+ is encrypted"):
            list(Message.objects.filter(**{lookup: SECRET}))


class TestMany:
    """A read decrypts all of a column at once, if all of it is as it is written now."""

    def test_plain_texts_values_of_two_keys_payloads_and_empty_texts_are_read_together(self, site, ann):
        call = AiMessage("", tool_execution_requests=(ToolExecutionRequest(id="1", name="weather", arguments="{}"),))
        result = ToolExecutionResultMessage("1", "weather", "Rain.")
        messages = [QUESTION, call, result, ANSWER, UserMessage("In the clear."), ANSWER]
        begin("a", ann, *messages[:3])
        assert read("a") == messages[:3]
        site("new", "old")
        get_chat_memory("a").add(*messages[3:])
        sql("UPDATE chatmemory_message SET text = 'In the clear.' WHERE sequence = 5")

        assert read("a") == messages
        assert [to_message(*row[1:4]) for row in get_chat_memory("a").store.read_history("a")] == messages[::-1]

    def test_nothing_is_called_for_each_of_them(self, site, ann):
        def calls() -> int:
            """How many functions of this app are called in a read."""
            names: list[str] = []
            sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_filename) if event == "call" else None)
            try:
                memory.messages()
            finally:
                sys.setprofile(None)
            return sum("/contrib/encryption/" in name for name in names)

        begin("a", ann)
        memory = get_chat_memory("a")
        read("a")
        of_two = calls()
        memory.add(*(QUESTION, ANSWER) * 4)

        assert 0 < of_two == calls()


class TestRotation:
    def test_the_first_key_writes_and_all_keys_read(self, site, ann):
        begin("a", ann)
        site("new", "old")

        get_chat_memory("a").add(UserMessage("Later."))

        assert read("a") == [QUESTION, ANSWER, UserMessage("Later.")]

    def test_after_the_command_an_old_key_can_be_taken_out(self, site, ann):
        for number in range(3):
            begin(f"a{number}", ann, *(QUESTION, ANSWER) * 3)
        begin("nobody's")
        site("new", "old")
        out = io.StringIO()

        call_command("encrypt_chatmemory", stdout=out)
        site("new")

        assert read("a2") == [QUESTION, ANSWER] * 3
        assert read("nobody's") == [QUESTION, ANSWER]
        # The keys of owners are encrypted with the new one, so what they have encrypted stays as it is.
        assert ("Encrypted 3 rows." if site.has_owner_keys else "Encrypted 24 rows.") in out.getvalue()
        assert ("Encrypted 1 keys of owners." in out.getvalue()) is site.has_owner_keys

    def test_a_dry_run_counts_and_changes_nothing(self, site):
        begin("a")
        site("new", "old")
        before = stored()
        out = io.StringIO()

        call_command("encrypt_chatmemory", "--dry-run", stdout=out)

        assert out.getvalue() == "3 rows to encrypt.\n"
        assert stored() == before

    def test_a_dry_run_counts_the_keys_of_owners_and_creates_none(self, with_owner_keys, ann, ben, settings):
        begin("a", None)
        settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [key("old")]}}
        Conversation.objects.update(owner=ben)
        Conversation.objects.create(memory_id="b", owner=ann)
        settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [key("new"), key("old")], "OWNER_KEYS": True}}
        out = io.StringIO()

        call_command("encrypt_chatmemory", "--dry-run", stdout=out)

        assert out.getvalue() == "3 rows to encrypt.\n"
        assert sql("SELECT owner FROM chatmemory_encryption_ownerkey") == []

    def test_large_rows_are_encrypted_a_few_at_a_time(self, site, monkeypatch):
        begin("a", None, *(UserMessage(f"{number} {'x' * 1_000}") for number in range(9)))
        locked = []

        def noting(*args: Any) -> Any:
            found = in_lock(*args)
            locked.append(found[1] if isinstance(found, tuple) else "files")
            return found

        monkeypatch.setattr(renewing, "PAGE_CHARACTERS", 3_000)
        monkeypatch.setattr(encrypting, "in_lock", noting)
        site("new", "old")

        assert encrypt(Conversation.objects.all()) == 10

        assert locked == [3, 2, 2, 2, 1, 0, "files"]  # the first ones with the title
        assert {value.split(":")[1] for value in stored()} == {"new"}

    def test_what_was_plain_is_encrypted(self, site, ann):
        begin("a", ann)
        sql("UPDATE chatmemory_message SET text = %s, payload = %s", SECRET, '{"a": 1}')
        sql("UPDATE chatmemory_conversation SET title = %s", SECRET)

        assert encrypt(Conversation.objects.all()) == 3

        assert leftovers(SECRET) == []
        assert {row.text for row in Message.objects.all()} == {SECRET}
        assert encrypt(Conversation.objects.all()) == 0

    def test_a_value_that_nobody_can_read_does_not_keep_others_plain(self, site):
        begin("a")
        begin("b")
        sql("UPDATE chatmemory_conversation SET title = %s", SECRET)
        own = Conversation.objects.get(memory_id="a").pk
        sql("UPDATE chatmemory_message SET text = %s WHERE conversation_id = %s", f"enc1:lost:{'A' * 60}", own)

        with pytest.raises(CommandError, match=r"1 of them cannot .* 'a': .*'lost'"):
            call_command("encrypt_chatmemory", stdout=io.StringIO())

        (title,) = sql("SELECT title FROM chatmemory_conversation WHERE memory_id = 'b'")[0]
        assert title.startswith("enc2:")

    def test_the_keys_in_use_are_counted(self, site):
        begin("a")
        site("new", "old")
        get_chat_memory("a").add(UserMessage("Later."))
        sql("UPDATE chatmemory_conversation SET title = %s", SECRET)

        assert keys_in_use(Conversation.objects.all(), installed().owner_keys) == {"old": 2, "new": 1, "": 1}

    def test_the_check_prints_how_many_values_need_which_key(self, site):
        begin("a")
        site("new", "old")
        get_chat_memory("a").add(UserMessage("Later."))
        out = io.StringIO()

        call_command("check_chatmemory", stdout=out)

        assert out.getvalue().splitlines() == [
            "Values encrypted with the key 'new': 1.",
            "Values encrypted with the key 'old': 3.",
            "No problems found.",
        ]

    def test_the_keys_of_owners_need_those_of_the_site(self, with_owner_keys, ann):
        begin("a", ann)

        assert keys_in_use(Conversation.objects.all(), installed().owner_keys) == {"@": 3, "old": 1}

    def test_without_the_app_the_command_fails(self, settings):
        settings.INSTALLED_APPS = [
            each for each in settings.INSTALLED_APPS if each != "chatmemory_django.contrib.encryption"
        ]

        with pytest.raises(CommandError, match=r"'chatmemory_django\.contrib\.encryption' is not in INSTALLED_APPS"):
            call_command("encrypt_chatmemory")


class TestOwners:
    def test_each_has_a_key_of_their_own_and_nobodys_conversations_have_the_sites(self, with_owner_keys, ann, ben):
        for number, owner in enumerate([ann, ann, ben, None]):
            begin(str(number), owner, QUESTION)

        first, second, third, fourth = (value.split(":")[1] for value in stored())

        assert first == second != third
        assert fourth == "old"
        assert dict(sql("SELECT owner, id FROM chatmemory_encryption_ownerkey")) == {
            str(ann.pk): first,
            str(ben.pk): third,
        }

    def test_a_dump_that_is_restored_after_the_erasure_is_noise(self, with_owner_keys, ann, ben):
        begin("a", ann)
        begin("b", ben)
        dumped = pickle.dumps([dump(table) for table in ("chatmemory_conversation", "chatmemory_message")])

        erase(Conversation.objects.filter(owner=ann))
        for restoring in pickle.loads(dumped):
            restore(*restoring)

        assert len(sql("SELECT 1 FROM chatmemory_message")) == 4
        for way in (lambda: read("a"), lambda: list(Message.objects.filter(conversation__memory_id="a"))):
            with pytest.raises(MissingKeyError, match="'@"):
                way()
        assert leftovers(SECRET) == []
        assert read("b") == [QUESTION, ANSWER]

    @pytest.mark.parametrize("way", ["erase", "the command", "QuerySet.delete", "Model.delete", "User.delete", "prune"])
    def test_the_key_goes_with_the_last_conversation_whichever_way_it_is_deleted(self, with_owner_keys, ann, way):
        ways: dict[str, Callable[[], object]] = {
            "erase": lambda: erase(Conversation.objects.all()),
            "the command": lambda: call_command("erase_chatmemory", "--user", "ann", stdout=io.StringIO()),
            "QuerySet.delete": lambda: Conversation.objects.all().delete(),
            "Model.delete": lambda: [each.delete() for each in Conversation.objects.all()],
            "User.delete": ann.delete,
            "prune": lambda: call_command("prune_chatmemory", "--idle", "1", stdout=io.StringIO()),
        }
        begin("a", ann)
        Conversation.objects.update(updated_at="2020-01-01T00:00:00Z")

        ways[way]()

        assert not Conversation.objects.exists()
        assert sql("SELECT * FROM chatmemory_encryption_ownerkey") == []

    def test_the_key_stays_while_there_is_another_conversation(self, with_owner_keys, ann):
        begin("a", ann)
        begin("b", ann)

        Conversation.objects.get(memory_id="a").delete()

        assert read("b") == [QUESTION, ANSWER]

    def test_an_erasure_that_is_rolled_back_leaves_the_key(self, with_owner_keys, ann):
        begin("a", ann)
        with transaction.atomic():
            erase(Conversation.objects.all())
            transaction.set_rollback(True)

        ciphers.install()  # as another process
        assert read("a") == [QUESTION, ANSWER]

    def test_who_begins_again_has_another_key(self, with_owner_keys, ann):
        begin("a", ann, QUESTION)
        (before,) = stored()
        erase(Conversation.objects.all())

        begin("a", ann, QUESTION)

        (after,) = stored()
        assert before.split(":")[1] != after.split(":")[1]
        assert read("a") == [QUESTION]

    @pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one isolation level")
    @pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
    def test_the_key_is_erased_by_what_is_there_now(self, with_owner_keys, ann, isolation, monkeypatch):
        begin("a", ann)
        if connection.vendor == "mysql":
            monkeypatch.setattr(connection, "isolation_level", isolation.lower())
        set_isolation(isolation)
        try:
            with suppress(OperationalError), transaction.atomic():  # PostgreSQL refuses to go on
                assert Conversation.objects.count() == 1
                in_another_connection(lambda: begin("b", ann))
                Conversation.objects.filter(memory_id="a").delete()
        finally:
            connection.close()

        with another_process():
            assert read("b") == [QUESTION, ANSWER]

    @pytest.mark.parametrize("way", ["an add", "a title", "a first title", "many", "an import", "a turn"])
    def test_nothing_is_encrypted_with_a_key_that_another_process_has_erased(self, with_owner_keys, ann, way):
        begin("a", ann)
        lines = [line.replace('"a"', '"c"', 1) for line in export_lines(Conversation.objects.all())]
        with another_process():
            erase(Conversation.objects.all())
            get_chat_memory("b", owner=ann).add(QUESTION)
        conversation = Conversation.objects.get()
        conversation.title = SECRET

        def many() -> None:
            with for_owner(ann.pk):
                Conversation.objects.update(title=SECRET)

        def turn() -> None:
            with get_chat_memory("b").turn() as going_on:
                going_on.add(QUESTION)
                going_on.add(ANSWER)

        ways: dict[str, Callable[[], object]] = {
            "an add": lambda: get_chat_memory("b").add(ANSWER),
            "a title": conversation.save,
            "a first title": lambda: entitle(Conversation.objects.all(), "b", SECRET),
            "many": many,
            "an import": lambda: import_lines(lines, owner=ann),
            "a turn": turn,
        }
        ways[way]()

        with another_process():
            assert list(Conversation.objects.all())
            assert {row.text for row in Message.objects.all()} <= {SECRET, ANSWER.text}
        assert len(sql("SELECT * FROM chatmemory_encryption_ownerkey")) == 1

    def test_a_row_of_another_app_without_a_conversation_asks_for_the_key(self, with_owner_keys, ann):
        begin("a", ann)

        def keep() -> str:
            with for_owner(ann.pk):
                return installed().at(Address("default")).encode(SECRET, "site.note.text", (7,))

        keep()
        with another_process():
            erase(Conversation.objects.all())
        text = keep()

        with another_process(), for_owner(ann.pk):
            assert installed().at(Address("default")).decode(text, "site.note.text", (7,)) == SECRET

    def test_a_first_conversation_that_is_rolled_back_leaves_no_key_that_is_used(self, with_owner_keys, ann):
        with transaction.atomic():
            begin("a", ann)
            transaction.set_rollback(True)
        assert sql("SELECT * FROM chatmemory_encryption_ownerkey") == []

        begin("a", ann)

        ciphers.install()  # as another process
        assert read("a") == [QUESTION, ANSWER]

    def test_a_service_is_asked_once_for_an_owner(self, with_owner_keys, ann, monkeypatch):
        asked = []
        for name in ("wrap", "unwrap"):
            do = getattr(Keys, name)
            monkeypatch.setattr(
                Keys, name, lambda self, *a, do=do, name=name, **k: asked.append(name) or do(self, *a, **k)
            )

        for number in range(3):
            begin(str(number), ann)
            read(str(number))

        assert asked == ["wrap", "unwrap"]

    def test_a_process_asks_for_a_key_once(self, with_owner_keys, ann, django_assert_max_num_queries):
        begin("a", ann)
        memory = get_chat_memory("a")
        counts = []
        ciphers.install()  # as another process
        for _ in range(3):
            with django_assert_max_num_queries(20) as counted:
                memory.add(QUESTION)
                memory.messages()
            counts.append(sum("ownerkey" in query["sql"] for query in counted.captured_queries))

        assert counts[0] <= 3  # by the owner to encrypt, after a lock; by its id to decrypt
        assert counts[1:] == [0, 0]


class TestSearches:
    @pytest.fixture
    def api(self, site, ann) -> APIClient:
        begin("a", ann, QUESTION, ANSWER, SystemMessage("Be brief."))
        client = APIClient()
        client.force_authenticate(ann)
        return client

    def test_in_all_conversations_they_are_refused_with_a_code(self, api):
        for query in ({"search": "kuchen"}, {"title": "kuchen"}):
            response = api.get("/api/conversations/", query)

            assert response.status_code == 400
            assert response.json()["errors"][0]["code"] == "encrypted"
            assert "encrypted" in response.json()["detail"]
        for search in (Message.objects.search, Message.objects.containing, Conversation.objects.search):
            with pytest.raises(EncryptedError, match="encrypted"):
                list(search("kuchen"))
        for search in (Message.objects.search, Conversation.objects.search):
            with pytest.raises(EncryptedError, match="encrypted"):
                search("kuchen", match="any")

    def test_recall_decrypts_what_the_owner_wrote(self, site, ann, ben):
        begin("a", ann, QUESTION, ANSWER)
        begin("b", ben, QUESTION)
        search, reading = tools(owner=ann)

        found = search.call(ToolExecutionRequest("1", "search_conversations", '{"query": "Wann Zwiebelkuchen?"}'), {})
        was_read = reading.call(
            ToolExecutionRequest("2", "read_conversation", '{"conversation": "a", "around": 1}'), {}
        )

        [hit] = json.loads(found.text)["messages"]
        assert (hit["conversation"], hit["quotation"]) == ("a", QUESTION.single_text)
        assert hit["after"]["quotation"] == ANSWER.text
        quotations = [each["quotation"] for each in json.loads(was_read.text)["messages"]]
        assert quotations == [QUESTION.single_text, ANSWER.text]

    def test_it_is_recalled_for_a_question(self, site, ann):
        begin("a", ann, QUESTION, ANSWER)

        assert SECRET in of_question()(memory_id="b", owner=ann, question=QUESTION)

    def test_so_many_are_decrypted_at_most_in_few_statements(
        self, site, ann, monkeypatch, django_assert_max_num_queries
    ):
        begin("a", ann, UserMessage(f"{SECRET} im Mai"), *[UserMessage("Regen")] * 4)
        begin("b", ann, UserMessage(SECRET), UserMessage("Regen"))
        earlier = Recall(ann)
        earlier.search_conversations("Zwiebelkuchen")  # which reads keys
        monkeypatch.setattr(messages, "MAX_DECRYPTED", 4)

        with django_assert_max_num_queries(9):  # an owner is looked up in each that decrypts
            found = json.loads(earlier.search_conversations("Zwiebelkuchen"))["messages"]

        assert [each["conversation"] for each in found] == ["b"]

    def test_one_that_cannot_be_decrypted_or_is_too_long_is_not_found_and_hides_no_other(self, site, ann):
        begin("a", ann, UserMessage(SECRET), UserMessage(f"{SECRET} im Mai"), UserMessage(SECRET * 800))
        with connection.cursor() as cursor:
            cursor.execute("UPDATE chatmemory_message SET text = %s WHERE sequence = 1", [f"enc2:old:x:{'A' * 60}"])

        [found] = Message.objects.search("Zwiebelkuchen", owner=ann, match="any").values_list("sequence", flat=True)
        [hit] = json.loads(Recall(ann).search_conversations("Zwiebelkuchen"))["messages"]

        assert found == 2
        assert (hit["message"], hit["before"]["quotation"], hit["after"]["quotation"]) == (2, "", "…")

    def test_by_rest_the_users_own_messages_are_found_by_any_of_the_words(self, api):
        found = api.get("/api/messages/", {"search": "Wann gibt es Zwiebelkuchen?", "match": "any"})

        assert [each["sequence"] for each in found.json()["results"]] == [1]
        assert api.get("/api/messages/", {"search": "Zwiebelkuchen"}).json()["errors"][0]["code"] == "encrypted"

    def test_in_one_conversation_the_messages_are_looked_through(self, api):
        found = [
            [row["sequence"] for row in api.get("/api/conversations/a/messages/", {"search": wanted}).json()["results"]]
            for wanted in ("zwiebel", '"am donnerstag"', "zwiebel suppe", "")
        ]

        assert found == [[1], [1], [], [3, 2, 1]]

    def test_of_a_long_conversation_the_newest_thousand_are_looked_through(self, site, ann):
        conversation = begin("a", ann, QUESTION)
        with for_owner(ann.pk):
            Message.objects.bulk_create(
                Message(conversation=conversation, sequence=number, type="USER", text="kuchen")
                for number in range(2, 1_002)
            )

        found = conversation.messages.look_through("kuchen").values_list("sequence", flat=True)

        assert set(found) == set(range(2, 1_002))

    def test_the_admin_searches_ids_and_owners_and_looks_through_a_conversation(self, api, admin_client):
        url = "/admin/chatmemory/conversation/"
        by_id, by_text = (admin_client.get(url, {"q": wanted}).context["cl"] for wanted in ("a", "zwiebelkuchen"))
        pk = Conversation.objects.get().pk

        page = admin_client.get(f"{url}{pk}/change/", {"q": "zwiebelkuchen"})

        assert by_id.result_count == 1
        assert by_text.result_count == 0
        assert b"<mark>Zwiebelkuchen</mark>" in page.content

    def test_the_admin_neither_filters_nor_orders_by_what_is_encrypted(self, api, admin_client):
        url = "/admin/chatmemory/conversation/"

        page = admin_client.get(url)

        assert page.context["cl"].search_help_text == (
            "Memory id or owner; titles and messages are encrypted, and not searched"
        )
        assert b"?problem=turn" in page.content
        assert b"?problem=tool" not in page.content
        assert admin_client.get(url, {"problem": "tool"}).status_code == 200
        headers = {str(header["text"]): header["sortable"] for header in result_headers(page.context["cl"])}
        assert headers["conversation"] is False
        assert headers["memory id"] is True

    def test_staff_see_titles_and_messages_in_the_admin(self, api, client):
        staff = get_user_model().objects.create_user("staff", is_staff=True)
        staff.user_permissions.set(Permission.objects.filter(content_type__app_label="chatmemory"))
        client.force_login(staff)

        page = client.get(f"/admin/chatmemory/conversation/{Conversation.objects.get().pk}/change/")

        assert SECRET.encode() in page.content
        assert b"enc1:" not in page.content

    def test_a_preview_is_the_beginning_of_the_text(self, site, ann):
        begin("a", ann, UserMessage("x" * 300))
        client = APIClient()
        client.force_authenticate(ann)

        (found,) = client.get("/api/conversations/").json()["results"]

        assert found["preview"] == "x" * 200
        assert found["title"] == SECRET


def shown(rf: Any, do: Callable[[], object]) -> str:
    """Return the pages and the mail that Django shows of the error that *do* raises."""
    try:
        do()
    except (EncryptionError, ValueError, ImportError, ImproperlyConfigured, SystemCheckError, CommandError) as exc:
        first = exc.__traceback__.tb_next  # without the frame of this test, which has the key
        reporter = ExceptionReporter(rf.get("/"), type(exc), exc, first)
        return reporter.get_traceback_html() + reporter.get_traceback_text()
    raise AssertionError("no error")


KEY, SHORT = (base64.b64encode(data).decode() for data in (b"Marzipan".ljust(32, b"x"), b"Marzipan"))
WRONG: dict[str, Any] = {
    "a text": {"KEYS": f"k1:{KEY}"},
    "bytes": {"KEYS": f"k1:{KEY}".encode()},
    "a dict": {"KEYS": {"k1": KEY}},
    "a list in it": {"KEYS": [[f"k1:{KEY}"]]},
    "bytes in it": {"KEYS": [f"k1:{KEY}".encode()]},
    "a pair in it": {"KEYS": [("k1", KEY)]},
    "no id": {"KEYS": [KEY]},
    "a wrong id": {"KEYS": [f"@k1:{KEY}"]},
    "no Base64": {"KEYS": [f"k1:{KEY}!"]},
    "too short": {"KEYS": [f"k1:{SHORT}"]},
    "a wrong class": {"KEYS": [f"k1:{KEY}"], "CLASS": "nowhere.Keys"},
    "a text alone": f"k1:{KEY}",
    "a list alone": [f"k1:{KEY}"],
}


class TestErrorPages:
    def test_they_show_no_key(self, site, ann, rf):
        begin("a", ann)
        sql("UPDATE chatmemory_message SET text = SUBSTR(text, 1, LENGTH(text) - 8) WHERE sequence = 2")
        encoded = key("old").partition(":")[2]
        data = base64.b64decode(encoded)

        for way in (lambda: read("a"), lambda: list(Message.objects.all())):
            page = shown(rf, way)
            assert "changed, truncated or moved" in page
            for secret in (encoded, data.hex(), data.decode().strip() * 2, repr(data)):
                assert secret not in page

    @pytest.mark.parametrize("debug", [False, True])
    @pytest.mark.parametrize("how", WRONG)
    def test_those_of_wrong_settings_do_not_show_a_key(self, settings, rf, how, debug):
        begin("a")
        settings.DEBUG = debug
        settings.CHATMEMORY = {"ENCRYPTION": WRONG[how]}
        ways: list[Callable[[], object]] = [
            lambda: read("a"),
            lambda: Conversation.objects.create(memory_id="c", title=SECRET),
            lambda: call_command("encrypt_chatmemory", stdout=io.StringIO()),
        ]

        for way in ways:
            page = shown(rf, way)
            for given in (escape(repr(WRONG[how])), repr(WRONG[how])):
                page = page.replace(given, "")  # Django's page of the settings shows what is no dict
            for secret in (KEY, SHORT, f"Marzipan{'x' * 8}"):
                assert secret not in page

    def test_those_of_a_wrong_key_name_what_is_wrong(self, settings, rf):
        begin("a")
        settings.CHATMEMORY = {"ENCRYPTION": WRONG["too short"]}

        assert "must have 32 bytes, not 8" in shown(rf, lambda: read("a"))

    @pytest.mark.parametrize("how", ["a text alone", "a list alone"])
    def test_those_of_a_section_that_is_no_dict_name_its_type(self, settings, how):
        settings.CHATMEMORY = {"ENCRYPTION": WRONG[how]}

        with pytest.raises(ImproperlyConfigured, match=r"\['ENCRYPTION'\] must be a dict, not (str|list)") as caught:
            Conversation.objects.create(memory_id="c", title=SECRET)

        assert all(KEY not in repr(each.frame.f_locals) for each in caught.traceback if each.name == "current")

    def test_logs_have_none(self, site, ann, caplog):
        caplog.set_level(0)
        begin("a", ann)
        read("a")

        assert key("old").partition(":")[2] not in caplog.text
        assert SECRET not in caplog.text
