"""Files in messages: served at addresses of their own rather than in pages."""

import pytest

from chatmemory_django.messages import (
    Audio,
    AudioContent,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests.faces.rest.conftest import MEMORY, MESSAGES, ROOT, adding
from tests.pictures import a_file, custom, encoded, use_storage

pytestmark = pytest.mark.django_db

PNG = a_file()
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
ADDRESS = f"http://testserver{MESSAGES}1/media"


@pytest.fixture(params=["rows", "storage"])
def kept_in(request, settings) -> str:
    if request.param == "storage":
        use_storage(settings, MEDIA_MIN_BYTES=1)
    return request.param


@pytest.fixture(autouse=True)
def conversation(kept_in, begin) -> None:
    begin(
        "c",
        UserMessage(
            [
                TextContent("What is this?"),
                ImageContent(Image(base64_data=encoded(PNG), mime_type="text/html")),
                ImageContent(Image(url="https://example.com/a.png")),
                ImageContent(Image(url=f"data:image/png;base64,{encoded(PNG)}")),
                ImageContent(Image(base64_data=encoded(SVG), mime_type="image/svg+xml")),
                PdfFileContent(PdfFile(base64_data=encoded(b"%PDF-1.7"), mime_type="application/pdf")),
                AudioContent(Audio(binary_data=b"ID3" + b"\0" * 9, mime_type="audio/mpeg")),
                ImageContent(Image(base64_data="!broken!", mime_type="image/png")),
            ]
        ),
    )


@pytest.mark.parametrize("where", [MESSAGES, f"{MESSAGES}1/", MEMORY])
def test_pages_have_addresses_instead_of_files(api, where):
    page = api.get(where)

    body = page.json()
    (message,) = body.get("results") or body.get("messages") or [body]
    contents = message["message"]["contents"]
    assert encoded(PNG)[:50] not in page.content.decode()
    assert contents[1]["image"]["url"] == f"{ADDRESS}/1/"
    assert contents[2]["image"]["url"] == "https://example.com/a.png"
    assert contents[3]["image"]["url"] == f"{ADDRESS}/3/"
    assert contents[6]["audio"]["url"] == f"{ADDRESS}/6/"
    assert "base64Data" not in contents[1]["image"]


@pytest.mark.parametrize("where", [MESSAGES, f"{MESSAGES}1/", MEMORY])
def test_pages_have_the_files_on_request(api, where):
    assert encoded(PNG) in api.get(where, {"media": "inline"}).content.decode()


def test_the_openai_format_has_addresses_too(api):
    image = {"base64Data": encoded(PNG), "mimeType": "image/png"}
    api.post(MESSAGES, adding({"type": "USER", "contents": [{"type": "IMAGE", "image": image}]}), format="json")

    shown = api.get(f"{MESSAGES}2/", {"as": "openai"}).json()["message"]

    assert shown["content"][0]["image_url"]["url"] == f"http://testserver{MESSAGES}2/media/0/"


@pytest.mark.parametrize(
    ("index", "content", "content_type", "kind"),
    [
        (1, PNG, "image/png", "inline"),  # by its first bytes, whatever the message declares
        (3, PNG, "image/png", "inline"),
        (4, SVG, "application/octet-stream", "attachment"),
        (5, b"%PDF-1.7", "application/pdf", "attachment"),
        (6, b"ID3" + b"\0" * 9, "audio/mpeg", "inline"),
    ],
)
@pytest.mark.parametrize("slash", ["/", ""])
def test_files_are_sent_so_that_no_browser_runs_them(api, index, content, content_type, kind, slash):
    response = api.get(f"{MESSAGES}1/media/{index}{slash}")

    assert (response.status_code, response.content, response["Content-Type"]) == (200, content, content_type)
    assert response["Content-Disposition"].startswith(f"{kind}; filename=")
    assert response["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in response["Content-Security-Policy"]
    assert response["Cache-Control"] == "no-store"


@pytest.mark.parametrize("index", ["0", "2", "7", "8", "-1", "x", "9" * 30, "٣"])
def test_a_missing_file_is_not_found(api, index):
    response = api.get(f"{MESSAGES}1/media/{index}/")

    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")


def test_files_require_the_permission_to_read_the_message(client_of):
    statuses = {
        name: client_of(name).get(f"{MESSAGES}1/media/1/").status_code
        for name in ("owner", "other", "staff who see", "staff who read")
    }

    assert statuses == {"owner": 200, "other": 404, "staff who see": 404, "staff who read": 200}


def test_files_in_results_of_tools_are_served(begin, api):
    picture = ImageContent(Image(base64_data=encoded(PNG), mime_type="image/png"))
    begin("d", ToolExecutionResultMessage("1", "t", [picture]))

    assert api.get(f"{ROOT}d/messages/1/media/0/").content == PNG


def test_files_in_system_messages_are_hidden_from_the_owner(begin, api):
    begin("d", SystemMessage("secret"))

    assert api.get(f"{ROOT}d/messages/1/media/0/").status_code == 404


def test_a_current_etag_avoids_another_transfer(api):
    etag = api.get(f"{MESSAGES}1/media/1/")["ETag"]

    assert api.get(f"{MESSAGES}1/media/1/", headers={"If-None-Match": etag}).status_code == 304


def test_files_in_attributes_that_are_in_the_storage_have_addresses_as_well(client_of, begin, kept_in):
    api = client_of("staff who read")
    begin("d", custom())

    shown = api.get(f"{ROOT}d/messages/1/").json()["message"]["attributes"]

    if kept_in == "rows":
        assert shown == custom().attributes
    else:
        address = f"http://testserver{ROOT}d/messages/1/media/0/"
        assert shown == {**custom().attributes, "result": address}
        assert api.get(address).content == a_file()
        assert api.get(address.replace("/0/", "/1/")).status_code == 404
