"""Addresses of files that users send: http, https or data by every face, and data alone where the site wants that."""

import asyncio
import base64
import json

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.test import AsyncClient
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.core.media import check_address
from chatmemory_django.messages import Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.chat.scripted import ScriptedModel

pytestmark = pytest.mark.django_db(transaction=True)

NAMED = "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
REMOTE = "https://example.com/a.png"

REFUSED = {
    "file:///etc/passwd": "has the scheme 'file'",
    "gopher://127.0.0.1:6379/_x": "has the scheme 'gopher'",
    "javascript:alert(1)": "has the scheme 'javascript'",
    "JavaScript:alert(1)": "has the scheme 'JavaScript'",
    "ftp://example.com/a.png": "has the scheme 'ftp'",
    "blob:https://example.com/x": "has the scheme 'blob'",
    "//evil.example/a.png": "has no scheme",
    "\\\\evil\\share\\a.png": "has no scheme",
    "/etc/passwd": "has no scheme",
    "": "has no scheme",
    " https://example.com/a.png": "has no scheme",
    "https://example.com/a b.png": "characters that no URL may contain",
    "https://example.com/\r\nHost: x": "characters that no URL may contain",
    "https://example.com/\u0001": "characters that no URL may contain",
    "https://": "has no host",
    "https:///etc/passwd": "has no host",
    "http:example.com": "has no host",
    "https://example.com:99999/": "has no host",
    "https://[::1": "has no host",
}
ACCEPTED = (
    *(REMOTE, "http://127.0.0.1:8600/", "HTTPS://EXAMPLE.COM/a.png?x=1#y", "https://[::1]:80/a"),
    *(PNG, PNG.replace("d", "D", 1)),
)


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.CHATMEMORY = {
        "REST": {"THROTTLE_RATES": {}},
        "CHAT": {"ASSISTANT": Assistant(ScriptedModel(*["a file"] * 3)), "THROTTLE_RATE": None},
    }
    cache.clear()


@pytest.fixture
def ann() -> User:
    ann = User.objects.create_user("ann")
    ann.user_permissions.set(Permission.objects.filter(codename="import_conversation"))
    return ann


@pytest.fixture
def server() -> User:
    """Return a server of the site, which may add every type of message."""
    server = User.objects.create_user("server")
    server.user_permissions.set(Permission.objects.filter(codename__in=["import_conversation", "add_message"]))
    return server


def client_of(user: User) -> APIClient:
    return APIClient(headers={"Authorization": f"Bearer {Token.objects.get_or_create(user=user)[0].key}"})


def by_rest(user: User, url: str):
    image = {"type": "USER", "contents": [{"type": "IMAGE", "image": {"url": url}, "detailLevel": "LOW"}]}
    return _posted(user, {"messages": [{"message": image}]})


def by_rest_in_openais_format(user: User, url: str):
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    return _posted(user, {"messages": [{"message": image}]})


def by_openai(user: User, url: str):
    part = {"type": "input_image", "image_url": url}
    body = {"items": [{"role": "user", "content": [part]}]}
    return client_of(user).post("/openai/v1/conversations", body, format="json")


def by_openai_as_a_file(user: User, url: str):
    body = {"items": [{"role": "user", "content": [{"type": "input_file", "file_url": url}]}]}
    return client_of(user).post("/openai/v1/conversations", body, format="json")


def by_import(user: User, url: str):
    image = {"type": "IMAGE", "image": {"url": url}, "detailLevel": "LOW"}
    return _imported(user, {"type": "USER", "contents": [image]})


def by_import_of_a_framework(user: User, url: str):
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    verbatim = json.dumps(item)
    return _imported(user, {"type": "USER", "contents": [{"type": "TEXT", "text": "hi"}]}, verbatim=verbatim)


def by_chat(user: User, url: str):
    part = {"type": "file", "mediaType": "image/png", "url": url}
    body = {"id": NAMED, "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}, part]}]}
    key = Token.objects.get_or_create(user=user)[0].key

    async def post():
        headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}
        return await AsyncClient().post("/api/chat", body, content_type="application/json", headers=headers)

    return asyncio.run(post())


