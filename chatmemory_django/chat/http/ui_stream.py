"""
An answer as a UI message stream of the Vercel AI SDK, for ``useChat`` of its versions 5, 6 and 7.

At its end, a page holds the same message that ``chat.ui_messages.to_ui_messages`` returns for the stored answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

import msgspec
from django.utils.translation import gettext

from chatmemory_django.chat.model import (
    ApprovalRequested,
    ChatResponse,
    PartialText,
    PartialThinking,
    PartialToolCall,
)
from chatmemory_django.chat.ui_messages.writing import (
    NOT_JSON,
    OUTCOME_UNKNOWN,
    WAITS_FOR_OTHERS,
    Row,
    answer_metadata,
    answer_text,
    call_id,
    call_input,
    result_text,
    timestamp,
)
from chatmemory_django.core.tool_calls import NOT_RUN, tool_answers
from chatmemory_django.messages import AiMessage, ChatMessage, ToolExecutionRequest, ToolExecutionResultMessage

if TYPE_CHECKING:
    from chatmemory_django.chat.answers.exchange import (
        AssistantEvent,  # requires the database, which this module does not
    )

Chunk: TypeAlias = dict[str, Any]
"""An event of the stream, with only those keys that all versions of the SDK support."""

NOT_ANSWERED = "The answer ended before this call did."

HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store, no-cache",
    "X-Accel-Buffering": "no",
    "X-Vercel-AI-UI-Message-Stream": "v1",
}

DONE = "data: [DONE]\n\n"
"""The last event of every stream, however the answer ended."""


def encode(chunk: Chunk) -> str:
    """Return *chunk* encoded as a server-sent event."""
    try:
        text = msgspec.json.encode(chunk).decode()
    except UnicodeEncodeError:
        # A model may split a surrogate pair between two pieces: as escapes, the page joins them again.
        text = json.dumps(msgspec.to_builtins(chunk))
    return f"data: {text}\n\n"


class UiStream:
    """
    The chunks of one answer. Feed it the events of ``Assistant.astream``, then end it with one of three methods.

    Each method returns the chunks to send; after the end, all return an empty list. *metadata* is the message's initial
    metadata, by default the current time as ``createdAt``. An answer that goes on begins with the rows *before*, which
    the page has.
    """

    def __init__(self, message_id: str, metadata: Mapping[str, Any] | None = None, before: Sequence[Row] = ()) -> None:
        self._message_id = message_id
        self._metadata = metadata
        self._has_started = self._has_ended = False
        self._step: _Step | None = None
        self._stored: list[Mapping[str, Any]] = []
        self._others: list[str] = []
        for row in before:
            message = row.chat_message
            if isinstance(message, AiMessage):
                self._step = _Step(self._step.number + 1 if self._step else 1, is_shown=True)
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
            return chunks + asked
        step = self._step
        if step is None or step.is_answered:
            number = step.number + 1 if step else 1
            chunks += [*self._end_step(), {"type": "start-step"}]
            self._step = step = _Step(number)
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

    def finish(self) -> list[Chunk]:
        """End a complete answer."""
        if self._has_ended:
            return []
        metadata = answer_metadata(self._stored) | ({WAITS_FOR_OTHERS: self._others} if self._others else {})
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
        if self._step is not None and not self._step.is_shown:
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


@dataclass(slots=True)
class _Call:
    """A tool call, as far as the page has received it."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    state: Literal["written", "called", "answered"] = "written"
    is_shown: bool = False
    """Whether the page has its name."""


