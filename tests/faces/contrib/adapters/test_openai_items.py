"""OpenAI's items, to messages and back without loss."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.formats.openai_items import OPENAI_ITEMS, message_to_items
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
    VideoContent,
)
from tests.strategies import json_values, texts

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
PNG = "data:image/png;base64,iVBORw0KGgo="

EXACT = [
    ({"role": "user", "content": "Hi"}, UserMessage("Hi")),
    ({"role": "user", "content": ""}, UserMessage("")),
    ({"role": "system", "content": "Be brief."}, SystemMessage("Be brief.")),
    ({"role": "assistant", "content": "Hello"}, AiMessage("Hello")),
    (CALL, AiMessage(tool_execution_requests=[ToolExecutionRequest("c1", "look", "{}")])),
    (
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        ToolExecutionResultMessage("c1", None, "found"),
    ),
    (
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": PNG, "detail": "low"},
                {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
            ],
        },
        UserMessage(
            [
                TextContent("What is this?"),
                ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.LOW),
                PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf")),
                AudioContent(Audio(base64_data="AAAA", mime_type="audio/mpeg")),
            ]
        ),
    ),
]
"""Items that a message gives back as they are."""

VERBATIM = [
    ({"type": "message", "role": "user", "content": "Hi"}, UserMessage("Hi")),
    ({"role": "developer", "content": "Be brief."}, SystemMessage("Be brief.")),
    ({"role": "user", "content": "NUL \0, half \ud800"}, UserMessage("NUL \ufffd, half \ufffd")),
    ({"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, UserMessage("Hi")),
    ({"role": "user", "content": "Hi", "x": float("inf")}, UserMessage("Hi")),
    (
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "Hel", "annotations": []},
                {"type": "output_text", "text": "lo", "annotations": []},
            ],
        },
        AiMessage("Hello"),
    ),
    (
        {"role": "assistant", "type": "message", "content": [{"type": "refusal", "refusal": "I will not."}]},
        AiMessage("I will not."),
    ),
    (
        {**CALL, "id": "fc_1", "status": "completed"},
        AiMessage(tool_execution_requests=[ToolExecutionRequest("c1", "look", "{}")]),
    ),
    (
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "found"}]},
        ToolExecutionResultMessage("c1", None, "found"),
    ),
    (
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Hi"},
                {"type": "input_image", "file_id": "file-1", "detail": "original"},
                {"type": "input_file", "file_url": "https://example.com/notes.docx"},
                {"type": "input_video", "what": "unknown"},
            ],
        },
        UserMessage("Hi"),
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": PNG, "detail": "original"}]},
        UserMessage([ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"), DetailLevel.HIGH)]),
    ),
]
"""Items with a native form and further fields."""

CUSTOM = [
    {"role": "system", "content": " "},
    {"role": "user", "content": []},
    {"role": "user", "content": None},
    {"role": "critic", "content": "Hm."},
    {"role": "user"},
    {},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "They greet."}], "content": None},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "cats"}},
    {"type": "function_call", "call_id": 1, "name": "look", "arguments": "{}"},
    {"type": ["message"], "role": {"a": 1}},
    {"numbers": [1, 1.0, True, None, 1e308, 2**53 + 1, -0.0]},
]
"""Items that no other message can be."""


@pytest.mark.parametrize(("item", "message"), EXACT, ids=repr)
def test_a_message_returns_the_item(item, message):
    assert to_new_message(item, OPENAI_ITEMS, "item") == NewMessage(message)
    assert message_to_items(message) == [item]


@pytest.mark.parametrize(("item", "message"), VERBATIM, ids=lambda value: ascii(value)[:80])
def test_an_item_with_more_fields_is_kept_unchanged(item, message):
    new = to_new_message(item, OPENAI_ITEMS, "item")

    assert new.message == message
    assert new.verbatim is not None
    assert new.verbatim.isascii()
    assert of_verbatim(new.verbatim, "openai") == item


@pytest.mark.parametrize("item", CUSTOM, ids=lambda value: str(value)[:80])
def test_an_item_without_a_native_form_is_a_custom_message(item):
    assert to_new_message(item, OPENAI_ITEMS, "item") == NewMessage(CustomMessage({"openai": item}))


parts = st.dictionaries(
    st.sampled_from(["type", "text", "refusal", "image_url", "detail", "file_data", "file_url", "annotations"]),
    st.one_of(st.sampled_from(["input_text", "output_text", "refusal", "input_image", PNG, "low"]), json_values()),
)
items = st.dictionaries(
    st.one_of(st.sampled_from(["type", "role", "content", "output", "call_id", "name", "arguments", "id"]), texts()),
    st.one_of(
        st.sampled_from(["message", "user", "assistant", "system", "function_call", "function_call_output", "Hi"]),
        st.lists(parts, max_size=3),
        json_values(),
    ),
)


@given(items)
def test_any_item_comes_back_including_the_types_of_numbers(item):
    new = to_new_message(item, OPENAI_ITEMS, "item")

    [again] = message_to_items(new.message) if new.verbatim is None else [of_verbatim(new.verbatim, "openai")]

    assert json.dumps(again, sort_keys=True) == json.dumps(item, sort_keys=True)


@pytest.mark.parametrize("item", [None, "Hi", ["Hi"], 1, b"Hi"], ids=repr)
def test_what_is_not_an_object_is_refused_with_its_place(item):
    with pytest.raises(TypeError, match=r"^items\[3\] must be a dict, not "):
        to_new_message(item, OPENAI_ITEMS, "items[3]")


def test_what_json_cannot_express_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"^items\[3\]: .*bytes"):
        to_new_message({"role": "user", "content": b"Hi"}, OPENAI_ITEMS, "items[3]")


def test_deep_nesting_is_refused_with_its_place():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"^items\[3\]"):
        to_new_message({"role": "user", "content": deep}, OPENAI_ITEMS, "items[3]")


def test_an_answer_with_calls_is_several_items():
    message = AiMessage("Wait.", tool_execution_requests=[ToolExecutionRequest("c1", "look", "{}")] * 2)

    assert message_to_items(message) == [{"role": "assistant", "content": "Wait."}, CALL, CALL]


@pytest.mark.parametrize("message", [CustomMessage({"langchain": {}}), UserMessage([VideoContent()])])
def test_a_message_without_a_form_as_items_is_left_out(message):
    assert message_to_items(message) == []
