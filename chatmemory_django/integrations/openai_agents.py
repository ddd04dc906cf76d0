"""A session of the OpenAI Agents SDK in the site's database, and tools for a user's earlier conversations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from chatmemory_django.db.threads import to_its_end
from chatmemory_django.formats.openai_items import OPENAI_ITEMS
from chatmemory_django.integrations.histories import History
from chatmemory_django.operations.recall import Recall

try:
    from agents import FunctionTool, ModelBehaviorError, RunContextWrapper, default_tool_error_function, function_tool
    from agents.memory import SessionABC, SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ModuleNotFoundError as exc:
    raise ImportError("DjangoSession requires openai-agents: pip install 'chatmemory_django[openai-agents]'.") from exc

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from django.contrib.auth.base_user import AbstractBaseUser
    from django.contrib.auth.models import AnonymousUser
    from django.db.models import QuerySet

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


def _failed(context: RunContextWrapper[Any], error: Exception) -> str:
    """Return what the model reads of an *error*: the SDK's text about invalid arguments, or the name of the class."""
    if isinstance(error, ModelBehaviorError):
        return default_tool_error_function(context, error)
    logger.error("A tool of recall failed.", exc_info=error)
    return f"The tool failed: {type(error).__name__}."
