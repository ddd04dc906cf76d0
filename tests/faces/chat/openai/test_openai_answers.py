"""How OpenAiChatModel reads answers, whole and streamed."""

import base64
import copy
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from chatmemory_django.chat.model import (
    BrokenStreamError,
    ChatModel,
    ChatModelError,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
    UnavailableError,
)
from chatmemory_django.chat.openai.answers import AnswerReader
from chatmemory_django.chat.surrogates import with_whole_characters
from chatmemory_django.messages import AiMessage, ToolExecutionRequest
from chatmemory_django.models.columns import to_columns, to_metadata
from tests.faces.chat.conftest import Way, by_turns, whole_and_streamed
from tests.faces.chat.openai.test_openai_requests import HI, model_at
from tests.faces.chat.server import DONE, USAGE, ModelServer, Step, chunk, sse

STOP = chunk(finish_reason="stop")
STREAM = Way("stream")


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def streamed(server: ModelServer, *parts: Any, way: Way = STREAM) -> list[Any]:
    """Return the events when the server sends *parts* and then ``[DONE]``."""
    server.reply(*parts, DONE)
    return way.events(model_at(server), HI)


class TestAnAnswer:
    def test_is_a_message_with_metadata(self, server: ModelServer, way: Way):
        details = {
            "prompt_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
        }
        server.answer(
            {"content": "Hello, 🌍!"},
            usage={**USAGE, **details},
            service_tier="default",
            system_fingerprint="fp_1",
        )

        assert way.ask(model_at(server), HI) == ChatResponse(
            AiMessage("Hello, 🌍!"),
            ChatResponseMetadata(
                id="chatcmpl-1",
                model_name="gpt-test-2026",
                finish_reason=FinishReason.STOP,
                token_usage=TokenUsage(12, 3, 15, cached_input=8, reasoning=2, cache_write=3),
                attributes={"service_tier": "default", "system_fingerprint": "fp_1"},
            ),
        )

    @whole_and_streamed
    @pytest.mark.parametrize("content", [None, ""])
    def test_with_calls_only_has_no_text(self, server: ModelServer, way: Way, content: str | None):
        calls = [call("call_1", "clock", '{"zone": "UTC"}'), call("call_2", "sum", "{no JSON"), call("call_3", "x", "")]
        server.answer({"content": content, "tool_calls": calls}, "tool_calls")

        response = way.ask(model_at(server), HI)

        assert response.metadata.finish_reason is FinishReason.TOOL_EXECUTION
        assert response.ai_message == AiMessage(
            None,
            None,
            [
                ToolExecutionRequest("call_1", "clock", '{"zone": "UTC"}'),
                ToolExecutionRequest("call_2", "sum", "{no JSON"),
                ToolExecutionRequest("call_3", "x", ""),
            ],
        )

    @whole_and_streamed
    def test_without_content_is_an_empty_message(self, server: ModelServer, way: Way):
        server.answer({"content": ""})

        assert way.ask(model_at(server), HI).ai_message == AiMessage()

    @whole_and_streamed
    def test_stores_a_refusal_as_an_attribute(self, server: ModelServer, way: Way):
        server.answer({"content": None, "refusal": "I can't help with that."})

        assert way.ask(model_at(server), HI).ai_message == AiMessage(attributes={"refusal": "I can't help with that."})

    @whole_and_streamed
    @pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
    def test_keeps_thinking_apart_from_the_text(self, server: ModelServer, way: Way, key: str):
        server.answer({key: "Let me think.", "content": "42"})

        assert way.ask(model_at(server), HI).ai_message == AiMessage("42", "Let me think.")

    @whole_and_streamed
    def test_with_thinking_in_two_fields_has_it_once(self, server: ModelServer, way: Way):
        both = {"reasoning_content": "Hm.", "reasoning": "Hm.", "content": "42"}
        if way.is_stream:
            server.reply(chunk(both), STOP, DONE)
        else:
            server.answer(both)

        assert way.ask(model_at(server), HI).ai_message == AiMessage("42", "Hm.")

    @whole_and_streamed
    def test_keeps_annotations_and_audio_as_attributes(self, server: ModelServer, way: Way):
        citation = {"type": "url_citation", "url_citation": {"url": "https://example.com", "title": "t"}}
        audio = {"id": "audio_1", "data": "AAA=", "transcript": "Hello", "expires_at": 1}
        server.answer({"content": "See.", "annotations": [citation], "audio": audio})

        message = way.ask(model_at(server), HI).ai_message

        assert message.attributes == {"annotations": [citation], "audio": audio}

    @by_turns(
        "given, reason",
        [
            ("stop", FinishReason.STOP),
            ("length", FinishReason.LENGTH),
            ("tool_calls", FinishReason.TOOL_EXECUTION),
            ("function_call", FinishReason.TOOL_EXECUTION),
            ("content_filter", FinishReason.CONTENT_FILTER),
            ("eos_of_a_server_to_come", FinishReason.OTHER),
        ],
    )
    def test_has_a_finish_reason(self, server: ModelServer, way: Way, given: str, reason: FinishReason):
        server.answer({"content": "Hello"}, given)

        assert way.ask(model_at(server), HI).metadata.finish_reason is reason

    @whole_and_streamed
    def test_does_not_need_usage(self, server: ModelServer, way: Way):
        server.answer({"content": "Hello"}, usage=None)

        assert way.ask(model_at(server), HI).metadata.token_usage is None

    @whole_and_streamed
    def test_accepts_incomplete_usage(self, server: ModelServer, way: Way):
        server.answer({"content": "Hello"}, usage={"prompt_tokens": 3, "prompt_tokens_details": None})

        assert way.ask(model_at(server), HI).metadata.token_usage == TokenUsage(3)

    @pytest.mark.parametrize("body", [{}, {"choices": []}, {"error": {"message": "secret"}}, [], "hello"])
    def test_without_choices_raises(self, server: ModelServer, body: object):
        server.reply_json(body)

        with pytest.raises(UnavailableError, match=r"^The model's server sent no choices"):
            model_at(server).chat(HI)

    def test_that_is_html_raises(self, server: ModelServer):
        server.reply(b"<html>Welcome</html>", headers={"content-type": "text/html"})

        with pytest.raises(UnavailableError, match="sent no choices"):
            model_at(server).chat(HI)

    def test_that_is_truncated_json_raises(self, server: ModelServer):
        server.reply(b'{"choices": [', headers={"content-type": "application/json"})

        with pytest.raises(UnavailableError, match=r"^The model's server sent something that is not JSON\.$"):
            model_at(server).chat(HI)


