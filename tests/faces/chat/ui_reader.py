"""A reader of UI message streams, stricter than the clients: anything outside the grammar is an error."""

from typing import Any

KEYS = {
    "start": {"messageId", "messageMetadata"},
    "start-step": set(),
    "finish-step": set(),
    "text-start": {"id"},
    "text-delta": {"id", "delta"},
    "text-end": {"id"},
    "reasoning-start": {"id"},
    "reasoning-delta": {"id", "delta"},
    "reasoning-end": {"id"},
    "tool-input-start": {"toolCallId", "toolName"},
    "tool-input-delta": {"toolCallId", "inputTextDelta"},
    "tool-input-available": {"toolCallId", "toolName", "input"},
    "tool-input-error": {"toolCallId", "toolName", "input", "errorText"},
    "tool-output-available": {"toolCallId", "output"},
    "tool-output-error": {"toolCallId", "errorText"},
    "data-restarted": {"data"},
    "message-metadata": {"messageMetadata"},
    "finish": {"finishReason", "messageMetadata"},
    "error": {"errorText"},
    "abort": set(),
}
"""The keys of each chunk that version 5 knows."""


def read(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a client has after *chunks*, or raise ``AssertionError`` if any of them is wrong."""
    first, *others = chunks
    assert first["type"] == "start"
    message = {"id": first["messageId"], "role": "assistant", "metadata": dict(first["messageMetadata"]), "parts": []}
    step: _Step | None = None
    for number, chunk in enumerate(others, 2):
        kind = chunk["type"]
        assert chunk.keys() - {"type"} <= KEYS[kind]
        if kind == "start-step":
            assert step is None
            step = _Step(message["parts"])
        elif kind in {"message-metadata", "finish", "error", "abort"}:
            assert step is None
            assert (number == len(chunks)) is (kind != "message-metadata")
            message["metadata"] |= chunk.get("messageMetadata", {})
        else:
            assert step is not None
            step.take(kind, chunk)
            if kind == "finish-step":
                step = None
    return message


def without_void(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the *parts* of a message without those of the steps that broke, which are not stored."""
    void = {part["data"]["step"] for part in parts if part["type"] == "data-restarted"}
    number, kept = 0, []
    for part in parts:
        number += part["type"] == "step-start"
        kept += [] if number in void else [part]
    return kept


class _Step:
    def __init__(self, parts: list[dict[str, Any]]) -> None:
        self._parts = parts
        self._open: dict[tuple[str, str], dict[str, Any]] = {}
        self._calls: dict[str, dict[str, Any]] = {}
        parts.append({"type": "step-start"})

    def take(self, kind: str, chunk: dict[str, Any]) -> None:
        what, _, stage = kind.rpartition("-")
        if what in {"text", "reasoning"}:
            self._take_text(what, stage, chunk)
        elif kind == "data-restarted":
            self._parts.append(chunk)
        elif kind == "finish-step":
            assert not self._open
            assert not [part for part in self._calls.values() if part["state"] == "input-streaming"]
        else:
            self._take_call(kind, chunk)

    def _take_text(self, what: str, stage: str, chunk: dict[str, Any]) -> None:
        key = what, chunk["id"]
        if stage == "start":
            assert key not in self._open
            known = {"id": chunk["id"]} if what == "reasoning" else {}
            self._open[key] = {"type": what, **known, "text": "", "state": "streaming"}
            self._parts.append(self._open[key])
        elif stage == "delta":
            assert chunk["delta"]
            self._open[key]["text"] += chunk["delta"]
        else:
            self._open.pop(key)["state"] = "done"

    def _take_call(self, kind: str, chunk: dict[str, Any]) -> None:
        call_id = chunk["toolCallId"]
        part = self._calls.get(call_id)
        if part is None:
            assert kind in {"tool-input-start", "tool-input-available", "tool-input-error"}
            part = {"type": f"tool-{chunk['toolName']}", "toolCallId": call_id, "state": "input-streaming"}
            self._calls[call_id] = part
            self._parts.append(part)
        elif kind == "tool-input-delta":
            assert part["state"] == "input-streaming"
        assert kind != "tool-input-start" or part["state"] == "input-streaming"
        match kind:
            case "tool-input-available":
                assert part["state"] == "input-streaming"
                part |= {"state": "input-available", "input": chunk["input"]}
            case "tool-input-error":
                assert part["state"] == "input-streaming"
                part |= {"state": "output-error", "input": chunk["input"], "errorText": chunk["errorText"]}
            case "tool-output-available":
                assert "input" in part
                part |= {"state": "output-available", "output": chunk["output"]}
                part.pop("errorText", None)
            case "tool-output-error":
                assert "input" in part
                part |= {"state": "output-error", "errorText": chunk["errorText"]}
