"""What the chunks of the AI SDK's stream have shown of an answer so far, as OpenAI's APIs need to know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from chatmemory_django.chat.answers.ui_steps import RESTARTED, Chunk
from chatmemory_django.chat.ui_messages.writing import WAITS_FOR_OTHERS

REASONS = {"length": "length", "content-filter": "content_filter"}
"""OpenAI's reasons why an answer ends that are not its end, by the AI SDK's."""


@dataclass(slots=True)
class OpenCall:
    """A call of a tool."""

    id: str
    name: str
    arguments: str = ""
    """As the model wrote them."""
    approval: str = ""
    """What it waits for, if it does."""


@dataclass(slots=True)
class AnswerSoFar:
    """What has been shown."""

    calls: dict[str, OpenCall] = field(default_factory=dict)
    """Those without a result."""
    metadata: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    """That of what there was of the answer when it went on."""
    error: str = ""
    has_aborted: bool = False
    _named: dict[str, OpenCall] = field(default_factory=dict)

    def note(self, chunk: Chunk) -> None:
        """Take note of *chunk*."""
        match chunk["type"]:
            case "tool-input-start":
                self._named[chunk["toolCallId"]] = OpenCall(chunk["toolCallId"], chunk["toolName"])
            case "tool-input-delta" if call := self._named.get(chunk["toolCallId"]):
                call.arguments += chunk["inputTextDelta"]
            case "tool-input-available":
                call = self._named.pop(chunk["toolCallId"], OpenCall(chunk["toolCallId"], chunk["toolName"]))
                call.arguments = call.arguments or msgspec.json.encode(chunk["input"]).decode()
                self.calls[call.id] = call
            case "tool-output-available" | "tool-output-error" | "tool-output-denied":
                self.calls.pop(chunk["toolCallId"], None)
            case "tool-approval-request" if call := self.calls.get(chunk["toolCallId"]):
                call.approval = chunk["approvalId"]
            case "start":
                self.before = chunk.get("messageMetadata") or {}
            case "finish" | "message-metadata":
                self.metadata = chunk.get("messageMetadata") or {}
            case "error":
                self.error = chunk["errorText"]
            case "abort":
                self.has_aborted = True
            case kind if kind == RESTARTED:
                self.error = "The answer was interrupted, and begun once more; ask for it again."

    @property
    def for_client(self) -> list[OpenCall]:
        """The calls whose output the client is to send."""
        return [call for call in self.calls.values() if not call.approval]

    @property
    def for_approval(self) -> list[OpenCall]:
        """The calls that wait until who asks has decided."""
        others = self.metadata.get(WAITS_FOR_OTHERS, ())
        return [call for call in self.calls.values() if call.approval and call.id not in others]

    def tokens(self) -> tuple[int, int]:
        """Return how many tokens its own calls of the model were sent, and have written, as far as that is known."""
        usage, before = (each.get("usage") or {} for each in (self.metadata or self.before, self.before))
        sent, written = ((usage.get(key) or 0) - (before.get(key) or 0) for key in ("inputTokens", "outputTokens"))
        return sent, written
