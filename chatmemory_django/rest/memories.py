"""The memory of a conversation: what the LLM would be sent, and why."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.explain import Reading, read, read_recent
from chatmemory_django.memory import ChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.provider import build_chat_memory, configuration, get_chat_memory, with_limit
from chatmemory_django.rest.base import ChatMemoryView, etag, page_size
from chatmemory_django.rest.formats import messages_in, to_form
from chatmemory_django.rest.problems import bad_request
from chatmemory_django.rest.schema import describe
from chatmemory_django.rest.shapes import (
    Explained,
    Format,
    FormatQuery,
    MemoryQuery,
    MemoryView,
    NewMemory,
    NoQuery,
    stored,
)
from chatmemory_django.rest.wire import body, query
from chatmemory_django.stores.django import DjangoChatMemoryStore


class Memory(ChatMemoryView):
    """The memory of a conversation."""

    @describe("read_memory", query=MemoryQuery, answer=MemoryView, etag=True)
    def get(self, request: Request, memory_id: str) -> Response:
        """Tell what the LLM would be sent now, through the memory's own window or another; nothing is written."""
        asked = query(request, MemoryQuery)
        conversation = self.conversation(memory_id)
        memory = _seen_through(conversation, asked)
        readings = read_recent(conversation, memory, page_size(None)) if asked.explain else read(conversation, memory)
        view = _view(readings, memory, asked.format)
        if asked.explain:
            view.explanation = [
                Explained(
                    reading.row.sequence,
                    reading.row.type,  # type: ignore[arg-type]  # a column of its values
                    reading.sent is not None,
                    reading.reason,
                    reading.tokens,
                )
                for reading in readings
            ]
        return Response(view, headers={"ETag": etag(conversation)})

    @describe("set_memory", query=FormatQuery, body=NewMemory, answer=MemoryView, etag=True, match=True)
    def put(self, request: Request, memory_id: str) -> Response:
        """Make messages, as far as they fit, the whole memory: a summary, for example. The history stays as it is."""
        asked = query(request, FormatQuery)
        messages = messages_in(body(request, NewMemory).messages)
        with self.changing(memory_id) as conversation:
            memory = get_chat_memory(conversation.memory_id)
            memory.set(messages)
            conversation.refresh_from_db()
            view = _view(read(conversation, memory), memory, asked.format)
        return Response(view, headers={"ETag": etag(conversation)})

    @describe("clear_memory", status=HTTPStatus.NO_CONTENT, match=True)
    def delete(self, request: Request, memory_id: str) -> Response:
        """Forget everything: the memory is empty then, the history stays."""
        query(request, NoQuery)
        with self.changing(memory_id) as conversation:
            get_chat_memory(conversation.memory_id).clear()
        return Response(status=HTTPStatus.NO_CONTENT)


def _seen_through(conversation: Conversation, asked: MemoryQuery) -> ChatMemory:
    if asked.max_messages is not None and asked.max_tokens is not None:
        raise bad_request("?max_tokens", "Give max_messages or max_tokens, not both.")
    key = conversation.memory_id
    try:
        wanted = with_limit(configuration(key), max_messages=asked.max_messages, max_tokens=asked.max_tokens)
    except ValueError as exc:
        raise bad_request("?max_tokens", str(exc)) from None
    return build_chat_memory(wanted, key, DjangoChatMemoryStore())


def _view(readings: list[Reading], memory: ChatMemory, form: Format) -> MemoryView:
    window = memory.window()
    sent = [(reading, reading.sent) for reading in readings if reading.sent is not None]
    messages: list[dict[str, Any]]
    if form == "openai":
        messages = to_form([message for _, message in sent])
    else:
        messages = [
            stored(reading.row, message, in_memory=True, token_count=reading.tokens) for reading, message in sent
        ]
    return MemoryView(messages, window.limit, "messages" if window.estimator is None else "tokens")
