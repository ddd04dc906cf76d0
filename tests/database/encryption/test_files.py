"""Files in a storage are encrypted with the texts: with the same keys, and gone with their owner's."""

import base64
import io

import pytest
from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import CommandError, call_command

from chatmemory_django.contrib.encryption.values import MissingKeyError
from chatmemory_django.contrib.files.models import MediaFile
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation, Message, remains
from chatmemory_django.models.message_codec import MissingFileError
from chatmemory_django.operations import fork, prune
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.pictures import stored_in, use_storage

pytestmark = pytest.mark.django_db(transaction=True)

FILE = b"Zwiebelkuchen am Donnerstag" * 200
PICTURE = UserMessage([ImageContent(Image(base64_data=base64.b64encode(FILE).decode()))])


def key(name: str) -> str:
    return f"{name}:{base64.b64encode(name.encode().ljust(32)).decode()}"


@pytest.fixture(params=[False, True], ids=["the site's key", "owners' keys"])
def use(request, settings):
    use_storage(settings)

    def use(*names: str) -> None:
        encryption = {"KEYS": [key(name) for name in names], "OWNER_KEYS": request.param}
        settings.CHATMEMORY = {**settings.CHATMEMORY, "ENCRYPTION": encryption}

    use("one")
    return use


def a_memory(memory_id: str, owner) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=10, id=memory_id, store=DjangoChatMemoryStore(owner=owner))


def give(conversations, owner) -> None:
    for each in conversations:
        each.owner = owner
        each.save(update_fields=["owner"])
    call_command("encrypt_chatmemory", stdout=io.StringIO())


def stored() -> list[bytes]:
    return [content for _, content in stored_in(storages["chats"])]


def test_files_are_encrypted_read_and_renewed_with_another_key(use):
    ann, ben = (get_user_model().objects.create_user(name) for name in ("ann", "ben"))
    memory = a_memory("a", ann)
    memory.add(PICTURE)
    assert memory.messages() == [PICTURE]
    assert [FILE[:27] in content for content in stored()] == [False]

    use("two", "one")
    assert a_memory("a", ann).messages() == [PICTURE]
    call_command("encrypt_chatmemory", stdout=io.StringIO())
    use("two")
    assert a_memory("a", ann).messages() == [PICTURE]

    fork(Conversation.objects.get(), "b", owner=ben)
    get_user_model().objects.filter(pk=ann.pk).delete()
    assert a_memory("b", ben).messages() == [PICTURE]
    assert [FILE[:27] in content for content in stored()] == [False]
    assert MediaFile.objects.get().owner == str(ben.pk)


def test_a_missing_key_is_an_error_that_names_it(use):
    a_memory("a", None).add(PICTURE)
    content = stored()
    use("two")

    with pytest.raises(MissingKeyError, match="'one'"):
        a_memory("a", None).messages()
    assert stored() == content


def test_a_conversation_with_another_owner_gets_files_that_no_other_key_is_needed_for(use):
    ann, ben = (get_user_model().objects.create_user(name) for name in ("ann", "ben"))
    for name in ("a", "b", "c"):
        a_memory(name, ann).add(PICTURE, PICTURE)
    give(Conversation.objects.exclude(memory_id="a"), ben)
    assert len(stored()) == 2
    ben.delete()
    assert a_memory("a", ann).messages() == [PICTURE, PICTURE]
    assert len(stored()) == 1
    give(Conversation.objects.all(), get_user_model().objects.create_user("eve"))
    ann.delete()
    assert a_memory("a", None).messages() == [PICTURE, PICTURE]
    assert len(stored()) == 1


def test_a_file_of_an_erased_conversation_is_not_given_to_a_new_one_after_its_key(use, monkeypatch):
    ann = get_user_model().objects.create_user("ann")
    monkeypatch.setattr(remains, "SHORT", 1)
    a_memory("a", ann).add(PICTURE, PICTURE)
    with monkeypatch.context() as patch:
        patch.setattr(remains, "delete_left", lambda using, keys: None)  # as if the process was killed
        Conversation.objects.all().delete()
    assert Message.objects.count() == 2

    a_memory("a", ann).add(PICTURE)
    assert a_memory("a", ann).messages() == [PICTURE]
    prune(Conversation.objects.all())

    assert Message.objects.count() == 1
    assert a_memory("a", ann).messages() == [PICTURE]
    assert len(stored()) == 1


@pytest.mark.parametrize("how", ["cut off", "swapped", "of another owner", "plain"])
def test_a_file_that_is_not_the_one_that_was_stored_is_lost_and_not_made_good(use, how):
    ann, eve = (get_user_model().objects.create_user(name) for name in ("ann", "eve"))
    other = UserMessage([ImageContent(Image(base64_data=base64.b64encode(FILE[::-1]).decode()))])
    memory = a_memory("a", ann)
    memory.add(PICTURE, other)
    a_memory("e", eve).add(other)
    storage, (first, second) = storages["chats"], MediaFile.objects.filter(owner=str(ann.pk)).order_by("pk")
    theirs = MediaFile.objects.get(owner=str(eve.pk))
    with storage.open(first.name) as file:
        sealed = file.read()
    with storage.open((theirs if how == "of another owner" else second).name) as file:
        foreign = file.read()
    storage.delete(first.name)
    altered = {"cut off": sealed[:-1], "plain": FILE[::-1]}.get(how, foreign)
    storage.save(first.name, ContentFile(altered))
    if how == "plain":
        MediaFile.objects.filter(pk=first.pk).update(key_id="")

    with pytest.raises(MissingFileError, match="message 1 of 'a'"):
        memory.messages()
    use("two", "one")
    call_command("encrypt_chatmemory", verbosity=0)
    assert [MediaFile.objects.get(pk=first.pk).name] == [first.name]
    with pytest.raises(CommandError, match="1 findings"):
        call_command("check_chatmemory", files=True, verbosity=0, stdout=io.StringIO())


def test_a_file_whose_key_is_gone_is_no_lost_file(use):
    memory = a_memory("a", get_user_model().objects.create_user("ann"))
    memory.add(PICTURE)
    name = MediaFile.objects.get().name
    out = io.StringIO()

    MediaFile.objects.update(key_id="gone")

    with pytest.raises(MissingKeyError):
        memory.messages()
    with pytest.raises(CommandError):
        call_command("check_chatmemory", files=True, verbosity=0, stdout=out)
    assert f"file {name!r}: It cannot be read: " in out.getvalue()
