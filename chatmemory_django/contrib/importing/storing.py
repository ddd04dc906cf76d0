"""Storing of other frameworks' conversations: each completely or not at all, and only once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from django.db import router
from django.db.models import Case, Value, When

from chatmemory_django.contrib.importing.moved import Moved
from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.moments import aware, to_moment
from chatmemory_django.db.transactions import as_now, tried_again
from chatmemory_django.messages import NewMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import messages_of, stored_columns, write
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

MAX_TIMES = 200
"""The maximum number of messages whose times are set by one statement."""


class StoreResult(Enum):
    """The result for a conversation."""

    STORED = auto()
    CONTINUED = auto()
    """Its new messages were stored."""
    PRESENT = auto()
    """All of its messages, and perhaps more, were stored already."""


class ConflictError(ValueError):
    """The stored conversation differs from the one that was read. It is not changed."""


def store(
    memory_id: str, moved: Moved, owner: AbstractBaseUser | None = None, *, using: str | None = None
) -> StoreResult:
    """
    Store *moved* as the conversation *memory_id* of *owner*; if it exists already, add the new messages.

    All messages are added to the history, whatever the setting ``KEEP_HISTORY`` is, and those that fit to the memory.
    Signals are sent as by any other write.

    Raises:
        ConflictError: It exists with other messages, or belongs to another user.
        TypeError, ValueError: It cannot be stored.

    """
    if not moved.messages:
        return StoreResult.PRESENT
    using = using or router.db_for_write(Conversation)
    return tried_again(using, _Storing(memory_id, moved, owner, using).run)


class _Storing:
    """The import of one conversation into the database *using*. All messages are validated before any is stored."""

    def __init__(self, memory_id: str, moved: Moved, owner: AbstractBaseUser | None, using: str) -> None:
        self._memory_id = memory_id
        self._moved = moved
        self._owner = owner
        self._store = DjangoChatMemoryStore(using, keep_history=True, owner=owner)
        self._window = MemoryConfiguration.of(memory_id).window()
        self._rows = [stored_columns(message.new) for message in moved.messages]

    def run(self) -> StoreResult:
        """Store the new messages, in one transaction."""
        result = StoreResult.PRESENT
        with self._store.exclusive(self._memory_id):
            conversation = self._locked()
            sequences, conflict = self._present(conversation)
            if conflict is None and len(sequences) < len(self._rows):
                result = StoreResult.CONTINUED if sequences else StoreResult.STORED
                self._append(sequences)
                self._date(conversation, sequences)
        if conflict is not None:  # raised here, so that the caller's transaction stays usable
            raise conflict
        return result

    def _locked(self) -> Conversation:
        named = DjangoChatMemoryStore(self._store.using).named(self._memory_id)
        return named.select_for_update().get()

    def _present(self, conversation: Conversation) -> tuple[list[int], ConflictError | None]:
        """Return the sequences of the messages that exist already, and an error if the others cannot be added."""
        if self._owner is not None and conversation.owner_id != self._owner.pk:
            return [], ConflictError("It belongs to another user.")
        rows = as_now(conversation.history(all_branches=True).order_by("sequence"))
        sequences: list[int] = []
        for wanted, (sequence, *there) in zip(
            self._rows, rows.values_list("sequence", "type", "text", "payload", "verbatim"), strict=False
        ):
            if tuple(there) != wanted:
                return [], ConflictError(f"Its message {len(sequences) + 1} differs from the stored one.")
            sequences.append(sequence)
        return sequences, None

    def _append(self, sequences: list[int]) -> None:
        """
        Add the messages that follow those with *sequences*, and extend that list: as few writes as there can be.

        Only what is on the path at the end is ever put there: to move a path takes the longer the more branches a
        conversation has.
        """
        messages, path = self._moved.messages, self._moved.path()
        while (start := len(sequences)) < len(messages):
            run, parents = self._run(sequences, path)
            if start in path:
                after = parents[0] if start else None
                appended = self._store.append_messages(self._memory_id, run, self._window, after=after, repeats=True)
            else:
                appended = self._store.set_aside(self._memory_id, run, self._window, parents)
            sequences += appended.keys
        if self._moved.goes_on_from is not None:
            self._store.rewind(self._memory_id, sequences[self._moved.goes_on_from], self._window)

    def _run(self, sequences: Sequence[int], path: Collection[int]) -> tuple[list[NewMessage], list[int | None]]:
        """
        Return the messages behind those with *sequences* that one write can add: on the *path*, or beside it.

        Each comes with the sequence of the one that it follows, None for the one before it in the write.
        """
        messages, start = self._moved.messages, len(sequences)
        run: list[NewMessage] = []
        parents: list[int | None] = []
        for position in range(start, len(messages)):
            follows = messages[position].follows
            parent = position - 1 if follows is None else follows
            is_next = follows is None and position > start
            if (position in path) != (start in path) or not (is_next or parent < start):
                break
            if start in path and run and not is_next:
                break
            run.append(messages[position].new)
            parents.append(None if is_next else sequences[parent] if parent >= 0 else 0)
        return run, parents

    def _date(self, conversation: Conversation, sequences: list[int]) -> None:
        """Set the times of *conversation*, as it was before, and of its messages, as far as they are known."""
        moved, is_new = self._moved, conversation.next_sequence == 1
        known = moved.created_at
        times: dict[int, datetime] = {}
        for sequence, message in zip(sequences, moved.messages, strict=True):
            known = message.created_at or known  # the previous message's time is closer than the current time
            if known is not None and sequence >= conversation.next_sequence:
                times[sequence] = to_moment(known)
        messages = messages_of(conversation)
        for batch in in_parts(list(times.items()), MAX_TIMES):
            time = Case(*(When(sequence=sequence, then=Value(time)) for sequence, time in batch))
            messages.filter(sequence__in=dict(batch)).update(created_at=time)
        columns: dict[str, Any] = {}
        if is_new:
            columns = {"title": conversation.title or moved.title, "is_archived": moved.is_archived}
            if first := moved.created_at or next((each.created_at for each in moved.messages if each.created_at), None):
                columns["created_at"] = to_moment(first)
        if last := max(filter(None, [moved.updated_at, known]), default=None):
            columns["updated_at"] = to_moment(last if is_new else max(last, aware(conversation.updated_at)))
        write(conversation, **columns)
