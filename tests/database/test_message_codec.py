"""Messages with files where no app keeps these elsewhere: they stay in the rows, and a reference is an error."""

import base64

import pytest
from django.core.management import CommandError, call_command

from chatmemory_django.codec import message_to_json
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import CUT, CustomMessage, FileReference, Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation, Message, message_codec
from chatmemory_django.models.message_codec import StorageError, file_in
from chatmemory_django.operations import erase, export_lines, fork, import_lines, prune
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db(transaction=True)

SHA256 = 64 * "0"
PICTURE = UserMessage([ImageContent(Image(base64_data=base64.b64encode(bytes(2_000)).decode()))])
REFERENCE = UserMessage([ImageContent(Image(file=FileReference(SHA256, 2_000)))])
MARK = CustomMessage({"result": f"{CUT}{SHA256}:2000{CUT}"})


@pytest.fixture(autouse=True)
def no_app(monkeypatch) -> None:
    monkeypatch.setattr(message_codec, "installed", None)


def a_memory(**options) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=10, id="a", store=DjangoChatMemoryStore(**options))


def test_files_stay_in_the_rows_by_every_verb():
    memory = a_memory()
    memory.add(PICTURE, PICTURE, UserMessage("Hi"))

    assert memory.messages() == [PICTURE, PICTURE, UserMessage("Hi")]
    conversation = Conversation.objects.get()
    fork(conversation, "b")
    lines = list(export_lines(Conversation.objects.filter(memory_id="a")))
    import_lines(lines, rename=True, all_or_none=True)
    assert (memory.pop(), memory.pop()) == (UserMessage("Hi"), PICTURE)
    memory.remove(1)
    prune(Conversation.objects.all(), history_older_than=None)
    assert a_memory(keep_history=False).messages() == []
    assert Message.objects.filter(payload__isnull=False).count() == 4
    erase(Conversation.objects.all())
    assert not Message.objects.exists()


@pytest.mark.parametrize("message", [REFERENCE, MARK], ids=["reference", "mark"])
def test_a_reference_that_someone_sends_is_refused(message):
    with pytest.raises(ValueError, match="which only the store sets"):
        a_memory().add(message)


@pytest.mark.parametrize("message", [REFERENCE, MARK], ids=["reference", "mark"])
def test_a_reference_that_an_app_has_left_is_an_error_that_names_the_message_and_the_app(message):
    memory = a_memory()
    memory.add(UserMessage("Look"), PICTURE)
    Message.objects.filter(sequence=2).update(payload=message_to_json(message), type=message.type)

    for verb in (
        memory.messages,
        lambda: memory.store.read_history("a"),
        lambda: list(export_lines(Conversation.objects.all())),
        memory.pop,
    ):
        with pytest.raises(StorageError, match=r"Message 2 of 'a' has a file .*contrib\.files' to INSTALLED_APPS"):
            verb()
    memory.remove(2)
    assert memory.messages() == [UserMessage("Look")]


def test_a_file_is_served_from_its_row_alone():
    at = message_codec.Address("default", 1, "a")

    assert file_in(PICTURE, 0, at).content == bytes(2_000)
    assert file_in(PICTURE, 1, at) is None
    with pytest.raises(StorageError, match="A message of 'a' has a file in a storage"):
        file_in(REFERENCE, 0, at)


def test_its_command_asks_for_the_app_and_the_check_of_conversations_does_without():
    a_memory().add(PICTURE)

    call_command("check_chatmemory", verbosity=0)
    with pytest.raises(CommandError, match=r"contrib\.files' is not in INSTALLED_APPS"):
        call_command("move_media_chatmemory")
