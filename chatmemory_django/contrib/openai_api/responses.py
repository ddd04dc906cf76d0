"""Responses: what clients are sent, whole or as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from chatmemory_django.chat.answers.ui_steps import Chunk
from chatmemory_django.chat.answers.ui_stream import decoded, encode
from chatmemory_django.chat.http.rewriting import rewritten
from chatmemory_django.chat.wishes import NONE, Wishes
from chatmemory_django.contrib.openai_api.chunks import AnswerSoFar, OpenCall

SERVER = "site"
"""What the calls of the site's own tools name as their server."""

APPROVAL = "mcpr_"
"""What the ids of requests for an approval begin with."""

REASONS = {"length": "max_output_tokens", "content-filter": "content_filter"}
"""OpenAI's reasons why a response is not complete, by the AI SDK's."""

LAST = frozenset(f"response.{status}" for status in ("completed", "incomplete", "failed"))
"""The types of the event that ends a response."""

Item = dict[str, Any]
Event = dict[str, Any]


class ResponseEvents:
    """
    The events of the response *id* by the assistant *model*, made of the chunks of an answer.

    Each part of the answer is an item. Calls of tools come at the end: only then is it known which of them are for the
    client, or wait for an approval. Those that the site has run are not shown. *others* are more of its fields.
    """

    def __init__(
        self,
        id: str,
        model: str,
        *,
        wishes: Wishes = NONE,
        created_at: float | None = None,
        **others: Any,
    ) -> None:
        self._key = id.partition("_")[2]
        self._head = {
            **_blank(wishes),
            **others,
            "id": id,
            "model": model,
            "created_at": int(time.time() if created_at is None else created_at),
        }
        self._shown = AnswerSoFar()
        self._output: list[Item] = []
        self._open: list[str] = []
        """The text of the item that is open, in pieces."""
        self._number = 0
        self._status = "in_progress"
        self._is_item_open = False

    def written(self, pieces: AsyncGenerator[str, None], after: int = -1) -> AsyncGenerator[str, None]:
        """
        Yield *pieces* of the AI SDK's stream as this protocol has them: the events *after* this number, and the last.

        That one has the whole response: once the pieces are others than a client has had, their numbers are, too.
        """

        def events_of(chunk: Chunk) -> list[Event]:
            return [event for event in self.of(chunk) if event["sequence_number"] > after or event["type"] in LAST]

        return rewritten(pieces, events_of, lambda event: f"event: {event['type']}\n{encode(event)}")

    def of(self, chunk: Chunk) -> list[Event]:
        """Return the events that have the same meaning as *chunk*."""
        if self._status != "in_progress":
            return []
        if (delta := chunk.get("delta")) is not None:  # most chunks are these
            self._open.append(delta)
            return [self._part_event("delta", delta=delta)]
        self._shown.note(chunk)
        if self._shown.error:
            return self._end("failed")
        match chunk["type"]:
            case "start" if not self._number:
                kinds = ("response.created", "response.in_progress")
                return [self._event(kind, response=self.response()) for kind in kinds]
            case "text-start" | "reasoning-start":
                return self._begin_item(chunk["type"].removesuffix("-start"))
            case "text-end" | "reasoning-end":
                return self._end_item()
            case "finish":
                reason = REASONS.get(str(self._shown.metadata.get("finishReason")))
                return self._end("incomplete" if reason else "completed", reason)
            case "abort":
                return self._end("incomplete")
        return []

    def whole(self, stream: str) -> dict[str, Any]:
        """Return the response for a whole *stream* of the AI SDK."""
        for chunk in decoded(stream):
            self.of(chunk)
        return self.response()

    def response(self, status: str | None = None) -> dict[str, Any]:
        """Return the response as it is now, or with this *status*."""
        sent, written = self._shown.tokens()
        has_ended = self._status != "in_progress"
        usage = {
            "input_tokens": sent,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sent + written,
        }
        return {
            **self._head,
            "status": status or self._status,
            "output": list(self._output) if has_ended else [],
            "usage": usage if has_ended else None,
        }

    def _begin_item(self, kind: str) -> list[Event]:
        events = self._end_item()
        self._is_item_open, self._open = True, []
        item: Item = {"id": self._item_id("rs"), "type": "reasoning", "summary": []}
        if kind == "text":
            message = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
            item = {"id": self._item_id("msg"), **message}
        self._output.append(item)
        return [*events, self._added(item), self._part_event("part.added", part=self._part(""))]

    def _end_item(self) -> list[Event]:
        if not self._is_item_open:
            return []
        self._is_item_open = False
        item, text = self._output[-1], "".join(self._open)
        part = self._part(text)
        events = [self._part_event("done", text=text), self._part_event("part.done", part=part)]
        item |= {"summary": [part]} if item["type"] == "reasoning" else {"status": "completed", "content": [part]}
        return [*events, self._done(item)]

    def _end(self, status: str, reason: str | None = None) -> list[Event]:
        events = self._end_item()
        if status == "failed":
            self._head["error"] = {"code": "server_error", "message": self._shown.error}
        else:
            events += [event for call in self._shown.for_client for event in self._call(call)]
            events += [event for call in self._shown.for_approval for event in self._approval(call)]
        if reason:
            self._head["incomplete_details"] = {"reason": reason}
        self._status = status
        return [*events, self._event(f"response.{status}", response=self.response())]

    def _call(self, call: OpenCall) -> list[Event]:
        item = {"id": self._item_id("fc"), "type": "function_call", "call_id": call.id, "name": call.name}
        begun = {**item, "arguments": "", "status": "in_progress"}
        self._output.append({**item, "arguments": call.arguments, "status": "completed"})
        where, kind = self._where(), "response.function_call_arguments"
        return [
            self._added(begun),
            self._event(f"{kind}.delta", delta=call.arguments, **where),
            self._event(f"{kind}.done", arguments=call.arguments, **where),
            self._done(self._output[-1]),
        ]

    def _approval(self, call: OpenCall) -> list[Event]:
        named = {"id": f"{APPROVAL}{call.approval.replace('-', '')}", "type": "mcp_approval_request"}
        item = {**named, "name": call.name, "arguments": call.arguments, "server_label": SERVER}
        self._output.append(item)
        return [self._added(item), self._done(item)]

    def _part(self, text: str) -> dict[str, Any]:
        if self._output[-1]["type"] == "reasoning":
            return {"type": "summary_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _part_event(self, what: str, **fields: Any) -> Event:
        """Return the event of the part of the open item: *what* has come of it."""
        is_part, where = what.startswith("part."), self._where()
        if self._output[-1]["type"] == "reasoning":
            name = f"reasoning_summary_{what}" if is_part else f"reasoning_summary_text.{what}"
            return self._event(f"response.{name}", **where, summary_index=0, **fields)
        fields |= {} if is_part else {"logprobs": []}
        name = f"content_{what}" if is_part else f"output_text.{what}"
        return self._event(f"response.{name}", **where, content_index=0, **fields)

    def _where(self) -> dict[str, Any]:
        return {"output_index": len(self._output) - 1, "item_id": self._output[-1]["id"]}

    def _added(self, item: Item) -> Event:
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=dict(item))

    def _done(self, item: Item) -> Event:
        return self._event("response.output_item.done", output_index=len(self._output) - 1, item=dict(item))

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._key}_{len(self._output)}"

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _blank(wishes: Wishes) -> dict[str, Any]:
    """Return the fields of each response, of one for which a client has *wishes*."""
    choice: Any = wishes.tool_choice or "auto"
    if choice not in {"auto", "required"}:
        choice = {"type": "function", "name": choice}
    form: dict[str, Any] = {"type": "text"}
    if (wanted := wishes.response_format) is not None:
        schema = {"type": "json_schema", "name": wanted.name, "schema": wanted.schema, "strict": True}
        form = {"type": "json_object"} if wanted.schema is None else schema
    return {
        "object": "response",
        "background": False,
        "conversation": None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": None,
        "text": {"format": form},
        "tool_choice": choice,
        "tools": [_declared(tool) for tool in wishes.tools],
        "top_p": None,
        "truncation": "disabled",
        "user": None,
    }


def fields_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a response has in common with the *body* of its request, as a run keeps that."""
    pairs = body.get("metadata") or {}
    return {
        "metadata": {key: value for key, value in pairs.items() if isinstance(value, str)},
        "background": bool(body.get("background")),
    }


def _declared(tool: Any) -> dict[str, Any]:
    known = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", **known, "strict": False}


def chunks_of(messages: Sequence[Any], metadata: Mapping[str, Any]) -> list[Chunk]:
    """Return the chunks of a stored answer, of texts and what a model has thought, that ends with *metadata*."""
    chunks: list[Chunk] = [{"type": "start"}]
    for message in messages:
        for kind, text in (("reasoning", message.thinking), ("text", message.text)):
            if text:
                chunks += [{"type": f"{kind}-start"}, {"type": f"{kind}-delta", "delta": text}, {"type": f"{kind}-end"}]
    return [*chunks, {"type": "finish", "messageMetadata": dict(metadata)}]
