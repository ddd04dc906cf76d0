"""pydantic-ai's JSON, to messages and back: kept unchanged, next to its native form."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.formats.pydantic_ai import NAME, from_message, to_messages, to_new_messages
from chatmemory_django.formats.verbatim import of_group, of_verbatim
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
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from tests.strategies import json_values, texts


def request(*parts: dict) -> dict:
    return {"parts": list(parts), "timestamp": None, "instructions": "Be quick.", "kind": "request", "run_id": "r"}


def response(*parts: dict) -> dict:
    return {"parts": list(parts), "usage": {"input_tokens": 1}, "model_name": "m", "kind": "response"}


SYSTEM = {"content": "Be brief.", "part_kind": "system-prompt"}
HI = {"content": "Hi", "timestamp": "2026-11-22T18:00:00Z", "part_kind": "user-prompt"}
CALL = {"tool_name": "look", "args": {"a": 1}, "tool_call_id": "c1", "part_kind": "tool-call"}
RESULT = {
    "tool_name": "look",
    "content": "found",
    "tool_call_id": "c1",
    "outcome": "success",
    "part_kind": "tool-return",
}
RETRY = {"content": "Once more.", "retry": {"cause": "no_output"}, "part_kind": "retry-feedback"}

NATIVE = [
    (request(HI), [UserMessage("Hi")]),
    (request({**HI, "content": ""}), [UserMessage("")]),
    (request(SYSTEM, HI), [SystemMessage("Be brief."), UserMessage("Hi")]),
    (request({**SYSTEM, "content": " "}, HI), [UserMessage("Hi")]),
    (request(SYSTEM, SYSTEM), [SystemMessage("Be brief."), SystemMessage("Be brief.")]),
    (request(HI, RETRY), [UserMessage("Hi")]),
    (
        request(
            {
                **HI,
                "content": [
                    "What is this?",
                    {"content": "And this?", "metadata": None, "kind": "text-content"},
                    {"kind": "cache-point", "ttl": "5m"},
                    {"url": "https://x/y", "kind": "image-url"},
                    {"data": "-_8=", "media_type": "image/png", "kind": "binary"},
                    {"url": "https://x/y", "kind": "audio-url"},
                    {"data": "AAAA", "media_type": "audio/wav", "kind": "binary"},
                    {"url": "https://x/y", "kind": "video-url"},
                    {"data": "AAAA", "media_type": "video/mp4", "kind": "binary"},
                    {"url": "https://x/y", "media_type": "application/pdf", "kind": "document-url"},
                    {"data": "JVBERi0=", "media_type": "application/pdf", "kind": "binary"},
                    {"data": "AAAA", "media_type": "text/csv", "kind": "binary"},
                    {"url": "https://x/y", "media_type": "text/csv", "kind": "document-url"},
                    {"file_id": "f", "provider_name": "openai", "kind": "uploaded-file"},
                ],
            }
        ),
        [
            UserMessage(
                [
                    TextContent("What is this?"),
                    TextContent("And this?"),
                    ImageContent(Image(url="https://x/y"), DetailLevel.AUTO),
                    ImageContent(Image(base64_data="+/8=", mime_type="image/png"), DetailLevel.AUTO),
                    AudioContent(Audio(url="https://x/y")),
                    AudioContent(Audio(base64_data="AAAA", mime_type="audio/wav")),
                    VideoContent(Video(url="https://x/y")),
                    VideoContent(Video(base64_data="AAAA", mime_type="video/mp4")),
                    PdfFileContent(PdfFile(url="https://x/y")),
                    PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf")),
                ]
            )
        ],
    ),
    (
        request({"speaker": "user", "transcript": "Hi", "audio": None, "part_kind": "speech"}),
        [UserMessage("Hi")],
    ),
    (
        request(RESULT, {**RESULT, "content": {"ö": [1, 1.0, None]}, "outcome": "failed"}, HI),
        [
            ToolExecutionResultMessage("c1", "look", "found", is_error=False),
            ToolExecutionResultMessage("c1", "look", '{"ö":[1,1.0,null]}', is_error=True),
            UserMessage("Hi"),
        ],
    ),
    (
        request(
            {**RESULT, "content": ["a", {"b": 1}, {"url": "https://x/y", "kind": "image-url"}], "outcome": "denied"}
        ),
        [
            ToolExecutionResultMessage(
                "c1",
                "look",
                [
                    TextContent("a"),
                    TextContent('{"b":1}'),
                    ImageContent(Image(url="https://x/y"), DetailLevel.AUTO),
                ],
            )
        ],
    ),
    (
        request({"content": "Wrong.", "tool_name": "look", "tool_call_id": "c1", "part_kind": "retry-prompt"}),
        [ToolExecutionResultMessage("c1", "look", "Wrong.", is_error=True)],
    ),
    (response({"content": "Hello", "part_kind": "text"}), [AiMessage("Hello")]),
    (
        response(
            {"content": "They greet.", "signature": "s", "part_kind": "thinking"},
            {"content": "", "signature": "s", "part_kind": "thinking"},
            {"content": "Hel", "part_kind": "text"},
            {"content": "lo", "part_kind": "text"},
            CALL,
            {**CALL, "args": "{", "tool_call_id": "c2"},
            {**CALL, "args": None, "tool_call_id": "c3"},
            {**CALL, "part_kind": "builtin-tool-call"},
            {"speaker": "assistant", "transcript": "I look.", "part_kind": "speech"},
        ),
        [
            AiMessage(
                "Hello\n\nI look.",
                "They greet.",
                [
                    ToolExecutionRequest("c1", "look", '{"a": 1}'),
                    ToolExecutionRequest("c2", "look", "{"),
                    ToolExecutionRequest("c3", "look", None),
                ],
            )
        ],
    ),
    (request({**HI, "content": "NUL \0, half \ud800"}), [UserMessage("NUL \ufffd, half \ufffd")]),
]
"""Requests and responses, and what they are natively."""

CUSTOM = [
    request(),
    response(),
    request(RETRY),
    request({**HI, "content": [{"kind": "cache-point"}]}),
    response({"content": {"data": "AAAA", "media_type": "image/png", "kind": "binary"}, "part_kind": "file"}),
    response({"content": 1, "part_kind": "text"}),
    response("Hi"),
    {"kind": "unheard of", "parts": []},
    {},
]
"""What is none of the native kinds."""


@pytest.mark.parametrize(("item", "messages"), NATIVE)
def test_a_request_is_its_parts_and_a_response_one_answer(item, messages):
    assert [each.message for each in to_new_messages(item, "messages[0]")] == messages


@pytest.mark.parametrize("item", CUSTOM, ids=repr)
def test_a_part_without_a_native_form_is_a_custom_message(item):
    assert to_messages(item) == [CustomMessage({NAME: item})]
    assert from_message(CustomMessage({NAME: item})) == [item]


@pytest.mark.parametrize("item", [item for item, _ in NATIVE])
def test_the_last_message_has_the_original_and_the_number_of_messages(item):
    *before, last = to_new_messages(item, "messages[0]")

    assert of_group(last.verbatim, NAME) == (item, len(before) + 1)
    assert of_verbatim(last.verbatim, NAME) == item
    assert [each.verbatim for each in before] == [None] * len(before)


@given(
    json_values().filter(lambda value: isinstance(value, dict))
    | st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["request", "response"]),
            "parts": st.lists(
                st.sampled_from([SYSTEM, HI, CALL, RESULT, RETRY])
                | st.fixed_dictionaries(
                    {
                        "part_kind": st.sampled_from(["system-prompt", "user-prompt", "tool-return", "text", "speech"]),
                        "content": json_values() | texts(),
                    },
                    optional={"tool_name": texts(), "tool_call_id": texts(), "transcript": json_values()},
                ),
                max_size=4,
            ),
        }
    )
)
def test_anything_given_is_stored_unchanged(item):
    given_messages = to_new_messages(item, "messages[0]")

    again, rows = of_group(given_messages[-1].verbatim, NAME)

    assert json.dumps(again, sort_keys=True) == json.dumps(json.loads(json.dumps(item)), sort_keys=True)
    assert rows == len(given_messages)


@pytest.mark.parametrize("wrong", ["Hi", None, [1]], ids=repr)
def test_what_is_not_a_json_object_is_an_error_with_its_place(wrong):
    with pytest.raises(TypeError, match=r"^messages\[3\] must be a dict"):
        to_new_messages(wrong, r"messages[3]")


@pytest.mark.parametrize("rest", ['{},"rows":0', '{},"rows":-1', '{},"rows":"2"', "null", "[1]"])
def test_altered_originals_are_ignored(rest):
    assert of_group(f'{{"{NAME}":{rest}}}', NAME) == (None, 1)
    assert of_group('{"openai":{}}', NAME) == of_group(None, NAME) == (None, 1)


MESSAGES = [
    SystemMessage("Be brief."),
    UserMessage("Hi"),
    UserMessage([TextContent("Hi"), ImageContent(Image(url="https://x/y.png"), DetailLevel.AUTO)]),
    UserMessage([PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf"))]),
    UserMessage([AudioContent(Audio(url="https://x/y.mp3"))]),
    UserMessage([VideoContent(Video(base64_data="AAAA", mime_type="video/mp4")), TextContent("Hi")]),
    AiMessage("Hello"),
    AiMessage("Hello", "They greet.", [ToolExecutionRequest("c1", "look", "{}")]),
    AiMessage(None, None, [ToolExecutionRequest("c1", "look", None)]),
    ToolExecutionResultMessage("c1", "look", "found", is_error=False),
    ToolExecutionResultMessage("c1", "look", "broken", is_error=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_native_message_is_written_and_read(message):
    [item] = from_message(message)

    assert to_messages(item) == [message]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (CustomMessage({"of": "others"}), []),
        (UserMessage([ImageContent(Image())]), []),
        (UserMessage([None, TextContent("Hi"), TextContent("there")]), ["Hi", "there"]),
        (
            UserMessage([AudioContent(Audio(binary_data=b"\xff", mime_type="audio/wav")), TextContent("Hi")]),
            [{"data": "/w==", "media_type": "audio/wav", "kind": "binary"}, "Hi"],
        ),
    ],
)
def test_content_without_a_form_in_pydantic_ai_is_left_out(message, text):
    assert [part["content"] for item in from_message(message) for part in item["parts"]] == ([text] if text else [])
