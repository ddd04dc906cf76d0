"""Keys of owners are replaced, while others write, and with an end at any statement: nothing becomes unreadable."""

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Replace

from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.leases import take
from chatmemory_django.chat.runs.streams import Maker, Piece, encoded
from chatmemory_django.chat.runs.tables import Run
from chatmemory_django.chat.runs.taking import Given, Kept
from chatmemory_django.contrib.encryption import Keys, kept
from chatmemory_django.contrib.encryption.ciphers import Cipher, install, installed
from chatmemory_django.contrib.encryption.models import OwnerKey
from chatmemory_django.db import row_codec
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import erase, fork
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import ConversationErasedError
from tests.database.interleaving import another_writer, ended_at
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(transaction=True)

ASKED, LATER = UserMessage("asked"), UserMessage("asked later")
KEYS = [f"k1:{base64.b64encode(b'k1'.ljust(32)).decode()}"]


@pytest.fixture(autouse=True)
def site(settings) -> Callable[..., None]:
    def site(**encryption: Any) -> None:
        settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": KEYS, "OWNER_KEYS": True, **encryption}}
        install()

    site()
    return site


@pytest.fixture
def eve() -> Any:
    return get_user_model().objects.create_user("eve")


def begin(memory_id: str, owner: Any, count: int = 2) -> Conversation:
    get_chat_memory(memory_id, owner=owner).add(*[ASKED] * count)
    conversation = Conversation.objects.get(memory_id=memory_id)
    conversation.title = "title"
    conversation.save(update_fields=["title"])
    return conversation


def rekey(*options: str) -> str:
    out = io.StringIO()
    call_command("encrypt_chatmemory", "--rekey-owners", *options, stdout=out, verbosity=0)
    return out.getvalue()


def days_later() -> None:
    """Let all that was created be older than any process encrypts with what it has in its memory."""
    OwnerKey.objects.update(created_at=F("created_at") - timedelta(days=2))


def stored_keys() -> set[str]:
    """Return the ids of the keys with which texts and titles are encrypted."""
    with connection.cursor() as cursor:
        found = set()
        for column, table in (("text", "chatmemory_message"), ("title", "chatmemory_conversation")):
            cursor.execute(f"SELECT {column} FROM {table} WHERE {column} LIKE 'enc2:%%'")
            found |= {value.split(":")[1] for (value,) in cursor.fetchall()}
    return found


def read(memory_id: str) -> list[Any]:
    """Return what another process reads, which has no keys in its memory."""
    own, row_codec.installed = row_codec.installed, Cipher()
    try:
        assert Conversation.objects.get(memory_id=memory_id).title == "title"
        return get_chat_memory(memory_id).messages()
    finally:
        row_codec.installed = own


_is_another: ContextVar[bool] = ContextVar("is_another", default=False)


class TwoProcesses(Cipher):
    """What encrypts in two processes, each of which has its own keys in its memory."""

    def __init__(self) -> None:
        self._own, self._another = Cipher(), Cipher()

    @property
    def owner_keys(self) -> Any:
        return (self._another if _is_another.get() else self._own).owner_keys


@contextmanager
def another_process() -> Iterator[None]:
    token = _is_another.set(True)
    try:
        yield
    finally:
        _is_another.reset(token)


