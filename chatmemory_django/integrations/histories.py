"""The history of a conversation as another framework reads and writes it: its own items, all of them, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chatmemory_django.formats.verbatim import Format, of_verbatim, to_given
from chatmemory_django.models import MessageQuerySet
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.rows import to_message
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

PAGE = 100
"""How many messages are read at a time where only the last items are asked for."""

COLUMNS = ("type", "text", "payload", "verbatim")


class History:
    """
    The history of the conversation *memory_id* as items of *format*; *owner* as for ``get_chat_memory``.

    To make one reads nothing. A message that *format* cannot say, another framework's own for example, is left out.
    """

    def __init__(self, memory_id: str, format: Format, owner: AbstractBaseUser | None = None) -> None:
        self.format = format
        self.memory = get_chat_memory(memory_id, owner=owner)
        self._store = DjangoChatMemoryStore(owner=owner)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The items, or the last *limit* of them, in order."""
        if limit is None:
            return [item for row in self._rows().values_list(*COLUMNS) for item in self._items(*row)]
        found: deque[dict[str, Any]] = deque()
        newest = older = self._rows().order_by("-sequence").values_list("sequence", *COLUMNS)
        while len(found) < limit and (page := list(older[:PAGE])):
            for _, *columns in page:
                found.extendleft(reversed(self._items(*columns)))
            older = newest.filter(sequence__lt=page[-1][0])
        return list(found)[max(0, len(found) - limit) :]

    def add(self, items: Sequence[object]) -> None:
        """
        Add *items* at the end, all or none.

        Raises:
            TypeError, ValueError: One of them cannot be stored; then none is.
            PermissionDenied: The conversation belongs to somebody else.

        """
        given = [to_given(item, self.format, f"items[{index}]") for index, item in enumerate(items)]
        self.memory.add(*(each.message for each in given), verbatim=[each.verbatim for each in given])

    def pop(self) -> dict[str, Any] | None:
        """Take the last item out, and return it; None if there is none."""
        if not self._rows().exists():
            return None
        with self.memory.store.exclusive(self.memory.id):
            # As it is now, and not as the caller's transaction has read it before.
            newest = self._rows().order_by("-sequence").select_for_update()
            row = newest.first()
            while row is not None and not (items := self._items(row.type, row.text, row.payload, row.verbatim)):
                row = newest.filter(sequence__lt=row.sequence).first()
            if row is None:
                return None
            self.memory.remove(row.sequence)
            self.add(items[:-1])
        return items[-1]

    def clear(self) -> None:
        """Begin anew. What was said stays in the database, as a branch that is not in use, until it is erased."""
        self.memory.rewind(0)

    def _rows(self) -> MessageQuerySet:
        return self._store.history(self.memory.id)

    def _items(self, type: str, text: str, payload: str | None, verbatim: str | None) -> list[dict[str, Any]]:
        given = of_verbatim(verbatim, self.format.name)
        return self.format.from_message(to_message(type, text, payload)) if given is None else [given]
