"""The messages of a conversation as AG-UI's clients have them, with the ids that the streams of their answers had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from chatmemory_django.chat.ui_messages.writing import WAITS_FOR_OTHERS
from chatmemory_django.contrib.ag_ui.events import Event, as_text, denied, interrupt, result_id
from chatmemory_django.contrib.ag_ui.inputs import PART, shown_call_id


class MessagesSnapshot(NamedTuple):
    """The messages, and what the calls of the last answer wait for."""

    messages: list[dict[str, Any]]
    interrupts: list[Event]
    pending: list[str]
    """The calls that the client runs."""

    @classmethod
    def of(cls, ui_messages: Iterable[Mapping[str, Any]]) -> MessagesSnapshot:
        """Return *ui_messages*, oldest first, as AG-UI has them."""
        snapshot = cls([], [], [])
        for message in ui_messages:
            snapshot.interrupts.clear()
            snapshot.pending.clear()
            if message["role"] == "user":
                snapshot.messages.append({"id": message["id"], "role": "user", "content": _content(message["parts"])})
            else:
                snapshot._add_answer(message)
        return snapshot

    def _add_answer(self, answer: Mapping[str, Any]) -> None:
        others = (answer.get("metadata") or {}).get(WAITS_FOR_OTHERS, ())
        step, holder, times = 0, dict[str, Any](), Counter[str]()
        for part in answer["parts"]:
            kind = part["type"]
            if kind == "step-start":
                step, holder = step + 1, {}
            elif kind == "reasoning":
                thought = {"id": f"{answer['id']}{PART}reasoning-{step}", "role": "reasoning", "content": part["text"]}
                self.messages.append(thought)
            elif kind == "text":
                holder = {"id": f"{answer['id']}{PART}text-{step}", "role": "assistant", "content": part["text"]}
                self.messages.append(holder)
            elif kind.startswith("tool-"):
                times[part["toolCallId"]] += 1
                call = shown_call_id(answer["id"], part["toolCallId"], times[part["toolCallId"]])
                if not holder:
                    holder = {"id": call, "role": "assistant"}
                    self.messages.append(holder)
                self._add_call(call, part, holder, is_others=part["toolCallId"] in others)

    def _add_call(self, id: str, part: Mapping[str, Any], holder: dict[str, Any], *, is_others: bool) -> None:
        tool = part["type"].removeprefix("tool-")
        function = {"name": tool, "arguments": as_text(part["input"])}
        holder.setdefault("toolCalls", []).append({"id": id, "type": "function", "function": function})
        result = {"id": result_id(id), "role": "tool", "toolCallId": id}
        match part["state"]:
            case "output-available":
                self.messages.append({**result, "content": as_text(part["output"])})
            case "output-error":
                self.messages.append({**result, "content": part["errorText"], "error": part["errorText"]})
            case "output-denied":
                self.messages.append({**result, "content": denied()})
            case "approval-requested" if not is_others:
                self.interrupts.append(interrupt(part["approval"]["id"], id, tool))
            case "input-available":
                self.pending.append(id)


def _content(parts: Iterable[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of the user's message with these *parts*: its text, if that is all."""
    found = [_part(part) for part in parts if part["type"] in {"text", "file"}]
    return found[0]["text"] if [part["type"] for part in found] == ["text"] else found


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    media_type, url = part["mediaType"], part["url"]
    kind = media_type.partition("/")[0]
    head, found, data = url.partition(";base64,")
    source = {"type": "url", "value": url, "mimeType": media_type}
    if found and head.startswith("data:"):
        source = {"type": "data", "value": data, "mimeType": media_type}
    return {"type": kind if kind in {"image", "audio", "video"} else "document", "source": source}
