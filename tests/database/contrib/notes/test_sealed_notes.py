"""Notes are encrypted for their owner and for themselves, like texts of conversations, though they belong to none."""

import base64
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F

from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.contrib.encryption.models import OwnerKey
from chatmemory_django.contrib.encryption.values import EncryptionError
from chatmemory_django.contrib.notes.assistants import of_owner
from chatmemory_django.contrib.notes.keeping import change, drop, keep
from chatmemory_django.contrib.notes.models import Note
from chatmemory_django.db.row_codec import EncryptedError
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.models.fields import as_stored
from chatmemory_django.provider import get_chat_memory

pytestmark = pytest.mark.django_db(transaction=True)

ANNS, EVES = "Is allergic to nuts", "Likes rain"


def key(name: str) -> str:
    return f"{name}:{base64.b64encode(name.encode().ljust(32)).decode()}"


@pytest.fixture
def site(settings):
    def site(*names: str, **options: Any) -> None:
        settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": [key(name) for name in names], **options}}
        install()

    return site


@pytest.fixture(params=[False, True], ids=["site", "owners"])
def has_owner_keys(request, site) -> bool:
    site("k1", OWNER_KEYS=request.param)
    return bool(request.param)


@pytest.fixture
def notes(has_owner_keys, ann, eve) -> None:
    keep(ann, ANNS), keep(ann, "another"), keep(eve, EVES)


def stored(owner: Any, number: int = 1) -> str:
    return Note.objects.filter(owner=owner, number=number).values_list(as_stored("text"), flat=True).get()


def paste(owner: Any, text: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE chatmemory_notes_note SET text = %s WHERE owner_id = %s AND number = 1", [text, owner.pk]
        )


def texts_of(owner: Any) -> list[str]:
    return [note.text for note in Note.objects.owned_by(owner)]


def run(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out, stderr=out, verbosity=0)
    return out.getvalue()


class TestStored:
    def test_a_note_is_encrypted(self, notes, ann):
        assert stored(ann).startswith("enc2:")
        assert texts_of(ann) == [ANNS, "another"]
        assert list(Note.objects.filter(owner=ann).values_list("text", flat=True)) == [ANNS, "another"]

    def test_a_changed_note_is_encrypted(self, notes, ann):
        change(ann, 1, "Is not allergic")

        assert stored(ann).startswith("enc2:")
        assert texts_of(ann) == ["Is not allergic", "another"]

    def test_another_owners_note_is_not_read_as_ones_own(self, notes, ann, eve):
        paste(ann, stored(eve))

        with pytest.raises(EncryptionError):
            texts_of(ann)
        assert of_owner()(owner=ann) is None
        assert texts_of(eve) == [EVES]

    def test_another_note_of_the_same_owner_is_not_either(self, notes, ann):
        paste(ann, stored(ann, 2))

        with pytest.raises(EncryptionError):
            texts_of(ann)

    def test_a_text_of_a_conversation_is_not_either(self, notes, ann):
        get_chat_memory("c", owner=ann).add(UserMessage("hi"))
        with connection.cursor() as cursor:
            cursor.execute("SELECT text FROM chatmemory_message")
            paste(ann, cursor.fetchone()[0])

        with pytest.raises(EncryptionError):
            texts_of(ann)

    def test_a_note_that_is_given_to_another_owner_is_not_read(self, notes, has_owner_keys, site, ann, eve):
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE chatmemory_notes_note SET owner_id = %s, number = 9 WHERE owner_id = %s AND number = 1",
                [eve.pk, ann.pk],
            )

        with pytest.raises(EncryptionError):
            texts_of(eve)
        site("k2", "k1", OWNER_KEYS=has_owner_keys)
        with pytest.raises(CommandError):
            run("encrypt_chatmemory", *["--rekey-owners"] * has_owner_keys)
        with pytest.raises(EncryptionError):
            texts_of(eve)

    def test_the_database_cannot_compute_with_them(self, notes, ann):
        for query in (
            lambda: Note.objects.filter(text__contains="nuts"),
            lambda: Note.objects.update(text="the same for all"),
        ):
            with pytest.raises(EncryptedError):
                list(query())

    def test_who_deletes_needs_no_key(self, notes, site, ann):
        site("k2")

        assert drop(ann, 1) == 1
        ann.delete()

        assert Note.objects.count() == 1


