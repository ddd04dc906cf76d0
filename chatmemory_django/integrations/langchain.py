"""A chat message history of LangChain in the site's database."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from chatmemory_django.formats.langchain import LANGCHAIN
from chatmemory_django.integrations.histories import History
from chatmemory_django.threads import leaving_no_connection, to_its_end

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
    The conversation *session_id*, for ``RunnableWithMessageHistory`` and whatever else takes a history.

    Messages come back as they were given, in order, and each of them is a message of the conversation: the admin, REST,
    searches and memories read what a chain said, and the chain what was said elsewhere. With an *owner*, a new
    conversation is the owner's, and one of somebody else is out of reach: ``PermissionDenied`` to a writer, empty to a
    reader. Always give it where *session_id* comes from a request.

    To make one reads nothing. ``clear`` begins anew; what was said stays in the database, as a branch that is not in
    use, until the conversation is erased.
    """

    def __init__(self, session_id: str, *, owner: AbstractBaseUser | None = None) -> None:
        super().__init__()
        self.session_id = session_id
        self._history = History(session_id, LANGCHAIN, owner)
        self._run = self._history.memory.store.run
        self._thread = threading.get_ident()

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # the base class has an attribute
        """All messages, oldest first; a new list each time."""
        with self._in_this_thread():
            return messages_from_dict(self._history.read())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add *messages*, all or none; ``TypeError`` or ``ValueError`` if one of them cannot be stored."""
        with self._in_this_thread():
            self._add(messages)

    def clear(self) -> None:
        """Begin anew: there is no message then."""
        with self._in_this_thread():
            self._history.clear()

    async def aget_messages(self) -> list[BaseMessage]:
        """See ``messages``."""
        return messages_from_dict(await self._run(self._history.read))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """See ``add_messages``."""
        await to_its_end(self._run(self._add, messages))

    async def aclear(self) -> None:
        """See ``clear``."""
        await to_its_end(self._run(self._history.clear))

    def _add(self, messages: Sequence[BaseMessage]) -> None:
        self._history.add([_to_item(message, index) for index, message in enumerate(messages)], "messages")

    def _in_this_thread(self) -> AbstractContextManager[None]:
        """A section of what may run in another thread than the one that made this: LangChain has pools of them."""
        return nullcontext() if threading.get_ident() == self._thread else leaving_no_connection()


def _to_item(message: object, index: int) -> dict[str, Any]:
    """Return the JSON of *message*; ``TypeError`` if it would not come back equal from that."""
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
        raise TypeError(
            f"messages[{index}].{name}, of type {type(value).__name__}, must be plain JSON, all that is in it."
        )
    raise TypeError(
        f"messages[{index}] is a {type(message).__name__}; only LangChain's own kinds of messages can be stored."
    )


def _through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
