"""Pins of an encrypted conversation: stored as ciphertext, read as they were written by each statement for them."""

import base64

import pytest
from django.db import connection

from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import Finding, check, fork
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("has_owner_keys", [False, True], ids=["site", "owners"])
def test_pinned_messages_stay_readable_and_encrypted(settings, ann, has_owner_keys):
    keys = [f"k1:{base64.b64encode(b'k1'.ljust(32)).decode()}"]
    settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": keys, "OWNER_KEYS": has_owner_keys}}
    install()
    read = MessageWindowChatMemory(
        max_messages=6, id="c", store=DjangoChatMemoryStore(owner=ann), clear_tool_results={"keep": 0}
    )
    call = AiMessage(tool_execution_requests=[ToolExecutionRequest(id="1", name="look", arguments="{}")])
    result = ToolExecutionResultMessage("1", "look", "Zwiebelkuchen " * 30)
    read.add(UserMessage("Zwiebelkuchen?"), call, result, *(UserMessage(str(number)) for number in range(9)))
    read.pin(1)
    read.pin(3)
    pinned = [UserMessage("Zwiebelkuchen?"), call, result]

    for number in range(9):
        read.add(UserMessage(f"later {number}"))
        assert read.messages() == [*pinned, *read.messages()[3:]]
    with read.turn("early") as turn:
        turn.add(UserMessage("q"))
        assert turn.messages[:3] == pinned
    copied = fork(Conversation.objects.get(), "d", through=15)
    assert MessageWindowChatMemory(max_messages=6, id="d", store=DjangoChatMemoryStore()).messages()[:3] == pinned
    assert (copied.pinned_count, read.unpin(1), read.messages()[:2]) == (3, [1], [call, result])
    with connection.cursor() as cursor:
        cursor.execute("SELECT text, payload FROM chatmemory_message")
        assert "Zwiebel" not in str(cursor.fetchall())
    found: list[Finding] = []
    check(Conversation.objects.all(), lambda _: None, found.append)
    assert found == []
