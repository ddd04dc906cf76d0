"""The steps of a UI message stream: what a page has of one call of the model, and which chunks are still to come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from django.utils.translation import gettext

from chatmemory_django.chat.model import ApprovalRequested, PartialToolCall
from chatmemory_django.chat.ui_messages.writing import (
    NOT_JSON,
    OUTCOME_UNKNOWN,
    answer_text,
    call_id,
    call_input,
    result_output,
    result_text,
)
from chatmemory_django.core.tool_calls import NOT_RUN, tool_answers
from chatmemory_django.messages import AiMessage, ChatMessage, ToolExecutionRequest, ToolExecutionResultMessage

Chunk: TypeAlias = dict[str, Any]
"""An event of the stream, with only those keys that all versions of the SDK support."""

NOT_ANSWERED = "The answer ended before this call did."
"""What a page shows of a call that the model did not finish."""

RESTARTED = "data-restarted"
"""The type of the part after which the parts of this step are void: they are not stored, the model is asked again."""


@dataclass(slots=True)
class ReceivedCall:
    """A tool call, as far as the page has received it."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    state: Literal["written", "called", "answered"] = "written"
    is_shown: bool = False
    """Whether the page has its name."""
    has_output: bool = False
    """Whether it had its result in what another process has sent."""


class Step:
    """One call of the model, with the results of the tools that it calls."""

    def __init__(self, number: int, *, is_shown: bool = False) -> None:
        self.number = number
        self.is_shown = is_shown
        """Whether the page has it from an earlier response, which has ended it."""
        self._written: dict[str, list[str]] = {"reasoning": [], "text": []}
        self._open: dict[str, str] = {}
        self._begun: Counter[str] = Counter()
        self._calls: dict[int, ReceivedCall] = {}
        self._messages: list[ChatMessage] = []
        self.is_void = False
        """Whether it broke, and another step takes its place."""

    @property
    def is_answered(self) -> bool:
        """Whether the model has responded; anything that follows belongs to the next step."""
        return self.is_void or bool(self._messages)

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
            if call.state == "written":
                chunks.append(_called(call, request))
        return chunks

    def result(self, message: ToolExecutionResultMessage) -> list[Chunk]:
        """Append the result of a call."""
        answers = tool_answers([*self._messages, message])
        position = next((position for (_, position), index in answers.items() if index == len(self._messages)), None)
        if position is None:
            return []
        self._messages.append(message)
        call = self._calls[position]
        call.state = "answered"
        if call.has_output:
            return []
        if message.attributes.get(NOT_RUN) is True:
            return [{"type": "tool-output-denied", "toolCallId": call.id}]
        if message.is_error:
            return [{"type": "tool-output-error", "toolCallId": call.id, "errorText": result_text(message)}]
        return [{"type": "tool-output-available", "toolCallId": call.id, "output": result_output(message)}]

    def request(self, request: ApprovalRequested) -> list[Chunk]:
        """Ask for the approval of a call; a page that is to run it itself has been sent it by now."""
        calls = [call.id for each in self._messages[:1] for call in getattr(each, "tool_execution_requests", ())]
        if request.call.id not in calls:
            return []
        call = self._calls[calls.index(request.call.id)]
        call.state = "answered"
        if request.runs_in == "client":
            return []
        return [{"type": "tool-approval-request", "approvalId": str(request.id), "toolCallId": call.id}]

    def see(self, chunk: Chunk) -> None:
        """Note what another process has sent of this step."""
        self.is_shown = self.is_shown or chunk["type"] == "finish-step"
        self.is_void = self.is_void or chunk["type"] == RESTARTED
        kind, _, what = chunk["type"].partition("-")
        if kind in self._written:
            match what:
                case "start":
                    self._open[kind] = chunk["id"]
                    self._begun[kind] += 1
                case "delta":
                    self._written[kind].append(chunk["delta"])
                case "end":
                    self._open.pop(kind, None)
            return
        if kind != "tool":
            return
        call = next((each for each in self._calls.values() if each.id == chunk["toolCallId"]), None)
        if call is None:
            call = self._calls[len(self._calls)] = ReceivedCall(
                chunk["toolCallId"], chunk.get("toolName", ""), is_shown=True
            )
        match what:
            case "input-delta":
                call.arguments.append(chunk["inputTextDelta"])
            case "input-available":
                call.state = "called"
            case "input-error" | "approval-request":
                call.state = "answered"
            case "output-available" | "output-error" | "output-denied":
                call.state, call.has_output = "answered", True

    def is_part_of(self, message: AiMessage) -> bool:
        """Return whether what was sent of this step is a part of *message*, as far as that can be seen."""
        if self._calls:  # their ids are stored as they were sent
            return any(call.id == each.id for call in self._calls.values() for each in message.tool_execution_requests)
        wholes = {"reasoning": message.thinking or "", "text": answer_text(message)}
        return all(wholes[kind].startswith("".join(written)) for kind, written in self._written.items())

    def restart(self) -> list[Chunk]:
        """End what the page has of a step that broke, and tell it so: none of its calls was stored, or run."""
        self.is_void = True
        chunks = self._close("reasoning") + self._close("text")
        for call in self._calls.values():
            if call.is_shown and call.state == "written":
                given = {"toolCallId": call.id, "toolName": call.name, "input": "".join(call.arguments)}
                chunks.append({"type": "tool-input-error", **given, "errorText": NOT_ANSWERED})
            elif call.is_shown and call.state == "called":
                chunks.append({"type": "tool-output-error", "toolCallId": call.id, "errorText": NOT_ANSWERED})
            call.state = "answered"
        return [*chunks, {"type": RESTARTED, "data": {"step": self.number}}]

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

    def _new_call(self, position: int, given: str | None, name: str) -> ReceivedCall:
        taken = {call.id for call in self._calls.values()}
        call = self._calls[position] = ReceivedCall(call_id(given, taken, self.number, position), name)
        return call


def _called(call: ReceivedCall, request: ToolExecutionRequest) -> Chunk:
    given, is_json = call_input(request.arguments)
    known = {"toolCallId": call.id, "toolName": call.name, "input": given}
    call.state = "called" if is_json else "answered"
    if is_json:
        return {"type": "tool-input-available", **known}
    return {"type": "tool-input-error", **known, "errorText": NOT_JSON}
