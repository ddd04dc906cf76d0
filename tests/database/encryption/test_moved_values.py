"""Values follow their conversation to another memory id or owner, whatever else the object in memory has."""

import base64
import datetime
import io
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from rest_framework.test import APIClient

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.approvals.approving import request_approvals
from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.chat.model import ApprovalRequested
from chatmemory_django.chat.orders import carried_on
from chatmemory_django.chat.runs import leases
from chatmemory_django.chat.runs.answer import Answer, InterruptedAnswerError
from chatmemory_django.chat.runs.streams import DatabaseStreams, Maker, Piece, decoded, encoded
from chatmemory_django.chat.runs.taking import Given, Kept, Taken
from chatmemory_django.contrib.encryption import EncryptionError
from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.contrib.encryption.models import OwnerKey
from chatmemory_django.messages import ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import fork, prune
from chatmemory_django.provider import get_chat_memory

pytestmark = pytest.mark.django_db(transaction=True)


def site(settings: Any, **encryption: Any) -> None:
    keys = [f"k1:{base64.b64encode(b'k1'.ljust(32)).decode()}"]
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}, "ENCRYPTION": {"KEYS": keys, **encryption}}
    install()


@pytest.fixture(params=[False, True], ids=["site", "owners"])
def owner_keys(request, settings) -> bool:
    site(settings, OWNER_KEYS=request.param)
    return request.param


@pytest.fixture
def eve() -> Any:
    return get_user_model().objects.create_user("eve")


def begin(memory_id: str, owner: Any) -> Conversation:
    get_chat_memory(memory_id, owner=owner).add(UserMessage("asked"))
    conversation = Conversation.objects.get(memory_id=memory_id)
    conversation.title = "title"
    conversation.save()
    return conversation


def read(conversation: Conversation) -> tuple[str, str]:
    there = Conversation.objects.get(pk=conversation.pk)
    return there.title, there.messages.get().text


def test_a_memory_id_that_begins_as_the_old_one_does(owner_keys, ann):
    conversation = begin("x:y", ann)
    conversation.memory_id = "x"
    conversation.save(update_fields=["memory_id"])
    assert read(conversation) == ("title", "asked")


@pytest.mark.parametrize("field", ["memory_id", "owner", "title"])
def test_a_field_that_is_saved_alone(owner_keys, ann, eve, field):
    conversation = begin("a", ann)
    conversation.memory_id, conversation.owner = "b", eve
    conversation.save(update_fields=[field])
    assert read(conversation) == ("title", "asked")


def test_a_title_that_is_saved_by_who_read_the_conversation_before_it_was_moved(owner_keys, ann, eve):
    conversation = begin("a", ann)
    stale = Conversation.objects.get()
    conversation.memory_id, conversation.owner = "b", eve
    conversation.save()
    stale.title = "later"
    stale.save(update_fields=["title"])
    assert read(conversation) == ("later", "asked")


def test_what_owners_keys_encrypted_is_given_away_once_they_are_off(ann, eve, settings):
    site(settings, OWNER_KEYS=True)
    moved, source = begin("a", ann), begin("b", ann)
    site(settings)
    moved.owner = eve
    moved.save()
    forked = fork(source, owner=eve)
    ann.delete()
    assert read(moved) == read(forked) == ("title", "asked")


def test_a_fork_that_is_given_away_where_plain_texts_are_written_can_be_forked_and_encrypted(ann, eve, settings):
    site(settings, OWNER_KEYS=True)
    forked = fork(begin("a", ann))
    site(settings, OWNER_KEYS=True, PLAIN="write")
    forked.owner = eve
    forked.save()
    assert read(fork(forked)) == ("title", "asked")
    site(settings, OWNER_KEYS=True)
    call_command("encrypt_chatmemory", verbosity=0)
    assert read(forked) == ("title", "asked")


@pytest.mark.parametrize("bad", ["enc2:k1:no value", f"enc2:gone:{'A' * 60}"])
def test_a_list_goes_on_where_an_origin_cannot_be_read(owner_keys, ann, bad):
    fork(begin("a", ann))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_encryption_origin SET text = %s", [bad])
    client = APIClient()
    client.force_login(ann)
    response = client.get("/api/conversations/")
    assert response.status_code == 200
    assert "asked" in response.content.decode()


def test_rows_of_an_approval_and_a_stream_are_not_shown_in_another_conversation(owner_keys, ann, eve):
    mine, theirs = begin("a", ann), begin("e", eve)
    ToolApproval.objects.create(conversation=mine, sequence=1, position=0, reason="a secret")
    maker = Maker("a", str(ann.pk), "0" * 32)
    streams = DatabaseStreams("default")
    streams.write({maker: encoded(maker, Piece(1 << 24, "a secret"))})
    assert ToolApproval.objects.get().reason == "a secret"
    assert decoded(maker, streams.read(maker, 0)) == ["a secret"]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_chat_toolapproval SET conversation_id = %s", [theirs.pk])
        cursor.execute("UPDATE chatmemory_chat_answerchunk SET memory_id = 'e'")
    with pytest.raises(EncryptionError):
        ToolApproval.objects.get()
    maker = maker._replace(memory_id="e", owner_key=str(eve.pk))
    with pytest.raises(EncryptionError):
        decoded(maker, streams.read(maker, 0))


