"""Files in messages: their types, and messages without them."""

import base64

import msgspec
import pytest
from hypothesis import given

from chatmemory_django.codec import message_from_json, message_to_json
from chatmemory_django.core import media
from chatmemory_django.core.media import File, check_content, file_of, source_at, without_files
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from tests import strategies


def files_of(message) -> list[File | None]:
    sources = [source_at(message, index) for index in range(len(getattr(message, "contents", ())))]
    return [None if source is None else file_of(source) for source in sources]


PNG = b"\x89PNG\r\n\x1a\n the rest"
PDF = b"%PDF-1.7"
PNG64, PDF64 = (base64.b64encode(content).decode() for content in (PNG, PDF))
ELSEWHERE = ImageContent(Image(url="https://example.com/a.png"))
HOLDING = [
    (ImageContent(Image(base64_data=PNG64, mime_type="image/jpeg")), File(PNG, "image/png")),
    (ImageContent(Image(url=f"data:image/png;base64,{PNG64}")), File(PNG, "image/png")),
    (ImageContent(Image(url=f"DATA:image/svg+xml;charset=utf-8;BASE64,{PNG64}")), File(PNG, "image/png")),
    (ImageContent(Image(url="data:text/html,%3Cb%3E")), File(b"<b>", "")),
    (ImageContent(Image(url="https://example.com/a.png", base64_data=PNG64)), File(PNG, "image/png")),
    (AudioContent(Audio(binary_data=b"ID3\x04")), File(b"ID3\x04", "audio/mpeg")),
    (AudioContent(Audio(binary_data=b"", base64_data=PDF64)), File(b"", "")),
    (VideoContent(Video(base64_data="")), File(b"", "")),
    (PdfFileContent(PdfFile(base64_data=f"{PDF64[:5]}\n {PDF64[5:]}")), File(PDF, "application/pdf")),
    # Broken, so not a file, but not fit for a page either.
    (PdfFileContent(PdfFile(base64_data="no Base64!")), None),
    (ImageContent(Image(url="data:image/png;base64,!")), None),
    (ImageContent(Image(url="data:")), None),
]
NOT_HOLDING = [
    TextContent("data:image/png;base64,AAAA"),
    ELSEWHERE,
    ImageContent(Image(mime_type="image/png")),
    AudioContent(),
    VideoContent(Video(url="database:1")),
    PdfFileContent(PdfFile(url="")),
]


@pytest.mark.parametrize(("content", "file"), HOLDING)
def test_an_embedded_file_is_extracted_and_replaced_by_its_address(content, file):
    message = UserMessage([TextContent("Look"), content], name="Ann")

    assert files_of(message) == [None, file]
    there = without_files(message, lambda index: f"/files/{index}/")

    assert msgspec.to_builtins(there)["contents"][0] == {"type": "TEXT", "text": "Look"}
    (its,) = (
        value for key, value in msgspec.to_builtins(there.contents[1]).items() if key not in {"type", "detailLevel"}
    )
    assert its.pop("url") == "/files/1/"
    assert its.keys() <= {"mimeType", "revisedPrompt"}
    assert there.name == "Ann"
    assert message_from_json(message_to_json(there)) == there


@pytest.mark.parametrize("content", NOT_HOLDING)
def test_remote_and_missing_files_stay_unchanged(content):
    message = UserMessage([content, TextContent("Look")])

    assert files_of(message) == [None, None]
    assert without_files(message, str) is message


def test_other_fields_of_a_file_stay():
    image = Image(base64_data=PNG64, mime_type="image/png", revised_prompt="A cat")
    result = ToolExecutionResultMessage("1", "draw", [ImageContent(image, DetailLevel.HIGH), ELSEWHERE], is_error=False)

    there = without_files(result, lambda index: f"/{index}/")

    image = Image(url="/0/", mime_type="image/png", revised_prompt="A cat")
    assert there == msgspec.structs.replace(result, contents=(ImageContent(image, DetailLevel.HIGH), ELSEWHERE))


def test_the_message_itself_is_not_changed():
    message = UserMessage([ImageContent(Image(base64_data=PNG64))])

    without_files(message, str)

    assert message == UserMessage([ImageContent(Image(base64_data=PNG64))])


@pytest.mark.parametrize("message", [SystemMessage("x"), AiMessage("x"), CustomMessage({"contents": [1]})])
def test_messages_without_contents_hold_no_files(message):
    assert files_of(message) == []
    assert without_files(message, str) is message


@given(strategies.messages())
def test_a_message_without_files_can_be_serialized(message):
    there = without_files(message, lambda index: f"https://example.com/{index}")

    assert files_of(there) == [None] * len(files_of(message))
    assert without_files(there, str) is there
    assert message_from_json(message_to_json(there)) == there


def test_omitting_a_large_file_does_not_decode_it(monkeypatch):
    monkeypatch.setattr(media, "file_of", None)
    monkeypatch.setattr(media, "_decoded", None)
    film = UserMessage([VideoContent(Video(base64_data="A" * 4_000_000))])

    assert without_files(film, str) == UserMessage([VideoContent(Video(url="0"))])


@pytest.mark.parametrize("stated", ["image/svg+xml", "image/svg+xml;charset=utf-8", "IMAGE/SVG+XML ; a=b"])
def test_a_drawing_is_refused_whatever_the_parameters_of_its_type(stated):
    with pytest.raises(ValueError, match="SVG is not accepted"):
        check_content(b"<svg/>", stated, "image")
