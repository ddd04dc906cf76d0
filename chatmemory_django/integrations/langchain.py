"""A chat message history of LangChain in the site's database."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from chatmemory_django.db.threads import leaving_no_connection, to_its_end
from chatmemory_django.formats.langchain import LANGCHAIN
from chatmemory_django.integrations.histories import History

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
except ModuleNotFoundError as exc:
    raise ImportError(
        "DjangoChatMessageHistory requires langchain-core: pip install 'chatmemory_django[langchain]'."
    ) from exc

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


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
