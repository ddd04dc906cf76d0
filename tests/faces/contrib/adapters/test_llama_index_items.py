"""LlamaIndex's messages as JSON, to messages and back without loss."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.formats.llama_index import LLAMA_INDEX, message_to_items
from chatmemory_django.formats.verbatim import of_verbatim, to_new_message
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    NewMessage,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from tests.strategies import json_values, messages, texts

PNG = "data:image/png;base64,iVBORw0KGgo="


def item(role: str, *blocks, **additional_kwargs) -> dict:
    """Return an item as LlamaIndex dumps it; a text stands for a block of text."""
    written = [text(block) if isinstance(block, str) else block for block in blocks]
    return {"role": role, "additional_kwargs": additional_kwargs, "blocks": written}


def text(text: str) -> dict:
    return {"block_type": "text", "text": text}


def call(tool_kwargs, tool_call_id="c1") -> dict:
    return {"block_type": "tool_call", "tool_call_id": tool_call_id, "tool_name": "look", "tool_kwargs": tool_kwargs}


def thinking(content, num_tokens=None, **additional_information) -> dict:
    block = {"block_type": "thinking", "content": content, "num_tokens": num_tokens}
    return {**block, "additional_information": additional_information}


def image(image=None, url=None, path=None, image_mimetype=None, detail=None) -> dict:
    block = {"block_type": "image", "image": image, "path": path, "url": url}
    return {**block, "image_mimetype": image_mimetype, "detail": detail}


def document(data=None, url=None, title="input_document", document_mimetype="application/pdf") -> dict:
    block = {"block_type": "document", "data": data, "path": None, "url": url}
    return {**block, "title": title, "document_mimetype": document_mimetype}


AUDIO = {"block_type": "audio", "audio": "AAAA", "path": None, "url": None, "format": "mp3"}
VIDEO = {"block_type": "video", "video": None, "path": None, "url": "https://example.com/film.mp4"}
VIDEO |= {"video_mimetype": "video/mp4", "detail": None, "fps": None}
CITED = {"title": "t", "source": "s"}

EXACT = [
    (item("user", "Hi"), UserMessage("Hi")),
    (item("user", ""), UserMessage("")),
    (item("system", "Be brief."), SystemMessage("Be brief.")),
    (item("assistant", "Hello"), AiMessage("Hello")),
    (item("assistant"), AiMessage()),
    (item("assistant", thinking("They greet."), "Hello"), AiMessage("Hello", "They greet.")),
    (
        item("assistant", "Wait.", call({"at": "it"}), call("{at", None)),
        AiMessage(
            "Wait.",
            tool_execution_requests=[
                ToolExecutionRequest("c1", "look", '{"at": "it"}'),
                ToolExecutionRequest(None, "look", "{at"),
            ],
        ),
    ),
    (item("tool", "found", tool_call_id="c1"), ToolExecutionResultMessage("c1", None, "found")),
    (item("tool", "found", tool_call_id="c1", name="look"), ToolExecutionResultMessage("c1", "look", "found")),
    (
        item(
            "user",
            "What is this?",
            image("iVBORw0KGgo=", image_mimetype="image/png", detail="low"),
            image(url="https://example.com/cat.png", image_mimetype="image/png"),
            AUDIO,
            VIDEO,
            document("JVBERi0="),
        ),
        UserMessage(
            [
                TextContent("What is this?"),
                ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.LOW),
                ImageContent(Image(url="https://example.com/cat.png", mime_type="image/png"), DetailLevel.AUTO),
                AudioContent(Audio(base64_data="AAAA", mime_type="audio/mpeg")),
                VideoContent(Video(url="https://example.com/film.mp4", mime_type="video/mp4")),
                PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf")),
            ]
        ),
    ),
]
"""Items that a message gives back as they are."""

VERBATIM = [
    (item("user", "Hi", user="anna"), UserMessage("Hi")),
    ({"role": "user", "content": "Hi", "additional_kwargs": {}}, UserMessage("Hi")),
    (item("developer", "Be brief."), SystemMessage("Be brief.")),
    (item("chatbot", "Hello"), AiMessage("Hello")),
    (item("model", "Hel", "lo"), AiMessage("Hel\nlo")),
    (item("function", "found", name="look"), ToolExecutionResultMessage(None, "look", "found")),
    (item("user", "NUL \0, half \ud800"), UserMessage("NUL \ufffd, half \ufffd")),
    (item("user", "Hi", {"block_type": "cache", "cache_control": {"type": "e", "ttl": "5m"}}), UserMessage("Hi")),
    (item("user", "Hi", image(path="cat.png")), UserMessage("Hi")),
    (item("user", "Hi", document("AAAA", document_mimetype="text/plain")), UserMessage("Hi")),
    (
        item("user", image(url=PNG)),
        UserMessage([ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.AUTO)]),
    ),
    (
        item("user", {"block_type": "citable", **CITED, "content": [text("It is"), text("so.")]}),
        UserMessage([TextContent("It is"), TextContent("so.")]),
    ),
    (
        item("assistant", {"block_type": "citation", **CITED, "cited_content": text("It is so.")}),
        AiMessage("It is so."),
    ),
    (
        item("assistant", thinking("They greet.", 3, signature="s"), thinking(None), thinking("So do I."), "Hello"),
        AiMessage("Hello", "They greet.\n\nSo do I."),
    ),
    (
        item("assistant", call('{"at":1}')),
        AiMessage(tool_execution_requests=[ToolExecutionRequest("c1", "look", '{"at":1}')]),
    ),
]
"""Items with a native form and further fields."""

CUSTOM = [
    item("system", " "),
    item("system"),
    item("user"),
    item("critic", "Hm."),
    item("user", image(path="cat.png")),
    item("user", {"block_type": "text"}),
    {"role": "user"},
    {"role": ["user"], "blocks": []},
    {"role": "user", "blocks": [1]},
    {},
    {"numbers": [1, 1.0, True, None, 1e308, 2**53 + 1, -0.0]},
]
"""Items that no other message can be."""


@pytest.mark.parametrize(("item", "message"), EXACT, ids=ascii)
def test_a_message_returns_the_item(item, message):
    assert to_new_message(item, LLAMA_INDEX, "item") == NewMessage(message)
    assert message_to_items(message) == [item]


@pytest.mark.parametrize(("item", "message"), VERBATIM, ids=ascii)
def test_an_item_with_more_fields_is_kept_unchanged(item, message):
    new = to_new_message(item, LLAMA_INDEX, "item")

    assert new.message == message
    assert of_verbatim(new.verbatim, "llama_index") == item


@pytest.mark.parametrize("item", CUSTOM, ids=ascii)
def test_an_item_without_a_native_form_is_a_custom_message(item):
    assert to_new_message(item, LLAMA_INDEX, "item") == NewMessage(CustomMessage({"llama_index": item}))


blocks = st.one_of(
    st.builds(text, texts()),
    st.builds(call, st.one_of(texts(), st.dictionaries(texts(), json_values(), max_size=2))),
    st.builds(thinking, st.one_of(st.none(), texts())),
    st.builds(image, st.one_of(st.none(), texts()), st.sampled_from([None, PNG, "https://example.com/cat.png"])),
    st.sampled_from([AUDIO, VIDEO, image(url=PNG), document(), call({}), thinking(None)]).flatmap(
        lambda block: st.builds(lambda key, value: {**block, key: value}, st.sampled_from([*block]), json_values())
    ),
    json_values(),
)
items = st.builds(
    lambda role, blocks, more, others: {"role": role, "additional_kwargs": more, "blocks": blocks, **others},
    st.one_of(st.sampled_from(["user", "assistant", "system", "tool"]), json_values()),
    st.one_of(st.lists(blocks, max_size=3), json_values()),
    st.one_of(
        st.dictionaries(st.one_of(st.sampled_from(["tool_call_id", "name"]), texts()), json_values(), max_size=2),
        json_values(),
    ),
    st.dictionaries(texts(), json_values(), max_size=1),
)


@given(items)
def test_any_item_comes_back_including_the_types_of_numbers(item):
    new = to_new_message(item, LLAMA_INDEX, "item")

    [again] = message_to_items(new.message) if new.verbatim is None else [of_verbatim(new.verbatim, "llama_index")]

    assert json.dumps(again, sort_keys=True) == json.dumps(item, sort_keys=True)


@given(messages())
def test_any_message_of_a_site_is_one_item_at_most(message):
    assert len(message_to_items(message)) <= 1


@pytest.mark.parametrize("message", [CustomMessage({"openai": {}}), UserMessage([VideoContent()])])
def test_a_message_without_a_form_in_llama_index_is_left_out(message):
    assert message_to_items(message) == []
