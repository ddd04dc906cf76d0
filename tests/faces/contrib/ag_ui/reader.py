"""A reader of AG-UI's streams, written from the protocol's sentences: what is not allowed is an error."""

from __future__ import annotations

import json
from typing import Any

from ag_ui.core import Event, Message
from pydantic import TypeAdapter

EVENTS, MESSAGES = TypeAdapter(Event), TypeAdapter(list[Message])


def parsed(stream: str) -> list[dict[str, Any]]:
    """Return the events of a *stream*, each of which the protocol's own models accept."""
    found = []
    for event in stream.split("\n\n"):
        if event.startswith("data: "):
            found.append(json.loads(event.removeprefix("data: ")))
            EVENTS.validate_python(found[-1])
        else:
            assert event in {"", ": ping"}
    return found


def read(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that a client has after *events*: a whole run, with nothing in it left open."""
    first, *between, last = events
    assert first["type"] == "RUN_STARTED"
    assert last["type"] in {"RUN_FINISHED", "RUN_ERROR"}
    messages: list[dict[str, Any]] = []
    by_id: dict[str, dict[str, Any]] = {}
    texts: set[str] = set()
    thoughts: set[str] = set()
    calls: dict[str, dict[str, Any]] = {}
    open_calls: set[str] = set()

    def add(message: dict[str, Any]) -> dict[str, Any]:
        assert message["id"] not in by_id, "two messages have one id"
        by_id[message["id"]] = message
        messages.append(message)
        return message

    for event in between:
        name = event.get("messageId", "")
        match event["type"]:
            case "MESSAGES_SNAPSHOT":
                assert not messages
                MESSAGES.validate_python(event["messages"])
                for message in event["messages"]:
                    add(json.loads(json.dumps(message)))
            case "TEXT_MESSAGE_START":
                assert not texts, "a text begins within another"
                add({"id": name, "role": event["role"], "content": ""})
                texts.add(name)
            case "TEXT_MESSAGE_CONTENT":
                assert name in texts
                by_id[name]["content"] += event["delta"]
            case "TEXT_MESSAGE_END":
                texts.remove(name)
            case "REASONING_START":
                pass
            case "REASONING_MESSAGE_START":
                add({"id": name, "role": "reasoning", "content": ""})
                thoughts.add(name)
            case "REASONING_MESSAGE_CONTENT":
                assert name in thoughts
                by_id[name]["content"] += event["delta"]
            case "REASONING_MESSAGE_END":
                thoughts.remove(name)
            case "REASONING_END":
                assert name not in thoughts
            case "TOOL_CALL_START":
                holder = by_id.get(event["parentMessageId"]) or add(
                    {"id": event["parentMessageId"], "role": "assistant"}
                )
                function = {"name": event["toolCallName"], "arguments": ""}
                call = {"id": event["toolCallId"], "type": "function", "function": function}
                holder.setdefault("toolCalls", []).append(call)
                calls[event["toolCallId"]] = function
                open_calls.add(event["toolCallId"])
            case "TOOL_CALL_ARGS":
                assert event["toolCallId"] in open_calls
                calls[event["toolCallId"]]["arguments"] += event["delta"]
            case "TOOL_CALL_END":
                open_calls.remove(event["toolCallId"])
            case "TOOL_CALL_RESULT":
                assert event["toolCallId"] not in open_calls
                add({"id": name, "role": "tool", "toolCallId": event["toolCallId"], "content": event["content"]})
            case "CUSTOM":
                assert event["name"] == "restarted"
            case other:
                raise AssertionError(other)
    if last["type"] == "RUN_FINISHED":
        assert {*texts, *thoughts, *open_calls} == set(), "a run ended with something open"
        assert (last["threadId"], last["runId"]) == (first["threadId"], first["runId"])
    return messages