def _posted(user: User, body: dict):
    Conversation.objects.get_or_create(memory_id="c", defaults={"owner": user})
    return client_of(user).post("/api/conversations/c/messages/", body, format="json")


def _imported(user: User, message: dict, **columns: object):
    moment = "2026-11-21T09:30:00Z"
    head = {
        "record": "conversation", "memory_id": NAMED, "next_sequence": 2, "window_start": 1, "pinned_sequence": None,
        "total_messages": 1, "title": "", "metadata": {}, "created_at": moment, "updated_at": moment, "messages": 1,
    }  # fmt: skip
    line = {"record": "message", "sequence": 1, "created_at": moment, "message": message, **columns}
    lines = "\n".join(map(json.dumps, (head, line)))
    return client_of(user).post("/api/import/", lines, content_type="application/jsonl")


FACES = (
    by_rest,
    by_rest_in_openais_format,
    by_openai,
    by_openai_as_a_file,
    by_import,
    by_import_of_a_framework,
    by_chat,
)
STORING = tuple(send for send in FACES if send not in {by_openai_as_a_file, by_import_of_a_framework})
"""Those that take no permission to add messages of every type."""

PICTURE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\xff\xfe\xfd" * 99 + b"12").decode()
PDF = base64.b64encode(b"%PDF-1.7 and so on").decode()
WRONG = {
    "spaces": f"data:image/png;base64, {PICTURE}",
    "line breaks": f"data:image/png;base64,{PICTURE[:76]}\r\n{PICTURE[76:]}",
    "no padding": f"data:image/png;base64,{PICTURE.rstrip('=')}",
    "too much padding": f"data:image/png;base64,{PICTURE}=",
    "another end of the same file": f"data:image/png;base64,{PICTURE[:-3]}B==",
    "the alphabet for URLs": f"data:image/png;base64,{PICTURE.translate(str.maketrans('+/', '-_'))}",
    "no Base64": "data:image/png;base64,%%%",
    "not even claimed to be": "data:image/png,%89PNG%0D%0A%1A%0A",
    "text": "data:,x",
    "nothing": "data:image/png;base64,",
    "a page": "data:text/html;base64,PHNjcmlwdD4=",
    "a page as it is": "data:text/html,<script>alert(1)</script>",
    "a drawing": "data:image/svg+xml;base64,PHN2Zz48L3N2Zz4=",
    "a document as an image": f"data:image/png;base64,{PDF}",
    "an image as a document": f"data:application/pdf;base64,{PICTURE}",
}
"""Data URLs of an image that are not what computers write, or not of what they say."""


@pytest.mark.parametrize("send", FACES)
def test_other_addresses_are_refused_with_their_scheme(send, ann):
    for url, reason in REFUSED.items():
        if url == "" and send in {by_openai, by_openai_as_a_file, by_chat}:
            continue  # required, or empty data
        response = send(ann, url)

        assert response.status_code == 400, url
        assert reason in response.content.decode().replace("\\\\", "\\"), url
        assert len(url) < 8 or url not in response.content.decode()
    assert not Message.objects.exists()


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("send", STORING)
def test_a_file_is_the_base64_that_computers_write_of_it_and_what_its_type_claims(send, wrong, ann):
    response = send(ann, WRONG[wrong])

    assert response.status_code == 400, response.content
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("kind", "source", "where"),
    [
        ("IMAGE", {"image": {"base64Data": f" {PICTURE}"}}, ".image.base64Data"),
        ("IMAGE", {"image": {"base64Data": PICTURE, "mimeType": "text/html"}}, ".image.base64Data"),
        ("IMAGE", {"image": {"base64Data": PICTURE, "url": PNG}}, ".image"),
        ("IMAGE", {"image": {"base64Data": PDF}}, ".image.base64Data"),
        ("PDF", {"pdfFile": {"base64Data": PICTURE}}, ".pdfFile.base64Data"),
        ("AUDIO", {"audio": {"binaryData": PDF}}, ".audio.binaryData"),
        ("AUDIO", {"audio": {"binaryData": PDF, "base64Data": PDF}}, ".audio"),
        ("VIDEO", {"video": {"url": f"data:video/mp4;base64,{PDF}"}}, ".video.url"),
    ],
)
def test_a_content_has_one_file_and_of_its_kind(ann, kind, source, where):
    response = _posted(ann, {"messages": [{"message": {"type": "USER", "contents": [{"type": kind, **source}]}}]})

    assert response.status_code == 400
    assert response.json()["errors"][0]["path"] == f"$.messages[0].message.contents[0]{where}"
    assert not Message.objects.exists()


