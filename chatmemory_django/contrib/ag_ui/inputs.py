"""What AG-UI's clients post, as the AI SDK's clients would have posted it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from chatmemory_django.chat.http.posted import MAX_SHOWN, NULL, decode_body, read_value
from chatmemory_django.core.limits import RAW_BYTES

MEDIA_TYPES = {"image": "image", "audio": "audio", "video": "video", "document": "application/pdf"}
"""The media type of a part whose source names none."""

PART = "#"
"""What ids of messages and calls have behind the id of the answer that they are a part of."""

_CONTENT: Any = str | list[dict[str, Any]]
_CALL = re.compile(r"[^#]*#(?:\d{1,9}#)?(.*)", re.DOTALL)


class ResumeEntry(msgspec.Struct, rename="camel"):
    """What a client answers to an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None

    def as_part(self, path: str) -> dict[str, Any]:
        """Return the part of an answer by which the AI SDK's clients decide."""
        given = self.payload if isinstance(self.payload, Mapping) else {"approved": self.payload}
        approved = given.get("approved") if self.status == "resolved" else False
        if not isinstance(approved, bool):
            what = f'{path}.payload: it must be {{"approved": true}} or false, and may have a reason.'
            raise ValueError(what)  # noqa: TRY004  # of the body
        reason = given.get("reason") or ""
        return {
            "state": "approval-responded",
            "approval": {"id": self.interrupt_id, "approved": approved, "reason": reason},
        }


class _Message(msgspec.Struct, rename="camel"):
    id: str = ""
    role: str = ""
    content: msgspec.Raw = NULL
    tool_call_id: str = ""
    error: str | None = None


class RunInput(msgspec.Struct, rename="camel"):
    """The fields that are used of a ``RunAgentInput``."""

    thread_id: str
    run_id: str
    messages: msgspec.Raw = NULL
    resume: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    state: msgspec.Raw = NULL
    context: msgspec.Raw = NULL
    forwarded_props: msgspec.Raw = NULL

    @classmethod
    def of(cls, content: bytes) -> RunInput:
        """Parse *content*, a JSON object; raise ``ValueError`` with the path of what is invalid."""
        return decode_body(content, cls, "$")

    def as_body(self) -> bytes:
        """
        Return the body of the AI SDK that asks the same.

        Each message that is not of the user belongs to the answer before the next one that is. The client's context and
        state, and what it forwards, are the site's to read: ``Asked.body`` has them.
        """
        forwarded = read_value(self.forwarded_props, Any, "$.forwardedProps")
        body = dict(forwarded) if isinstance(forwarded, Mapping) else {}
        for name in ("message", "messages"):
            body.pop(name, None)
        beside = {"context": self.context, "state": self.state}
        body |= {name: value for name, value in beside.items() if bytes(value) not in {b"null", b"[]", b"{}"}}
        return msgspec.json.encode(
            {"trigger": "submit-message", **body, "id": self.thread_id, "messages": self._messages()}
        )

    def _messages(self) -> list[dict[str, Any]]:
        """Return the newest messages, as many as are looked at: an answer with its calls' results, then the ids."""
        posted = read_value(self.messages, list[msgspec.Raw], "$.messages", RAW_BYTES) if self.messages != NULL else []
        resume = [] if self.resume == NULL else read_value(self.resume, list[ResumeEntry], "$.resume")
        decided = [entry.as_part(f"$.resume[{index}]") for index, entry in enumerate(resume)]
        found: list[dict[str, Any]] = []
        for index in range(len(posted) - 1, -1, -1):
            message = read_value(posted[index], _Message, f"$.messages[{index}]")
            if message.role == "user":
                if len(found) > MAX_SHOWN:
                    break
                found.append({"id": message.id, "role": "user"})
                if len(found) == 1:
                    found[0]["parts"] = _parts(message.content, f"$.messages[{index}].content")
            elif message.role in {"assistant", "reasoning", "tool"}:
                if not found or found[-1]["role"] == "user":
                    found.append({"id": "", "role": "assistant", "parts": []})
                if message.role == "tool" and len(found) == 1:
                    found[0]["parts"].append(_result(message, f"$.messages[{index}].content"))
                elif message.role != "tool":
                    found[-1]["id"] = message.id.partition(PART)[0]
        found.reverse()
        if decided:
            if not found or found[-1]["role"] == "user":
                found.append({"id": "", "role": "assistant", "parts": []})
            found[-1]["parts"] += decided
        return found


def shown_call_id(answer: str, id: str, times: int) -> str:
    """
    Return the id of a call for clients, who need one of its own: models give some again, in each of their answers.

    *times* is how often the *answer* has had the *id*, this call included.
    """
    return f"{answer}{PART}{id}" if times == 1 else f"{answer}{PART}{times}{PART}{id}"


def _result(message: _Message, path: str) -> dict[str, Any]:
    """Return the part of an answer by which the AI SDK's clients send what a call has returned in the page."""
    named = _CALL.fullmatch(message.tool_call_id)
    call = named[1] if named else message.tool_call_id
    if message.error is not None:
        return {"toolCallId": call, "state": "output-error", "errorText": message.error}
    content: Any = read_value(message.content, _CONTENT, path)
    if not isinstance(content, str):
        content = "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")
    return {"toolCallId": call, "state": "output-available", "output": content}


def _parts(content: msgspec.Raw, path: str) -> list[dict[str, Any]]:
    """Return the parts of the user's message whose *content* is a text, or parts of AG-UI."""
    found: Any = read_value(content, _CONTENT, path)
    if isinstance(found, str):
        return [{"type": "text", "text": found}]
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(found)]


def _part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": part.get("text")}
    if not isinstance(kind, str) or kind not in MEDIA_TYPES:
        raise ValueError(f"{path}.type: it must be 'text' or one of {', '.join(map(repr, MEDIA_TYPES))}.")
    match part.get("source"):
        case {"type": "data", "value": str() as value, "mimeType": str() as media_type}:
            return {"type": "file", "mediaType": media_type, "url": f"data:{media_type};base64,{value}"}
        case {"type": "url", "value": str() as value, **others}:
            return {"type": "file", "mediaType": others.get("mimeType") or MEDIA_TYPES[kind], "url": value}
    raise ValueError(f"{path}.source: it must be 'data' with a value and a mimeType, or 'url' with a value.")
