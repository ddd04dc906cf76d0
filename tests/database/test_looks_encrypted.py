"""A site without the app ``encryption``: what is encrypted is no text, and a text may look as if it were."""

import io

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import UnreadableError
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import export_lines, import_lines
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db(transaction=True)

VALUES = [f"enc1:k1:{'A' * 60}", f"enc2:@0f:chatmemory.message.text:7:1:USER:{'A+/9' * 20}=="]
ALIKE = ["enc1:", "enc2: a list", f"enc2:k1:{'A' * 20}", "enc0:", f"enc0:{VALUES[0]}", f"enc0:enc0:{VALUES[1]}"]
ORDINARY = ["enc", "encore", f"enc3:k1:{'A' * 60}", f" {VALUES[0]}"]


@pytest.fixture(autouse=True)
def without_the_app() -> None:
    if row_codec.installed is not None:
        pytest.skip("It needs a site without the app.")


@pytest.mark.parametrize("text", [*VALUES, *ALIKE, *ORDINARY])
@pytest.mark.parametrize("message", [UserMessage, AiMessage, SystemMessage])
def test_a_text_that_looks_like_a_value_is_read_as_it_was_written(text, message):
    get_chat_memory("a").add(message(text))

    assert get_chat_memory("a").messages() == [message(text)]
    lines = [line.replace('"a"', '"b"') for line in export_lines(Conversation.objects.all())]
    import_lines(lines)
    assert get_chat_memory("b").messages() == [message(text)]
    assert (Message.objects.first().payload is None) is (text in ORDINARY)
    assert list(Message.objects.values_list("text", flat=True)) == [text, text]
    assert [row.chat_message for row in Message.objects.all()] == [message(text)] * 2
    call_command("check_chatmemory", stdout=io.StringIO())


@pytest.mark.parametrize("text", [*VALUES, *ALIKE, *ORDINARY])
def test_a_title_and_a_reason_may_look_like_a_value(text, client, admin_user):
    get_chat_memory("a", owner=admin_user).add(UserMessage(text))
    conversation = Conversation.objects.get()
    conversation.title = text
    conversation.save()
    Conversation.objects.bulk_create([Conversation(memory_id="b", title=text), Conversation(memory_id="c")])
    Conversation.objects.filter(memory_id="c").update(title=text)
    ToolApproval.objects.create(conversation=conversation, sequence=1, position=0, reason=text)
    client.force_login(admin_user)

    assert {each.title for each in Conversation.objects.all()} == {text}
    Conversation.objects.bulk_update(Conversation.objects.all(), ["title"])
    assert {each.title for each in Conversation.objects.all()} == {text}
    assert ToolApproval.objects.get().reason == text
    (listed,) = client.get("/api/conversations/").json()["results"]
    assert (listed["title"], listed["preview"]) == (text, text)


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_an_error_and_never_a_text(value, client, admin_user):
    get_chat_memory("a", owner=admin_user).add(UserMessage("Hi"))
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_message SET text = %s", [value])
    client.force_login(admin_user)
    client.raise_request_exception = False

    for read in (
        lambda: get_chat_memory("a").messages(),
        lambda: DjangoChatMemoryStore().read_history("a")[0].chat_message,
        lambda: Message.objects.get().chat_message,
        lambda: list(export_lines(Conversation.objects.all())),
    ):
        with pytest.raises(UnreadableError, match="does not have the app"):
            raise AssertionError(str(read()))
    for path in ("/api/conversations/a/messages/", "/api/conversations/a/memory/", "/api/chat/a/messages"):
        response = client.get(path)
        assert response.status_code == 500
        assert value not in response.content.decode()
    out = io.StringIO()
    with pytest.raises(CommandError, match="1 findings"):
        call_command("check_chatmemory", stdout=out)
    assert out.getvalue().startswith("'a' content: A text is encrypted")


@pytest.mark.parametrize("value", VALUES)
def test_a_title_a_reason_and_the_beginning_of_a_text_are_errors_and_lists_go_on(value, client, admin_user):
    get_chat_memory("a", owner=admin_user).add(UserMessage("Hi"))
    get_chat_memory("b", owner=admin_user).add(UserMessage("Later"))
    conversation = Conversation.objects.get(memory_id="a")
    ToolApproval.objects.create(conversation=conversation, sequence=1, position=0, reason="why")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chatmemory_message SET text = %s WHERE conversation_id = %s", [value, conversation.pk])
        cursor.execute("UPDATE chatmemory_conversation SET title = %s WHERE memory_id = 'a'", [value])
        cursor.execute("UPDATE chatmemory_chat_toolapproval SET reason = %s", [value])
    client.force_login(admin_user)

    for read in (
        lambda: list(Conversation.objects.all()),
        lambda: list(Conversation.objects.values_list("title", flat=True)),
        lambda: list(ToolApproval.objects.all()),
        lambda: list(Message.objects.values_list("text", flat=True)),
        lambda: list(Conversation.objects.defer("title").with_preview(["USER"])),
    ):
        with pytest.raises(UnreadableError, match="does not have the app"):
            raise AssertionError(str(read()))
    note = f"cannot be decrypted (key {value.split(':')[1]})"
    rows = {row["memory_id"]: row for row in client.get("/api/conversations/").json()["results"]}
    assert (rows["a"]["title"], rows["a"]["preview"]) == (note, note)
    assert rows["b"]["preview"] == "Later"
    page = client.get("/admin/chatmemory/conversation/").content.decode()
    assert note in page
    assert value not in page
    assert client.patch("/api/conversations/a/", {"title": "new"}, "application/json").json()["title"] == "new"
    assert client.delete("/api/conversations/a/").status_code == 204