ODD: list[object] = [
    None,
    True,
    -1,
    10**40,
    0.5,
    "",
    "x",
    "\ud83d",
    "\0",
    [],
    [None],
    ["x"],
    [[]],
    [{}],
    {},
    {"index": []},
    {"name": 1},
    float("nan"),
]


class TestAnUnusualAnswer:
    @whole_and_streamed
    def test_with_its_content_in_parts_has_their_texts(self, server: ModelServer, way: Way):
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
        parts = [thinking, {"type": "text", "text": "It is "}, {"type": "text", "text": "noon."}]
        server.answer({"content": parts})

        assert way.ask(model_at(server), HI).ai_message == AiMessage("It is noon.", "Hm.")

    @whole_and_streamed
    def test_with_a_refusal_in_its_parts_is_a_refusal(self, server: ModelServer, way: Way):
        server.answer({"content": [{"type": "refusal", "refusal": "I may not."}]})

        assert way.ask(model_at(server), HI).ai_message == AiMessage(attributes={"refusal": "I may not."})

    def test_with_arguments_as_an_object_has_their_json(self, server: ModelServer):
        message = {"content": None, "tool_calls": [call("a", "clock", {"zone": "UTC"})]}  # as Ollama's own API
        server.reply_json({"choices": [{"message": message, "finish_reason": "tool_calls"}]})

        [called] = model_at(server).chat(HI).ai_message.tool_execution_requests
        assert called == ToolExecutionRequest("a", "clock", '{"zone": "UTC"}')

    @whole_and_streamed
    def test_with_a_function_call_has_that_call(self, server: ModelServer, way: Way):
        function = {"name": "clock", "arguments": "{}"}
        server.answer({"content": None, "function_call": function}, "function_call")

        [called] = way.ask(model_at(server), HI).ai_message.tool_execution_requests
        assert (called.name, called.arguments) == ("clock", "{}")

    def test_with_audio_without_padding_has_the_sound(self, server: ModelServer):
        pieces = [base64.b64encode(sound).decode().rstrip("=") for sound in (b"one", b"four", b"five!")]

        response = streamed(server, *(chunk({"audio": {"data": piece}}) for piece in pieces), STOP)[-1]

        assert base64.b64decode(response.ai_message.attributes["audio"]["data"]) == b"onefourfive!"

    def test_with_audio_that_is_no_base64_raises(self, server: ModelServer):
        with pytest.raises(UnavailableError, match="audio that is not Base64"):
            streamed(server, chunk({"audio": {"data": "A"}}), chunk({"audio": {"data": "A"}}), STOP)

    @pytest.mark.parametrize(
        "delta",
        [{"tool_calls": [None]}, {"tool_calls": {"a": 1}}, {"annotations": 5}, {"audio": "x"}, {"content": {"a": 1}}],
        ids=repr,
    )
    def test_without_what_it_should_have_is_read_all_the_same(self, server: ModelServer, delta: dict[str, Any]):
        response = streamed(server, chunk(delta), chunk({"content": "Hello"}), STOP)[-1]

        assert response.ai_message == AiMessage("Hello")

    @pytest.mark.parametrize("odd", ODD, ids=ascii)
    def test_is_read_or_is_an_error_of_the_model_whatever_is_odd_in_it(self, odd: object):
        usual = {
            **chunk({"content": "Hi", "tool_calls": [{"index": 0, **call("a", "clock", "{}")}], "audio": {"data": ""}}),
            "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 8}},
            "system_fingerprint": "fp_1",
        }

        for path in paths_of(usual):
            answer = AnswerReader()
            with suppress(ChatModelError):
                for _ in range(2):
                    answer.add(ChatCompletionChunk.construct(**changed(usual, path, odd)))
                answer.add(ChatCompletionChunk.construct(**STOP))
                response = with_whole_characters(answer.end())
                assert to_columns(response.ai_message)
                assert to_metadata(response.metadata.as_json()) is not None


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all that is in *value*."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*path, key)
        yield from paths_of(each, (*path, key))


