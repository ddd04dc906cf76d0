"""A chat message history of LangChain in the site's database, and the records of what calls of models used."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from chatmemory_django.chat.model import TokenUsage
from chatmemory_django.contrib.adapters.histories import History
from chatmemory_django.db.threads import leaving_no_connection, to_its_end
from chatmemory_django.formats.langchain import LANGCHAIN, item_to_message
from chatmemory_django.messages import ChatMessage

try:
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
    from langchain_core.outputs import LLMResult
except ModuleNotFoundError as exc:
    raise ImportError(
        "DjangoChatMessageHistory requires langchain-core: pip install 'chatmemory_django[langchain]'."
    ) from exc

if TYPE_CHECKING:
    from uuid import UUID

    from django.contrib.auth.base_user import AbstractBaseUser

    from chatmemory_django.chat.costs.calls import CallRecorder


class DjangoChatMessageHistory(BaseChatMessageHistory):
    """
    The conversation *session_id*, for ``RunnableWithMessageHistory`` and anything else that takes a history.

    Messages are returned as they were given, in order, and each is also a message of the conversation: the admin, the
    REST API, searches and memories show the messages of a chain, and the chain gets the messages that were added
    elsewhere. With an *owner*, a new conversation belongs to that user, and conversations of other users are
    inaccessible: writing raises ``PermissionDenied``, reading returns no messages. Always pass an owner if *session_id*
    comes from a request.

    Creating an instance reads nothing. After ``clear``, the history is empty; its messages stay in the database, on an
    unused branch, until the conversation is erased.
    """

    def __init__(self, session_id: str, *, owner: AbstractBaseUser | None = None) -> None:
        super().__init__()
        self.session_id = session_id
        self._history = History(session_id, LANGCHAIN, owner)
        self._run = self._history.memory.store.run
        self._thread = threading.get_ident()

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # the base class has an attribute
        """All messages, oldest first; a new list on each access."""
        with self._in_this_thread():
            return messages_from_dict(self._history.read())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add *messages*, all or none; raise ``TypeError`` or ``ValueError`` if one of them cannot be stored."""
        with self._in_this_thread():
            self._add(messages)

    def clear(self) -> None:
        """Start again without messages."""
        with self._in_this_thread():
            self._history.clear()

    async def aget_messages(self) -> list[BaseMessage]:
        """Return what ``messages`` contains."""
        return messages_from_dict(await self._run(self._history.read))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Do what ``add_messages`` does."""
        await to_its_end(self._run(self._add, messages))

    async def aclear(self) -> None:
        """Do what ``clear`` does."""
        await to_its_end(self._run(self._history.clear))

    def _add(self, messages: Sequence[BaseMessage]) -> None:
        self._history.add([_to_item(message, index) for index, message in enumerate(messages)], "messages")

    def _in_this_thread(self) -> AbstractContextManager[None]:
        """Return a context manager for work in any thread: LangChain's thread pools must not keep connections."""
        return nullcontext() if threading.get_ident() == self._thread else leaving_no_connection()


class LangChainCalls(BaseCallbackHandler):
    """
    Records each call of a model as by ``record_call``: ``chain.invoke(…, config={"callbacks": [LangChainCalls(…)]})``.

    A handler serves any number of runs, also at once. What LangChain's cache answers is no call.
    """

    def __init__(
        self,
        purpose: str = "answer",
        *,
        owner: AbstractBaseUser | None = None,
        memory_id: object = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        from chatmemory_django.chat.costs.calls import record_call  # its tables are the chat's

        self._recorder = partial(record_call, purpose, owner=owner, memory_id=memory_id, labels=labels)
        self._recorder()  # an invalid purpose is an error at once: LangChain only logs what a callback raises
        self._open: dict[UUID, tuple[UUID | None, CallRecorder]] = {}

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Note that the call of a chat model begins."""
        self.on_llm_start(*args, **kwargs)

    def on_llm_start(
        self,
        serialized: Any,
        prompts: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note that the call of a model begins."""
        call = self._recorder(str((metadata or {}).get("ls_model_name") or ""))
        call.sends(_parts(prompts, (kwargs.get("invocation_params") or {}).get("tools")))
        self._open[run_id] = (parent_run_id, call)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        """Note a piece of an answer."""
        _, call = self._open.get(run_id, (None, None))
        if call is not None:
            calls = getattr(getattr(chunk, "message", None), "tool_call_chunks", None) or ()
            pieces = [token, *(each.get("args") for each in calls)]
            call.arrived("".join(piece for piece in pieces if isinstance(piece, str)))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Record a call that has ended."""
        _, call = self._open.pop(run_id, (None, None))
        generation: Any = next((each for row in response.generations for each in row), None)
        message = getattr(generation, "message", None)
        usage = getattr(message, "usage_metadata", None) or {}
        if call is None or usage.get("total_cost") == 0:  # which LangChain writes into what its cache has
            return
        model = (getattr(message, "response_metadata", None) or response.llm_output or {}).get("model_name")
        call.used(_token_usage(usage), model)
        call.end()

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record a call that has failed, or was cancelled."""
        _, call = self._open.pop(run_id, (None, None))
        if call is not None:
            call.end(error)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the calls of a chain that was cancelled while it awaited them: LangChain does not tell their end."""
        for key in [key for key, (parent, _) in self._open.items() if parent == run_id]:
            self.on_llm_error(error, run_id=key)


def _parts(prompts: Iterable[Any], tools: object) -> Iterator[ChatMessage | str]:
    """Yield what is sent: *prompts* are texts, or lists of messages."""
    for prompt in prompts:
        if isinstance(prompt, str):
            yield prompt
        else:
            yield from (item_to_message(message_to_dict(message)) for message in prompt)
    if tools:
        yield json.dumps(tools, default=str)


def _token_usage(usage: Mapping[str, Any]) -> TokenUsage:
    """Return what *usage*, a ``UsageMetadata``, reports."""
    inputs, outputs = usage.get("input_token_details") or {}, usage.get("output_token_details") or {}
    hour = inputs.get("ephemeral_1h_input_tokens")
    # langchain-anthropic gives either what was written, or that by how long it is kept.
    written = (inputs.get("ephemeral_5m_input_tokens") or 0) + (hour or 0) or inputs.get("cache_creation")
    return TokenUsage(
        usage.get("input_tokens"),
        usage.get("output_tokens"),
        usage.get("total_tokens"),
        cached_input=inputs.get("cache_read"),
        reasoning=outputs.get("reasoning"),
        cache_write=written,
        cache_write_1h=hour,
    )


def _to_item(message: object, index: int) -> dict[str, Any]:
    """Return the JSON of *message*; raise ``TypeError`` if an equal message cannot be created from it."""
    if not isinstance(message, BaseMessage):
        raise TypeError(f"messages[{index}] must be a BaseMessage, not {type(message).__name__}.")
    item = message_to_dict(message)
    with suppress(RecursionError, TypeError, ValueError):
        if messages_from_dict([_through_json(item)]) == [message]:
            return item
    for name, value in message:
        with suppress(RecursionError, TypeError, ValueError):
            if _through_json(value) == value:
                continue
        raise TypeError(f"messages[{index}].{name}, of type {type(value).__name__}, must contain only plain JSON.")
    raise TypeError(
        f"messages[{index}] is a {type(message).__name__}; only LangChain's own message classes can be stored."
    )


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
