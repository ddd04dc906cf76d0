"""The stream of an answer, read as strictly as clients do; ``.ci/chat`` reads it with the clients themselves."""

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.chat.answers.ui_stream import DONE, HEADERS, UiStream, encode
from chatmemory_django.chat.model import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
)
from chatmemory_django.chat.runs.answer import PING
from chatmemory_django.chat.ui_messages import to_ui_messages
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage
from tests.faces.chat.rows import answers, anything, rows_of_answer
from tests.faces.chat.ui_reader import read

ENDED = "The answer ended before this call did."
UNKNOWN = "The outcome of this call is unknown."
NOT_JSON = "The arguments of this call are not JSON."


def streamed(*events, end="finish"):
    """Return the chunks of *events* in one list, without the first, ``start``."""
    stream = UiStream("a", {})
    chunks = [chunk for event in events for chunk in stream.feed(event)]
    chunks += stream.error("Sorry.") if end == "error" else getattr(stream, end)() if end else []
    assert chunks[0] == {"type": "start", "messageId": "a", "messageMetadata": {}}
    return chunks[1:]


def response(text=None, thinking=None, *calls, **metadata):
    return ChatResponse(AiMessage(text, thinking, calls), ChatResponseMetadata(**metadata))


def request(id="c", name="tool", arguments="{}"):
    return ToolExecutionRequest(id, name, arguments)


def result(text="4", id="c", name="tool", is_error=None):
    return ToolExecutionResultMessage(id, name, text, is_error)


def types(chunks):
    return [chunk["type"] for chunk in chunks]


class TestPieces:
    def test_text_is_a_part_that_grows(self):
        assert streamed(PartialText("He"), PartialText(""), PartialText("llo"), response("Hello")) == [
            {"type": "start-step"},
            {"type": "text-start", "id": "text-1"},
            {"type": "text-delta", "id": "text-1", "delta": "He"},
            {"type": "text-delta", "id": "text-1", "delta": "llo"},
            {"type": "text-end", "id": "text-1"},
            {"type": "finish-step"},
            {"type": "finish"},
        ]

    def test_a_refusal_is_a_text(self):
        refusing = ChatResponse(AiMessage(attributes={"refusal": "I may not."}))

        assert [chunk.get("delta") for chunk in streamed(refusing) if chunk["type"] == "text-delta"] == ["I may not."]

    def test_thinking_ends_when_text_begins(self):
        chunks = streamed(PartialThinking("Hm"), PartialText("Hi"), response("Hi", "Hm"))

        assert types(chunks)[1:6] == ["reasoning-start", "reasoning-delta", "reasoning-end", "text-start", "text-delta"]

    def test_thinking_within_text_is_a_separate_part_and_the_text_stays_one(self):
        chunks = streamed(
            PartialThinking("a"), PartialText("b"), PartialThinking("c"), PartialText("d"), response("bd", "ac")
        )

        assert [(part["type"], part.get("text")) for part in read([*UiStream("a").start(), *chunks])["parts"]] == [
            ("step-start", None),
            ("reasoning", "a"),
            ("text", "bd"),
            ("reasoning", "c"),
        ]

    def test_an_answer_without_pieces_is_sent_whole(self):
        assert streamed(response("Hi", "Hm", request(arguments='{"a": 1}')), end=None) == [
            {"type": "start-step"},
            {"type": "reasoning-start", "id": "reasoning-1"},
            {"type": "reasoning-delta", "id": "reasoning-1", "delta": "Hm"},
            {"type": "reasoning-end", "id": "reasoning-1"},
            {"type": "text-start", "id": "text-1"},
            {"type": "text-delta", "id": "text-1", "delta": "Hi"},
            {"type": "text-end", "id": "text-1"},
            {"type": "tool-input-available", "toolCallId": "c", "toolName": "tool", "input": {"a": 1}},
        ]

    def test_pieces_that_are_missing_follow_with_the_response(self):
        chunks = streamed(PartialText("He"), response("Hello"))

        assert [chunk["delta"] for chunk in chunks if "delta" in chunk] == ["He", "llo"]

    def test_sent_text_stays_even_if_the_response_differs(self):
        chunks = streamed(PartialText("He"), response("Good day"))

        assert [chunk["delta"] for chunk in chunks if "delta" in chunk] == ["He"]


