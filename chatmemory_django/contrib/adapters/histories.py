"""The history of a conversation as another framework reads and writes it: as a list of its own items."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from chatmemory_django.formats.verbatim import Format, items_of, to_new_message
from chatmemory_django.models.columns import HistoryRow
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

PAGE = 100
"""The number of messages that are read at a time if only the last items are requested."""


class History:
    """
    The history of the conversation *memory_id* as items of *format*; *owner* as for ``get_chat_memory``.

    Creating an instance reads nothing. Messages that *format* cannot represent, for example another framework's own,
    are left out.
    """

    def __init__(self, memory_id: str, format: Format, owner: AbstractBaseUser | None = None) -> None:
        self.format = format
        self._items = partial(items_of, format=format)
        self.memory = get_chat_memory(memory_id, owner=owner)
        self._store = DjangoChatMemoryStore(owner=owner)
        self._read = partial(self._store.read_history, memory_id)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the items, or the last *limit* of them, in order."""
        if limit is None:
            return [item for row in reversed(self._read()) for item in self._items(row)]
        found: deque[dict[str, Any]] = deque()
        before: int | None = None
        while len(found) < limit and (page := self._read(before=before, count=PAGE)):
            for row in page:
                found.extendleft(reversed(self._items(row)))
            before = page[-1].sequence
        return list(found)[max(0, len(found) - limit) :]

    def add(self, items: Sequence[object], where: str = "items") -> None:
        """
        Add *items* at the end, all or none; *where* is their name in error messages.

        Raises:
            TypeError, ValueError: One of them cannot be stored; then none is.
            PermissionDenied: The conversation belongs to another user.

        """
        new = [to_new_message(item, self.format, f"{where}[{index}]") for index, item in enumerate(items)]
        self.memory.add(*new, repeats=True)

    def pop(self) -> dict[str, Any] | None:
        """Remove the last item, and return it; None if there is none."""
        if not self._read(count=1):
            return None
        with self._store.exclusive(self.memory.id):
            # A locking read sees the latest rows, even if the caller's transaction has an older snapshot.
            conversation = self._store.named(self.memory.id).select_for_update().first()
            if conversation is None:  # it now belongs to another user
                return None
            newest = conversation.history().order_by("-sequence").select_for_update().values_list(*HistoryRow._fields)
            row = newest.first()
            while row is not None and not (items := self._items(HistoryRow._make(row))):
                row = newest.filter(sequence__lt=row[0]).first()
            if row is None:
                return None
            self.memory.remove(row[0])
            self.add(items[:-1])
        return items[-1]

    def clear(self) -> None:
        """
        Start a new branch without messages. The others stay in the database, on an unused branch, until they are
        erased.
        """
        self.memory.rewind(0)
