"""What OpenAiChatModel sends, as a server reads it."""

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
from tests.chat.conftest import Way
from tests.chat.server import ModelServer

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
    """The messages that reach the server when a model is asked *messages*."""
    server.answer({"content": "ok"})
    model_at(server).chat(messages)
    written: list[dict[str, Any]] = server.requests[-1].body["messages"]
    return written


class TestOptions:
    def test_nothing_is_sent_that_nobody_asked_for(self, server: ModelServer, way: Way):
        server.answer({"content": "ok"})

        way.ask(model_at(server), HI)

        [request] = server.requests
        stream = {"stream": True, "stream_options": {"include_usage": True}} if way.is_stream else {}
        assert request.path == "/v1/chat/completions"
        assert request.headers["authorization"] == "Bearer secret-key"
        assert request.body == {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}], **stream}

    def test_of_the_model_are_those_of_each_request(self, server: ModelServer, way: Way):
        server.answer({"content": "ok"})
        model = model_at(
            server, temperature=0.0, top_p=0.5, max_output_tokens=100, stop_sequences=("END",), extra_body={"seed": 7}
        )

        way.ask(model, HI)

        body = server.requests[0].body
        assert (body["model"], body["temperature"], body["top_p"], body["seed"]) == ("gpt-test", 0.0, 0.5, 7)
        assert (body["max_completion_tokens"], body["stop"]) == (100, ["END"])
        assert "max_tokens" not in body

    def test_of_a_request_replace_those_of_the_model(self, server: ModelServer, way: Way):
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

    def test_max_tokens_goes_by_the_name_that_the_server_knows(self, server: ModelServer):
        server.answer({"content": "ok"})

        model_at(server, max_tokens_parameter="max_tokens", max_output_tokens=100).chat("hi")

        assert server.requests[0].body["max_tokens"] == 100
        assert "max_completion_tokens" not in server.requests[0].body

    def test_max_tokens_goes_by_no_other_name(self):
        with pytest.raises(ValueError, match=r"^max_tokens_parameter is 'tokens'; use 'max_completion_tokens' or"):
            OpenAiChatModel("gpt-test", max_tokens_parameter="tokens")  # type: ignore[arg-type]

    def test_a_server_and_a_key_that_are_not_given_are_those_of_the_environment(
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

    @pytest.mark.parametrize("name", ["", "größe", "a.b", "a" * 65])
    def test_no_tool_of_a_name_that_cannot_be(self, server: ModelServer, way: Way, name: str):
        request = ChatRequest(messages=HI, tools=(CLOCK, ToolSpecification(name)))

        with pytest.raises(InvalidRequestError, match=f"^The tool {name!r} needs a name of 1 to 64 ASCII letters"):
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

    def test_both_strict(self, server: ModelServer):
        server.answer({"content": "{}"})

        model_at(server, strict=True).chat(
            ChatRequest(messages=HI, tools=(CLOCK,), response_format=ResponseFormat(SCHEMA))
        )

        body = server.requests[0].body
        assert body["tools"][0]["function"]["strict"] is True
        assert body["response_format"]["json_schema"]["strict"] is True


class TestMessages:
    def test_images_sounds_and_documents(self, server: ModelServer):
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

    def test_a_call_and_its_result_without_what_only_we_know_of_them(self, server: ModelServer):
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
    def test_no_answer_of_neither_text_nor_calls(self, server: ModelServer, empty: AiMessage):
        assert sent(server, [UserMessage("hi"), empty, UserMessage("still there?")]) == [
            {"role": "user", "content": "hi"},
            {"role": "user", "content": "still there?"},
        ]

    def test_images_of_results_behind_all_results(self, server: ModelServer):
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
        assert messages[2]["content"] == "The result is in the next message of the user."
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

    def test_calls_that_another_framework_keeps_apart_are_one_message(self, server: ModelServer):
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

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            (UserMessage([VideoContent(Video(url="x"))]), "it has no place for VideoContent."),
            (
                ToolExecutionResultMessage("1", "film", [VideoContent(Video(url="x"))]),
                "it has no place for VideoContent.",
            ),
            (UserMessage([None]), "it has no place for nothing."),
            (ToolExecutionResultMessage(None, "clock", "noon"), "a tool's result without an id answers no call."),
            (UserMessage([AudioContent(Audio(url="x", mime_type="audio/wav"))]), "an Audio needs its content"),
        ],
        ids=["video", "video of a tool", "nothing", "result without id", "sound elsewhere"],
    )
    def test_what_has_no_place_is_an_error_before_anything_is_sent(
        self, server: ModelServer, way: Way, message: ChatMessage, reason: str
    ):
        with pytest.raises(InvalidRequestError) as caught:
            way.ask(model_at(server), [UserMessage("hi"), message])

        assert str(caught.value).startswith("messages[1] cannot be sent to OpenAI's API: ")
        assert reason in str(caught.value)
        assert server.requests == []

    def test_half_a_surrogate_is_an_error(self, server: ModelServer, way: Way):
        with pytest.raises(InvalidRequestError, match="half a surrogate"):
            way.ask(model_at(server), [UserMessage("\ud83d")])

        assert server.requests == []