def test_what_a_call_asks_for_is_sealed_for_its_owner_from_the_start(owner_keys, ann):
    conversation = begin("a", ann)
    asked = ApprovalRequested(uuid4(), ToolExecutionRequest("c1", "pay", "{}"), asks="pay a secret")
    request_approvals("default", conversation.pk, 1, [(0, asked)])
    with connection.cursor() as cursor:
        cursor.execute("SELECT asks FROM chatmemory_chat_toolapproval")
        assert cursor.fetchone()[0].startswith("enc2:")
    assert ToolApproval.objects.get().asks == "pay a secret"


def test_what_a_run_was_asked_is_nothing_in_another_conversation_of_its_owner(owner_keys, ann):
    begin("a", ann), begin("e", ann)
    run = uuid4()
    taken = leases.take("default", "a", ann.pk, run, "", kept=Kept.now("a", Given(body={"model": "best"})))
    assert isinstance(taken, Taken)
    leases.leave(taken)
    order = carried_on(Maker("a", str(ann.pk), run.hex))
    with pytest.raises(NotAllowedError, match="no assistant"):  # it was decrypted
        order.begin(Answer(Maker("a", str(ann.pk), run.hex)))
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE chatmemory_chat_run SET conversation_id = %s", [Conversation.objects.get(memory_id="e").pk]
        )
    with pytest.raises(InterruptedAnswerError, match="another conversation"):
        carried_on(Maker("e", str(ann.pk), run.hex)).begin(Answer(Maker("e", str(ann.pk), run.hex)))


@pytest.mark.parametrize("has_conversation", [True, False])
def test_a_key_of_an_owner_that_cannot_be_unwrapped_stops_no_other(ann, eve, settings, has_conversation):
    site(settings, OWNER_KEYS=True)
    begin("a", ann), begin("e", eve), begin("n", None)
    bad = OwnerKey.objects.get(owner=str(ann.pk))
    OwnerKey.objects.filter(pk=bad.pk).update(wrapped="enc2:k1:chatmemory_encryption.ownerkey.wrapped:AAAA")
    if not has_conversation:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM chatmemory_conversation WHERE memory_id = 'a'")
    new = f"k2:{base64.b64encode(b'k2'.ljust(32)).decode()}"
    settings.CHATMEMORY["ENCRYPTION"]["KEYS"].insert(0, new)
    install()
    errors = io.StringIO()
    with pytest.raises(CommandError, match="'a'" if has_conversation else bad.pk):
        call_command("encrypt_chatmemory", verbosity=0, stdout=io.StringIO(), stderr=errors)
    assert bad.pk in errors.getvalue()
    assert OwnerKey.objects.get(owner=str(eve.pk)).wrapped.startswith("enc2:k2:")
    settings.CHATMEMORY["ENCRYPTION"]["KEYS"].pop()
    install()
    assert [read(Conversation.objects.defer("title").get(memory_id=name)) for name in "en"] == [("title", "asked")] * 2


def test_old_messages_are_pruned_without_the_key_of_a_title(owner_keys, ann):
    for name in "abc":
        begin(name, ann)
        get_chat_memory(name).clear()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_message SET created_at = '2020-01-01 00:00:00'")
        cursor.execute("UPDATE chatmemory_conversation SET title = %s WHERE memory_id = 'a'", [f"enc2:gone:{'A' * 60}"])
    assert prune(Conversation.objects.all(), history_older_than=datetime.timedelta(1)).messages == 3


def test_a_conversation_is_erased_without_the_key_of_its_title(owner_keys, ann, client):
    for name in "abcd":
        begin(name, ann)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_conversation SET title = %s", [f"enc2:gone:{'A' * 60}"])
    api = APIClient()
    api.force_login(ann)
    assert api.delete("/api/conversations/a/").status_code == 204
    client.force_login(get_user_model().objects.create_superuser("root"))
    one, *others = Conversation.objects.values_list("pk", flat=True)
    for address, form in (
        (f"/admin/chatmemory/conversation/{one}/delete/", {}),
        ("/admin/chatmemory/conversation/", {"action": "delete_selected", "_selected_action": others}),
    ):
        assert "cannot be decrypted (key gone)" in client.post(address, form).content.decode()
        client.post(address, {**form, "confirmed": "delete"})
    assert not Conversation.objects.exists()