class TestReplacing:
    def test_an_owner_gets_a_key_with_which_all_is_encrypted_again(self, ann, eve):
        begin("a", ann)
        begin("b", ann)
        begin("e", eve)
        hers = OwnerKey.objects.get(owner=str(eve.pk)).pk
        before = OwnerKey.objects.get(owner=str(ann.pk)).pk

        out = rekey("--user", "ann")

        assert "Encrypted 6 rows." in out
        assert "1 owners have a new key." in out
        assert "1 old keys of owners stay: run the command again in a day." in out
        new = OwnerKey.objects.get(owner=str(ann.pk), number=2).pk
        assert stored_keys() == {hers, new}
        assert OwnerKey.objects.filter(pk=before).exists()
        assert read("a") == read("b") == read("e") == [ASKED, ASKED]

    def test_an_old_key_is_deleted_a_day_later_and_no_third_one_is_made(self, ann):
        begin("a", ann)
        before = stored_keys()
        rekey()
        assert "new key" not in rekey()
        days_later()

        out = rekey()

        assert "Deleted 1 old keys of owners." in out
        assert "new key" not in out
        assert OwnerKey.objects.get().pk not in before
        assert read("a") == [ASKED, ASKED]
        assert "1 owners have a new key." in rekey()

    def test_an_old_key_stays_as_long_as_a_value_needs_it(self, ann):
        begin("a", ann)
        row_codec.installed = TwoProcesses()
        with another_process():
            get_chat_memory("a").add(ASKED)  # from now on, it has the key in its memory
        rekey()
        with another_process():
            get_chat_memory("a").add(LATER)
        assert len(stored_keys()) == 2
        days_later()

        out = rekey()

        assert "1 old keys of owners stay" in out
        assert "Encrypted 1 rows." in out
        assert read("a") == [ASKED, ASKED, ASKED, LATER]
        assert "Deleted 1 old keys" in rekey()
        assert read("a") == [ASKED, ASKED, ASKED, LATER]

    def test_a_fork_of_what_is_not_encrypted_again_yet_keeps_its_key(self, ann):
        begin("a", ann)
        installed().owner_keys.replace(str(ann.pk), "default")
        fork(Conversation.objects.get(), "b")
        rekey("--memory-id", "a")
        days_later()

        assert "1 old keys of owners stay" in rekey("--memory-id", "a")
        assert read("b") == [ASKED, ASKED]

    def test_all_keys_go_with_the_owner(self, ann):
        begin("a", ann)
        rekey()

        ann.delete()

        assert not OwnerKey.objects.exists()

    def test_a_dry_run_changes_nothing(self, ann):
        begin("a", ann)

        assert "1 owners to get a new key." in rekey("--dry-run")

        assert OwnerKey.objects.count() == 1

    def test_without_keys_of_owners_there_are_none_to_replace(self, site):
        site(OWNER_KEYS=False)

        with pytest.raises(CommandError, match="'OWNER_KEYS'] is off"):
            rekey()

    @pytest.mark.parametrize("end", mostly_slow(range(1, 80, 4)))
    def test_an_end_at_any_statement_leaves_all_readable(self, ann, end):
        begin("a", ann, 3)
        begin("b", ann)

        with ended_at(end), pytest.raises(CommandError, match="Stopped"):
            rekey()
            raise CommandError("Stopped: it had fewer statements.")
        assert read("a") == [ASKED] * 3
        assert read("b") == [ASKED] * 2

        rekey()

        assert read("a") == [ASKED] * 3
        assert stored_keys() == {OwnerKey.objects.get(number=2).pk}
        assert OwnerKey.objects.count() == 2

    @pytest.mark.parametrize("after", mostly_slow(range(1, 80, 6)))
    def test_a_writer_beside_with_the_old_key_in_its_memory_loses_nothing(self, ann, after):
        begin("a", ann)
        begin("b", ann)
        row_codec.installed = TwoProcesses()
        with another_process():
            get_chat_memory("a").add(ASKED)

        def write() -> None:
            with another_process():
                get_chat_memory("a").add(LATER)
                begin("c", ann)

        with another_writer(write, after):
            rekey()
        assert read("a") == [ASKED, ASKED, ASKED, LATER]
        assert read("c") == [ASKED, ASKED]
        days_later()
        assert "Deleted" in rekey() or "Deleted" in rekey()  # if it has encrypted what came later

        assert read("a") == [ASKED, ASKED, ASKED, LATER]
        assert read("b") == read("c") == [ASKED, ASKED]
        assert stored_keys() == {OwnerKey.objects.get().pk}

    def test_two_who_replace_the_same_key_make_one(self, ann):
        begin("a", ann)

        with another_writer(lambda: rekey(), after=3):
            rekey()

        assert sorted(OwnerKey.objects.values_list("number", flat=True)) == [1, 2]
        assert read("a") == [ASKED, ASKED]


class Service(Keys):
    """Keys of owners are in another service, which opens what it is given for the same owner."""

    def wrapped_now(self) -> str:
        return "s2:"

    def wrap(self, key: bytes, *, owner: str) -> str:
        return f"s2:{owner}:{key.hex()}"

    def unwrap(self, wrapped: str, *, owner: str) -> bytes:
        _, own, key = wrapped.split(":")
        assert own == owner
        return bytes.fromhex(key)


