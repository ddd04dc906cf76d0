"""The requests that OpenAiChatModel sends, as a server reads them."""

import base64
import io
import struct
import wave
import zlib
from typing import Any

import pytest

from chatmemory_django.chat.model import (
    ChatRequest,
    InvalidRequestError,
    ResponseFormat,
    ToolChoice,
    ToolSpecification,
)
from chatmemory_django.chat.openai import OpenAiChatModel
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
from tests.faces.chat.conftest import Way, by_turns
from tests.faces.chat.server import ModelServer

HI = (UserMessage("hi"),)
CLOCK = ToolSpecification("clock", "What time it is.", {"type": "object", "properties": {"zone": {"type": "string"}}})
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def png() -> str:
    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0\xff\0\0")
    parts = part(b"IHDR", header) + part(b"IDAT", pixel) + part(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def wav() -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\0\0" * 80)
    return content.getvalue()


PNG = png()
WAV = wav()
PDF = base64.b64encode(b"%PDF-1.4\n%%EOF\n").decode()
IMAGE = ImageContent(Image(base64_data=PNG, mime_type="image/png"), DetailLevel.HIGH)
SENT_IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "high"}}


def model_at(server: ModelServer, **options: Any) -> OpenAiChatModel:
    return OpenAiChatModel("gpt-test", base_url=server.url, api_key="secret-key", **options)


