"""The messages of a conversation as pydantic-ai's entries: each is a request or a response, with an id."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from django.db import router

from chatmemory_django.core.limits import is_storable
from chatmemory_django.db.moments import aware
from chatmemory_django.db.row_codec import Address
from chatmemory_django.formats.pydantic_ai import NAME, from_message
from chatmemory_django.formats.verbatim import of_group
from chatmemory_django.models import Message, MessageQuerySet
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.message_codec import complete_rows

ROWS = 1.5
"""The number of rows that are first read for an entry, since a request may be several rows; then four times as many."""

UNNAMED = re.compile(r"message:(\d{1,18}):(\d{1,9})")
"""The id of an entry whose message has none: the key of its conversation, and its sequence."""


class EntryId(str):
    """
    The id of an entry in the conversation with the given key.

    A fork has a copy of the earlier messages with the same ids, so an id may exist in several conversations.
    """

    conversation_id: int

    def __new__(cls, entry_id: str, conversation_id: int) -> EntryId:
        made = super().__new__(cls, entry_id)
        made.conversation_id = conversation_id
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return EntryId, (str(self), self.conversation_id)


class EntryEnd(NamedTuple):
    """The message with which an entry ends: the next entry continues from it."""

    conversation_id: int
    sequence: int
    on_path: bool


class StoredEntry(NamedTuple):
    """An entry as it is stored."""

    id: EntryId
    item: dict[str, Any]
    """The request or the response, as JSON."""
    sequence: int
    """The sequence of its last message, from which the next entry continues."""


class _Row(NamedTuple):
    conversation_id: int
    sequence: int
    type: str
    text: str
    payload: str | None
    verbatim: str | None
    client_message_id: str | None
    created_at: datetime


def unnamed_id(conversation_id: int, sequence: int) -> str:
    """Return the id of an entry whose message has no id."""
    return f"message:{conversation_id}:{sequence}"


def find(messages: MessageQuerySet, entry_id: str) -> EntryEnd | None:
    """Return the end of entry *entry_id* among *messages*, in the oldest conversation that has it."""
    if not is_storable(entry_id):
        return None
    if isinstance(entry_id, EntryId):
        messages = messages.filter(conversation=entry_id.conversation_id)
    history = messages.history(all_branches=True).order_by("conversation_id")
    found = history.filter(client_message_id=entry_id).values_list(*EntryEnd._fields).first()
    if found is None and (unnamed := UNNAMED.fullmatch(entry_id)):
        named = {"conversation": int(unnamed[1]), "sequence": int(unnamed[2]), "client_message_id": None}
        found = history.filter(**named).values_list(*EntryEnd._fields).first()
    return None if found is None else EntryEnd._make(found)


def ends_of(messages: MessageQuerySet, conversation_id: int, entry_ids: Sequence[str]) -> dict[str, int]:
    """Return the sequences at which those of *entry_ids* end that *messages*, of that conversation, have."""
    history = messages.history(all_branches=True).order_by()
    entry_ids = list(filter(is_storable, entry_ids))
    named = history.filter(client_message_id__in=entry_ids).values_list("client_message_id", "sequence")
    ends = {str(name): sequence for name, sequence in named}
    unnamed = {
        int(found[2]): entry_id
        for entry_id in entry_ids
        if (found := UNNAMED.fullmatch(entry_id)) and int(found[1]) == conversation_id
    }
    if unnamed:
        there = history.filter(sequence__in=unnamed, client_message_id=None).values_list("sequence", flat=True)
        ends |= {unnamed[sequence]: sequence for sequence in there}
    return ends


def newest(messages: MessageQuerySet, limit: int | None = 1) -> list[StoredEntry]:
    """Return the newest *limit* entries, or all, on the path of *messages*, of one conversation, newest first."""
    return _read([messages.history().order_by("-sequence")], limit)


def read_to(messages: MessageQuerySet, head_id: str, limit: int | None) -> list[StoredEntry]:
    """Return the last *limit* entries up to *head_id*, or all, newest first; an empty list if *head_id* is unknown."""
    if isinstance(head_id, EntryId):  # usually the newest entry, which needs no search
        entries = newest(messages.filter(conversation=head_id.conversation_id), limit)
        if entries and entries[0].id == head_id:
            return entries
    end = find(messages, head_id)
    if end is None:
        return []
    messages = messages.filter(conversation=end.conversation_id)
    if end.on_path:
        return newest(messages.filter(sequence__lte=end.sequence), limit)
    return _read(messages.path_to(end.sequence), limit)


def _read(path: Sequence[MessageQuerySet], limit: int | None) -> list[StoredEntry]:
    count = None if limit is None else int(ROWS * (limit + 1))
    while True:
        rows: list[_Row] = []
        for part in path:
            wanted = None if count is None else count - len(rows)
            rows += map(_Row._make, part.values_list(*_Row._fields)[:wanted])
            if len(rows) == count:
                break
        is_all = count is None or len(rows) < count
        rows = _complete(rows)
        entries = list(islice(_entries(rows, is_all=is_all), limit))
        if is_all or count is None or len(entries) == limit:
            return entries
        count *= 4


def _complete(rows: list[_Row]) -> list[_Row]:
    """Return *rows*, of one conversation, with their files."""
    if not rows:
        return rows
    using = router.db_for_read(Message)
    return complete_rows(rows, Address(using, rows[0].conversation_id, str(rows[0].conversation_id)))


def _entries(rows: Sequence[_Row], *, is_all: bool) -> Iterator[StoredEntry]:
    """Yield the entries in *rows*, newest first; unless the rows are *is_all*, not one that may begin before them."""
    index = 0
    while index < len(rows):
        row = rows[index]
        item, size = of_group(row.verbatim, NAME)
        group = rows[index : index + size]
        if len(group) < size and not is_all:
            return
        # Parts of it were removed: each remaining message is an entry of its own.
        if group[-1].sequence != row.sequence - size + 1:
            item, size = None, 1
        if item is None:
            message = to_message(row.type, row.text, row.payload)
            item = next(iter(from_message(message, aware(row.created_at).isoformat())), None)
        if item is not None:
            entry_id = row.client_message_id or unnamed_id(row.conversation_id, row.sequence)
            yield StoredEntry(EntryId(entry_id, row.conversation_id), item, row.sequence)
        index += size