def test_a_service_is_given_the_owner_when_it_wraps_and_unwraps(site, ann, eve):
    site(CLASS=f"{__name__}.Service")
    begin("a", ann)
    begin("e", eve)

    assert "2 owners have a new key." in rekey()
    OwnerKey.objects.update(wrapped=Replace(F("wrapped"), Value("s2:"), Value("s1:")))
    assert "Encrypted 4 keys of owners." in rekey()

    assert read("a") == read("e") == [ASKED, ASKED]


class TestSeconds:
    @pytest.mark.parametrize(("seconds", "asked"), [(0, True), (60, False)])
    def test_a_process_asks_again_after_the_time_of_the_setting(self, site, ann, seconds, asked):
        site(OWNER_KEY_SECONDS=seconds)
        begin("a", ann)
        memory = get_chat_memory("a")
        memory.add(ASKED)
        statements: list[str] = []

        def noting(execute: Any, sql: str, *others: Any) -> Any:
            statements.append(sql)
            return execute(sql, *others)

        with connection.execute_wrapper(noting):
            memory.add(LATER)

        assert any("ownerkey" in sql for sql in statements) is asked
        assert read("a") == [ASKED, ASKED, ASKED, LATER]


class TestErased:
    """What is still being written of an erased owner makes no key again."""

    def test_a_piece_of_an_answer_is_not_written_any_more(self, ann):
        begin("a", ann)
        maker = Maker("a", str(ann.pk), "0" * 32)
        assert encoded(maker, Piece(1, "data")).data.startswith("enc2:@")
        erase(Conversation.objects.all())

        assert encoded(maker, Piece(2, "data")) == Piece(2, "")

        assert not OwnerKey.objects.exists()

    @pytest.mark.parametrize("after", mostly_slow(range(1, 12)))
    def test_a_write_that_an_erasure_overtakes_leaves_no_key(self, ann, after):
        begin("a", ann)
        memory = get_chat_memory("a")

        def write() -> None:
            with suppress(ConversationErasedError):
                memory.add(LATER)

        with another_writer(lambda: erase(Conversation.objects.all()), after):
            write()

        has_conversation = Conversation.objects.filter(owner=ann).exists()
        assert OwnerKey.objects.exists() is has_conversation
        if has_conversation:
            assert [row.text for row in Message.objects.all()][-1] == LATER.single_text

    def test_what_is_asked_first_in_a_conversation_of_somebody_else_makes_none(self, ann, eve):
        begin("a", ann)

        with pytest.raises(PermissionDenied, match="belongs to another user"):
            take("default", "a", eve.pk, uuid4(), kept=Kept.now("a", Given()))

        assert list(OwnerKey.objects.values_list("owner", flat=True)) == [str(ann.pk)]

    def test_who_asks_first_has_a_key_once_the_conversation_is_there(self, ann):
        taken = take("default", "a", ann.pk, uuid4(), kept=Kept.now("a", Given(chat_id="a")))

        assert taken.is_new
        assert Run.objects.get().asked == Given("a", chat_id="a").as_text()
        leases.leave(taken)

    def test_a_first_conversation_that_has_its_title_from_the_start(self, ann):
        with transaction.atomic():
            Conversation.objects.create(memory_id="a", owner=ann, title="title")

        assert read("a") == []


class TestMany:
    def test_the_check_names_a_key_with_too_many_values_and_the_cure(self, site, ann, monkeypatch):
        begin("a", ann, 3)
        begin("b", None, 3)
        monkeypatch.setattr(kept, "MANY_VALUES", 3)
        out = io.StringIO()

        with pytest.raises(CommandError, match="2 findings"):
            call_command("check_chatmemory", stdout=out)

        own = OwnerKey.objects.get().pk
        assert "The key 'k1' has 3 values or more" in out.getvalue()
        assert "replace it, by a new first key in KEYS." in out.getvalue()
        assert f"The key {own!r} has 3 values or more" in out.getvalue()
        assert "replace it, by encrypt_chatmemory --rekey-owners." in out.getvalue()

    def test_the_values_of_all_owners_together_are_no_reason(self, ann, eve, monkeypatch):
        begin("a", ann, 2)
        begin("e", eve, 2)
        monkeypatch.setattr(kept, "MANY_VALUES", 4)
        out = io.StringIO()

        call_command("check_chatmemory", stdout=out)

        assert "or more" not in out.getvalue()
