"""LangChain's messages as JSON, to messages and back without loss."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.formats.langchain import LANGCHAIN, message_to_items
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


def item(type: str, content, **data) -> dict:
    """Return an item as ``message_to_dict`` writes it."""
    every = {"content": content, "additional_kwargs": {}, "response_metadata": {}, "type": type}
    return {"type": type, "data": {**every, "name": None, "id": None, **data}}


def ai(content, tool_calls=(), invalid_tool_calls=(), usage_metadata=None, **data) -> dict:
    calls = {"tool_calls": list(tool_calls), "invalid_tool_calls": list(invalid_tool_calls)}
    return item("ai", content, **calls, usage_metadata=usage_metadata, **data)


def tool(content, *, name=None, tool_call_id="c1", artifact=None, status="success", type="tool", **data) -> dict:
    return item(type, content, name=name, tool_call_id=tool_call_id, artifact=artifact, status=status, **data)


CALL = {"name": "look", "args": {"at": "it"}, "id": "c1", "type": "tool_call"}
WRONG = {"name": "look", "args": "{at", "id": None, "error": None, "type": "invalid_tool_call"}

EXACT = [
    (item("human", "Hi"), UserMessage("Hi")),
    (item("human", "", name="Anna"), UserMessage("", "Anna")),
    (item("system", "Be brief."), SystemMessage("Be brief.")),
    (ai("Hello"), AiMessage("Hello")),
    (ai(""), AiMessage("")),
    (ai("", [CALL]), AiMessage(tool_execution_requests=[ToolExecutionRequest("c1", "look", '{"at": "it"}')])),
    (
        ai("Wait.", [{**CALL, "id": None, "args": {}}], [WRONG]),
        AiMessage(
            "Wait.",
            tool_execution_requests=[
                ToolExecutionRequest(None, "look", "{}"),
                ToolExecutionRequest(None, "look", "{at"),
            ],
        ),
    ),
    (tool("found", name="look"), ToolExecutionResultMessage("c1", "look", "found", is_error=False)),
    (tool("no", status="error"), ToolExecutionResultMessage("c1", None, "no", is_error=True)),
    (
        item(
            "human",
            [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
                {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"},
                {"type": "image", "url": "https://example.com/cat"},
                {"type": "audio", "base64": "AAAA", "mime_type": "audio/mpeg"},
                {"type": "video", "url": "https://example.com/film.mp4"},
                {"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf"},
            ],
        ),
        UserMessage(
            [
                TextContent("What is this?"),
                ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.LOW),
                ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.AUTO),
                ImageContent(Image(url="https://example.com/cat"), DetailLevel.AUTO),
                AudioContent(Audio(base64_data="AAAA", mime_type="audio/mpeg")),
                VideoContent(Video(url="https://example.com/film.mp4")),
                PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf")),
            ]
        ),
    ),
]
"""Items that a message gives back as they are."""

VERBATIM = [
    (item("human", "Hi", id="h1"), UserMessage("Hi")),
    (item("human", "Hi", name=""), UserMessage("Hi")),
    (item("human", "NUL \0, half \ud800"), UserMessage("NUL \ufffd, half \ufffd")),
    (item("human", ["Hi", {"type": "unheard of"}]), UserMessage("Hi")),
    (item("HumanMessageChunk", "Hi"), UserMessage("Hi")),
    (item("SystemMessageChunk", "Be brief."), SystemMessage("Be brief.")),
    (item("chat", "Hi", role="user"), UserMessage("Hi")),
    (item("chat", "Be brief.", role="developer"), SystemMessage("Be brief.")),
    (item("ChatMessageChunk", "Hello", role="assistant"), AiMessage("Hello")),
    (item("function", "found", name="look"), ToolExecutionResultMessage(None, "look", "found")),
    (item("FunctionMessageChunk", "found", name="look"), ToolExecutionResultMessage(None, "look", "found")),
    (tool("found", type="ToolMessageChunk"), ToolExecutionResultMessage("c1", None, "found", is_error=False)),
    (tool("found", artifact={"rows": [1, 1.0, True]}), ToolExecutionResultMessage("c1", None, "found", is_error=False)),
    (ai("Hello", id="run-1", response_metadata={"model_name": "m"}), AiMessage("Hello")),
    (ai("Hello", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}), AiMessage("Hello")),
    (
        ai([{"type": "thinking", "thinking": "They greet.", "signature": "s"}, {"type": "text", "text": "Hel"}, "lo"]),
        AiMessage("Hello", "They greet."),
    ),
    (ai([{"type": "reasoning", "reasoning": "They greet."}]), AiMessage("", "They greet.")),
    (
        {**ai("Hello", tool_call_chunks=[], chunk_position=None), "type": "AIMessageChunk"},
        AiMessage("Hello"),
    ),
    (
        item(
            "human",
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}],
        ),
        UserMessage([ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.AUTO)]),
    ),
    (
        item("human", [{"type": "image_url", "image_url": PNG}]),
        UserMessage([ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.AUTO)]),
    ),
]
"""Items with a native form and further fields."""

CUSTOM = [
    item("system", " "),
    item("human", []),
    item("human", None),
    item("human", [{"type": "file", "file_id": "file-1"}]),
    item("chat", "Hm.", role="critic"),
    item("remove", "", id="3"),
    ai("", [{"name": "look"}]),
    {"type": "human"},
    {"type": ["human"], "data": {"content": "Hi"}},
    {},
    {"numbers": [1, 1.0, True, None, 1e308, 2**53 + 1, -0.0]},
]
"""Items that no other message can be."""


@pytest.mark.parametrize(("item", "message"), EXACT, ids=ascii)
def test_a_message_returns_the_item(item, message):
    assert to_new_message(item, LANGCHAIN, "item") == NewMessage(message)
    assert message_to_items(message) == [item]


@pytest.mark.parametrize(("item", "message"), VERBATIM, ids=ascii)
def test_an_item_with_more_fields_is_kept_unchanged(item, message):
    new = to_new_message(item, LANGCHAIN, "item")

    assert new.message == message
    assert of_verbatim(new.verbatim, "langchain") == item


@pytest.mark.parametrize("item", CUSTOM, ids=ascii)
def test_an_item_without_a_native_form_is_a_custom_message(item):
    assert to_new_message(item, LANGCHAIN, "item") == NewMessage(CustomMessage({"langchain": item}))


parts = st.dictionaries(
    st.sampled_from(
        ["type", "text", "thinking", "image_url", "url", "base64", "mime_type", "source", "name", "args", "id"]
    ),
    st.one_of(st.sampled_from(["text", "image", "image_url", "thinking", PNG, "low"]), json_values()),
)
data = st.dictionaries(
    st.sampled_from(["content", "name", "id", "role", "tool_calls", "invalid_tool_calls", "tool_call_id", "status"]),
    st.one_of(st.sampled_from(["user", "success", "Hi"]), st.lists(parts, max_size=3), json_values()),
)
types = st.sampled_from(["human", "ai", "system", "tool", "chat", "function", "AIMessageChunk"])
items = st.builds(
    lambda kind, data, more: {"type": kind, "data": data, **more},
    st.one_of(types, json_values()),
    st.one_of(data, json_values()),
    st.dictionaries(texts(), json_values(), max_size=1),
)


@given(items)
def test_any_item_comes_back_including_the_types_of_numbers(item):
    new = to_new_message(item, LANGCHAIN, "item")

    [again] = message_to_items(new.message) if new.verbatim is None else [of_verbatim(new.verbatim, "langchain")]

    assert json.dumps(again, sort_keys=True) == json.dumps(item, sort_keys=True)


@given(messages())
def test_any_message_of_a_site_is_one_item_at_most(message):
    assert len(message_to_items(message)) <= 1


def test_arguments_that_are_not_an_object_are_an_invalid_call_and_blank_ones_are_empty():
    calls = [ToolExecutionRequest("c1", "look", arguments) for arguments in ("[1]", "{", " ", None)]

    [item] = message_to_items(AiMessage(tool_execution_requests=calls))

    assert [call["args"] for call in item["data"]["invalid_tool_calls"]] == ["[1]", "{"]
    assert [call["args"] for call in item["data"]["tool_calls"]] == [{}, {}]


@pytest.mark.parametrize("message", [CustomMessage({"openai": {}}), UserMessage([AudioContent()])])
def test_a_message_without_a_form_in_langchain_is_left_out(message):
    assert message_to_items(message) == []