class _Step:
    """One call of the model, with the results of the tools that it calls."""

    def __init__(self, number: int, *, is_shown: bool = False) -> None:
        self.number = number
        self.is_shown = is_shown
        """Whether the page has it from an earlier response, which has ended it."""
        self._written: dict[str, list[str]] = {"reasoning": [], "text": []}
        self._open: dict[str, str] = {}
        self._begun: Counter[str] = Counter()
        self._calls: dict[int, _Call] = {}
        self._messages: list[ChatMessage] = []

    @property
    def is_answered(self) -> bool:
        """Whether the model has responded; anything that follows belongs to the next step."""
        return bool(self._messages)

    @property
    def has_written(self) -> bool:
        """Whether there is any text or thinking."""
        return any(self._written.values())

    def write(self, kind: Literal["reasoning", "text"], text: str) -> list[Chunk]:
        """Append *text* to the open part of that kind, or to a new one."""
        if not text:
            return []
        # A page shows that the model is thinking while the part is open. Text stays one part, whatever comes in
        # between.
        chunks = self._close("reasoning") if kind == "text" else []
        if kind not in self._open:
            again = self._begun[kind]
            self._begun[kind] += 1
            self._open[kind] = f"{kind}-{self.number}-{again}" if again else f"{kind}-{self.number}"
            chunks.append({"type": f"{kind}-start", "id": self._open[kind]})
        self._written[kind].append(text)
        return [*chunks, {"type": f"{kind}-delta", "id": self._open[kind], "delta": text}]

    def write_call(self, piece: PartialToolCall) -> list[Chunk]:
        """Append a piece of a call. A call without a name is shown once the model has responded."""
        chunks = self._close("reasoning")
        call = self._calls.get(piece.index)
        if call is None:
            if piece.name is None:
                return chunks
            call = self._new_call(piece.index, piece.id, piece.name)
        elif piece.name and not call.is_shown:
            call.name += piece.name
        if piece.arguments:
            chunks += self._shown_calls()
            call.arguments.append(piece.arguments)
            chunks.append({"type": "tool-input-delta", "toolCallId": call.id, "inputTextDelta": piece.arguments})
        return chunks

    def _shown_calls(self) -> list[Chunk]:
        """Show the calls that have begun, in their order. A page cannot change a name, so it has to be whole by now."""
        new = [call for call in self._calls.values() if not call.is_shown]
        for call in new:
            call.is_shown = True
        return [{"type": "tool-input-start", "toolCallId": call.id, "toolName": call.name} for call in new]

    def answer(self, message: AiMessage) -> list[Chunk]:
        """Append what of *message* has not come in pieces: everything, for models that do not stream."""
        self._messages.append(message)
        chunks = self._write_rest("reasoning", message.thinking or "") + self._write_rest("text", answer_text(message))
        chunks += self._close("reasoning") + self._close("text")
        for position, request in enumerate(message.tool_execution_requests):
            call = self._calls.get(position) or self._new_call(position, request.id, request.name or "")
            chunks.append(_called(call, request))
        return chunks

    def result(self, message: ToolExecutionResultMessage) -> list[Chunk]:
        """Append the result of a call."""
        answers = tool_answers([*self._messages, message])
        position = next((position for (_, position), index in answers.items() if index == len(self._messages)), None)
        if position is None:
            return []
        self._messages.append(message)
        call, text = self._calls[position], result_text(message)
        call.state = "answered"
        if message.attributes.get(NOT_RUN) is True:
            return [{"type": "tool-output-denied", "toolCallId": call.id}]
        if message.is_error:
            return [{"type": "tool-output-error", "toolCallId": call.id, "errorText": text}]
        return [{"type": "tool-output-available", "toolCallId": call.id, "output": text}]

    def request(self, request: ApprovalRequested) -> list[Chunk]:
        """Ask for the approval of a call."""
        calls = [call.id for each in self._messages[:1] for call in getattr(each, "tool_execution_requests", ())]
        if request.call.id not in calls:
            return []
        call = self._calls[calls.index(request.call.id)]
        call.state = "answered"
        return [{"type": "tool-approval-request", "approvalId": str(request.id), "toolCallId": call.id}]

    def end(self) -> list[Chunk]:
        """End the step. Calls that have no result now are reported as failed, as the history shows them."""
        if self.is_shown:
            return []
        chunks = self._close("reasoning") + self._close("text")
        for call in self._calls.values():
            if call.state == "written":
                written = {"toolCallId": call.id, "toolName": call.name, "input": "".join(call.arguments)}
                chunks.append({"type": "tool-input-error", **written, "errorText": NOT_ANSWERED})
            elif call.state == "called":
                unknown = gettext(OUTCOME_UNKNOWN)
                chunks.append({"type": "tool-output-error", "toolCallId": call.id, "errorText": unknown})
        return [*chunks, {"type": "finish-step"}]

    def _write_rest(self, kind: Literal["reasoning", "text"], whole: str) -> list[Chunk]:
        written = "".join(self._written[kind])
        return self.write(kind, whole.removeprefix(written)) if whole.startswith(written) else []

    def _close(self, kind: str) -> list[Chunk]:
        if kind not in self._open:
            return []
        return [{"type": f"{kind}-end", "id": self._open.pop(kind)}]

    def _new_call(self, position: int, given: str | None, name: str) -> _Call:
        taken = {call.id for call in self._calls.values()}
        call = self._calls[position] = _Call(call_id(given, taken, self.number, position), name)
        return call


def _called(call: _Call, request: ToolExecutionRequest) -> Chunk:
    given, is_json = call_input(request.arguments)
    known = {"toolCallId": call.id, "toolName": call.name, "input": given}
    call.state = "called" if is_json else "answered"
    if is_json:
        return {"type": "tool-input-available", **known}
    return {"type": "tool-input-error", **known, "errorText": NOT_JSON}
