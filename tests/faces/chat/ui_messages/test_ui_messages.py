"""``UIMessage``s: made from rows, and read from a page's user. ``.ci/chat`` runs the client's own checks."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chatmemory_django.chat.ui_messages import from_ui_message, message_sequence, to_ui_messages, ui_id
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
from tests.faces.chat.rows import NOON, StoredRow, rows_of
from tests.strategies import json_values, messages, texts

PRIVATE = "my PIN is 4711"
UNKNOWN = "The outcome of this call is unknown."
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PNG_URL = f"data:image/png;base64,{PNG}"
MEDIA_TYPES = st.sampled_from(["image/png", "image", "audio/wav", "application/pdf", "text/csv"])
URLS = st.one_of(
    st.sampled_from([PNG_URL, "http://x.org/a"]),
    texts().map("http://{}".format),
    st.binary().map(lambda content: f"data:image/png;base64,{base64.b64encode(content).decode()}"),
    st.one_of(st.binary(), st.text().map(str.encode)).map(lambda content: csv_url(content)),
    texts(),
)


def csv_url(content, parameter=""):
    return f"data:text/csv{parameter};base64,{base64.b64encode(content).decode()}"


MP3 = base64.b64encode(b"ID3").decode()


def ui_message(*parts, **others):
    return {"id": "q", "role": "user", "parts": list(parts), **others}


def text(value="Hello", **others):
    return {"type": "text", "text": value, **others}


def file(media_type="image/png", url=PNG_URL, **others):
    return {"type": "file", "mediaType": media_type, "url": url, **others}


def parts_of(*stored):
    (message,) = to_ui_messages(rows_of(stored))
    return message["parts"]


def back(message):
    """Return *message* as it comes back after it was stored."""
    (written,) = to_ui_messages([StoredRow(from_ui_message(message), message["id"])])
    created = written["metadata"].pop("createdAt") if isinstance(written["metadata"], dict) else None
    if not written["metadata"] and "metadata" not in message:
        del written["metadata"]
    assert created in {None, "2026-11-21T12:00:00+00:00"}
    return written


class TestRows:
    def test_everything_between_two_questions_is_one_answer_with_the_id_of_its_first_row(self):
        call = ToolExecutionRequest("c1", "get_weather", '{"city": "Rome"}')
        rows = [
            StoredRow(SystemMessage("Be brief."), sequence=1),
            StoredRow(UserMessage("Weather?"), "q1", sequence=2),
            StoredRow(AiMessage("Let me see.", "Hm.", [call]), "a1", sequence=3),
            StoredRow(ToolExecutionResultMessage("c1", "get_weather", "Sunny"), sequence=4),
            StoredRow(AiMessage("It is sunny."), sequence=5),
            StoredRow(UserMessage("Thanks"), sequence=6),
            StoredRow(CustomMessage({"a": 1}), sequence=7),
            StoredRow(AiMessage("Welcome"), sequence=8),
        ]

        question, answer, *others = to_ui_messages(rows)

        created = {"createdAt": "2026-11-21T12:00:00+00:00"}
        assert question == {"id": "q1", "role": "user", "metadata": created, "parts": [text("Weather?")]}
        assert answer == {
            "id": "a1",
            "role": "assistant",
            "metadata": created,
            "parts": [
                {"type": "step-start"},
                {"type": "reasoning", "id": "reasoning-1", "text": "Hm.", "state": "done"},
                {"type": "text", "text": "Let me see.", "state": "done"},
                {
                    "type": "tool-get_weather",
                    "toolCallId": "c1",
                    "state": "output-available",
                    "input": {"city": "Rome"},
                    "output": "Sunny",
                },
                {"type": "step-start"},
                {"type": "text", "text": "It is sunny.", "state": "done"},
            ],
        }
        assert [(each["id"], each["role"]) for each in others] == [("message-6", "user"), ("message-8", "assistant")]

    @pytest.mark.parametrize(
        ("arguments", "result", "part"),
        [
            ('{"a": 1}', None, {"state": "output-error", "input": {"a": 1}, "errorText": UNKNOWN}),
            ("", None, {"state": "output-error", "input": {}, "errorText": UNKNOWN}),
            (None, None, {"state": "output-error", "input": {}, "errorText": UNKNOWN}),
            (" ", ("4", None), {"state": "output-available", "input": {}, "output": "4"}),
            ("5", ('{"b": 2}', False), {"state": "output-available", "input": 5, "output": '{"b": 2}'}),
            ("{}", ("No.", True), {"state": "output-error", "input": {}, "errorText": "No."}),
            ('{"a', ("No.", True), {"state": "output-error", "input": '{"a', "errorText": "No."}),
            (
                '{"a',
                None,
                {"state": "output-error", "input": '{"a', "errorText": "The arguments of this call are not JSON."},
            ),
            ("[" * 10_000, ("4", None), {"state": "output-available", "input": "[" * 10_000, "output": "4"}),
        ],
    )
    def test_a_call_is_a_part_whose_state_depends_on_its_result(self, arguments, result, part):
        stored = [AiMessage(tool_execution_requests=[ToolExecutionRequest("c", "tool", arguments)])]
        if result is not None:
            stored.append(ToolExecutionResultMessage("c", "tool", result[0], result[1]))

        assert parts_of(*stored)[1:] == [{"type": "tool-tool", "toolCallId": "c", **part}]

    def test_the_text_of_a_call_without_a_result_can_be_given(self):
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest("c", "tool", "{}")])

        (answer,) = to_ui_messages(rows_of([call]), unknown="Nobody knows.")

        assert answer["parts"][1]["errorText"] == "Nobody knows."

    def test_calls_without_an_id_get_one(self):
        calls = [ToolExecutionRequest(given, "tool", "{}") for given in ("c", "c", None, "")]
        results = [ToolExecutionResultMessage(None, "tool", "none")]

        parts = parts_of(AiMessage(tool_execution_requests=calls), *results)

        assert [part["toolCallId"] for part in parts[1:]] == ["c", "call-1-1", "call-1-2", "call-1-3"]
        assert [part.get("output") for part in parts[1:]] == [None, None, "none", None]

    @pytest.mark.parametrize("call_id", ["c", None])
    def test_parallel_calls_with_one_id_have_the_results_in_their_order(self, call_id):
        calls = [ToolExecutionRequest(call_id, "tool", f'{{"n": {number}}}') for number in (1, 2)]
        results = [ToolExecutionResultMessage.from_request(call, f"result {call.arguments}") for call in calls]

        _, *parts = parts_of(AiMessage(tool_execution_requests=calls), *results)

        assert [part["output"] for part in parts] == [f"result {call.arguments}" for call in calls]

    @pytest.mark.parametrize(
        ("refusal", "shown"), [("I may not.", "I may not."), ({"reason": "policy"}, None), (7, None)], ids=repr
    )
    def test_a_refusal_is_a_text(self, refusal, shown):
        parts = parts_of(AiMessage(attributes={"refusal": refusal}))

        assert [part["text"] for part in parts if part["type"] == "text"] == ([] if shown is None else [shown])

    def test_content_without_a_counterpart_is_left_out(self):
        nothing = UserMessage([None, AudioContent(), ImageContent(Image(url="file:///x")), VideoContent(Video())])
        pictures = [TextContent("See"), ImageContent(Image(url="x"))]
        call = ToolExecutionRequest("c", "tool", "{}")

        written = to_ui_messages(
            rows_of(
                [
                    ToolExecutionResultMessage("c", "tool", "of no call"),
                    nothing,
                    AiMessage("", "", [call]),
                    ToolExecutionResultMessage("other", "tool", "of no call"),
                    ToolExecutionResultMessage("c", "tool", pictures),
                ]
            )
        )

        assert [(each["id"], len(each["parts"])) for each in written] == [("message-3", 2)]
        assert written[0]["parts"][1]["output"] == "See"

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            (ImageContent(Image(url="https://x.org/a.png")), file("image/*", "https://x.org/a.png")),
            (ImageContent(Image(url="http://x/a", mime_type="image/webp")), file("image/webp", "http://x/a")),
            (ImageContent(Image(url="http://x/a", mime_type="text/html")), file("image/*", "http://x/a")),
            (ImageContent(Image(url=PNG_URL)), file("image/png", PNG_URL)),
            (ImageContent(Image(base64_data=PNG)), file("image/png", PNG_URL)),
            (ImageContent(Image(base64_data="AA==")), file("image/*", "data:image/*;base64,AA==")),
            (ImageContent(Image(base64_data="?")), file("image/*", "data:image/*;base64,?")),
            (AudioContent(Audio(binary_data=b"ID3")), file("audio/mpeg", f"data:audio/mpeg;base64,{MP3}")),
            (VideoContent(Video(url="http://x/a")), file("video/*", "http://x/a")),
            (PdfFileContent(PdfFile(url="http://x/a")), file("application/pdf", "http://x/a")),
            (PdfFileContent(PdfFile(base64_data="AA==")), file("application/pdf", "data:application/pdf;base64,AA==")),
        ],
    )
    def test_a_file_is_a_part_with_a_media_type(self, content, part):
        assert parts_of(UserMessage([content])) == [part]

    def test_an_answer_has_the_metadata_of_all_its_messages(self):
        rows = [
            StoredRow(
                AiMessage("a"),
                metadata={
                    "model": "m",
                    "finish_reason": "tool_execution",
                    "usage": {"input": 1, "output": 2, "total": 3},
                    "latency_ms": 500,
                },
                created_at=datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            ),
            StoredRow(ToolExecutionResultMessage("c", "t", "4"), metadata={"model": "not of a model"}),
            StoredRow(
                AiMessage("b"),
                metadata={"finish_reason": "length", "usage": {"input": 10, "total": None}, "latency_ms": 5},
            ),
        ]

        (answer,) = to_ui_messages(rows)

        assert answer["metadata"] == {
            "createdAt": "2026-01-01T00:00:00+00:00",
            "model": "m",
            "finishReason": "length",
            "usage": {"inputTokens": 11, "outputTokens": 2, "totalTokens": 3},
            "latencyMs": 505,
        }

    @pytest.mark.parametrize("kept", [{}, {"color": "red"}, 5])
    def test_a_question_that_was_not_accepted_has_the_reason(self, kept):
        question = UserMessage("x", attributes={"ui": {"metadata": kept}})

        (shown,) = to_ui_messages([StoredRow(question, metadata={"rejected": "file"})])

        others = kept if isinstance(kept, dict) else {}
        assert shown["metadata"] == {"createdAt": NOON.isoformat(), **others, "rejected": "file"}

    def test_an_answer_has_what_was_shortened_for_it_as_it_was_last(self):
        cuts = [{"c": [9, 100]}, {"c": [5, 100], "d": [5, 50]}, None, {"e": "x", "f": [1]}, 5]
        rows = [StoredRow(AiMessage("a"), metadata={"shortened": each}) for each in cuts]

        (answer,) = to_ui_messages(rows)

        assert answer["metadata"]["shortened"] == {"c": [5, 100], "d": [5, 50]}

    def test_a_partial_answer_is_marked(self):
        rows = [StoredRow(AiMessage("a"), metadata={"partial": True, "model": "m"})]

        (answer,) = to_ui_messages(rows)

        assert answer["metadata"] == {"createdAt": NOON.isoformat(), "model": "m", "partial": True}

    def test_a_naive_time_is_in_the_processs_time_zone(self):
        (message,) = to_ui_messages([StoredRow(UserMessage("x"), created_at=datetime(2026, 1, 1))])  # noqa: DTZ001

        created = datetime.fromisoformat(message["metadata"]["createdAt"])
        assert created == datetime(2026, 1, 1).astimezone(UTC)

    @given(st.lists(messages(), max_size=6), json_values(), json_values())
    @example([UserMessage("x")], {"parts": {}, "metadata": 5}, {"usage": {"input": True}, "finish_reason": []})
    @example([UserMessage("x")], {"parts": [5, {}, {"type": "data-x"}, {}]}, {"usage": 5, "model": {}})
    def test_anything_stored_can_be_shown(self, stored, kept, metadata):
        stored.append(UserMessage("x", attributes={"ui": kept}))
        stored.append(AiMessage("y"))
        rows = [StoredRow(message, metadata={"model": metadata, "usage": metadata}) for message in stored]
        rows[-1].metadata = metadata if isinstance(metadata, dict) else {"finish_reason": metadata}

        written = to_ui_messages(rows)

        json.dumps(written)
        assert all(message["parts"] for message in written)
        assert {part["type"] for message in written for part in message["parts"]}
        assert written[-1]["parts"][-1]["text"] == "y"


class TestIds:
    def test_a_row_without_an_id_gets_one_that_leads_back_to_it(self):
        row = StoredRow(UserMessage("x"), sequence=12)

        assert ui_id(row) == "message-12"
        assert message_sequence("message-12") == 12

    @pytest.mark.parametrize(
        "other", ["", "12", "message-", "message-0", "message-01", "message--1", "message-1 ", "message-\u0661", "1\n"]
    )
    def test_no_other_id_is_read_as_a_sequence(self, other):
        assert message_sequence(other) is None

    def test_a_sequence_is_limited_by_its_column(self):
        assert message_sequence("message-2147483647") == 2**31 - 1
        assert message_sequence("message-2147483648") is None
        assert message_sequence("message-" + "9" * 5000) is None


class TestMessagesFromAPage:
    def test_a_single_text_is_a_plain_message(self):
        assert from_ui_message(ui_message(text("Hello"))) == UserMessage("Hello")

    def test_files_are_contents_in_order(self):
        message = ui_message(
            file(),
            file("audio/wav", "data:audio/wav;base64,AA=="),
            text("Look"),
            file("video/mp4", "https://x.org/film.mp4?a=b#c"),
            file("application/pdf", "http://[::1]:8000/a.pdf"),
            file("image", "https://x.org/a"),
        )

        assert from_ui_message(message) == UserMessage(
            [
                ImageContent(Image(base64_data=PNG, mime_type="image/png"), DetailLevel.AUTO),
                AudioContent(Audio(base64_data="AA==", mime_type="audio/wav")),
                TextContent("Look"),
                VideoContent(Video(url="https://x.org/film.mp4?a=b#c", mime_type="video/mp4")),
                PdfFileContent(PdfFile(url="http://[::1]:8000/a.pdf", mime_type="application/pdf")),
                ImageContent(Image(url="https://x.org/a"), DetailLevel.AUTO),
            ],
            attributes={"ui": {"parts": [{}, {}, {}, {}, {}, {"mediaType": "image"}]}},
        )

    @pytest.mark.parametrize("level", DetailLevel)
    def test_the_site_sets_the_level_of_detail_of_images(self, level):
        (image,) = from_ui_message(ui_message(file()), image_detail=level).contents

        assert image.detail_level is level

    @pytest.mark.parametrize("media_type", ["text/plain", "text/csv", "text/markdown", "application/json"])
    def test_a_text_file_is_a_text_with_its_name_and_comes_back_as_a_file(self, media_type):
        sent = file(media_type, csv_url("\ufeffcity;°C\r\nKöln;7\n".encode()), filename='a "b"\n.csv')
        message = ui_message(sent, text("Which is warmer?"), {"type": "data-x", "data": 1})

        read = from_ui_message(message)

        assert read.contents == (
            TextContent("<file name='a \"b\"&#10;.csv'>\n\ufeffcity;°C\r\nKöln;7\n\n</file>"),
            TextContent("Which is warmer?"),
        )
        assert "K" not in json.dumps(read.attributes)  # its text is stored once
        assert back(message) == message

    def test_text_files_count_as_texts(self):
        named = file("text/plain", csv_url(b"x" * 80, ";charset=utf-8"))
        assert back(ui_message(named)) == ui_message(named)  # alone, and without a name

        with pytest.raises(ValueError, match=r"^\$.parts: the texts have 190 characters; at most 150 are allowed\.$"):
            from_ui_message(ui_message(named, named), max_text_length=150)

    def test_a_text_file_that_was_replaced_is_shown_whole(self):
        read = from_ui_message(ui_message(file("text/csv", csv_url(b"1;2"), filename="a.csv")))
        other = UserMessage([TextContent("Nothing.")], attributes=read.attributes)

        assert parts_of(other) == [file("text/csv", csv_url(b"Nothing."), filename="a.csv")]

    @pytest.mark.parametrize("url", ["javascript:alert(1)//", "data:text/html;base64,", "https://x.org/?", None, 5])
    def test_the_url_of_a_text_file_is_never_another_one(self, url):
        stored = UserMessage([TextContent("x")], attributes={"ui": {"parts": [file("text/csv", url)]}})

        assert parts_of(stored) == [text("x")]

    def test_other_parts_are_stored_separately_and_restored_in_place(self):
        message = ui_message(
            {"type": "data-place", "id": "p", "data": {"lat": 1.5, "list": [None, True, "x"]}},
            text("Look", providerMetadata={"p": {"cache": True}}),
            {"type": "source-url", "sourceId": "s", "url": "javascript:alert(1)"},
            {"type": "tool-pay", "toolCallId": "c", "state": "output-available", "input": {}, "output": "paid"},
            file(filename="a.png", providerReference={"openai": "file-1"}),
            text(""),
            text("again"),
            metadata={"mood": "good", "nested": {"a": [1]}},
        )

        read = from_ui_message(message)

        assert [type(content) for content in read.contents] == [TextContent, ImageContent, TextContent]
        assert back(message) == message

    def test_an_image_alone_needs_no_text(self):
        message = ui_message(file(), text(""))

        assert len(from_ui_message(message).contents) == 1
        assert back(message) == message

    @pytest.mark.parametrize("name", ["createdAt", "rejected"])
    def test_the_server_alone_sets_the_time_of_a_message_and_why_it_was_rejected(self, name):
        message = ui_message(text(), metadata={name: "yesterday"})

        assert from_ui_message(message) == UserMessage("Hello")
        assert back({**message, "metadata": {name: "yesterday", "a": 1}})["metadata"] == {"a": 1}

    @pytest.mark.parametrize("metadata", ["a text", 5, [1], False, {"a": {}}])
    def test_metadata_can_be_any_json(self, metadata):
        message = ui_message(text(), metadata=metadata)

        assert back(message) == message

    @pytest.mark.parametrize(
        ("media_type", "url"),
        [
            ("audio/webm;codecs=opus", "data:audio/webm;codecs=opus;base64,AA=="),
            ("audio/ogg; codecs=opus", "data:audio/ogg; codecs=opus;base64,AA=="),
            ("video/webm;codecs=vp8,opus", "data:video/webm;codecs=vp8,opus;base64,AA=="),
            ("image/jpg", "data:image/jpeg;base64,AA=="),
            ("image", "data:image/jpeg;base64,AA=="),
            ("image/*", "http://x"),
            ("image/svg+xml", "http://x"),
        ],
    )
    def test_a_file_comes_back_unchanged(self, media_type, url):
        message = ui_message(text(), file(media_type, url))

        assert back(message) == message

    def test_reading_a_message_again_gives_the_same(self):
        message = ui_message(file("image", "https://x.org/a"), {"type": "data-x", "data": 1}, text(), metadata={"a": 1})
        read = from_ui_message(message)

        (written,) = to_ui_messages([StoredRow(read, "q")])

        assert from_ui_message(written) == read

    @pytest.mark.parametrize(
        ("message", "where"),
        [
            ([], "$"),
            ("user", "$"),
            ({"parts": [text()]}, "$.role"),
            ({"role": PRIVATE, "parts": [text()]}, "$.role"),
            ({"role": ["user"], "parts": [text()]}, "$.role"),
            (ui_message(text(), role="assistant"), "$.role"),
            ({"role": "user", "content": PRIVATE}, "$.parts"),
            ({"role": "user", "parts": PRIVATE}, "$.parts"),
            (ui_message(), "$.parts"),
            (ui_message(text(""), text(" \n\t")), "$.parts"),
            (ui_message({"type": "data-x", "data": PRIVATE}), "$.parts"),
            (ui_message(text(), PRIVATE), "$.parts[1]"),
            (ui_message(text(), {"text": PRIVATE}), "$.parts[1].type"),
            (ui_message(text(), {"type": {PRIVATE: 1}}), "$.parts[1].type"),
            (ui_message({"type": "text"}), "$.parts[0].text"),
            (ui_message(text(5)), "$.parts[0].text"),
            (ui_message(text(f"{PRIVATE}\0")), "$.parts[0].text"),
            (ui_message(text(f"{PRIVATE}\ud800")), "$.parts[0].text"),
            (ui_message(text(providerMetadata={PRIVATE: "\ud800"})), "$.parts[0]"),
            (ui_message(text(**{f"{PRIVATE}\0": 1})), "$.parts[0]"),
            (ui_message(text(providerMetadata={5: PRIVATE})), "$.parts[0]"),
            (ui_message(text(), {"type": "data-x", "data": 10**5000}), "$.parts[1]"),
            (ui_message(text(), {"type": "data-x", "data": float("nan")}), "$.parts[1]"),
            (ui_message(text(), {"type": "data-x", "data": {PRIVATE}}), "$.parts[1]"),
            (ui_message(text(), {"type": "data-x", "data": b"bytes"}), "$.parts[1]"),
            (ui_message(text(), metadata={"a": [PRIVATE, "\0"]}), "$.metadata"),
            (ui_message(file(5)), "$.parts[0].mediaType"),
            (ui_message({"type": "file", "url": PNG_URL}), "$.parts[0].mediaType"),
            (ui_message({"type": "file", "mediaType": "image/png"}), "$.parts[0].url"),
            (ui_message(file("")), "$.parts[0].mediaType"),
            (ui_message(file("text/html", f"data:text/html;base64,{PNG}")), "$.parts[0].mediaType"),
            (ui_message(file("text/plain", f"data:text/plain;base64,{PNG}")), "$.parts[0].url"),
            (ui_message(file("text/plain", csv_url(f"{PRIVATE}ä".encode("latin-1")))), "$.parts[0].url"),
            (ui_message(file("text/plain", csv_url(PRIVATE.encode("utf-16")))), "$.parts[0].url"),
            (ui_message(file("text/plain", csv_url(f"{PRIVATE}\0".encode()))), "$.parts[0].url"),
            (ui_message(file("text/plain", csv_url(b""))), "$.parts[0].url"),
            (ui_message(file("text/plain", "data:text/plain;base64,QR==")), "$.parts[0].url"),
            (ui_message(file("text/plain", PNG_URL)), "$.parts[0].url"),
            (ui_message(file("text/plain", "https://x.org/a.txt")), "$.parts[0].url"),
            (ui_message(file("image/png", csv_url(PRIVATE.encode()))), "$.parts[0].url"),
            (ui_message(file("image/png\n")), "$.parts[0].mediaType"),
            (ui_message(file("image/" + "x" * 101)), "$.parts[0].mediaType"),
            (ui_message(file("application/octet-stream")), "$.parts[0].mediaType"),
            (ui_message(file(url=5)), "$.parts[0].url"),
            (ui_message(file(url="")), "$.parts[0].url"),
            (ui_message(file(url=f"data:text/html;base64,{PNG}")), "$.parts[0].url"),
            (ui_message(file(url=f"data:audio/wav;base64,{PNG}")), "$.parts[0].url"),
            (ui_message(file(url="data:image/png;base64,")), "$.parts[0].url"),
            (ui_message(file(url="data:image/png;base64,?")), "$.parts[0].url"),
            (ui_message(file(url="data:image/png;base64,ä")), "$.parts[0].url"),
            (ui_message(file(url=f"data:image/png;base64, {PNG}")), "$.parts[0].url"),
            (ui_message(file(url="data:image/svg+xml,%3Csvg%3E")), "$.parts[0].url"),
            (ui_message(file(url=f"data:;base64,{PNG}")), "$.parts[0].url"),
            (ui_message(file(url="javascript:alert(1)")), "$.parts[0].url"),
            (ui_message(file(url="file:///etc/passwd")), "$.parts[0].url"),
            (ui_message(file(url="ftp://x.org/a")), "$.parts[0].url"),
            (ui_message(file(url="//x.org/a")), "$.parts[0].url"),
            (ui_message(file(url="/media/a.png")), "$.parts[0].url"),
            (ui_message(file(url="blob:http://x.org/a")), "$.parts[0].url"),
            (ui_message(file(url="http:///a")), "$.parts[0].url"),
            (ui_message(file(url="http://[::1/a")), "$.parts[0].url"),
            (ui_message(file(url="http://x.org:99999/a")), "$.parts[0].url"),
            (ui_message(file(url="http://x.org/a b")), "$.parts[0].url"),
            (ui_message(file(url=" http://x.org/a")), "$.parts[0].url"),
            (ui_message(file(url="http://x.org/\n")), "$.parts[0].url"),
            (ui_message(file(url="http://x.org/" + "x" * 8192)), "$.parts[0].url"),
        ],
    )
    def test_errors_name_the_place_and_never_repeat_the_message(self, message, where):
        with pytest.raises(ValueError, match=r"^\$") as refused:
            from_ui_message(message)

        assert str(refused.value).startswith(f"{where}: ")
        assert PRIVATE not in str(refused.value)
        assert refused.value.__suppress_context__ or refused.value.__context__ is None

    def test_its_size_is_limited(self):
        many = ui_message(*[text()] * 3)
        others = ui_message(text("x"), {"type": "data-x", "data": "y" * 100})

        assert from_ui_message(many, max_parts=3, max_text_length=15)
        with pytest.raises(ValueError, match=r"\$\.parts: it must be a list of 1 to 2 parts\."):
            from_ui_message(many, max_parts=2)
        with pytest.raises(ValueError, match=r"\$\.parts: the texts have 15 characters; at most 14 are allowed\."):
            from_ui_message(many, max_text_length=14)
        with pytest.raises(
            ValueError, match=r"\$: the fields other than texts and files have \d+ characters; at most 100 are"
        ):
            from_ui_message(others, max_text_length=100)
        assert from_ui_message(
            ui_message(text("x"), file(url="data:image/png;base64," + "AAAA" * 100)), max_text_length=1
        )

    def test_its_depth_is_limited(self):
        deep = value = {}
        for _ in range(100_000):
            value["a"] = value = {}

        for message in (ui_message(text(), {"type": "data-x", "data": deep}), ui_message(text(), metadata=deep)):
            with pytest.raises(ValueError, match="JSON with at most 20 levels"):
                from_ui_message(message)

    @given(
        st.one_of(
            json_values(),
            st.fixed_dictionaries(
                {"role": st.just("user")},
                optional={
                    "metadata": json_values(),
                    "parts": st.lists(
                        st.one_of(
                            json_values(),
                            st.fixed_dictionaries(
                                {
                                    "type": st.one_of(st.sampled_from(["text", "file", "data-x", "tool-x"]), texts()),
                                    "text": st.one_of(texts(), json_values()),
                                },
                                optional={
                                    "mediaType": st.one_of(MEDIA_TYPES, texts()),
                                    "url": URLS,
                                    "filename": st.one_of(texts(), json_values()),
                                    "data": json_values(),
                                },
                            ),
                        ),
                        max_size=4,
                    ),
                },
            ),
        )
    )
    def test_anything_is_either_read_and_comes_back_or_is_a_value_error(self, message):
        try:
            read = from_ui_message(message)
        except ValueError as error:
            read, refused = None, str(error)
        if read is None:
            assert refused.startswith("$")
            return
        (written,) = to_ui_messages([StoredRow(read)])

        assert written["parts"] == message["parts"]
        assert from_ui_message(written) == read
