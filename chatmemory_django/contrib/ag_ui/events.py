"""The events of the AI SDK's stream, and its messages, as those of AG-UI."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from django.utils.translation import gettext as _

from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.http.rewriting import rewritten
from chatmemory_django.chat.ui_messages.writing import WAITS_FOR_OTHERS
from chatmemory_django.contrib.ag_ui.inputs import PART, shown_call_id

VERSION = "1.0"
"""The version of the protocol."""

DECISION = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
"""The JSON schema of what a client answers when a call waits for an approval."""

Event = dict[str, Any]


class RunEvents:
    """The events of the run *run_id*, made of the chunks of an answer, from its start to its end."""

    def __init__(self, thread_id: str, run_id: str) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._has_started = False
        self._answer = ""
        self._holder = ""
        """The message that has the calls of this step."""
        self._times: Counter[str] = Counter()
        self._calls: dict[str, str] = {}
        """What the calls of this step are named, by their ids."""
        self._begun: dict[str, bool] = {}
        """The calls that have begun, and whether there is anything of their arguments."""
        self._tools: dict[str, str] = {}
        self._open: list[str] = []
        """The calls that have no result, ..."""
        self._failed: dict[str, str] = {}
        """... and the errors of those that cannot have run."""
        self._interrupts: list[Event] = []

    def written(self, pieces: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
        """Yield *pieces* of the AI SDK's stream as this protocol has them."""
        return rewritten(pieces, self.of)

    def of(self, chunk: Chunk) -> list[Event]:
        """Return the events that have the same meaning as *chunk*."""
        kind, delta = chunk["type"], chunk.get("delta", "")
        message = {"messageId": f"{self._answer}{PART}{chunk.get('id', '')}"}
        match kind:
            case "start":
                self._answer = chunk.get("messageId", "")
                return [] if self._has_started else [self.started()]
            case "start-step":
                self._holder, self._calls = "", {}
            case "finish-step":
                return [event for call, error in [*self._failed.items()] for event in self._result(call, error)]
            case "text-start":
                self._holder = message["messageId"]
                return [{"type": "TEXT_MESSAGE_START", **message, "role": "assistant"}]
            case "text-delta":
                return [{"type": "TEXT_MESSAGE_CONTENT", **message, "delta": delta}]
            case "text-end":
                return [{"type": "TEXT_MESSAGE_END", **message}]
            case "reasoning-start":
                opened = {"type": "REASONING_MESSAGE_START", **message, "role": "reasoning"}
                return [{"type": "REASONING_START", **message}, opened]
            case "reasoning-delta":
                return [{"type": "REASONING_MESSAGE_CONTENT", **message, "delta": delta}]
            case "reasoning-end":
                return [{"type": "REASONING_MESSAGE_END", **message}, {"type": "REASONING_END", **message}]
            case "data-restarted" | "data-handover" | "data-message":
                return [{"type": "CUSTOM", "name": kind.removeprefix("data-"), "value": chunk["data"]}]
            case "finish":
                return [self._finished(chunk.get("messageMetadata") or {})]
            case "abort":
                return [{"type": "RUN_FINISHED", **self._ids, "outcome": {"type": "cancelled"}}]
            case "error":
                return [{"type": "RUN_ERROR", "message": chunk["errorText"]}]
            case _ if kind.startswith("tool-"):
                return self._of_call(self._call(chunk["toolCallId"], kind), kind, chunk)
        return []

    def started(self) -> Event:
        """Return the event with which the run begins."""
        self._has_started = True
        return {"type": "RUN_STARTED", **self._ids, "protocolVersion": VERSION}

    def waiting(self, interrupts: Sequence[Event], pending: Sequence[str]) -> Event:
        """Return the event that ends the run, whose calls wait for *interrupts*, or are *pending* in the client."""
        outcome: Event = {"type": "success"}
        if interrupts:
            outcome = {"type": "interrupt", "interrupts": list(interrupts)}
        elif pending:
            outcome["pendingToolCallIds"] = list(pending)
        return {"type": "RUN_FINISHED", **self._ids, "outcome": outcome}

    def _call(self, id: str, kind: str) -> str:
        if kind.startswith("tool-input") and id not in self._calls:
            self._times[id] += 1
            self._calls[id] = shown_call_id(self._answer, id, self._times[id])
        return self._calls.get(id) or shown_call_id(self._answer, id, 1)

    def _of_call(self, id: str, kind: str, chunk: Chunk) -> list[Event]:
        call = {"toolCallId": id}
        match kind:
            case "tool-input-start":
                self._holder = self._holder or id
                self._begun[id], self._tools[id] = False, chunk["toolName"]
                parent = {"parentMessageId": self._holder}
                return [{"type": "TOOL_CALL_START", **call, "toolCallName": chunk["toolName"], **parent}]
            case "tool-input-delta":
                self._begun[id] = True
                return [{"type": "TOOL_CALL_ARGS", **call, "delta": chunk["inputTextDelta"]}]
            case "tool-input-available" | "tool-input-error":
                events = [] if id in self._begun else self._of_call(id, "tool-input-start", chunk)
                if not self._begun[id]:
                    events.append({"type": "TOOL_CALL_ARGS", **call, "delta": as_text(chunk["input"])})
                events.append({"type": "TOOL_CALL_END", **call})
                self._open.append(id)
                self._failed |= {id: chunk["errorText"]} if kind == "tool-input-error" else {}
                return events
            case "tool-output-available":
                return self._result(id, as_text(chunk["output"]))
            case "tool-output-error":
                return self._result(id, chunk["errorText"])
            case "tool-output-denied":
                return self._result(id, denied())
            case "tool-approval-request":
                self._interrupts.append(interrupt(chunk["approvalId"], id, self._tools.get(id, "")))
        return []

    def _result(self, id: str, content: str) -> list[Event]:
        if id in self._open:
            self._open.remove(id)
        self._failed.pop(id, None)
        return [{"type": "TOOL_CALL_RESULT", "messageId": result_id(id), "toolCallId": id, "content": content}]

    def _finished(self, metadata: Mapping[str, Any]) -> Event:
        others = {self._call(each, "") for each in metadata.get(WAITS_FOR_OTHERS, ())}
        asked = [each for each in self._interrupts if each["toolCallId"] not in others]
        waits = {each["toolCallId"] for each in self._interrupts}
        event = self.waiting(asked, [call for call in self._open if call not in waits])
        if usage := metadata.get("usage"):
            event["usage"] = [{**({"model": metadata["model"]} if "model" in metadata else {}), **usage}]
        return event


def interrupt(id: str, tool_call_id: str, tool: str) -> Event:
    """Return the interrupt *id*: a call of *tool* waits for the user's approval."""
    message = _("May “%(tool)s” be called?") % {"tool": tool}
    given = {"toolCallId": tool_call_id, "responseSchema": DECISION}
    return {"id": id, "reason": "tool_call", "message": message, **given}


def denied() -> str:
    """Return what a client shows as the result of a call that was denied."""
    return _("The user has denied this call.")


def result_id(tool_call_id: str) -> str:
    """Return the id of the message that has the result of a call."""
    return f"{tool_call_id}{PART}result"


def as_text(value: Any) -> str:
    """Return *value* if it is a text, or as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
