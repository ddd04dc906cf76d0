"""After an erasure, ``verify_chatmemory`` looks for what is left of the user, wherever it may be, and finds it."""

import os
from collections.abc import Callable
from unittest.mock import patch

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.chat.models import AnswerChunk, ModelCall, ToolApproval
from chatmemory_django.chat.runs.streams import Maker, Piece, streams
from chatmemory_django.contrib.files import storage as storage_of_files
from chatmemory_django.contrib.files.models import MediaDeletion, MediaReference
from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message, finding, remains
from chatmemory_django.operations import verifying
from chatmemory_django.operations.verifying import _found
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.pictures import picture, use_storage

pytestmark = pytest.mark.django_db(transaction=True)

REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/7")
SHA256 = "0" * 64
NOBODY = "99999999"
ANY = verifying.User(1, "ann")


@pytest.fixture(autouse=True)
def storage(settings, monkeypatch) -> None:
    use_storage(settings)
    monkeypatch.setattr(storage_of_files, "FOLDERS", [f"chatmemory/{number:02x}" for number in range(256)])


@pytest.fixture
def ann() -> User:
    """Return a user with a conversation, beside one of another."""
    ann, bob = User.objects.create_user("ann"), User.objects.create_user("bob")
    talk(ann, "a")
    talk(bob, "b")
    return ann


def talk(owner: User, memory_id: str) -> None:
    memory = MessageWindowChatMemory(max_messages=9, id=memory_id, store=DjangoChatMemoryStore(owner=owner))
    memory.add(UserMessage("Hello"), picture(1))
    conversation = Conversation.objects.get(memory_id=memory_id)
    ModelCall.objects.create(owner=owner, conversation=conversation, purpose="answer", outcome="completed")


def verified(capsys, code: int, **options: object) -> list[str]:
    """Return what the command prints; it ends with that *code*."""
    if finding.index is not None:
        call_command("prune_chatmemory", "--search-index", verbosity=0)
    capsys.readouterr()
    ended = 0
    try:
        call_command("verify_chatmemory", **options)
    except CommandError as exc:
        ended = exc.returncode
    assert ended == code
    return capsys.readouterr().out.splitlines()


NOTHING = ["Nothing is left in default."]


def test_before_an_erasure_it_names_each_table_with_something_of_the_user(ann, capsys):
    assert verified(capsys, 1, user="ann") == [
        "default: chatmemory_conversation: rows of the user: 1",
        "default: chatmemory_chat_modelcall: rows of the user: 1",
        "default: chatmemory_files_mediafile: rows of the user: 1",
    ]


def test_after_it_nothing_is_left_but_what_others_have(ann, capsys):
    operations.erase(Conversation.objects.owned_by(ann))
    assert verified(capsys, 1, user="ann") == ["default: chatmemory_chat_modelcall: rows of the user: 1"]
    key = ann.pk

    ann.delete()

    assert verified(capsys, 0, user_key=str(key)) == NOTHING
    assert Conversation.objects.count() == 1


def a_lost_conversation() -> None:
    Conversation.objects.filter(memory_id="b")._raw_delete("default")


def a_file() -> None:
    storages["chats"].save(f"chatmemory/00/{SHA256}-left", ContentFile(b"left"))


PLANTS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "messages": (
        lambda: _without_constraints(a_lost_conversation),
        [
            "chatmemory_message: rows of conversations that are gone: 2",
            "chatmemory_chat_modelcall: rows of conversations that are gone: 1",
            "chatmemory_files_mediareference: rows of conversations that are gone: 1",
        ],
    ),
    "a piece of a stream": (
        lambda: AnswerChunk.objects.create(
            memory_id="gone", answer_id="0" * 32, position=0, data="{}", written_at=timezone.now()
        ),
        ["chatmemory_chat_answerchunk: rows of conversations that are gone: 1"],
    ),
    "a reference to a file": (
        lambda: MediaReference.objects.create(
            conversation_id=10**9, sequence=1, file_id=MediaReference.objects.values_list("file_id", flat=True)[0]
        ),
        ["chatmemory_files_mediareference: rows of conversations that are gone: 1"],
    ),
    "a file": (a_file, ["files in the storage that no message has: 1"]),
}


def _without_constraints(do: Callable[[], object]) -> None:
    with connection.constraint_checks_disabled():
        do()


@pytest.mark.parametrize("plant", PLANTS)
def test_what_an_erasure_would_leave_is_found(ann, capsys, plant):
    ann.delete()
    do, found = PLANTS[plant]
    if plant == "messages" and connection.vendor == "postgresql":
        pytest.skip("Its constraints cannot be switched off for a moment.")

    do()

    assert verified(capsys, 1, user_key=NOBODY) == [f"default: {each}" for each in found]


def test_a_file_that_the_storage_has_not_deleted_is_found(ann, capsys):
    key = ann.pk
    with patch.object(storage_of_files, "delete", return_value=[]):
        ann.delete()

    assert verified(capsys, 1, user_key=str(key)) == ["default: chatmemory_files_mediadeletion: rows of the user: 1"]
    operations.prune(Conversation.objects.all())
    assert not MediaDeletion.objects.exists()
    assert verified(capsys, 0, user_key=str(key)) == NOTHING


