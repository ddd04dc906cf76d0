"""Messages to OpenAI's format and back: unchanged, or a clear error."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.formats.openai_chat import ASSISTANT_ATTRIBUTES, from_openai, to_openai
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
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
from tests import strategies

PRIVATE = "what no one else may read"
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
name = st.one_of(st.none(), st.text(min_size=1, max_size=10))
encoded = st.sampled_from(["", "AA==", "aGk="])
url = st.sampled_from(["https://example.com/a.png", "x", "data:text", ""])
contents = st.one_of(
    st.builds(TextContent, text),
    st.builds(
        ImageContent,
        st.one_of(
            st.builds(Image, url=url),
            st.builds(Image, base64_data=encoded, mime_type=st.sampled_from(["image/png", "image/svg+xml"])),
        ),
        st.sampled_from([DetailLevel.LOW, DetailLevel.HIGH, DetailLevel.AUTO]),
    ),
    st.builds(
        AudioContent, st.builds(Audio, base64_data=encoded, mime_type=st.sampled_from(["audio/wav", "audio/mpeg"]))
    ),
    st.builds(PdfFileContent, st.builds(PdfFile, base64_data=encoded, mime_type=st.just("application/pdf"))),
)
calls = st.lists(st.builds(ToolExecutionRequest, text, text, text), min_size=1, max_size=3)
refusals = st.fixed_dictionaries({}, optional={"name": text, "refusal": text, "audio": st.just({"id": "a"})})
supported = st.one_of(
    st.builds(SystemMessage, text.filter(lambda text: text.strip("".join(map(chr, range(33)))))),
    st.builds(UserMessage, st.one_of(text, st.lists(contents, min_size=1, max_size=3)), name),
    st.builds(AiMessage, text, st.none(), calls | st.just(()), refusals),
    st.builds(AiMessage, st.none(), st.none(), calls, refusals),
    st.builds(ToolExecutionResultMessage, text.map("call ".__add__), st.none(), text),
)


class TestRoundTrip:
    @given(st.lists(supported, max_size=5))
    def test_messages_that_both_formats_support_are_unchanged(self, messages: list[ChatMessage]):
        assert from_openai(to_openai(messages)) == messages

    @given(st.lists(strategies.messages(), max_size=3))
    def test_any_messages_are_unchanged_or_raise_a_clear_error(self, messages: list[ChatMessage]):
        try:
            converted = to_openai(messages)
        except ValueError:
            return  # TestUnsupported checks what the error names.

        assert to_openai(from_openai(converted)) == converted

    def test_openai_messages_are_unchanged(self):
        openai_messages = [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi", "name": "Ann"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": "high"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
                    {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
                    {
                        "type": "file",
                        "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "document.pdf"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": "wait",
                "tool_calls": [
                    {"type": "function", "id": "1", "function": {"name": "t", "arguments": '{"a": 1}'}},
                    {"type": "function", "id": "2", "function": {"name": "u", "arguments": "no JSON"}},
                ],
            },
            {"role": "tool", "tool_call_id": "1", "content": "4"},
            {"role": "assistant", "refusal": "no", "audio": {"id": "x"}, "name": "bot", "annotations": []},
        ]

        assert to_openai(from_openai(openai_messages)) == openai_messages

    def test_the_name_of_a_tool_is_taken_from_its_call(self):
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "tool", "{}")])
        result = ToolExecutionResultMessage("1", "tool", "4")

        assert from_openai(to_openai([call, result])) == [call, result]
        assert from_openai(to_openai([result])) == [ToolExecutionResultMessage("1", None, "4")]

    @pytest.mark.parametrize(
        ("openai_message", "message"),
        [
            ({"role": "developer", "content": "be brief"}, SystemMessage("be brief")),
            ({"role": "system", "content": [{"type": "text", "text": "be brief"}]}, SystemMessage("be brief")),
            ({"role": "assistant", "content": [{"type": "text", "text": "hi"}]}, AiMessage("hi")),
            (
                {"role": "assistant", "content": "hi", "tool_calls": None, "refusal": None},
                AiMessage("hi"),
            ),
            (
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
                UserMessage([ImageContent(Image(url="x"), DetailLevel.AUTO)]),
            ),
        ],
    )
    def test_alternative_forms_are_read(self, openai_message, message):
        assert from_openai([openai_message]) == [message]

    def test_fields_that_are_never_sent_are_omitted(self):
        messages = [
            UserMessage("hi", attributes={"a": 1}),
            AiMessage("hello", "thinking", attributes={"b": 2, "refusal": "no"}),
            ToolExecutionResultMessage("1", "t", "4", is_error=True, attributes={"c": 3}),
        ]

        assert to_openai(messages) == [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello", "refusal": "no"},
            {"role": "tool", "tool_call_id": "1", "content": "4"},
        ]
        assert {"refusal"} <= set(ASSISTANT_ATTRIBUTES)


class TestUnsupported:
    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (CustomMessage({"a": 1}), "CustomMessage is not supported"),
            (UserMessage([VideoContent(Video(url="x"))]), "VideoContent is not supported"),
            (UserMessage([None]), "an empty content is not supported"),
            (UserMessage([AudioContent()]), "AudioContent is not supported"),
            (UserMessage([AudioContent(Audio(url="x"))]), "an Audio needs its content"),
            (UserMessage([AudioContent(Audio(binary_data=b"x", mime_type="audio/ogg"))]), "not 'audio/ogg'"),
            (UserMessage([PdfFileContent(PdfFile(url="x"))]), "a PdfFile needs base64_data"),
            (
                UserMessage([PdfFileContent(PdfFile(base64_data="", mime_type="text/x"))]),
                "cannot have the type 'text/x'",
            ),
            (UserMessage([ImageContent(Image(base64_data="AA=="))]), "an Image needs a url"),
            (UserMessage([ImageContent(Image())]), "an Image needs a url"),
            (
                UserMessage([ImageContent(Image(url="x"), DetailLevel.MEDIUM)]),
                "the detail level MEDIUM is not supported",
            ),
            (AiMessage(), "needs a text or tool calls"),
            (AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t")]), "an id, a name and arguments"),
            (AiMessage("x", attributes={"refusal": 5}), "refusal"),
            (ToolExecutionResultMessage(None, "t", "4"), "needs the id of its call"),
            (ToolExecutionResultMessage("1", "t", [ImageContent(Image(url="x"))]), "not a single text"),
        ],
    )
    def test_an_unsupported_message_is_named(self, message, reason):
        with pytest.raises(ValueError, match=rf"messages\[1\] cannot be converted to OpenAI's format: .*{reason}"):
            to_openai([UserMessage(PRIVATE), message])

    @pytest.mark.parametrize(
        ("openai_message", "where"),
        [
            ({"role": "narrator", "content": "x"}, "$[1].role"),
            ({"content": "x"}, "$[1]"),
            ({"role": "user"}, "$[1]"),
            ({"role": "user", "content": 5}, "$[1].content"),
            ({"role": "user", "content": []}, "$[1].content"),
            ({"role": "user", "content": [{"type": "video_url"}]}, "$[1].content[0].type"),
            ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, "$[1].content[0].file"),
            ({"role": "user", "content": "x", "colour": 1}, "$[1]"),
            ({"role": "system", "content": " "}, "$[1].content"),
            ({"role": "system", "content": [{"type": "text", "text": "a"}] * 2}, "$[1].content"),
            ({"role": "tool", "tool_call_id": "1", "content": [{"text": "4"}]}, "$[1].content[0]"),
            (
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "", "arguments": ""}}]},
                "$[1].tool_calls[0]",
            ),
            ({"role": "assistant", "tool_calls": [{"type": "custom", "id": "1"}]}, "$[1].tool_calls[0].type"),
            ({"role": "assistant", "function_call": {"name": "f"}}, "$[1]"),
            ({"role": "tool", "content": "4"}, "$[1]"),
            ({"role": "function", "name": "f", "content": "4"}, "$[1].role"),
        ],
    )
    def test_an_unsupported_item_is_reported_with_its_position(self, openai_message, where):
        with pytest.raises(ValueError, match=rf"^{re.escape(where)}: ") as refused:
            from_openai([{"role": "user", "content": PRIVATE}, openai_message])

        assert PRIVATE not in str(refused.value)
