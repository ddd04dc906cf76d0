"""The history of a conversation as another framework reads and writes it: its own items, all of them, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from chatmemory_django.formats.verbatim import Format, items_of, to_given
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rows import Said
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

PAGE = 100
"""How many messages are read at a time where only the last items are asked for."""


class History:
    """
    The history of the conversation *memory_id* as items of *format*; *owner* as for ``get_chat_memory``.

    To make one reads nothing. A message that *format* cannot say, another framework's own for example, is left out.
    """

    def __init__(self, memory_id: str, format: Format, owner: AbstractBaseUser | None = None) -> None:
        self.format = format
        self._items = partial(items_of, format=format)
        self.memory = get_chat_memory(memory_id, owner=owner)
        self._store = DjangoChatMemoryStore(owner=owner)
        self._read = partial(self._store.read_history, memory_id)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The items, or the last *limit* of them, in order."""
        if limit is None:
            return [item for said in reversed(self._read()) for item in self._items(said)]
        found: deque[dict[str, Any]] = deque()
        before: int | None = None
        while len(found) < limit and (page := self._read(before=before, count=PAGE)):
            for said in page:
                found.extendleft(reversed(self._items(said)))
            before = page[-1].sequence
        return list(found)[max(0, len(found) - limit) :]

    def add(self, items: Sequence[object], where: str = "items") -> None:
        """
        Add *items* at the end, all or none; errors say *where* they were given.

        Raises:
            TypeError, ValueError: One of them cannot be stored; then none is.
            PermissionDenied: The conversation belongs to somebody else.

        """
        given = [to_given(item, self.format, f"{where}[{index}]") for index, item in enumerate(items)]
        self.memory.add(*(each.message for each in given), verbatim=[each.verbatim for each in given])

    def pop(self) -> dict[str, Any] | None:
        """Take the last item out, and return it; None if there is none."""
        if not self._read(count=1):
            return None
        with self._store.exclusive(self.memory.id):
            # As it is now, and not as the caller's transaction has read it before.
            conversation = self._store.named(self.memory.id).select_for_update().first()
            if conversation is None:  # by now it is somebody else's
                return None
            newest = conversation.history().order_by("-sequence").select_for_update().values_list(*Said._fields)
            said = newest.first()
            while said is not None and not (items := self._items(Said._make(said))):
                said = newest.filter(sequence__lt=said[0]).first()
            if said is None:
                return None
            self.memory.remove(said[0])
            self.add(items[:-1])
        return items[-1]

    def clear(self) -> None:
        """Begin anew. What was said stays in the database, as a branch that is not in use, until it is erased."""
        self.memory.rewind(0)