def test_sound_may_come_in_the_containers_of_videos(ann):
    webm = base64.b64encode(b"\x1aE\xdf\xa3 and so on").decode()
    sound = {"type": "AUDIO", "audio": {"base64Data": webm, "mimeType": "audio/webm"}}

    assert _posted(ann, {"messages": [{"message": {"type": "USER", "contents": [sound]}}]}).status_code == 201


@pytest.mark.parametrize("send", STORING)
def test_addresses_of_the_web_and_files_are_stored(send, ann):
    for url in (REMOTE, PNG):
        Conversation.objects.all().delete()

        response = send(ann, url)

        assert response.status_code in {200, 201}, (url, response.content)
        assert Message.objects.count() >= 1


@pytest.mark.parametrize("send", STORING)
def test_a_site_can_refuse_addresses_on_other_servers(send, ann, server, settings):
    settings.CHATMEMORY["REMOTE_FILES"] = False

    response = send(ann, REMOTE)

    assert response.status_code == 400
    assert "does not accept the addresses of files on other servers" in response.content.decode()
    assert not Message.objects.exists()
    assert send(ann, PNG).status_code in {200, 201}
    Conversation.objects.all().delete()
    assert send(server, REMOTE).status_code in {200, 201}


@pytest.mark.parametrize("send", FACES)
def test_servers_of_the_site_send_no_other_schemes_either(send, server):
    assert send(server, "file:///etc/passwd").status_code == 400


def test_the_error_names_the_path(ann):
    paths = [send(ann, "file:///x").json()["errors"][0]["path"] for send in (by_rest, by_rest_in_openais_format)]

    assert paths == ["$.messages[0].message.contents[0].image.url", "$.messages[0].message.content[0]"]
    assert by_openai(ann, "file:///x").json()["error"]["param"] == "items[0].content[0].image_url"
    assert by_import(ann, "file:///x").json()["errors"][0]["path"] == "line 2"
    assert "$.message.contents[0].image.url" in by_import(ann, "file:///x").json()["errors"][0]["detail"]
    assert (
        b"contents[1].image.url" in by_chat(ann, REMOTE + " ").content or b"parts[1].url" in by_chat(ann, " ").content
    )


@pytest.mark.parametrize(
    "item",
    [
        {"type": "computer_call_output", "call_id": "1", "output": {"type": "computer_screenshot", "image_url": "{}"}},
        {"role": "user", "content": [{"type": "input_file", "file_data": "{}", "filename": "a.pdf"}]},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "{}"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "x": {"deep": [{"file_url": "{}"}]}},
    ],
    ids=["screenshot", "file data", "result", "deep"],
)
def test_addresses_in_other_items_are_checked_too(server, item):
    for url, status in (("file:///etc/x.pdf", 400), (PNG, 200)):
        body = json.dumps({"items": [item]}).replace('"{}"', json.dumps(url))

        response = client_of(server).post("/openai/v1/conversations", body, content_type="application/json")

        assert response.status_code == status, response.content


def test_links_in_texts_and_results_are_no_files(server):
    action = {"type": "open_page", "url": "about:blank"}
    found = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    text = {"role": "user", "content": "see file:///etc/passwd"}

    response = client_of(server).post("/openai/v1/conversations", {"items": [found, text]}, format="json")

    assert response.status_code == 200


def test_code_of_the_site_may_store_any_address(settings):
    settings.CHATMEMORY["REMOTE_FILES"] = False

    get_chat_memory("c").add(UserMessage([ImageContent(Image(url="s3://bucket/a.png"))]))

    assert Message.objects.count() == 1


@pytest.mark.parametrize("url", ACCEPTED)
def test_an_address_is_accepted(url):
    check_address(url)


@pytest.mark.parametrize("url", REFUSED)
def test_an_address_is_refused(url):
    with pytest.raises(ValueError, match="it must be an http or https URL, or a data URL"):
        check_address(url)
