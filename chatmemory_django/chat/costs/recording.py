"""A chat model whose calls are recorded: for summaries, titles, and a site's own code."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, closing
from typing import TYPE_CHECKING

from chatmemory_django.chat.costs.calls import CallRecorder, record_call
from chatmemory_django.chat.costs.estimates import parts_of
from chatmemory_django.chat.model import ChatEvent, ChatModel, ChatRequest, ChatResponse
from chatmemory_django.chat.outgoing.rules import Rules
from chatmemory_django.messages import AiMessage

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class RecordedChatModel(ChatModel):
    """
    *model*, whose calls are recorded with their *purpose*; see ``record_call`` for *owner*, *memory_id* and *labels*.

    An ``Assistant`` records the calls of its model by itself: do not pass it this one.
    """

    def __init__(
        self,
        model: ChatModel,
        purpose: str,
        *,
        owner: AbstractBaseUser | None = None,
        memory_id: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.purpose = purpose
        self.owner = owner
        self.memory_id = memory_id
        self.labels = labels
        self._record(None)  # an invalid purpose is an error at once

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        with self._recorder(request) as call:
            response = self.model.do_chat(request)
            call.note(response)
        return response

    async def do_achat(self, request: ChatRequest) -> ChatResponse:
        async with self._recorder(request) as call:
            response = await self.model.do_achat(request)
            call.note(response)
        return response

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        with self._recorder(request) as call, closing(self.model.do_stream(request)) as events:
            for event in events:
                call.note(event)
                yield event

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        async with self._recorder(request) as call, aclosing(self.model.do_astream(request)) as events:
            async for event in events:
                call.note(event)
                yield event

    @property
    def rules(self) -> Rules | None:
        return self.model.rules

    def returns_thinking(self, message: AiMessage) -> bool:
        return self.model.returns_thinking(message)

    def _recorder(self, request: ChatRequest) -> CallRecorder:
        recorder = self._record(request.model_name)
        recorder.sends(parts_of(request))
        return recorder

    def _record(self, model_name: str | None) -> CallRecorder:
        name = model_name or str(getattr(self.model, "model_name", "") or "")
        return record_call(self.purpose, name, owner=self.owner, memory_id=self.memory_id, labels=self.labels)