def test_the_messages_of_a_long_conversation_are_found_until_they_are_deleted(ann, capsys, monkeypatch):
    key = ann.pk
    monkeypatch.setattr(remains, "SHORT", 1)
    with patch.object(remains, "delete_left"):
        operations.erase(Conversation.objects.owned_by(ann))
    ann.delete()

    assert "default: chatmemory_message: rows of conversations that are gone: 2" in verified(
        capsys, 1, user_key=str(key)
    )
    operations.prune(Conversation.objects.all())
    assert verified(capsys, 0, user_key=str(key)) == NOTHING


def test_what_cannot_be_looked_at_is_not_verified(ann, capsys):
    key = ann.pk
    ann.delete()
    broken = storage_of_files.StorageError("The storage did not list its files.")

    with patch.object(storage_of_files, "listed", side_effect=broken):
        lines = verified(capsys, 3, user_key=str(key))

    assert lines == ["default: files in the storage that no message has: unknown"]


def test_a_stream_in_redis_is_found(ann, capsys, settings):
    redis = pytest.importorskip("redis")
    with redis.Redis.from_url(REDIS) as client:
        try:
            client.flushdb()
        except redis.ConnectionError:
            pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")
        path = "chatmemory_django.chat.runs.redis_streams.RedisStreams"
        settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": {"STREAMS": path, "REDIS_URL": REDIS}}
        for memory_id in ("b", "gone: 1"):
            streams().write({Maker(memory_id, "1", "0" * 32): Piece(0, "{}")})
        ann.delete()

        found = verified(capsys, 1, user_key=NOBODY)
        client.flushdb()

    assert found == ["default: streams of answers in conversations that are gone: 1"]


@pytest.mark.skipif(finding.index is None, reason="It is of the site with an index.")
@pytest.mark.skipif(connection.vendor == "postgresql", reason="It shows no one what is in an index.")
def test_an_index_with_words_of_deleted_messages_is_found_until_it_is_merged(ann, capsys):
    key = ann.pk
    ann.delete()
    with pytest.raises(CommandError):
        call_command("verify_chatmemory", user_key=str(key))
    assert "parts of the search index that may have words of deleted messages: " in capsys.readouterr().out

    assert verified(capsys, 0, user_key=str(key)) == NOTHING


def test_what_a_user_did_in_conversations_of_others_is_found(ann, capsys):
    conversation = Conversation.objects.get(memory_id="b")
    decided = {"conversation": conversation, "sequence": 1, "state": "ended", "decided_by": str(ann.pk)}
    ToolApproval.objects.create(position=0, **decided)
    LegalHold.objects.create(conversation=conversation, reason="Case 7", placed_by="ann", ended_by="ann")
    by_name = [
        "default: chatmemory_holds_legalhold: rows that name the user in placed_by: 1",
        "default: chatmemory_holds_legalhold: rows that name the user in ended_by: 1",
    ]
    by_key = ["default: chatmemory_chat_toolapproval: rows that name the user in decided_by: 1"]
    key = str(ann.pk)
    assert {*by_key, *by_name} < set(verified(capsys, 1, user="ann"))
    assert {*by_key, *by_name} < set(verified(capsys, 1, user_key=key))

    ann.delete()

    assert verified(capsys, 1, user_key=key) == by_key
    assert verified(capsys, 1, user_key=key, user="ann") == [*by_key, *by_name]


def test_each_reference_to_a_user_in_a_table_of_the_package_is_looked_at():
    fields = [
        (model._meta.label, field.name)
        for model in apps.get_models(include_auto_created=True)
        if model.__module__.startswith("chatmemory_django.")
        for field in model._meta.concrete_fields
        if field.related_model is User or field.name.endswith(("ed_by", "owner", "user"))
    ]
    # Of the last three, what counted or evicted is meant, which is no user.
    no_users = {("chatmemory.Conversation", "counted_by"), ("chatmemory.Conversation", "evicted_by")}
    no_users |= {("chatmemory.Message", "counted_by")}
    found = {
        (model, name)
        for model, name in fields
        for _ in _found(apps.get_model(model), _field(model, name), ANY, "default")
    }

    assert set(fields) - found == no_users


def _field(model: str, name: str):
    return apps.get_model(model)._meta.get_field(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": "eve"}, "There is no user 'eve'"),
        ({"user_key": "eve"}, "'eve' cannot be the primary key of a user"),
        ({"user_key": "9" * 20}, f"'{'9' * 20}' cannot be the primary key of a user: Ensure this value is less"),
        ({"user_key": "-" + "9" * 20}, "cannot be the primary key of a user: Ensure this value is greater"),
        ({"user_key": "9" * 20, "user": "ann"}, "cannot be the primary key of a user"),
        ({}, "Name the user: --user NAME or --user-key KEY"),
    ],
)
def test_a_wrong_name_is_an_error(ann, options, words):
    with pytest.raises(CommandError, match=words) as caught:
        call_command("verify_chatmemory", **options)

    assert caught.value.returncode == (1 if options else 2)


def test_it_changes_nothing(ann, capsys):
    before = [model.objects.count() for model in (Conversation, Message, ModelCall, MediaReference)]

    verified(capsys, 1, user="ann")

    assert [model.objects.count() for model in (Conversation, Message, ModelCall, MediaReference)] == before
