"""
A session of the OpenAI Agents SDK in the site's database, tools for a user's earlier conversations, and the records of
what calls of models used.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from chatmemory_django.chat.model import TokenUsage
from chatmemory_django.contrib.adapters.histories import History
from chatmemory_django.db.threads import to_its_end
from chatmemory_django.formats.openai_items import OPENAI_ITEMS, item_to_message
from chatmemory_django.messages import ChatMessage
from chatmemory_django.operations.recall import Recall

try:
    from agents import (
        FunctionTool,
        Model,
        ModelBehaviorError,
        ModelProvider,
        MultiProvider,
        RunContextWrapper,
        default_tool_error_function,
        function_tool,
    )
    from agents.memory import SessionABC, SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ModuleNotFoundError as exc:
    raise ImportError("DjangoSession requires openai-agents: pip install 'chatmemory_django[openai-agents]'.") from exc

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet

    from chatmemory_django.chat.costs.calls import CallRecorder
    from chatmemory_django.models import Conversation

logger = logging.getLogger(__name__)


class DjangoSession(SessionABC):
    """
    The conversation *session_id*, for ``Runner.run(agent, …, session=…)``.

    Items are returned as they were given, in order, and each is also a message of the conversation: the admin, the REST
    API, searches and memories show the messages of an agent, and the agent gets the messages that were added elsewhere.
    With an *owner*, a new conversation belongs to that user, and conversations of other users are inaccessible: writing
    raises ``PermissionDenied``, reading returns no items. Always pass an owner if *session_id* comes from a request.

    Creating an instance reads nothing. After ``clear_session``, the session is empty; its items stay in the database,
    on an unused branch, until the conversation is erased.
    """

    session_settings: SessionSettings

    def __init__(
        self,
        session_id: str,
        *,
        owner: AbstractBaseUser | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = coerce_session_settings({} if session_settings is None else session_settings)
        self._history = History(session_id, OPENAI_ITEMS, owner)
        self._run = self._history.memory.store.run

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items, or the last *limit* of them; without one, the limit in the session settings applies."""
        limit = resolve_session_limit(limit, self.session_settings)
        return cast("list[TResponseInputItem]", await self._run(self._history.read, limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add *items*, all or none; raise ``TypeError`` or ``ValueError`` if one of them cannot be stored."""
        await to_its_end(self._run(self._history.add, items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None if there is none."""
        return cast("TResponseInputItem | None", await to_its_end(self._run(self._history.pop)))

    async def clear_session(self) -> None:
        """Start again without items."""
        await to_its_end(self._run(self._history.clear))


def recall_tools(
    owner: AbstractBaseUser | AnonymousUser | None,
    *,
    memory_id: object = None,
    conversations: QuerySet[Conversation] | None = None,
) -> list[FunctionTool]:
    """
    Return the tools ``search_conversations`` and ``read_conversation``, for ``agent.clone(tools=[…])``.

    They find what *owner* and assistants wrote in the owner's conversations, except in the present one: *memory_id*,
    the id of the session. With *conversations*, only these are searched and read, and of them only the owner's.
    """
    recall = Recall(owner, memory_id=memory_id, conversations=conversations)
    functions: dict[str, Callable[..., Any]] = {
        "search_conversations": recall.asearch_conversations,
        "read_conversation": recall.aread_conversation,
    }
    return [
        function_tool(function, name_override=name, failure_error_function=_failed)
        for name, function in functions.items()
    ]


class AgentsCalls(ModelProvider):
    """
    Records each call of a model as by ``record_call``: ``RunConfig(model_provider=AgentsCalls(…))``.

    It gets the models that agents name from *provider*, by default the SDK's own. An agent that has a model's object
    does not ask a provider: give it ``calls.recorded(model)``.
    """

    def __init__(
        self,
        purpose: str = "answer",
        *,
        owner: AbstractBaseUser | None = None,
        memory_id: object = None,
        labels: Mapping[str, str] | None = None,
        provider: ModelProvider | None = None,
    ) -> None:
        from chatmemory_django.chat.costs.calls import record_call  # its tables are the chat's

        self._recorder = partial(record_call, purpose, owner=owner, memory_id=memory_id, labels=labels)
        self._recorder()  # an invalid purpose is an error at once
        self._provider = provider or MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        """Return the model with this name, which records its calls."""
        return self.recorded(self._provider.get_model(model_name))

    def recorded(self, model: Model) -> Model:
        """Return *model*, which records its calls."""
        return _RecordedModel(model, self._recorder)

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()


class _RecordedModel(Model):
    """The SDK has hooks for the beginning of a call and for its answer, but none for a failure."""

    def __init__(self, model: Model, recorder: Callable[[str], CallRecorder]) -> None:
        self._model = model
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _call(self, *args: Any, **kwargs: Any) -> CallRecorder:
        call = self._recorder(str(getattr(self._model, "model", "")))
        call.sends(_parts(*args, **kwargs))
        return call

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        async with self._call(*args, **kwargs) as call:
            response = await self._model.get_response(*args, **kwargs)
            call.used(_token_usage(response.usage))
        return response

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        events: Any = self._model.stream_response(*args, **kwargs)
        async with self._call(*args, **kwargs) as call, aclosing(events):
            async for event in events:
                if event.type in {"response.completed", "response.incomplete"}:
                    call.used(_token_usage(event.response.usage))
                elif isinstance(piece := getattr(event, "delta", None), str):
                    call.arrived(piece)
                yield event

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._model._cleanup_on_run_end(owner)


def _parts(
    system_instructions: str | None, input: Any, model_settings: Any, tools: Any, *args: Any, **kwargs: Any
) -> Iterator[ChatMessage | str]:
    """Yield what is sent, by the arguments of a ``Model``."""
    from chatmemory_django.chat.costs.estimates import specification

    yield system_instructions or ""
    yield from [input] if isinstance(input, str) else map(item_to_message, input)
    for tool in tools:
        yield specification(tool.name, getattr(tool, "description", ""), getattr(tool, "params_json_schema", {}))


def _token_usage(usage: Any) -> TokenUsage:
    """Return what *usage*, the SDK's or that of a response, reports."""
    if usage is None or not (usage.input_tokens or usage.output_tokens):
        return TokenUsage()
    return TokenUsage(
        usage.input_tokens,
        usage.output_tokens,
        usage.total_tokens,
        cached_input=usage.input_tokens_details.cached_tokens or None,
        reasoning=usage.output_tokens_details.reasoning_tokens or None,
        cache_write=getattr(usage.input_tokens_details, "cache_write_tokens", None) or None,
    )


def _failed(context: RunContextWrapper[Any], error: Exception) -> str:
    """Return what the model reads of an *error*: the SDK's text about invalid arguments, or the name of the class."""
    if isinstance(error, ModelBehaviorError):
        return default_tool_error_function(context, error)
    logger.error("A tool of recall failed.", exc_info=error)
    return f"The tool failed: {type(error).__name__}."
