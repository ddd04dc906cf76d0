"""No format leaves a file out silently: each content is written, read back, or refused with a clear error."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.chat.ui_messages.files import to_part
from chatmemory_django.formats import langchain, llama_index, openai_chat, openai_items, pydantic_ai
from chatmemory_django.messages import (
    Audio,
    AudioContent,
    DetailLevel,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)

DATA = base64.b64encode(b"ID3 what a sound").decode()
URL = "https://a.example/file"
KINDS = {
    "image": lambda **file: ImageContent(Image(**file), DetailLevel.AUTO),
    "audio": lambda **file: AudioContent(Audio(**file)),
    "video": lambda **file: VideoContent(Video(**file)),
    "pdf": lambda **file: PdfFileContent(PdfFile(**file)),
}
TYPES = {"image": "image/png", "audio": "audio/mpeg", "video": "video/mp4", "pdf": "application/pdf"}
FORMATS = {
    "langchain": (langchain.message_to_items, langchain.item_to_message),
    "llama_index": (llama_index.message_to_items, llama_index.item_to_message),
    "openai_items": (openai_items.message_to_items, openai_items.item_to_message),
    "pydantic_ai": (pydantic_ai.from_message, lambda item: pydantic_ai.to_messages(item)[0]),
}
each_format = pytest.mark.parametrize("name", FORMATS)
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_format
@each_kind
@pytest.mark.parametrize("message", [UserMessage, lambda contents: ToolExecutionResultMessage("1", "look", contents)])
def test_a_file_with_its_content_and_its_type_comes_back(name, kind, message):
    write, read = FORMATS[name]
    given = message([KINDS[kind](base64_data=DATA, mime_type=TYPES[kind])])

    [item] = write(given)

    assert read(json.loads(json.dumps(item))).contents == given.contents


@each_format
@each_kind
def test_a_file_without_a_type_is_written(name, kind):
    [item] = FORMATS[name][0](UserMessage([KINDS[kind](base64_data=DATA)]))

    assert DATA in json.dumps(item)


@each_format
@each_kind
def test_a_file_at_an_address_is_written(name, kind):
    [item] = FORMATS[name][0](UserMessage([KINDS[kind](url=URL)]))

    assert URL in json.dumps(item)


@each_format
@pytest.mark.parametrize("mime_type", [None, "audio/mpeg", "audio/flac"])
def test_audio_in_bytes_is_written_in_base64(name, mime_type):
    write, read = FORMATS[name]

    [item] = write(UserMessage([AudioContent(Audio(binary_data=base64.b64decode(DATA), mime_type=mime_type))]))

    assert DATA in json.dumps(item)
    [content] = read(item).contents
    assert content.audio.base64_data == DATA


def held(content: object) -> bool:
    """Return whether *content* holds a text, a file or the address of one."""
    if content is None or isinstance(content, TextContent):
        return content is not None
    [file] = (getattr(content, name) for name in ("image", "audio", "video", "pdf_file") if hasattr(content, name))
    return file is not None and any(
        getattr(file, name, None) is not None for name in ("url", "base64_data", "binary_data")
    )


texts = st.one_of(st.none(), st.sampled_from([DATA, "x", "https://a.example/b", "audio/wav", "image/jpeg", "odd"]))
files = {"url": texts, "base64_data": texts, "mime_type": texts}
contents = st.one_of(
    st.none(),
    st.builds(TextContent, st.text(max_size=3)),
    st.builds(ImageContent, st.builds(Image, **files), st.sampled_from(DetailLevel)),
    st.builds(AudioContent, st.one_of(st.none(), st.builds(Audio, **files, binary_data=st.just(b"abc")))),
    st.builds(VideoContent, st.one_of(st.none(), st.builds(Video, **files))),
    st.builds(PdfFileContent, st.one_of(st.none(), st.builds(PdfFile, **files))),
)


@each_format
@given(given_contents=st.lists(contents, min_size=1, max_size=4))
def test_every_content_that_holds_something_is_written(name, given_contents):
    written = FORMATS[name][0](UserMessage(given_contents))

    parts: object = written
    for key in {"langchain": (0, "data", "content"), "llama_index": (0, "blocks"), "openai_items": (0, "content")}.get(
        name, (0, "parts", 0, "content")
    ):
        parts = parts[key] if parts else []
    assert (1 if isinstance(parts, str) else len(parts)) == sum(map(held, given_contents))


@each_kind
@pytest.mark.parametrize("file", [{"base64_data": DATA}, {"url": URL}, {}], ids=["content", "address", "nothing"])
def test_the_chat_completions_write_a_file_or_refuse_it(kind, file):
    try:
        written = openai_chat.message_to_openai(UserMessage([KINDS[kind](**file)]))
    except ValueError as exc:
        assert str(exc).endswith(("supported.", "mime_type.", "'.", "None."))  # noqa: PT017
    else:
        assert any(value in json.dumps(written) for value in file.values())


@each_kind
def test_a_page_gets_every_file(kind):
    for file in ({"base64_data": DATA}, {"url": URL}):
        assert next(iter(file.values())) in json.dumps(to_part(KINDS[kind](**file)))