class TestTools:
    def test_a_call_is_written_then_called_then_answered_within_one_step(self):
        chunks = streamed(
            PartialText("See:"),
            PartialToolCall(0, "c", "tool", ""),
            PartialToolCall(0, arguments='{"a"'),
            PartialToolCall(0, arguments=": 1}"),
            response("See:", None, request(arguments='{"a": 1}')),
            result("4"),
            PartialText("Four."),
            response("Four."),
        )

        assert chunks[3:] == [
            {"type": "tool-input-start", "toolCallId": "c", "toolName": "tool"},
            {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": '{"a"'},
            {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": ": 1}"},
            {"type": "text-end", "id": "text-1"},
            {"type": "tool-input-available", "toolCallId": "c", "toolName": "tool", "input": {"a": 1}},
            {"type": "tool-output-available", "toolCallId": "c", "output": "4"},
            {"type": "finish-step"},
            {"type": "start-step"},
            {"type": "text-start", "id": "text-2"},
            {"type": "text-delta", "id": "text-2", "delta": "Four."},
            {"type": "text-end", "id": "text-2"},
            {"type": "finish-step"},
            {"type": "finish"},
        ]

    def test_a_failed_call_is_an_error(self):
        assert streamed(response(None, None, request()), result("No.", is_error=True))[2] == {
            "type": "tool-output-error",
            "toolCallId": "c",
            "errorText": "No.",
        }

    def test_arguments_that_are_not_json_are_an_error_with_the_raw_text(self):
        assert streamed(response(None, None, request(arguments='{"a')), end=None)[1] == {
            "type": "tool-input-error",
            "toolCallId": "c",
            "toolName": "tool",
            "input": '{"a',
            "errorText": NOT_JSON,
        }

    def test_results_can_come_in_any_order(self):
        calls = [request("c"), request("d"), request(None), request("c")]
        results = [result("1", "d"), result("2", None), result("3"), result("4"), result("5"), result("6", "e")]

        chunks = streamed(response(None, None, *calls), *results)

        assert [(chunk["toolCallId"], chunk["output"]) for chunk in chunks if "output" in chunk] == [
            ("d", "1"),
            ("call-1-2", "2"),
            ("c", "3"),
            ("call-1-3", "4"),
        ]

    def test_a_call_whose_name_comes_late_is_shown_with_the_response(self):
        chunks = streamed(
            PartialToolCall(0, "c", None, "{"),
            PartialToolCall(0, None, None, "}"),
            response(None, None, request()),
            result(),
        )

        assert types(chunks)[:3] == ["start-step", "tool-input-available", "tool-output-available"]

    def test_a_call_is_shown_once_its_name_is_whole(self):
        chunks = streamed(
            PartialToolCall(0, "c", "to"),
            PartialToolCall(0, None, "ol"),
            PartialToolCall(1, "d", "other", "{"),
            PartialToolCall(0, arguments="{}"),
            response(None, None, request(), request("d", "other", "{")),
        )

        starts = [chunk["toolName"] for chunk in chunks if chunk["type"] == "tool-input-start"]
        assert starts == ["tool", "other"]

    def test_parallel_calls_with_one_id_get_the_results_in_their_order(self):
        calls = [request("c", arguments='{"n": 1}'), request("c", arguments='{"n": 2}')]

        chunks = streamed(response(None, None, *calls), result("one"), result("two"))

        found = {chunk["toolCallId"]: chunk["output"] for chunk in chunks if "output" in chunk}
        assert found == {"c": "one", "call-1-1": "two"}

    def test_a_call_missing_from_the_response_is_closed(self):
        chunks = streamed(PartialToolCall(0, "c", "tool", "{"), response("Hi"))

        assert chunks[-3] == {
            "type": "tool-input-error",
            "toolCallId": "c",
            "toolName": "tool",
            "input": "{",
            "errorText": ENDED,
        }

    def test_a_result_without_a_call_is_left_out(self):
        assert streamed(result(), end=None) == []
        assert streamed(PartialText("x"), result(), end=None) == streamed(PartialText("x"), end=None)


class TestEnds:
    def test_it_begins_with_its_id_and_the_time(self):
        (start,) = UiStream("a").start()

        assert (start["type"], start["messageId"]) == ("start", "a")
        assert datetime.fromisoformat(start["messageMetadata"].pop("createdAt")).utcoffset() is not None
        assert start["messageMetadata"] == {}

    def test_it_finishes_with_the_reason_and_the_usage(self):
        known = {"model_name": "m", "token_usage": TokenUsage(1, 2, 3)}
        chunks = streamed(
            response(None, None, request(), finish_reason=FinishReason.TOOL_EXECUTION, **known),
            result(),
            response("4", finish_reason=FinishReason.STOP, **known),
        )

        assert chunks[-1] == {
            "type": "finish",
            "finishReason": "stop",
            "messageMetadata": {
                "model": "m",
                "finishReason": "stop",
                "usage": {"inputTokens": 2, "outputTokens": 4, "totalTokens": 6},
            },
        }

    @pytest.mark.parametrize("reason", FinishReason)
    def test_it_finishes_with_a_reason_that_all_clients_know(self, reason):
        (*_, finish) = streamed(response("x", finish_reason=reason))

        assert finish["finishReason"] in {"stop", "length", "content-filter", "tool-calls", "other"}

    def test_an_error_first_closes_open_parts(self):
        chunks = streamed(PartialThinking("Hm"), PartialText("Hi"), PartialToolCall(0, "c", "tool", "{"), end="error")

        assert chunks[-4:] == [
            {"type": "text-end", "id": "text-1"},
            {"type": "tool-input-error", "toolCallId": "c", "toolName": "tool", "input": "{", "errorText": ENDED},
            {"type": "finish-step"},
            {"type": "error", "errorText": "Sorry."},
        ]

    def test_an_error_can_be_the_whole_stream(self):
        assert (
            streamed(end=None)
            if False
            else UiStream("a", {}).error("Sorry.")
            == [
                {"type": "start", "messageId": "a", "messageMetadata": {}},
                {"type": "error", "errorText": "Sorry."},
            ]
        )

    def test_a_stopped_answer_is_marked_as_partial_with_its_known_metadata(self):
        chunks = streamed(
            response(None, None, request(), model_name="m", finish_reason=FinishReason.TOOL_EXECUTION),
            result(),
            PartialText("Fo"),
            end="abort",
        )

        assert chunks[-3:] == [
            {"type": "finish-step"},
            {"type": "message-metadata", "messageMetadata": {"model": "m", "partial": True}},
            {"type": "abort"},
        ]

    @pytest.mark.parametrize("end", ["abort", "error"])
    def test_the_outcome_of_a_call_without_a_result_is_unknown(self, end):
        chunks = streamed(response(None, None, request()), end=end)

        assert chunks[-3:-1] == [
            {"type": "tool-output-error", "toolCallId": "c", "errorText": UNKNOWN},
            {"type": "finish-step"},
        ]

    def test_so_it_is_if_the_answer_went_on_without_the_result(self):
        chunks = streamed(response(None, None, request()), PartialText("Fo"))

        assert chunks[2:5] == [
            {"type": "tool-output-error", "toolCallId": "c", "errorText": UNKNOWN},
            {"type": "finish-step"},
            {"type": "start-step"},
        ]

    @pytest.mark.parametrize("end", ["finish", "error", "abort"])
    def test_nothing_follows_its_end(self, end):
        stream = UiStream("a")
        stream.feed(PartialText("x"))
        assert stream.error("x") if end == "error" else getattr(stream, end)()

        assert stream.start() == stream.feed(PartialText("x")) == stream.feed(result()) == []
        assert stream.finish() == stream.error("x") == stream.abort() == []


class TestWire:
    def test_a_chunk_is_an_event(self):
        assert encode({"type": "text-delta", "id": "1", "delta": "a\nb\u2028 ü😀"}) == (
            'data: {"type":"text-delta","id":"1","delta":"a\\nb\u2028 ü😀"}\n\n'
        )

    def test_a_lone_surrogate_is_sent_unchanged(self):
        event = encode({"type": "text-delta", "id": "1", "delta": "\ud83d"})

        assert "\\ud83d" in event
        assert json.loads(event.removeprefix("data: "))["delta"] == "\ud83d"

    def test_headers_and_end_are_those_that_clients_and_proxies_expect(self):
        assert (DONE, PING) == ("data: [DONE]\n\n", ": ping\n\n")
        assert {name.lower(): value for name, value in HEADERS.items()} == {
            "content-type": "text/event-stream",
            "cache-control": "no-store, no-cache",
            "x-accel-buffering": "no",
            "x-vercel-ai-ui-message-stream": "v1",
        }


def test_another_process_goes_on_with_an_answer_that_went_on_from_what_the_page_has():
    rows = rows_of_answer([response("Let me see.", None, request(), token_usage=TokenUsage(5, 7)), result()], "a")
    begun = UiStream("a", {}, rows)
    sent = [*begun.start(), *begun.feed(PartialText("It"))]

    other = UiStream.going_on(sent, rows)
    chunks = other.catch_up() + other.feed(response("It is 4.", token_usage=TokenUsage(5, 7))) + other.finish()

    assert sent[0]["messageMetadata"]["usage"]["outputTokens"] == 7
    assert [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta"] == ["It is 4."]
    assert chunks[-1]["messageMetadata"]["usage"]["outputTokens"] == 14


class TestAnything:
    @given(anything(), st.sampled_from(["finish", "error", "abort"]))
    def test_the_stream_of_any_events_can_be_read(self, events, end):
        stream = UiStream("a")
        chunks = [chunk for event in events for chunk in stream.feed(event)]
        chunks += stream.error("Sorry.") if end == "error" else getattr(stream, end)()

        message = read([json.loads(encode(chunk).removeprefix("data: ")) for chunk in chunks])

        assert chunks[-1]["type"] == end
        assert not [part for part in message["parts"] if part.get("state") in {"streaming", "input-streaming"}]

    @given(answers())
    def test_a_page_holds_what_it_would_get_from_the_history(self, events):
        stream = UiStream("a")
        chunks = [chunk for event in events for chunk in stream.feed(event)] + stream.finish()

        (stored,) = to_ui_messages(rows_of_answer(events, "a"))

        held = read(chunks)
        del stored["metadata"]["latencyMs"], stored["metadata"]["createdAt"], held["metadata"]["createdAt"]
        assert held == stored
