"""A site without the app ``encryption``: what is encrypted is no text, and a text may look as if it were."""

import io

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import UnreadableError
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import export_lines, import_lines
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db(transaction=True)

VALUES = [f"enc1:k1:{'A' * 60}", f"enc2:@0f:chatmemory.message.text:7:1:USER:{'A+/9' * 20}=="]
ORDINARY = ["enc", "enc1:", "enc2: a list", "encore", f"enc2:k1:{'A' * 20}", f"enc3:k1:{'A' * 60}"]


@pytest.fixture(autouse=True)
def without_the_app() -> None:
    if row_codec.installed is not None:
        pytest.skip("It needs a site without the app.")


@pytest.mark.parametrize("text", [*VALUES, *ORDINARY])
@pytest.mark.parametrize("message", [UserMessage, AiMessage, SystemMessage])
def test_a_text_that_looks_like_a_value_is_read_as_it_was_written(text, message):
    get_chat_memory("a").add(message(text))

    assert get_chat_memory("a").messages() == [message(text)]
    lines = [line.replace('"a"', '"b"') for line in export_lines(Conversation.objects.all())]
    import_lines(lines)
    assert get_chat_memory("b").messages() == [message(text)]
    assert (Message.objects.first().payload is None) is (text in ORDINARY)
    call_command("check_chatmemory", stdout=io.StringIO())


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
    assert out.getvalue().startswith("'a' content: The text of a message is encrypted")
