"""The way back: what is stored is plain again, beside processes that still encrypt. See docs/encryption.md."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connection

from chatmemory_django.contrib.encryption import EncryptionError, encrypting
from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.contrib.encryption.models import Origin
from chatmemory_django.db import row_codec
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import fork
from chatmemory_django.operations.one_by_one import in_lock
from chatmemory_django.provider import get_chat_memory
from tests.pictures import picture, stored_in, use_storage

pytestmark = pytest.mark.django_db(transaction=True)

TITLE = "Zwiebelkuchen am Donnerstag"
LIKE_VALUES = [f"enc2:k1:x:{'A' * 60}", "enc1: not one", "enc0:enc2:", "ENC2:k1:", "enc0:"]
WRITTEN = [UserMessage(TITLE), AiMessage(TITLE[::-1]), *map(UserMessage, LIKE_VALUES)]


@pytest.fixture(params=[False, True], ids=["site", "owners"])
def plain(request, settings) -> Callable[[str], None]:
    """Give all that follows the setting ``PLAIN``, as after a restart."""

    def plain(how: str) -> None:
        key = f"k1:{base64.b64encode(b'k1'.ljust(32)).decode()}"
        memory = {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 20}}
        encryption = {"KEYS": [key], "OWNER_KEYS": request.param, "PLAIN": how}
        settings.CHATMEMORY = {**settings.CHATMEMORY, "MEMORY": memory, "ENCRYPTION": encryption}
        install()

    use_storage(settings)
    plain("read")
    return plain


@pytest.fixture
def ann() -> Any:
    return get_user_model().objects.create_user("ann")


def begin(memory_id: str, owner: Any) -> Conversation:
    get_chat_memory(memory_id, owner=owner).add(*WRITTEN)
    conversation = Conversation.objects.get(memory_id=memory_id)
    conversation.title = LIKE_VALUES[0]
    conversation.save()
    return conversation


def stored() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM chatmemory_message ORDER BY conversation_id, sequence")
        texts = [text for (text,) in cursor.fetchall()]
        cursor.execute("SELECT title FROM chatmemory_conversation ORDER BY id")
        return texts + [title for (title,) in cursor.fetchall()]


def encrypted() -> list[str]:
    return [text for text in stored() if text.startswith(("enc1:", "enc2:"))]


def run(command: str, *options: str) -> str:
    out = io.StringIO()
    call_command(command, *options, stdout=out, verbosity=0)
    return out.getvalue()


def read(memory_id: str) -> tuple[list[Any], str]:
    return get_chat_memory(memory_id).messages(), Conversation.objects.get(memory_id=memory_id).title


def test_all_is_plain_afterwards_and_encrypted_again_on_the_way_back(plain, ann):
    begin("a", ann)
    assert encrypted() == stored()
    plain("write")
    assert read("a") == (WRITTEN, LIKE_VALUES[0])

    assert run("decrypt_chatmemory", "--dry-run") == "8 rows to decrypt.\n"
    assert encrypted() == stored()
    assert run("decrypt_chatmemory") == "Decrypted 8 rows.\n"

    assert encrypted() == []
    assert stored()[:2] == [TITLE, TITLE[::-1]]
    assert read("a") == (WRITTEN, LIKE_VALUES[0])
    assert run("decrypt_chatmemory") == "Decrypted 0 rows.\n"

    plain("read")
    assert read("a") == (WRITTEN, LIKE_VALUES[0])
    assert run("encrypt_chatmemory") == "Encrypted 8 rows.\n"
    plain("refuse")
    assert encrypted() == stored()
    assert read("a") == (WRITTEN, LIKE_VALUES[0])


def test_what_was_written_before_the_app_was_installed_is_read_and_encrypted(plain, ann, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(row_codec, "installed", None)
        begin("a", ann)
        assert read("a") == (WRITTEN, LIKE_VALUES[0])
    assert encrypted() == []

    assert read("a") == (WRITTEN, LIKE_VALUES[0])
    assert run("encrypt_chatmemory") == "Encrypted 8 rows.\n"

    assert encrypted() == stored()
    assert read("a") == (WRITTEN, LIKE_VALUES[0])


def test_what_other_programs_wrote_in_the_shape_of_a_value_cannot_be_decrypted(plain, ann):
    begin("a", ann)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_conversation SET title = %s", [LIKE_VALUES[0]])
    with pytest.raises(EncryptionError):
        read("a")
    assert "What other programs have written in that shape" in Path("docs/encryption.md").read_text(encoding="utf-8")


def test_processes_before_and_behind_a_step_read_each_other(plain, ann):
    begin("a", ann)
    plain("write")
    begin("b", ann)
    assert not any(TITLE in text for text in encrypted())
    assert stored().count(TITLE) == 1

    for how in ("read", "write"):
        plain(how)
        assert read("a") == read("b") == (WRITTEN, LIKE_VALUES[0])


def test_a_command_that_others_would_undo_is_refused(plain):
    with pytest.raises(CommandError, match="is not 'write'"):
        run("decrypt_chatmemory")
    plain("write")
    with pytest.raises(CommandError, match="is 'write'"):
        run("encrypt_chatmemory")


def test_a_fork_is_decrypted_without_its_source_and_then_its_origin_goes(plain, ann):
    source = begin("a", ann)
    fork(source, "b")
    plain("write")
    fork(Conversation.objects.get(memory_id="b"), "c")
    Conversation.objects.get(memory_id="a").delete()
    assert read("c")[0] == WRITTEN

    run("decrypt_chatmemory")
    run("decrypt_chatmemory")

    assert read("b")[0] == read("c")[0] == WRITTEN
    assert encrypted() == []
    assert not Origin.objects.exists()


def test_a_conversation_that_is_renamed_or_given_away_is_plain(plain, ann):
    conversation = begin("a", ann)
    plain("write")
    conversation.memory_id, conversation.owner = "b", get_user_model().objects.create_user("ben")
    conversation.save()

    assert read("b") == (WRITTEN, LIKE_VALUES[0])
    run("decrypt_chatmemory")
    assert read("b") == (WRITTEN, LIKE_VALUES[0])
    assert encrypted() == []


def test_files_are_plain(plain, ann):
    get_chat_memory("a", owner=ann).add(picture())
    before = stored_in(storages["chats"])
    plain("write")
    assert get_chat_memory("a").messages() == [picture()]

    run("decrypt_chatmemory")

    ((_, content),) = stored_in(storages["chats"])
    assert content[:4] == b"\x89PNG"
    assert before[0][1] != content
    assert get_chat_memory("a").messages() == [picture()]


def test_what_cannot_be_decrypted_stays_and_is_named(plain, ann):
    begin("a", ann)
    begin("b", ann)
    lost = f"enc2:lost:x:{'A' * 60}"
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE chatmemory_message SET text = %s WHERE sequence = 2 AND conversation_id = %s",
            [lost, Conversation.objects.get(memory_id="a").pk],
        )
    plain("write")

    with pytest.raises(CommandError, match=r"1 of them cannot be read, first 'a': .*'lost'"):
        run("decrypt_chatmemory")

    assert lost in encrypted()
    assert read("b") == (WRITTEN, LIKE_VALUES[0])
    assert stored()[-1] == f"enc0:{LIKE_VALUES[0]}"


def test_a_command_that_is_stopped_goes_on_where_it_was_while_others_write(plain, ann, monkeypatch):
    begin("a", ann)
    begin("b", ann)
    plain("write")

    def stopped(conversations: Any, key: int, do: Any) -> Any:
        if Conversation.objects.get(pk=key).memory_id == "b":
            raise KeyboardInterrupt
        return in_lock(conversations, key, do)

    with monkeypatch.context() as patched:
        patched.setattr(encrypting, "in_lock", stopped)
        with pytest.raises(CommandError, match="Stopped"):
            run("decrypt_chatmemory")
    get_chat_memory("a").add(UserMessage("Later."))

    assert run("decrypt_chatmemory") == "Decrypted 8 rows.\n"
    assert encrypted() == []
    assert read("a")[0] == [*WRITTEN, UserMessage("Later.")]
