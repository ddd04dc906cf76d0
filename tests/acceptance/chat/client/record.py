"""Record what the client is to read: the stream of each answer, and the history that it leaves.

    python record.py QUESTIONS RECORDINGS

``QUESTIONS`` is what ``ask.mjs`` has written: what a client sends. Each of them comes back as it was, or this fails.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import django
from hypothesis import HealthCheck, Phase, given, settings

django.setup()  # what follows has tables

from chatmemory_django.chat.answers.ui_stream import DONE, HEADERS, UiStream, encode
from chatmemory_django.chat.model import (
    CLIENT,
    ApprovalRequested,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
)
from chatmemory_django.chat.runs.answer import PING
from chatmemory_django.chat.ui_messages import Approval, from_ui_message, to_ui_messages
from chatmemory_django.chat.ui_messages.writing import IS_JSON
from chatmemory_django.core.tool_calls import NOT_RUN
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, ToolExecutionResultMessage, UserMessage
from tests.faces.chat.rows import StoredRow, answers, rows_of_answer

if TYPE_CHECKING:
    from chatmemory_django.chat.answers.exchange import AssistantEvent

QUESTION = StoredRow(UserMessage("Hello"), "question-1")

ROME = ToolExecutionRequest("c1", "get_weather", '{"city": "Rome", "days": [1, 2.5, null, "😀"]}')
TIME = ToolExecutionRequest("c2", "get_time", "")
OSLO = ToolExecutionRequest("c4", "get_weather", '{"city": "Oslo"}')
BROKEN = ToolExecutionRequest("c3", "get_weather", '{"city": "Ro')


def response(
    text: str | None, thinking: str | None, *calls: ToolExecutionRequest, reason: FinishReason
) -> ChatResponse:
    """Return a response of the model with everything that a model reports."""
    metadata = ChatResponseMetadata(
        id="chatcmpl-1", model_name="gpt-4o-mini", finish_reason=reason, token_usage=TokenUsage(10, 2, 12)
    )
    return ChatResponse(AiMessage(text, thinking, calls), metadata)


STOP, CALLS = FinishReason.STOP, FinishReason.TOOL_EXECUTION
ANSWERS: dict[str, list[AssistantEvent]] = {
    "text": [PartialText("Hi, "), PartialText("I am 😀\n\u2028"), response("Hi, I am 😀\n\u2028", None, reason=STOP)],
    "text cut within a character": [
        PartialText("I am \ud83d"),
        PartialText("\ude00"),
        response("I am 😀", None, reason=STOP),
    ],
    "thinking": [
        PartialThinking("Hm, "),
        PartialThinking("so"),
        PartialText("Hi"),
        response("Hi", "Hm, so", reason=STOP),
    ],
    "no pieces": [response("Hi", "Hm", reason=FinishReason.LENGTH)],
    "nothing": [response("", None, reason=FinishReason.CONTENT_FILTER)],
    "a tool": [
        PartialText("Let me see."),
        PartialToolCall(0, "c1", "get_weather"),
        PartialToolCall(0, arguments=ROME.arguments[:10]),
        PartialToolCall(0, arguments=ROME.arguments[10:]),
        response("Let me see.", None, ROME, reason=CALLS),
        ToolExecutionResultMessage("c1", "get_weather", '{"sky": "blue"}'),
        PartialText("It is sunny."),
        response("It is sunny.", None, reason=STOP),
    ],
    "tools at once, in several rounds, with the same ids": [
        response(None, "First both.", ROME, TIME, ROME, reason=CALLS),
        ToolExecutionResultMessage("c2", "get_time", "noon"),
        ToolExecutionResultMessage("c1", "get_weather", "sunny"),
        ToolExecutionResultMessage("c1", "get_weather", "rainy"),
        response(None, "Then again.", ROME, reason=CALLS),
        ToolExecutionResultMessage("c1", "get_weather", "snowy"),
        response("Done.", None, reason=STOP),
    ],
    "a tool that fails": [
        response(None, None, ROME, reason=CALLS),
        ToolExecutionResultMessage("c1", "get_weather", "There is no such city.", is_error=True),
        response("Sorry.", None, reason=STOP),
    ],
    "arguments that are not JSON": [
        PartialToolCall(0, "c3", "get_weather", BROKEN.arguments),
        response(None, None, BROKEN, reason=CALLS),
        ToolExecutionResultMessage("c3", "get_weather", "The arguments are not JSON.", is_error=True),
        response("Sorry.", None, reason=STOP),
    ],
    "a call without a result": [response("See.", None, ROME, reason=CALLS)],
}


def streamed(events: list[AssistantEvent], answer_id: str, end: str = "finish") -> str:
    """Return the body of the response that streams *events*."""
    stream = UiStream(answer_id)
    chunks = stream.start() + [chunk for event in events for chunk in stream.feed(event)]
    chunks += stream.error("Sorry, try again.") if end == "error" else getattr(stream, end)()
    # Pings can come between any two events.
    return PING + PING.join(map(encode, chunks)) + DONE


def recording(name: str, events: list[AssistantEvent]) -> dict[str, Any]:
    """Record an answer that ends well."""
    rows = [QUESTION, *rows_of_answer(events, "answer-1")]
    return {"name": name, "body": streamed(events, "answer-1"), "history": to_ui_messages(rows)}


def cut_recordings() -> list[dict[str, Any]]:
    """Record answers that fail or are stopped."""
    known = ANSWERS["a tool"]
    events = [*known[:6], PartialThinking("Hm"), PartialText("It is")]
    rows = [QUESTION, *rows_of_answer(known[:6], "answer-1")]
    rows.append(StoredRow(AiMessage("It is", "Hm"), metadata={"partial": True}))
    return [
        {"name": "stopped", "body": streamed(events, "answer-1", "abort"), "history": to_ui_messages(rows)},
        {"name": "failed", "body": streamed(events, "answer-1", "error"), "error": "Sorry, try again."},
        {"name": "failed at once", "body": streamed([], "answer-1", "error"), "error": "Sorry, try again."},
        {"name": "failed in a call", "body": streamed(events[:3], "answer-1", "error"), "error": "Sorry, try again."},
        {"name": "stopped in a call", "body": streamed(events[:3], "answer-1", "abort")},
        {"name": "stopped in a tool", "body": streamed(events[:5], "answer-1", "abort")},
    ]


def approval_recordings() -> list[dict[str, Any]]:
    """Record an answer that waits for an approval, and how it goes on; the first version that knows this is 6."""
    request = ApprovalRequested(UUID(int=7), ROME)
    asked = response("May I look?", None, ROME, reason=CALLS)
    metadata = asked.metadata.as_json()
    rows = [QUESTION, StoredRow(asked.ai_message, "answer-1", metadata, sequence=2)]
    waiting = to_ui_messages(rows, {(2, 0): Approval(str(request.id), None, is_open=True)})
    found = [{"name": "waits", "body": streamed([asked, request], "answer-1"), "history": waiting, "since": 6}]
    done = response("It is sunny.", None, reason=STOP)
    for approved, reason, result in (
        (True, "", ToolExecutionResultMessage("c1", "get_weather", "sunny")),
        (True, "", ToolExecutionResultMessage("c1", "get_weather", "It failed.", is_error=True)),
        (False, "Too far.", ToolExecutionResultMessage("c1", "get_weather", "No.", True, {NOT_RUN: True})),
    ):
        stream = UiStream("answer-1", {}, rows[1:])
        chunks = [chunk for event in (result, PartialText("It is "), done) for chunk in stream.feed(event)]
        known = [*rows, StoredRow(result, sequence=3), StoredRow(done.ai_message, None, done.metadata.as_json(), 4)]
        found.append(
            {
                "name": f"goes on, approved: {approved}, error: {result.is_error}",
                "body": "".join(map(encode, chunks + stream.finish())) + DONE,
                "before": waiting,
                "decision": {"id": str(request.id), "approved": approved, **({"reason": reason} if reason else {})},
                "history": to_ui_messages(known, {(2, 0): Approval(str(request.id), approved, reason)}),
                "since": 6,
            }
        )
    return found


def output_recordings() -> list[dict[str, Any]]:
    """Record an answer that waits for what runs in the page, and how it goes on, with an output or an error of each."""
    asked, done = response("I look.", None, TIME, ROME, OSLO, reason=CALLS), response("Done.", None, reason=STOP)
    [*shown] = rows_of_answer([asked], "answer-1")
    calls = shown[0].chat_message.tool_execution_requests
    requests = [ApprovalRequested(UUID(int=7 + at), calls[at], CLIENT) for at in (1, 2)]
    rows = [QUESTION, *(replace(row, sequence=number) for number, row in enumerate(shown, 2))]
    known = {(2, at): Approval(str(UUID(int=6 + at)), None, is_open=True, is_for_client=True) for at in (1, 2)}
    noon = ToolExecutionResultMessage("c2", "get_time", "noon")
    rows.append(StoredRow(noon, sequence=3))
    texts = ('{"sky":["blue",null]}', {IS_JSON: True}), ("It is too far.", {})
    results = [
        ToolExecutionResultMessage(request.call.id, "get_weather", text, not attributes or None, attributes)
        for request, (text, attributes) in zip(requests, texts, strict=True)
    ]
    stream = UiStream("answer-1", {}, rows[1:])
    chunks = [chunk for event in (*results, PartialText("Done."), done) for chunk in stream.feed(event)]
    after = [*rows, *(StoredRow(each, sequence=4) for each in results)]
    after.append(StoredRow(done.ai_message, None, done.metadata.as_json(), 6))
    return [
        {
            "name": "waits for the page",
            "body": streamed([asked, noon, *requests], "answer-1"),
            "waiting": to_ui_messages(rows, known),
            "outputs": {
                results[0].id: {"output": {"sky": ["blue", None]}},
                results[1].id: {"state": "output-error", "errorText": "It is too far."},
            },
            "then": "".join(map(encode, chunks + stream.finish())) + DONE,
            "history": to_ui_messages(after, known),
        }
    ]


def random_recordings(count: int) -> list[dict[str, Any]]:
    """Record random answers."""
    found: list[list[AssistantEvent]] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(answers())
    def find(events: list[AssistantEvent]) -> None:
        found.append(events)

    find()
    return [recording(f"random {number}", events) for number, events in enumerate(found)]


def check_questions(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare what the page gets of *questions* once they are stored with what it sent."""
    rows = [
        StoredRow(from_ui_message(question), question["id"], sequence=sequence)
        for sequence, question in enumerate(questions, 1)
    ]
    history = to_ui_messages(rows)
    for question, stored in zip(questions, history, strict=True):
        metadata = {key: value for key, value in stored["metadata"].items() if key != "createdAt"}
        back = {**stored, "metadata": metadata}
        assert back == {"metadata": {}, **question}, (question, back)
    return history


def main(questions: Path, recordings: Path) -> None:
    """Record everything; see the module's docstring."""
    history = check_questions(json.loads(questions.read_text()))
    recorded = [recording(name, events) for name, events in ANSWERS.items()]
    recorded += cut_recordings() + approval_recordings() + output_recordings() + random_recordings(300)
    recordings.write_text(json.dumps({"headers": HEADERS, "questions": history, "recordings": recorded}))
    print(f"{len(history)} questions came back as they were sent; {len(recorded)} answers are recorded.")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