def sent(server: ModelServer, messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Return the messages that the server receives when the model is sent *messages*."""
    server.answer({"content": "ok"})
    model_at(server).chat(messages)
    written: list[dict[str, Any]] = server.requests[-1].body["messages"]
    return written


class TestOptions:
    def test_that_are_not_set_are_not_sent(self, server: ModelServer, way: Way):
        server.answer({"content": "ok"})

        way.ask(model_at(server), HI)

        [request] = server.requests
        stream = {"stream": True, "stream_options": {"include_usage": True}} if way.is_stream else {}
        assert request.path == "/v1/chat/completions"
        assert request.headers["authorization"] == "Bearer secret-key"
        assert request.body == {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}], **stream}

    def test_of_the_model_apply_to_each_request(self, server: ModelServer, way: Way):
        server.answer({"content": "ok"})
        model = model_at(
            server, temperature=0.0, top_p=0.5, max_output_tokens=100, stop_sequences=("END",), extra_body={"seed": 7}
        )

        way.ask(model, HI)

        body = server.requests[0].body
        assert (body["model"], body["temperature"], body["top_p"], body["seed"]) == ("gpt-test", 0.0, 0.5, 7)
        assert (body["max_completion_tokens"], body["stop"]) == (100, ["END"])
        assert "max_tokens" not in body

    def test_of_a_request_override_those_of_the_model(self, server: ModelServer, way: Way):
        server.answer({"content": "ok"})
        model = model_at(server, temperature=1.0, top_p=0.5, max_output_tokens=100, stop_sequences=("END",))

        way.ask(
            model,
            ChatRequest(
                messages=HI,
                model_name="gpt-other",
                temperature=0.0,
                top_p=0.1,
                max_output_tokens=5,
                stop_sequences=("a", "b"),
            ),
        )

        body = server.requests[0].body
        assert (body["model"], body["temperature"], body["top_p"]) == ("gpt-other", 0.0, 0.1)
        assert (body["max_completion_tokens"], body["stop"]) == (5, ["a", "b"])

    def test_max_tokens_is_sent_under_the_name_that_the_server_supports(self, server: ModelServer):
        server.answer({"content": "ok"})

        model_at(server, max_tokens_parameter="max_tokens", max_output_tokens=100).chat("hi")

        assert server.requests[0].body["max_tokens"] == 100
        assert "max_completion_tokens" not in server.requests[0].body

    def test_max_tokens_has_only_two_names(self):
        with pytest.raises(ValueError, match=r"^max_tokens_parameter is 'tokens'; use 'max_completion_tokens' or"):
            OpenAiChatModel("gpt-test", max_tokens_parameter="tokens")  # type: ignore[arg-type]

    def test_server_and_key_default_to_the_environment(
        self, server: ModelServer, way: Way, monkeypatch: pytest.MonkeyPatch
    ):
        server.answer({"content": "ok"})
        model = OpenAiChatModel("gpt-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "of-the-environment")

        way.ask(model, HI)

        assert server.requests[0].headers["authorization"] == "Bearer of-the-environment"


class TestToolsAndFormats:
    @pytest.mark.parametrize(
        ("choice", "wanted"),
        [
            (ToolChoice.AUTO, "auto"),
            (ToolChoice.REQUIRED, "required"),
            (ToolChoice.NONE, "none"),
            ("clock", {"type": "function", "function": {"name": "clock"}}),
        ],
    )
    def test_tools(self, server: ModelServer, choice: ToolChoice | str, wanted: object):
        server.answer({"content": "ok"})

        model_at(server).chat(ChatRequest(messages=HI, tools=(CLOCK, ToolSpecification("ping")), tool_choice=choice))

        clock = {"name": "clock", "description": "What time it is.", "parameters": CLOCK.parameters}
        ping = {"name": "ping", "parameters": {"type": "object", "properties": {}}}
        assert server.requests[0].body["tool_choice"] == wanted
        assert server.requests[0].body["tools"] == [
            {"type": "function", "function": clock},
            {"type": "function", "function": ping},
        ]

    @by_turns("name", [("",), ("größe",), ("a.b",), ("a" * 65,)])
    def test_a_tool_with_an_invalid_name_is_refused(self, server: ModelServer, way: Way, name: str):
        request = ChatRequest(messages=HI, tools=(CLOCK, ToolSpecification(name)))

        with pytest.raises(InvalidRequestError, match=f"^The tool name {name!r} is invalid; use 1 to 64 ASCII letters"):
            way.ask(model_at(server), request)

        assert server.requests == []

    @pytest.mark.parametrize(
        ("given", "wanted"),
        [
            (ResponseFormat(), {"type": "json_object"}),
            (
                ResponseFormat(SCHEMA, "person"),
                {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}},
            ),
        ],
    )
    def test_formats(self, server: ModelServer, given: ResponseFormat, wanted: object):
        server.answer({"content": "{}"})

        model_at(server).chat(ChatRequest(messages=HI, response_format=given))

        assert server.requests[0].body["response_format"] == wanted

    def test_tools_and_formats_can_be_strict(self, server: ModelServer):
        server.answer({"content": "{}"})

        model_at(server, strict=True).chat(
            ChatRequest(messages=HI, tools=(CLOCK,), response_format=ResponseFormat(SCHEMA))
        )

        body = server.requests[0].body
        assert body["tools"][0]["function"]["strict"] is True
        assert body["response_format"]["json_schema"]["strict"] is True


class TestMessages:
    def test_images_audio_and_documents(self, server: ModelServer):
        contents = [
            TextContent("What is this?"),
            IMAGE,
            ImageContent(Image(url="https://example.com/a.png")),
            AudioContent(Audio(binary_data=WAV, mime_type="audio/wav")),
            PdfFileContent(PdfFile(base64_data=PDF, mime_type="application/pdf")),
        ]

        [message] = sent(server, [UserMessage(contents)])

        assert message["role"] == "user"
        assert message["content"] == [
            {"type": "text", "text": "What is this?"},
            SENT_IMAGE,
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}},
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}", "filename": "document.pdf"}},
        ]

    @pytest.mark.parametrize(
        "text",
        ["🏳️‍🌈 👨‍👩‍👧", "\u202e\u05e9\u05dc\u05d5\u05dd", "line\r\nline\u2028line", "\x01\x1f\x7f", "", "a" * 1_000_000],
        ids=["emoji", "right to left", "lines", "control characters", "empty", "long"],
    )
    def test_any_text(self, server: ModelServer, text: str):
        assert sent(server, [UserMessage(text)]) == [{"role": "user", "content": text}]

    def test_calls_and_results_without_our_own_attributes(self, server: ModelServer):
        call = ToolExecutionRequest("call_1", "clock", "{not JSON")

        messages = sent(
            server,
            [
                SystemMessage("Be brief."),
                UserMessage("What time is it?", name="Ann", attributes={"secret": 1}),
                AiMessage("Let me see.", "They want to know the time.", [call], {"refusal": "no", "annotations": [{}]}),
                ToolExecutionResultMessage("call_1", "clock", "No such zone.", is_error=True, attributes={"secret": 1}),
            ],
        )

        function = {"name": "clock", "arguments": "{not JSON"}
        assert messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What time is it?", "name": "Ann"},
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [{"type": "function", "id": "call_1", "function": function}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "No such zone."},
        ]

    @pytest.mark.parametrize(
        "empty",
        [AiMessage(), AiMessage(""), AiMessage(None, "thinking", (), {"refusal": "no"})],
        ids=["nothing", "empty text", "refusal"],
    )
    def test_empty_answers_are_left_out(self, server: ModelServer, empty: AiMessage):
        assert sent(server, [UserMessage("hi"), empty, UserMessage("still there?")]) == [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": "still there?"},
        ]

    def test_images_of_results_follow_all_results(self, server: ModelServer):
        calls = [ToolExecutionRequest(str(number), f"tool{number}", "{}") for number in (1, 2, 3)]

        messages = sent(
            server,
            [
                AiMessage(None, None, calls),
                ToolExecutionResultMessage("1", "tool1", [TextContent("a chart"), IMAGE, TextContent("of sales")]),
                ToolExecutionResultMessage("2", None, [IMAGE]),
                ToolExecutionResultMessage("3", "tool3", "nothing"),
                AiMessage("There you are."),
            ],
        )

        assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "tool", "user", "assistant"]
        assert messages[1]["content"] == "a chart\nof sales"
        assert messages[2]["content"] == "The result is in the next user message."
        assert messages[3]["content"] == "nothing"
        assert messages[4]["content"] == [
            {"type": "text", "text": "From the result of the tool tool1:"},
            SENT_IMAGE,
            {"type": "text", "text": "From the result of the tool 2:"},
            SENT_IMAGE,
        ]

    def test_custom_messages_are_left_out_even_between_results(self, server: ModelServer):
        reasoning = CustomMessage({"openai": {"type": "reasoning", "summary": []}})
        calls = [ToolExecutionRequest(f"{number}", "draw", "{}") for number in (1, 2)]

        messages = sent(
            server,
            [
                UserMessage("Draw."),
                reasoning,
                AiMessage(None, None, calls),
                ToolExecutionResultMessage("1", "draw", [IMAGE]),
                reasoning,
                ToolExecutionResultMessage("2", "draw", "nothing"),
            ],
        )

        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user"]

    def test_calls_kept_apart_by_another_framework_are_one_message(self, server: ModelServer):
        messages = sent(
            server,
            [
                AiMessage("Wait."),
                AiMessage(None, None, [ToolExecutionRequest("1", "draw", "{}")]),
                AiMessage("And that."),
                AiMessage(""),
                AiMessage(None, None, [ToolExecutionRequest("2", "draw", "{}")]),
                ToolExecutionResultMessage("1", "draw", "one"),
                ToolExecutionResultMessage("2", "draw", "two"),
                AiMessage("Done."),
            ],
        )

        assert [message["role"] for message in messages] == ["assistant", "assistant", "tool", "tool", "assistant"]
        assert messages[1]["content"] == "And that."
        assert [call["id"] for call in messages[1]["tool_calls"]] == ["1", "2"]

    def test_images_of_the_last_result(self, server: ModelServer):
        messages = sent(
            server,
            [
                AiMessage(None, None, [ToolExecutionRequest("1", "draw", "{}")]),
                ToolExecutionResultMessage("1", "draw", [IMAGE]),
            ],
        )

        assert [message["role"] for message in messages] == ["assistant", "tool", "user"]

    @by_turns(
        "message, reason",
        [
            (UserMessage([VideoContent(Video(url="x"))]), "VideoContent is not supported."),
            (
                ToolExecutionResultMessage("1", "film", [VideoContent(Video(url="x"))]),
                "VideoContent is not supported.",
            ),
            (UserMessage([None]), "an empty content is not supported."),
            (ToolExecutionResultMessage(None, "clock", "noon"), "a tool's result needs the id of its call."),
            (UserMessage([AudioContent(Audio(url="x", mime_type="audio/wav"))]), "an Audio needs its content"),
        ],
        ids=["video", "video of a tool", "nothing", "result without id", "sound elsewhere"],
    )
    def test_content_that_cannot_be_sent_raises_before_a_request(
        self, server: ModelServer, way: Way, message: ChatMessage, reason: str
    ):
        with pytest.raises(InvalidRequestError) as caught:
            way.ask(model_at(server), [UserMessage("hi"), message])

        assert str(caught.value).startswith("messages[1] cannot be sent to OpenAI's API: ")
        assert reason in str(caught.value)
        assert server.requests == []

    def test_a_lone_surrogate_raises(self, server: ModelServer, way: Way):
        with pytest.raises(InvalidRequestError, match="a lone surrogate"):
            way.ask(model_at(server), [UserMessage("\ud83d")])

        assert server.requests == []
