"""A conversation in the form of OpenAI's Conversations API: a list of items, each with an id."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2s
from itertools import accumulate
from typing import Any, NamedTuple

from chatmemory_django import conf
from chatmemory_django.contrib.openai_api.conversations import normalized
from chatmemory_django.core.limits import MAX_INTEGER, is_storable
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import address_of
from chatmemory_django.formats.openai_items import OPENAI_ITEMS
from chatmemory_django.formats.verbatim import items_of
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, MessageQuerySet, message_codec
from chatmemory_django.models.columns import HistoryRow
from chatmemory_django.models.messages import MESSAGE_SIZE
from chatmemory_django.rest.serializers import is_same

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""Prefixes of ids by type of item. OpenAI's models accept no others; for other types, any prefix works."""

RECENT = 1_000
"""Number of the newest messages that are searched for an item id that is not indexed, before an item is added."""

_GENERATED = re.compile("[a-z]+_([0-9a-f]{8})([0-9a-f]{8})(?:_([0-9]{1,4}))?")
"""A generated id: hash of the conversation, sequence of the message, and position in it unless that is 0."""


class Item(NamedTuple):
    """An item, the sequence of its message, its position in it, and the number of items of the message."""

    sequence: int
    position: int
    of: int
    shown: dict[str, Any]


class ItemPage(NamedTuple):
    """Items in the requested order, and whether more follow."""

    items: list[dict[str, Any]]
    has_more: bool


class ItemNotFoundError(LookupError):
    """The conversation has no item with the id."""


class ConversationItems:
    """The items of *conversation*, from messages of *types*. What the format cannot represent is omitted."""

    def __init__(self, conversation: Conversation, types: Collection[MessageType]) -> None:
        self._conversation = conversation
        self._rows: MessageQuerySet = conversation.history().filter(type__in=types)
        self._mark = blake2s(conversation.memory_id.encode(), digest_size=4).hexdigest()

    def page(self, after: str | None, limit: int, *, is_descending: bool) -> ItemPage:
        """
        Return at most *limit* items that follow the item *after*; fewer if they exceed ``MAX_PAGE_CHARACTERS``.

        Raises:
            ItemNotFoundError: There is no item *after*.

        """
        sign = -1 if is_descending else 1
        start = None if after is None else self.find(after)
        found = [] if start is None else self._behind(start, sign=sign)
        for rows, is_cut in self._pages(start, limit + 1, sign=sign):
            found += [item.shown for row in rows for item in self._items_of(row)[::sign]]
            if len(found) > limit or (found and is_cut):
                return ItemPage(found[:limit], has_more=True)
        return ItemPage(found, has_more=False)

    def find(self, item_id: str, since: int = 0) -> Item:
        """
        Return the item *item_id*, which is looked up in an index.

        Items that were not added by this API are not indexed, and are searched among the messages from *since* on.

        Raises:
            ItemNotFoundError: There is no such item.

        """
        for row in self._candidates(item_id, since):
            for item in self._items_of(row):
                if item.shown["id"] == item_id:
                    return item
        raise ItemNotFoundError(item_id)

    def has(self, item_id: str) -> bool:
        """Return whether *item_id* is the id of an item or has the form of a generated id; see ``RECENT``."""
        if self._generated(item_id) is not None:
            return True
        try:
            self.find(item_id, since=self._conversation.next_sequence - RECENT)
        except ItemNotFoundError:
            return False
        return True

    def of(self, sequences: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items of the messages *sequences*, in their order."""
        rows = {row.sequence: row for row in self._read(self._rows.filter(sequence__in=sequences))}
        return [item.shown for sequence in sequences if sequence in rows for item in self._items_of(rows[sequence])]

    def ends_with(self, items: Sequence[Mapping[str, Any]]) -> list[int] | None:
        """Return the sequences of the newest messages if they equal *items*, ``normalized``; otherwise None."""
        newest = list(self._read(self._rows.order_by("-sequence")[: len(items)]))[::-1]
        shown = [normalized(item.shown) for row in newest for item in self._items_of(row)]
        return [row.sequence for row in newest] if is_same(shown, items) else None

    def _behind(self, item: Item, *, sign: int) -> list[dict[str, Any]]:
        """Return the items of the same message that follow *item*."""
        shown = [] if item.of == 1 else self.of([item.sequence])
        return shown[item.position + 1 :] if sign > 0 else shown[: item.position][::-1]

    def _pages(self, after: Item | None, count: int, *, sign: int) -> Iterator[tuple[list[HistoryRow], bool]]:
        """Yield the messages after that of *after*, at most *count* at a time, and whether their size left some out."""
        most = conf.rest().MAX_PAGE_CHARACTERS
        rows = self._rows.order_by("sequence" if sign > 0 else "-sequence")
        last = None if after is None else after.sequence
        codec = message_codec.installed
        size = MESSAGE_SIZE if codec is None else codec.with_file_sizes(MESSAGE_SIZE)
        while True:
            following = rows if last is None else rows.filter(**{_BEHIND[sign]: last})
            sizes = list(following.values_list("sequence", size)[:count])
            if not sizes:
                return
            fitting = sum(total <= most for total in accumulate(size for _, size in sizes)) or 1
            ends = sorted((sizes[0][0], sizes[fitting - 1][0]))
            yield list(self._read(rows.filter(sequence__range=ends))), fitting < len(sizes)
            if fitting == len(sizes) < count:
                return
            last = sizes[fitting - 1][0]

    def _read(self, rows: MessageQuerySet) -> Iterator[HistoryRow]:
        found = map(HistoryRow._make, rows.values_list(*HistoryRow._fields))
        return iter(message_codec.complete_rows(found, address_of(self._conversation)))

    def _items_of(self, row: HistoryRow) -> list[Item]:
        items = [normalized(item) for item in items_of(row, OPENAI_ITEMS)]
        return [
            Item(row.sequence, index, len(items), {"id": self._id_of(item, row.sequence, index), **item})
            for index, item in enumerate(items)
        ]

    def _id_of(self, item: Mapping[str, Any], sequence: int, index: int) -> str:
        prefix = PREFIXES.get(item["type"], "item")
        made = f"{prefix}_{self._mark}{sequence:08x}" + (f"_{index}" if index else "")
        return str(item.get("id", made))

    def _generated(self, item_id: str) -> int | None:
        """Return the sequence in *item_id* if it was generated for this conversation."""
        made = _GENERATED.fullmatch(item_id)
        return int(made[2], 16) if made and made[1] == self._mark else None

    def _candidates(self, item_id: str, since: int) -> Iterator[HistoryRow]:
        """Yield the messages that may have the item *item_id*: first those in an index, then others from *since* on."""
        sequence = self._generated(item_id)
        if sequence is not None:
            yield from self._read(self._rows.filter(sequence=min(sequence, MAX_INTEGER)))
            return
        if not is_storable(item_id):
            return
        named = self._rows.filter(client_message_id=item_id)
        yield from self._read(named)
        # Items added otherwise, for example by a session of the Agents SDK, have no client message id.
        others = self._rows.filter(type=MessageType.CUSTOM, client_message_id=None, sequence__gte=since)
        if row_codec.installed is None:
            others = others.filter(payload__contains=f'"{item_id}"')
        yield from self._read(others.order_by("sequence"))


_BEHIND = {1: "sequence__gt", -1: "sequence__lt"}
