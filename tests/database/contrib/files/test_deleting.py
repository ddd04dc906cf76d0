"""An erasure's receipt is true: a file that the storage does not delete is counted until it does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.core.files.storage import InMemoryStorage, storages
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from chatmemory_django import operations
from chatmemory_django.contrib.files import deleting
from chatmemory_django.contrib.files.findings import check_files
from chatmemory_django.contrib.files.models import MediaDeletion
from chatmemory_django.contrib.files.uploads import StorageUploads
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.test_concurrency import database_url
from tests.pictures import assert_consistent, picture, stored_in, use_storage

pytestmark = pytest.mark.django_db(transaction=True)


class Unsteady(InMemoryStorage):
    """A storage that may be down, or refuse some files."""

    is_down: ClassVar[bool] = False
    refused: ClassVar[set[str]] = set()

    def delete(self, name: str) -> None:
        if self.is_down or name in self.refused:
            raise ConnectionError
        super().delete(name)


@pytest.fixture(autouse=True)
def storage(settings, monkeypatch):
    use_storage(settings, {"BACKEND": f"{__name__}.Unsteady"})
    settings.CHATMEMORY["REST"] = {"THROTTLE_RATES": {}}
    monkeypatch.setattr(Unsteady, "is_down", True)
    monkeypatch.setattr(Unsteady, "refused", set())
    yield storages["chats"]
    Unsteady.is_down, Unsteady.refused = False, set()
    deleting.delete_left("default")
    assert_consistent(storages["chats"])
    assert not MediaDeletion.objects.exists()


@pytest.fixture
def ann() -> User:
    return User.objects.create_superuser("ann")


def talk(owner: User | None = None, memory_id: str = "a", *, seed: int = 1) -> None:
    MessageWindowChatMemory(max_messages=9, id=memory_id, store=DjangoChatMemoryStore(owner=owner)).add(picture(seed))


def up() -> None:
    Unsteady.is_down = False


def test_a_receipt_counts_the_files_that_are_still_there_until_a_prune_has_deleted_them(ann, storage):
    talk(ann)

    receipt = operations.erase(Conversation.objects.all())

    assert (receipt.messages, receipt.files_to_delete()) == ({"a": 1}, 1)
    assert len(stored_in(storage)) == 1
    operations.prune(Conversation.objects.all())
    assert receipt.files_to_delete() == 1
    up()
    operations.prune(Conversation.objects.all())
    assert receipt.files_to_delete() == 0
    assert not stored_in(storage)


def test_a_receipt_counts_no_files_of_others(ann):
    talk(ann)
    talk(None, "b", seed=2)
    operations.erase(Conversation.objects.filter(memory_id="b"))

    assert operations.erase(Conversation.objects.filter(memory_id="a")).files_to_delete() == 1


def test_while_the_storage_answers_nothing_is_left(ann, storage):
    up()
    talk(ann)

    assert operations.erase(Conversation.objects.all()).files_to_delete() == 0
    assert not stored_in(storage)


def test_a_file_that_another_conversation_has_is_not_to_be_deleted(ann):
    talk(ann)
    talk(ann, "b")

    assert operations.erase(Conversation.objects.filter(memory_id="a")).files_to_delete() == 0
    assert operations.erase(Conversation.objects.filter(memory_id="b")).files_to_delete() == 1


def test_inside_of_a_transaction_all_files_are_still_there_and_a_rollback_loses_none(ann, storage):
    up()
    talk(ann)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert operations.erase(Conversation.objects.all()).files_to_delete() == 1
        raise ZeroDivisionError
    assert len(stored_in(storage)) == 1
    assert not MediaDeletion.objects.exists()
    with transaction.atomic():
        receipt = operations.erase(Conversation.objects.all())
        assert receipt.files_to_delete() == 1

    assert receipt.files_to_delete() == 0


def test_a_dry_run_has_nothing_to_delete(ann):
    talk(ann)

    assert operations.erase(Conversation.objects.all(), dry_run=True).files_to_delete() == 0


def test_without_a_storage_in_the_settings_no_file_counts_as_deleted(ann, settings):
    talk(ann)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_STORAGE": None}

    assert operations.erase(Conversation.objects.all()).files_to_delete() == 1
    operations.prune(Conversation.objects.all())
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_STORAGE": "chats"}
    check_files("default", lambda finding: None, repair=True)


REMOVALS: dict[str, Callable[[User], object]] = {
    "the owner is deleted": lambda ann: ann.delete(),
    "a message is removed": lambda ann: DjangoChatMemoryStore().remove("a", 1),
    "the conversation is deleted": lambda ann: Conversation.objects.get().delete(),
}


@pytest.mark.parametrize("removal", REMOVALS)
def test_however_a_file_is_removed_the_next_prune_deletes_it(ann, storage, removal):
    talk(ann)

    REMOVALS[removal](ann)

    assert len(stored_in(storage)) == 1
    up()
    operations.prune(Conversation.objects.all())
    assert not stored_in(storage)


def test_a_file_that_was_stored_for_nothing_is_deleted_once_it_can_be(ann, storage):
    """Another writer has stored the same one at the same moment."""
    uploads = StorageUploads("default")
    uploads.store(str(ann.pk), 1, [StorageUploads.file("0" * 64, b"content")])
    uploads.end()
    assert len(stored_in(storage)) == 1
    assert MediaDeletion.objects.get().owner == str(ann.pk)
    up()

    operations.prune(Conversation.objects.all())

    assert not stored_in(storage)


def test_one_that_is_refused_keeps_no_other_from_being_deleted(ann, storage, monkeypatch):
    monkeypatch.setattr(deleting, "BATCH", 2)
    for number in range(5):
        talk(ann, str(number), seed=number)
    operations.erase(Conversation.objects.all())
    Unsteady.refused = set(MediaDeletion.objects.order_by("since").values_list("name", flat=True)[:2])
    up()

    operations.prune(Conversation.objects.all())

    assert {name for name, _ in stored_in(storage)} == Unsteady.refused


def test_a_storage_that_hangs_is_waited_for_once(ann, settings, monkeypatch):
    monkeypatch.setattr(deleting, "BATCH", 1)
    for number in range(3):
        talk(ann, str(number), seed=number)
    operations.erase(Conversation.objects.all())
    asked: list[object] = []
    moments = iter(range(0, 1000, 30))
    monkeypatch.setattr(deleting.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(deleting.storage, "delete", lambda names: asked.append(names) or [])

    operations.prune(Conversation.objects.all())

    assert len(asked) == 1
    monkeypatch.undo()


def test_what_is_written_of_it_has_no_text_and_goes_with_the_file(ann):
    talk(ann)
    operations.erase(Conversation.objects.all())

    [row] = MediaDeletion.objects.values()
    assert row.pop("since") <= timezone.now()
    assert row.pop("name").startswith("chatmemory/")
    assert row.pop("conversation")
    assert row == {"owner": str(ann.pk)}
    up()
    operations.prune(Conversation.objects.all())
    assert not MediaDeletion.objects.exists()


def test_the_command_exits_with_3_while_files_of_the_user_are_left(ann, capsys):
    talk(ann)
    for _ in range(2):  # the second time, all conversations are gone
        with pytest.raises(CommandError, match="1 files are still in the storage") as caught:
            call_command("erase_chatmemory", user="ann", verbosity=0)
        assert caught.value.returncode == 3
        assert '"files_to_delete": 1' in capsys.readouterr().out
    up()
    call_command("erase_chatmemory", user="ann", verbosity=0)
    assert '"files_to_delete": 0' in capsys.readouterr().out


def test_the_nightly_command_prints_what_is_left_and_deletes_it(ann, capsys):
    talk(ann)
    operations.erase(Conversation.objects.all())
    for left in (True, False):
        call_command("prune_chatmemory", "--idle", "1000", verbosity=0)
        assert ("1 files are still in the storage" in capsys.readouterr().out) is left
        up()


def test_the_check_reports_them_once_they_are_older_than_a_deletion_takes_and_repairs_them(ann):
    talk(ann)
    operations.erase(Conversation.objects.all())
    found: list[str] = []

    def check(**options: bool) -> list[str]:
        found.clear()
        check_files("default", lambda finding: found.append(finding.detail), **options)
        return found

    assert check() == []
    MediaDeletion.objects.update(since=timezone.now() - timezone.timedelta(hours=1))
    assert check() == ["1 files of removed messages could not be deleted; prune_chatmemory tries again."]
    assert check(repair=True) == ["1 files of removed messages could not be deleted; 1 still cannot."]
    up()
    assert check(repair=True) == ["1 files of removed messages could not be deleted; 0 still cannot."]
    assert check() == []


def test_rest_answers_202_while_files_are_left(ann):
    client = APIClient()
    client.force_authenticate(ann)
    for number in range(2):
        talk(ann, f"c{number}", seed=number)
    response = client.delete("/api/conversations/c0/")
    assert (response.status_code, response.json()) == (202, {"files_to_delete": 1})
    assert client.delete("/api/conversations/?memory_id=c1").json() == {
        "erased": 1,
        "protected": [],
        "files_to_delete": 1,
    }
    up()
    talk(ann)
    assert client.delete("/api/conversations/a/").status_code == 204


def test_the_admin_shows_it(ann):
    client = Client()
    client.force_login(ann)
    talk(ann)
    url = reverse("admin:chatmemory_conversation_delete", args=[Conversation.objects.get().pk])

    response = client.post(url, {"confirmed": "delete"})

    assert [str(each) for each in get_messages(response.wsgi_request)] == [
        "Erased 1 conversation.",
        "1 file is still in the storage, which has not deleted it; this is tried again at night.",
    ]


@pytest.mark.slow
def test_wherever_the_process_is_killed_with_the_storage_down_no_file_is_forgotten(tmp_path: Path):
    command = [sys.executable, "-m", "tests.database.contrib.files.killed", str(tmp_path)]
    environment = os.environ | {"DATABASE_URL": database_url(tmp_path), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    kills = [json.loads(line) for line in ran.stdout.splitlines()]

    assert len(kills) > 15
    assert {each["outcome"] for each in kills} == {"as before", "gone, and its file is to be deleted"}
    assert all(each["after the prune"] == [0, 0, 0] for each in kills)
