"""Files in a storage by every way in and out: in no row, read by who may read the message, refused when it is down."""

import json
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.files.storage import storages
from django.db import connections
from django.test import Client

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.contrib.files.models import MediaFile
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import erase, export_lines
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.scripted import ScriptedModel
from tests.faces.test_file_addresses import (
    NAMED,
    by_chat,
    by_import,
    by_openai,
    by_rest,
    by_rest_in_openais_format,
    client_of,
)
from tests.pictures import a_file, encoded, picture, stored_in, use_storage

pytestmark = pytest.mark.django_db(transaction=True)

PNG = a_file()
ENCODED = encoded(PNG)
URL = f"data:image/png;base64,{ENCODED}"


@pytest.fixture(autouse=True)
def model(settings) -> ScriptedModel:
    model = ScriptedModel(*["a file"] * 3)
    chat = {"ASSISTANT": Assistant(model), "THROTTLE_RATE": None}
    settings.CHATMEMORY = {}
    use_storage(settings, REST={"THROTTLE_RATES": {}}, CHAT=chat)
    cache.clear()
    return model


@pytest.fixture
def ann() -> User:
    return User.objects.create_superuser("ann")


def everything_in_rows() -> str:
    return json.dumps(list(Message.objects.values_list("payload", "verbatim", "text")))


@pytest.mark.parametrize(
    "way", [by_rest, by_rest_in_openais_format, by_openai, by_import, by_chat], ids=lambda way: way.__name__
)
def test_a_file_that_comes_in_is_in_the_storage_and_in_no_row(ann, way):
    response = way(ann, URL)

    assert response.status_code in {200, 201}, response.content
    assert ENCODED[:200] not in everything_in_rows()
    assert MediaFile.objects.get().owner == str(ann.pk)
    assert storages["chats"].open(MediaFile.objects.get().name).read() == PNG


def test_the_chat_sends_the_model_the_file_and_the_page_its_address(ann, model):
    assert by_chat(ann, URL).status_code == 200
    assert ENCODED in repr(model.requests[0])

    page = Client()
    page.force_login(ann)
    shown = page.get(f"/api/chat/{NAMED}/messages").json()
    [address] = [part["url"] for part in shown[0]["parts"] if part["type"] == "file"]
    served = page.get(address)
    assert (served.content, served["Content-Type"]) == (PNG, "image/png")
    assert served["X-Content-Type-Options"] == "nosniff"

    other = Client()
    other.force_login(User.objects.create_user("ben"))
    assert other.get(address).status_code == 404


def test_the_admin_links_to_a_file_without_reading_it(ann, monkeypatch):
    by_rest(ann, URL)
    conversation = Conversation.objects.get()
    client = Client()
    client.force_login(ann)
    address = f"/admin/chatmemory/conversation/{conversation.pk}/messages/1/files/0/"

    def read(*args):
        raise OSError("down")

    monkeypatch.setattr(storages["chats"], "_open", read)
    page = client.get(f"/admin/chatmemory/conversation/{conversation.pk}/change/")
    assert page.status_code == 200
    assert "image/png" in page.content.decode()
    assert f'"{address}"' in page.content.decode()
    assert client.get(address).status_code == 503
    assert client_of(ann).get("/api/conversations/c/messages/1/media/0/").status_code == 503
    monkeypatch.undo()
    assert client.get(address).content == PNG


def test_openais_items_have_the_file_and_a_reference_from_outside_is_refused(ann):
    made = by_openai(ann, URL).json()
    items = client_of(ann).get(f"/openai/v1/conversations/{made['id']}/items").json()["data"]
    assert items[0]["content"][0]["image_url"] == URL

    forged = {"type": "IMAGE", "image": {"file": {"sha256": MediaFile.objects.get().sha256, "size": len(PNG)}}}
    Conversation.objects.create(memory_id="c", owner=ann)
    body = {"messages": [{"message": {"type": "USER", "contents": [forged]}}]}
    response = client_of(ann).post("/api/conversations/c/messages/", body, format="json")
    assert response.status_code == 400
    assert "which only the store sets" in response.content.decode()


def test_a_repeated_request_stores_a_file_only_once(ann):
    Conversation.objects.create(memory_id="c", owner=ann)
    body = {"messages": [{"message": {"type": "USER", "contents": [{"type": "IMAGE", "image": {"url": URL}}]}}]}
    for _ in range(2):
        response = client_of(ann).post("/api/conversations/c/messages/", body, "json", headers={"Idempotency-Key": "a"})
        assert response.status_code == 201, response.content
    assert Message.objects.count() == 1


def test_a_storage_that_is_down_refuses_and_stores_nothing(ann, monkeypatch):
    def save(*args):
        raise OSError("down")

    monkeypatch.setattr(storages["chats"], "_save", save)
    assert by_rest(ann, URL).status_code == 503
    assert by_openai(ann, URL).status_code == 503
    assert not Message.objects.exists()


def test_an_import_that_is_refused_at_its_second_conversation_leaves_no_file(ann):
    Conversation.objects.create(memory_id=(second := str(uuid4())), owner=ann)
    assert by_import(ann, URL).status_code == 201
    lines = [json.loads(line) for line in export_lines(Conversation.objects.filter(memory_id=NAMED))]
    erase(Conversation.objects.filter(memory_id=NAMED))
    lines += [{**lines[0], "memory_id": second}, *lines[1:]]
    body = "\n".join(map(json.dumps, lines))

    response = client_of(ann).post("/api/import/", body, content_type="application/jsonl")

    assert response.status_code == 409
    assert not MediaFile.objects.exists()
    assert stored_in(storages["chats"]) == []


def test_a_user_has_a_quota(ann, settings):
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_QUOTA": 3_000}
    assert by_rest(ann, URL).status_code == 201
    for way in (by_rest, by_openai, by_chat, by_import):
        response = way(ann, URL)
        assert response.status_code == 400, way
        assert "and may have 3000 at most" in response.content.decode()


@pytest.mark.parametrize(("is_atomic", "status", "left"), [(False, 204, None), (True, 202, {"files_to_delete": 1})])
def test_with_atomic_requests_files_go_after_the_response_which_counts_them(ann, monkeypatch, is_atomic, status, left):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", is_atomic)
    client = Client()
    client.force_login(ann)
    get_chat_memory("files", owner=ann).add(picture(1))
    get_chat_memory("texts", owner=ann).add(UserMessage("Hi"))

    response = client.delete("/api/conversations/files/")

    assert response.status_code == status
    assert left is None or response.json() == left
    assert client.delete("/api/conversations/texts/").status_code == 204
    assert not stored_in(storages["chats"])
