"""A session of the OpenAI Agents SDK in the site's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from chatmemory_django.formats.openai_items import OPENAI_ITEMS
from chatmemory_django.integrations.histories import History
from chatmemory_django.threads import to_its_end

try:
    from agents.memory import SessionABC, SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ModuleNotFoundError as exc:
    raise ImportError("DjangoSession requires openai-agents: pip install 'chatmemory_django[openai-agents]'.") from exc

if TYPE_CHECKING:
    from agents import TResponseInputItem
    from django.contrib.auth.base_user import AbstractBaseUser


class DjangoSession(SessionABC):
    """
    The conversation *session_id*, for ``Runner.run(agent, …, session=…)``.

    Items come back as they were given, in order, and each of them is a message of the conversation: the admin, REST,
    searches and memories read what an agent said, and the agent what was said elsewhere. With an *owner*, a new
    conversation is the owner's, and one of somebody else is out of reach: ``PermissionDenied`` to a writer, empty to a
    reader. Always give it where *session_id* comes from a request.

    To make one reads nothing. ``clear_session`` begins anew; what was said stays in the database, as a branch that is
    not in use, until the conversation is erased.
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
        """Return the items, or the last *limit* of them: by default, what the settings say, and else all."""
        limit = resolve_session_limit(limit, self.session_settings)
        return cast("list[TResponseInputItem]", await self._run(self._history.read, limit))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add *items*, all or none; ``TypeError`` or ``ValueError`` if one of them cannot be stored."""
        await to_its_end(self._run(self._history.add, items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take out the last item and return it; None if there is none."""
        return cast("TResponseInputItem | None", await to_its_end(self._run(self._history.pop)))

    async def clear_session(self) -> None:
        """Begin anew: there is no item then."""
        await to_its_end(self._run(self._history.clear))
