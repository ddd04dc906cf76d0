"""A capability that records the calls of an agent's models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from chatmemory_django.chat.pydantic_ai.answers import count_last_usage, token_usage
from chatmemory_django.formats.pydantic_ai import to_messages
from chatmemory_django.messages import ChatMessage

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

    from chatmemory_django.chat.costs.calls import CallRecorder


class PydanticAiCalls(AbstractCapability[Any]):
    """
    Records each call of an agent's models, streams included, as by ``record_call``: ``Agent(…, capabilities=[…])``.

    It can also be given to one run, ``agent.run(…, capabilities=[…])``, for example with its *owner* and *memory_id*.
    """

    def __init__(
        self,
        purpose: str = "answer",
        *,
        owner: AbstractBaseUser | None = None,
        memory_id: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.purpose = purpose
        self.owner = owner
        self.memory_id = memory_id
        self.labels = labels
        self.recorder("")  # an invalid purpose is an error at once

    def get_wrapper_model(self, model: Model) -> Model:
        """Return *model*, which records its calls."""
        return _Recorded(model, self)

    def recorder(self, model_name: str) -> CallRecorder:
        """Return what records a call of *model_name*."""
        from chatmemory_django.chat.costs.calls import record_call  # its tables are the chat's

        about: Any = {"owner": self.owner, "memory_id": self.memory_id, "labels": self.labels}
        return record_call(self.purpose, model_name, **about)


class _Recorded(WrapperModel):
    def __init__(self, wrapped: Model, calls: PydanticAiCalls) -> None:
        super().__init__(wrapped)
        self._calls = calls

    async def request(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ModelResponse:
        async with self._call(messages, parameters) as call:
            response = await self.wrapped.request(messages, settings, parameters)
            call.used(token_usage(response.usage), response.model_name)
        return response

    @asynccontextmanager
    async def request_stream(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:  # fmt: skip
        async with self._call(messages, parameters) as call:
            async with self.wrapped.request_stream(messages, settings, parameters, run_context) as stream:
                count_last_usage(stream)
                try:
                    yield stream
                finally:
                    call.arrived("".join(map(_written, stream.get().parts)))
            response = stream.get()
            if response.state in {"incomplete", "interrupted"}:
                call.stop()
            else:
                call.used(token_usage(response.usage), response.model_name)

    def _call(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> CallRecorder:
        call = self._calls.recorder(self.wrapped.model_name)
        call.sends(_parts(messages, parameters))
        return call


def _parts(messages: list[ModelMessage], parameters: ModelRequestParameters) -> Iterator[ChatMessage | str]:
    """Yield what is sent."""
    from chatmemory_django.chat.costs.estimates import specification

    for item in ModelMessagesTypeAdapter.dump_python(messages, mode="json", warnings=False):
        yield from to_messages(item)
    yield next((each.instructions or "" for each in reversed(messages) if isinstance(each, ModelRequest)), "")
    for tool in parameters.function_tools:
        yield specification(tool.name, tool.description, tool.parameters_json_schema)


def _written(part: ModelResponsePart) -> str:
    match part:
        case TextPart() | ThinkingPart():
            return part.content
        case ToolCallPart():
            return part.tool_name + part.args_as_json_str()
        case _:
            return ""