def changed(value: Any, path: tuple[Any, ...], odd: object) -> Any:
    """Return *value* with *odd* at *path*."""
    value = copy.deepcopy(value)
    *parents, last = path
    found = value
    for key in parents:
        found = found[key]
    found[last] = odd
    return value


class TestCharacters:
    """Some servers cut their text as UTF-16: within a character outside of the basic plane."""

    def test_that_are_split_between_two_pieces_are_joined(self, server: ModelServer, stream: Way):
        events = streamed(
            server,
            chunk({"reasoning_content": "H\ud83d"}),
            chunk({"reasoning_content": "\ude00"}),
            chunk({"content": "Hello \ud83d"}),
            chunk({"content": "\ude00!"}),
            chunk({"tool_calls": [{"index": 0, **call("a", "clock", '"\ud83d')}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": '\ude00"'}}]}),
            STOP,
            way=stream,
        )

        answer = events[-1].ai_message
        assert (answer.text, answer.thinking) == ("Hello 😀!", "H😀")
        assert answer.tool_execution_requests == (ToolExecutionRequest("a", "clock", '"😀"'),)
        assert events[:-1] == [
            PartialThinking("H"),
            PartialThinking("😀"),
            PartialText("Hello "),
            PartialText("😀!"),
            PartialToolCall(0, "a", "clock", '"'),
            PartialToolCall(0, arguments='😀"'),
        ]

    @pytest.mark.parametrize(
        ("pieces", "text"),
        [
            (["a\ud83d"], "a\ufffd"),
            (["a\ud83d", "b"], "a\ufffdb"),
            (["\ude00", "b"], "\ufffdb"),
            (["\ud83d\ud83d", "\ude00"], "\ufffd😀"),
            (["a\0", "b"], "a\ufffdb"),
        ],
        ids=ascii,
    )
    def test_that_cannot_be_stored_are_replaced(self, server: ModelServer, pieces: list[str], text: str):
        *events, response = streamed(server, *(chunk({"content": piece}) for piece in pieces), STOP)

        assert response.ai_message == AiMessage(text)
        assert "".join(event.text for event in events) == text

    def test_of_a_whole_answer_are_replaced_everywhere(self, server: ModelServer, way: Way):
        message = {"content": "\ud83d", "refusal": "\ud83d", "tool_calls": [call("a\0", "b\ud83d", "c\ud83d")]}
        server.answer(message, system_fingerprint="\ud83d")

        response = way.ask(model_at(server), HI)

        assert response.ai_message == AiMessage(
            "\ufffd", None, [ToolExecutionRequest("a\ufffd", "b\ufffd", "c\ufffd")], {"refusal": "\ufffd"}
        )
        assert response.metadata.attributes == {"system_fingerprint": "\ufffd"}

    @given(st.text(st.sampled_from("aä😀\ud83d\ude00\0")), st.data())
    def test_are_the_same_wherever_a_stream_is_cut(self, text: str, data: st.DataObject):
        units = text.encode("utf-16-le", "surrogatepass")
        cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2))))
        bounds = zip([0, *cuts], [*cuts, len(units) // 2], strict=True)
        pieces = [units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass") for start, end in bounds]

        class Cutting(ChatModel):
            def do_chat(self, request):
                return ChatResponse(AiMessage(text))

            def do_stream(self, request):
                yield from map(PartialText, pieces)
                yield ChatResponse(AiMessage("".join(pieces)))

        *events, response = Cutting().stream("hi")

        assert response == Cutting().chat(HI)
        assert "".join(event.text for event in events) == (response.ai_message.text or "")


class TestAStream:
    def test_yields_each_piece_as_soon_as_it_arrives(self, server: ModelServer):
        seen = threading.Event()
        server.reply(chunk({"content": "Hel"}), seen, chunk({"content": "lo"}), STOP, DONE)

        events = model_at(server).stream("hi")

        assert next(events) == PartialText("Hel")
        seen.set()  # the server waits for this
        assert next(events) == PartialText("lo")
        assert isinstance(next(events), ChatResponse)

    def test_merges_interleaved_pieces_of_several_calls(self, server: ModelServer, stream: Way):
        def piece(index: int, arguments: str, **first: Any) -> dict[str, Any]:
            name = {"name": first.pop("name")} if first else {}
            return {"index": index, **first, "function": {**name, "arguments": arguments}}

        events = streamed(
            server,
            chunk({"role": "assistant", "content": None, "tool_calls": None}),
            chunk({"tool_calls": [piece(0, "", id="call_a", type="function", name="clock")]}),
            chunk({"tool_calls": [piece(0, '{"zo')]}),
            chunk({"tool_calls": [piece(1, '{"', id="call_b", type="function", name="sum"), piece(0, "ne")]}),
            chunk({"tool_calls": [piece(1, "")]}),
            chunk({"tool_calls": [piece(1, 'of": [1, '), piece(0, '": "U')]}),
            chunk({"tool_calls": [piece(0, 'TC"}'), piece(1, "2]}")]}),
            chunk(finish_reason="tool_calls"),
            way=stream,
        )

        assert events[:-1] == [
            PartialToolCall(0, "call_a", "clock", ""),
            PartialToolCall(0, arguments='{"zo'),
            PartialToolCall(1, "call_b", "sum", '{"'),
            PartialToolCall(0, arguments="ne"),
            PartialToolCall(1, arguments='of": [1, '),
            PartialToolCall(0, arguments='": "U'),
            PartialToolCall(0, arguments='TC"}'),
            PartialToolCall(1, arguments="2]}"),
        ]
        assert events[-1].ai_message.tool_execution_requests == (
            ToolExecutionRequest("call_a", "clock", '{"zone": "UTC"}'),
            ToolExecutionRequest("call_b", "sum", '{"of": [1, 2]}'),
        )

    @pytest.mark.parametrize("number", [{}, {"index": 0}, {"index": None}], ids=["none", "all zero", "null"])
    def test_separates_calls_without_distinct_indexes(self, server: ModelServer, number: dict[str, Any]):
        response = streamed(
            server,
            chunk({"tool_calls": [{**number, **call("a", "clock", "{}")}, {**number, **call("b", "clock", "{}")}]}),
            chunk(finish_reason="tool_calls"),
        )[-1]

        assert response.ai_message.tool_execution_requests == (
            ToolExecutionRequest("a", "clock", "{}"),
            ToolExecutionRequest("b", "clock", "{}"),
        )

    def test_accepts_calls_that_repeat_names_or_change_ids(self, server: ModelServer):
        response = streamed(
            server,
            chunk({"tool_calls": [{"index": 0, **call("a", "clock", "{")}]}),
            chunk({"tool_calls": [{"index": 0, **call("a", "clock", "}")}]}),
            chunk({"tool_calls": [{"index": 1, **call("b", "sum", "[")}]}),
            chunk({"tool_calls": [{"index": 1, "id": "other", "function": {"name": None, "arguments": "]"}}]}),
            chunk(finish_reason="tool_calls"),
        )[-1]

        assert response.ai_message.tool_execution_requests == (
            ToolExecutionRequest("a", "clock", "{}"),
            ToolExecutionRequest("b", "sum", "[]"),
        )

    @pytest.mark.parametrize(
        "pieces",
        [
            [{"id": "a", "function": {"name": "", "arguments": ""}}, {"function": {"name": "clock"}}, {}],
            [{"id": "a", "function": {"name": "clo"}}, {"function": {"name": "ck"}}, {}],
            [{"id": "a", "function": {"name": "clo"}}, {"id": "a", "function": {"name": "ck"}}, {}],
            [{"id": "a"}, {"id": "a", "function": {"name": "clock"}}, {"id": "a", "function": {"name": "clock"}}],
            [{"id": "a", "function": {"name": "clock"}}, {"id": "a", "function": {"name": "clock", "arguments": ""}}],
        ],
        ids=["late", "cut", "cut with id", "late and repeated", "repeated"],
    )
    def test_joins_the_name_of_a_call(self, server: ModelServer, pieces: list[dict[str, Any]]):
        events = streamed(
            server,
            *(chunk({"tool_calls": [{"index": 0, **piece}]}) for piece in pieces),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}),
            chunk(finish_reason="tool_calls"),
        )

        assert events[-1].ai_message.tool_execution_requests == (ToolExecutionRequest("a", "clock", "{}"),)
        assert events[0].id == "a"
        assert "".join(event.name or "" for event in events[:-1]) == "clock"
        assert "".join(event.arguments for event in events[:-1]) == "{}"

    @pytest.mark.parametrize("names", [("clock", "sum"), ("clock", "clock")], ids=["two names", "one name"])
    @pytest.mark.parametrize("number", [{"index": 0}, {"index": 0, "id": "a"}, {}], ids=["no id", "one id", "nothing"])
    def test_separates_whole_calls_with_one_index(
        self, server: ModelServer, number: dict[str, Any], names: tuple[str, str]
    ):
        first, second = ({**number, "function": {"name": name, "arguments": '{"a": 1}'}} for name in names)

        response = streamed(
            server,
            chunk({"tool_calls": [first]}),
            chunk({"tool_calls": [second]}),
            chunk(finish_reason="tool_calls"),
        )[-1]

        calls = response.ai_message.tool_execution_requests
        assert [(call.name, call.arguments) for call in calls] == [(name, '{"a": 1}') for name in names]

    def test_joins_arguments_whose_name_is_repeated_in_every_piece(self, server: ModelServer):
        pieces = ['{"a": {"b"', ": 1}", ', "c": {}}', ""]

        response = streamed(
            server,
            *(
                chunk({"tool_calls": [{"index": 0, "function": {"name": "sum", "arguments": piece}}]})
                for piece in pieces
            ),
            chunk(finish_reason="tool_calls"),
        )[-1]

        [call] = response.ai_message.tool_execution_requests
        assert (call.name, call.arguments) == ("sum", "".join(pieces))

    def test_skips_empty_chunks(self, server: ModelServer):
        events = streamed(
            server,
            b": ping\n\n",
            {"id": "", "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]},  # Azure starts so
            chunk({"role": "assistant", "content": "", "refusal": None, "tool_calls": None}),
            b": OPENROUTER PROCESSING\n\n",
            chunk({"content": "Hello"}),
            chunk({"content": None, "reasoning_content": None}),
            chunk({}, "stop"),
            {"id": "chatcmpl-1", "choices": None},
            b"\r\n: bye\r\n\r\n",
        )

        assert events[:-1] == [PartialText("Hello")]
        assert events[-1].ai_message == AiMessage("Hello")
        assert (events[-1].metadata.id, events[-1].metadata.model_name) == ("chatcmpl-1", "gpt-test-2026")

    def test_accepts_usage_and_text_in_the_chunk_with_the_finish_reason(self, server: ModelServer):
        events = streamed(
            server, chunk({"content": "Hel"}), chunk({"content": "lo"}, "stop", usage={"prompt_tokens": 1})
        )

        assert events[:-1] == [PartialText("Hel"), PartialText("lo")]
        assert events[-1].metadata.token_usage == TokenUsage(1)

    def test_yields_only_the_first_of_several_choices(self, server: ModelServer):
        other = {"index": 1, "delta": {"content": "No"}, "finish_reason": "length"}

        events = streamed(server, chunk({"content": "Yes"}), chunk(choices=[other]), STOP)

        assert events[:-1] == [PartialText("Yes")]
        assert events[-1].metadata.finish_reason is FinishReason.STOP

    def test_yields_thinking_before_text(self, server: ModelServer):
        events = streamed(
            server,
            chunk({"reasoning_content": "Hm"}),
            chunk({"reasoning_content": "."}),
            chunk({"content": "42"}),
            STOP,
        )

        assert events[:-1] == [PartialThinking("Hm"), PartialThinking("."), PartialText("42")]

    def test_joins_audio_that_was_encoded_in_pieces(self, server: ModelServer):
        def sound(**audio: object) -> dict[str, Any]:
            return chunk({"audio": audio})

        response = streamed(
            server,
            sound(id="audio_1", transcript="Hel"),
            sound(data=base64.b64encode(b"one").decode(), transcript="lo"),
            sound(data=base64.b64encode(b"four").decode()),
            sound(expires_at=5),
            STOP,
        )[-1]

        assert response.ai_message.attributes == {
            "audio": {
                "id": "audio_1",
                "transcript": "Hello",
                "data": base64.b64encode(b"onefour").decode(),
                "expires_at": 5,
            }
        }

    def test_can_arrive_byte_by_byte(self, server: ModelServer, stream: Way):
        content = sse(chunk({"content": "مرحبا 🌍"})) + sse(STOP) + DONE
        server.reply(*(content[index : index + 1] for index in range(len(content))))

        events = stream.events(model_at(server), HI)

        assert events[:-1] == [PartialText("مرحبا 🌍")]

    def test_may_end_without_done(self, server: ModelServer, stream: Way):
        server.reply(chunk({"content": "Hello"}), STOP)

        assert stream.ask(model_at(server), HI).ai_message == AiMessage("Hello")


class TestABrokenStream:
    @pytest.mark.parametrize(
        ("parts", "reason"),
        [
            ((), "ended without a finish reason"),
            ((DONE,), "ended without a finish reason"),
            ((Step.BREAK,), "failed or was lost"),
            (({"error": {"message": "secret", "code": "x"}},), "reported an error"),
            ((b"data: {secret\n\n",), "not JSON"),
            ((b"data: \xff\xff\n\n",), "not JSON"),
        ],
        ids=["end", "done", "break", "error", "no JSON", "no UTF-8"],
    )
    def test_yields_what_arrived_and_then_raises(self, server: ModelServer, parts: tuple[Any, ...], reason: str):
        server.reply(chunk({"content": "Hel"}), *parts)
        events = model_at(server).stream("hi")

        assert next(events) == PartialText("Hel")
        with pytest.raises(BrokenStreamError, match=reason) as caught:
            next(events)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("parts", [(), (Step.BREAK,), ({"error": "secret"},)], ids=["end", "break", "error"])
    def test_raises_in_async_code_too(self, server: ModelServer, stream: Way, parts: tuple[Any, ...]):
        server.reply(chunk({"content": "Hel"}), *parts)

        with pytest.raises(BrokenStreamError):
            stream.events(model_at(server), HI)

    def test_is_not_retried(self, server: ModelServer, stream: Way):
        server.reply(chunk({"content": "Hel"}), Step.BREAK)

        with pytest.raises(BrokenStreamError):
            stream.events(model_at(server, max_retries=5), HI)

        assert len(server.requests) == 1
