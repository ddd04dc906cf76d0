"""
An answer as a UI message stream of the Vercel AI SDK, for ``useChat`` of its versions 5, 6 and 7.

At its end, a page holds the same message that ``chat.ui_messages.to_ui_messages`` returns for the stored answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, assert_never

import msgspec

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.answers.ui_steps import Chunk, Step
from chatmemory_django.chat.model import (
    ApprovalRequested,
    ChatResponse,
    PartialText,
    PartialThinking,
    PartialToolCall,
)
from chatmemory_django.chat.ui_messages.writing import MessageRow, answer_metadata, timestamp, waiting_metadata
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage

if TYPE_CHECKING:
    from chatmemory_django.chat.answers.exchange import (
        AssistantEvent,  # requires the database, which this module does not
    )

EVENT_STREAM = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store, no-cache",
    "X-Accel-Buffering": "no",
}
"""The headers of a stream of events, in whichever protocol."""

HEADERS = {**EVENT_STREAM, "X-Vercel-AI-UI-Message-Stream": "v1"}

DONE = "data: [DONE]\n\n"
"""The last event of every stream, however the answer ended."""

RESPONSE = ": response "
"""What the comment of a stream begins with that has the status and the headers of a failed answer, as JSON."""

CALLED = {"tool-input-available", "tool-input-error"}
"""The types of the chunks after which a page has a call."""


def encode(chunk: Chunk) -> str:
    """Return *chunk* encoded as a server-sent event."""
    try:
        text = msgspec.json.encode(chunk).decode()
    except UnicodeEncodeError:
        # A model may split a surrogate pair between two pieces: as escapes, the page joins them again.
        text = json.dumps(msgspec.to_builtins(chunk))
    return f"data: {text}\n\n"


def response_to(refused: NotAllowedError) -> str:
    """
    Return the response that a failed answer would have had, had it not begun: a comment in its stream.

    It is for another process that returns the whole answer, or what it has failed with; see ``error_in``.
    """
    return f"{RESPONSE}{json.dumps([refused.status, refused.headers])}\n\n"


def error_in(stream: str) -> NotAllowedError | None:
    """Return the error that a *stream* ends with, with the status of its response; None if it ends with none."""
    text = next((str(chunk["errorText"]) for chunk in decoded(stream)[-1:] if chunk["type"] == "error"), None)
    if text is None:
        return None
    found = [event.removeprefix(RESPONSE) for event in stream.split("\n\n") if event.startswith(RESPONSE)]
    status, headers = json.loads(found[-1]) if found else (HTTPStatus.BAD_GATEWAY, {})
    return NotAllowedError(status, text, **headers)


def decoded(stream: str) -> list[Chunk]:
    """Return the chunks of a *stream* of those that ``encode`` returns, without ``DONE``."""
    events = [event[6:] for event in stream.split("\n\n") if event.startswith("data: {")]
    try:
        return [msgspec.json.decode(event) for event in events]
    except msgspec.DecodeError:  # of half a surrogate pair
        return [json.loads(event) for event in events]


class UiStream:
    """
    The chunks of one answer. Feed it the events of ``Assistant.astream``, then end it with one of three methods.

    Each method returns the chunks to send; after the end, all return an empty list. *metadata* is the message's initial
    metadata, by default the current time as ``createdAt``. An answer that goes on begins with the rows *before*, which
    the page has, and their metadata.
    """

    def __init__(
        self, message_id: str, metadata: Mapping[str, Any] | None = None, before: Sequence[MessageRow] = ()
    ) -> None:
        self._message_id = message_id
        self._metadata = metadata
        self._has_started = self._has_ended = False
        self._step: Step | None = None
        self._stored: list[Mapping[str, Any]] = []
        self._others: list[str] = []
        self._asks: dict[str, str] = {}
        self._seen: list[Step] = []
        self._rows: Sequence[MessageRow] = ()
        for row in before:
            message = row.chat_message
            if isinstance(message, AiMessage):
                self._step = Step(self._step.number + 1 if self._step else 1, is_shown=True)
                self._step.answer(message)
                self._stored.append(row.metadata or {})
            elif isinstance(message, ToolExecutionResultMessage) and self._step:
                self._step.result(message)

    def start(self) -> list[Chunk]:
        """Begin the answer. The other methods call this if needed."""
        if self._has_started:
            return []
        self._has_started = True
        metadata = {"createdAt": timestamp(datetime.now(UTC))} if self._metadata is None else dict(self._metadata)
        metadata |= answer_metadata(self._stored) if self._stored else {}
        return [{"type": "start", "messageId": self._message_id, "messageMetadata": metadata}]

    def feed(self, event: AssistantEvent, *, is_others: bool = False) -> list[Chunk]:
        """
        Return the chunks for *event*; *is_others* is whether somebody else decides on the call that it asks about.

        Thinking after text begins a new part, whereas the history joins all thinking of a step. A result that matches
        no call of the last step adds nothing.
        """
        if self._has_ended:
            return []
        chunks = self.start()
        if isinstance(event, ToolExecutionResultMessage):
            return chunks + self._step.result(event) if self._step else chunks
        if isinstance(event, ApprovalRequested):
            asked = self._step.request(event) if self._step else []
            self._others += [each["toolCallId"] for each in asked if is_others]
            self._asks |= {each["toolCallId"]: event.asks for each in asked if event.asks}
            return chunks + asked
        step = self._step
        if step is None or step.is_answered:
            number = step.number + 1 if step else 1
            chunks += [*self._end_step(), {"type": "start-step"}]
            self._step = step = Step(number)
        match event:
            case PartialThinking():
                return chunks + step.write("reasoning", event.text)
            case PartialText():
                return chunks + step.write("text", event.text)
            case PartialToolCall():
                return chunks + step.write_call(event)
            case ChatResponse():
                self._stored.append(event.metadata.as_json())
                return chunks + step.answer(event.ai_message)
            case _:
                assert_never(event)

    @classmethod
    def going_on(cls, sent: Sequence[Chunk], rows: Sequence[MessageRow] = ()) -> Self:
        """
        Return the stream of an answer of which another process has *sent* a part, from the start.

        *rows* are stored of it.

        It ends as it is, or goes on with ``catch_up``.
        """
        start, first = sent[0], 0
        if "createdAt" not in (start.get("messageMetadata") or {}):  # it went on from rows that the page had
            begun = {each["toolCallId"] for each in sent if each["type"] in {"tool-input-start", *CALLED}}
            first = next((at for at, row in enumerate(rows) if begun & _calls_in(row)), len(rows))
            while first and isinstance(rows[first - 1].chat_message, ToolExecutionResultMessage):
                first -= 1
        stream = cls(start["messageId"], {}, rows[:first])
        stream._has_started, stream._rows = True, rows[first:]
        for chunk in sent:
            stream._see(chunk)
        return stream

    def _see(self, chunk: Chunk) -> None:
        match chunk["type"]:
            case "start-step":
                self._step = Step(self._step.number + 1 if self._step else 1)
                self._seen.append(self._step)
            case "finish" | "error" | "abort":
                self._has_ended = True
            case _ if self._step is not None:
                self._step.see(chunk)

    def catch_up(self) -> list[Chunk]:
        """Return what was not sent of the rows; a step that is not among them is void, and begins again."""
        last, chunks = self._step, list[Chunk]()
        seen = [step for step in self._seen if not step.is_void]
        for row in self._rows:
            message = row.chat_message
            if isinstance(message, AiMessage):
                self._stored.append(row.metadata or {})
                if seen and not seen[0].is_part_of(message):
                    chunks += [chunk for step in seen for chunk in step.restart()]
                    seen = []
                if not seen:
                    chunks += [*(last.end() if last else ()), {"type": "start-step"}]
                    last = Step(last.number + 1 if last else 1)
                self._step = step = seen.pop(0) if seen else last
                chunks += step.answer(message) if step else []
            elif isinstance(message, ToolExecutionResultMessage) and self._step:
                chunks += self._step.result(message)
        self._step = last
        return chunks + [chunk for step in seen if not step.is_shown for chunk in step.restart()]

    @property
    def has_ended(self) -> bool:
        """Whether its last chunk was sent."""
        return self._has_ended

    def finish(self) -> list[Chunk]:
        """End a complete answer."""
        if self._has_ended:
            return []
        metadata = answer_metadata(self._stored) | waiting_metadata(self._others, self._asks)
        end: Chunk = {"type": "finish"}
        if "finishReason" in metadata:
            end["finishReason"] = metadata["finishReason"]
        if metadata:
            end["messageMetadata"] = metadata
        return self._end(end)

    def error(self, text: str) -> list[Chunk]:
        """End the answer with an error; the page shows *text*."""
        return self._end({"type": "error", "errorText": text})

    def abort(self) -> list[Chunk]:
        """End an answer that was stopped; what was generated of it is stored as a partial answer."""
        known = list(self._stored)
        if self._step is not None and not (self._step.is_shown or self._step.is_void):
            last = known.pop() if self._step.is_answered else {}
            known += [{**last, "partial": True}] if self._step.has_written else []
        metadata = answer_metadata(known)
        changed = [{"type": "message-metadata", "messageMetadata": metadata}] if metadata else []
        return self._end(*changed, {"type": "abort"})

    def _end(self, *last: Chunk) -> list[Chunk]:
        if self._has_ended:
            return []
        self._has_ended = True
        return [*self.start(), *self._end_step(), *last]

    def _end_step(self) -> list[Chunk]:
        return self._step.end() if self._step else []


def _calls_in(row: MessageRow) -> set[str | None]:
    """Return the ids of the calls of tools in *row*."""
    message = row.chat_message
    return {call.id for call in message.tool_execution_requests} if isinstance(message, AiMessage) else set()