class TestCommands:
    def test_what_was_plain_is_encrypted(self, site, ann, eve):
        site("k1", PLAIN="write")
        keep(ann, ANNS), keep(eve, EVES)
        site("k1", OWNER_KEYS=True)

        assert stored(ann) == ANNS
        assert run("encrypt_chatmemory", "--dry-run") == "2 rows to encrypt.\n"
        assert not OwnerKey.objects.exists()
        assert run("encrypt_chatmemory", "--user", "ann") == "Encrypted 1 rows.\n"
        assert stored(ann).startswith("enc2:@")
        assert stored(eve) == EVES
        assert run("encrypt_chatmemory") == "Encrypted 1 rows.\n"
        assert run("encrypt_chatmemory") == "Encrypted 0 rows.\n"
        assert (texts_of(ann), texts_of(eve)) == ([ANNS], [EVES])

    def test_single_conversations_have_no_notes(self, site, ann):
        site("k1", PLAIN="write")
        keep(ann, ANNS)
        get_chat_memory("c", owner=ann).add(UserMessage("hi"))
        site("k1")

        run("encrypt_chatmemory", "--memory-id", "c")

        assert stored(ann) == ANNS

    def test_a_key_is_replaced(self, notes, has_owner_keys, site, ann, eve):
        site("k2", "k1", OWNER_KEYS=has_owner_keys)
        run("encrypt_chatmemory")
        site("k2", OWNER_KEYS=has_owner_keys)

        assert (texts_of(ann), texts_of(eve)) == ([ANNS, "another"], [EVES])

    def test_they_are_decrypted(self, notes, site, ann):
        site("k1", PLAIN="write")

        run("decrypt_chatmemory")

        assert stored(ann) == ANNS

    def test_an_unreadable_one_is_named_and_the_others_go_on(self, notes, site, ann, eve):
        paste(ann, stored(eve))
        site("k2", "k1", OWNER_KEYS=False)

        with pytest.raises(CommandError, match=r"1 of the owners' keys or texts .* 'chatmemory_notes_note "):
            run("encrypt_chatmemory")

        assert stored(eve).startswith("enc2:k2:")
        assert stored(ann, 2).startswith("enc2:k2:")

    @pytest.mark.parametrize("form", ["jsonl", "text", "html"])
    def test_an_unreadable_one_is_left_out_of_an_export_and_the_others_go_on(self, notes, ann, eve, form, tmp_path):
        paste(ann, stored(eve))
        file = tmp_path / "ann"
        command = ("export_chatmemory", "--user", "ann", "--format", form, "--output", str(file))

        if form == "jsonl":
            with pytest.raises(CommandError, match=rf"1 of them cannot be read, first '{ann.pk}/1': A value of chatm"):
                run(*command)
        else:
            run(*command)

        assert "another" in file.read_text()
        assert EVES not in file.read_text()
        assert ("cannot be decrypted" in file.read_text()) is (form != "jsonl")

    def test_check_counts_their_values(self, notes, has_owner_keys):
        named = "with keys of owners: 3" if has_owner_keys else "with the key 'k1': 3"

        assert f"Values encrypted {named}." in run("check_chatmemory")

    def test_the_keys_of_owners_are_replaced_also_of_those_who_have_notes_alone(self, site, ann, eve):
        site("k1", OWNER_KEYS=True)
        keep(ann, ANNS), keep(eve, EVES)
        before = stored(ann).split(":")[1]

        assert "1 owners have a new key" in run("encrypt_chatmemory", "--rekey-owners", "--user", "ann")
        assert stored(ann).split(":")[1] != before
        OwnerKey.objects.update(created_at=F("created_at") - timedelta(days=2))
        assert "Deleted 1 old keys" in run("encrypt_chatmemory", "--rekey-owners", "--user", "ann")
        assert not OwnerKey.objects.filter(pk=before).exists()
        assert (texts_of(ann), texts_of(eve)) == ([ANNS], [EVES])


class TestKeysOfOwners:
    @pytest.fixture(autouse=True)
    def conversation(self, site, ann):
        site("k1", OWNER_KEYS=True)
        get_chat_memory("c", owner=ann).add(UserMessage("hi"))
        keep(ann, ANNS)

    def test_one_key_encrypts_all_of_an_owner(self, ann):
        assert OwnerKey.objects.get().owner == str(ann.pk)

    def test_notes_stay_readable_without_conversations(self, site, ann):
        Conversation.objects.all().delete()
        site("k1", OWNER_KEYS=True)

        assert texts_of(ann) == [ANNS]

    @pytest.mark.parametrize("notes_first", [False, True])
    def test_the_key_goes_with_the_last_of_all(self, ann, notes_first):
        ways = [lambda: Conversation.objects.all().delete(), lambda: drop(ann)]
        first, last = reversed(ways) if notes_first else ways

        first()
        assert OwnerKey.objects.exists()
        last()

        assert not OwnerKey.objects.exists()

    @pytest.mark.parametrize("has_conversation", [False, True])
    def test_the_key_goes_with_the_user(self, ann, has_conversation):
        if not has_conversation:
            Conversation.objects.all().delete()

        ann.delete()

        assert not OwnerKey.objects.exists()

    def test_nothing_is_left_of_an_erased_owner(self, ann):
        run("erase_chatmemory", "--user", "ann")

        assert not OwnerKey.objects.exists()
        assert "Nothing is left" in run("verify_chatmemory", "--user", "ann")
