"""Writing of records and entries, in one transaction that locks the conversation against other writers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections, transaction
from msgspec import structs
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
from pydantic_ai.exceptions import UserError

from chatmemory_django.contrib.adapters.pydantic_ai.entries import UNNAMED, ends_of, find, newest, unnamed_id
from chatmemory_django.contrib.adapters.pydantic_ai.messages import stored_form
from chatmemory_django.contrib.adapters.pydantic_ai.records import to_text, up_to_date
from chatmemory_django.contrib.adapters.records.models import Record
from chatmemory_django.core.limits import checked_client_message_id, memory_key
from chatmemory_django.db.moments import to_moment
from chatmemory_django.formats.pydantic_ai import metadata_of
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import NewMessage
from chatmemory_django.models import Conversation, Message, MessageQuerySet
from chatmemory_django.operations import fork
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.base import ConversationErasedError, MemoryIdTakenError, MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

ENTRIES = 250
"""The maximum number of entries that one ``add`` stores."""


class NewEntry(NamedTuple):
    """An entry to store."""

    id: str
    parent_id: str | None
    messages: list[NewMessage]
    """The last one has the entry's id, and the metadata of its call."""


class _Held(NamedTuple):
    """A conversation that is locked against other writers."""

    conversation: Conversation
    messages: MessageQuerySet
    row: Record | None
    """Its stored record."""
    at: int
    """The message that the next message follows."""
    revision: str | None
    """None if it has neither messages nor a record."""


def checked(entries: Sequence[ConversationEntry]) -> list[NewEntry]:
    """Return *entries* as they are stored; raise ``UserError`` if one of them cannot be."""
    try:
        for index, entry in enumerate(entries):
            checked_client_message_id(entry.id, f"new_entries[{index}].id")
    except (TypeError, ValueError) as exc:
        raise UserError(str(exc)) from exc
    checked_entries = []
    for entry, (item, new) in zip(entries, stored_form([entry.message for entry in entries]), strict=True):
        new[-1] = structs.replace(new[-1], client_message_id=entry.id, metadata=metadata_of(item))
        checked_entries.append(NewEntry(entry.id, entry.parent_id, new))
    return checked_entries


def write(
    record: ConversationRecord,
    entries: Sequence[NewEntry],
    expected_revision: str | None,
    owner: AbstractBaseUser | None,
    using: str,
) -> None:
    """Store *record* and *entries*; raise ``ConversationConflict`` if *owner* or revision are not as expected."""
    text = to_text(record)
    memory = get_chat_memory(record.conversation_id, owner=owner)
    is_nested = connections[using].in_atomic_block
    with transaction.atomic(using=using):
        origin = _forked(record, entries, memory, owner, using) if expected_revision is None else None
        with _held(record.conversation_id, owner, using, is_nested=is_nested) as held:
            if held.conversation.owner_id != (None if owner is None else owner.pk):
                raise ConversationConflict(record.conversation_id)
            if origin is None and held.revision != expected_revision:
                raise ConversationConflict(record.conversation_id)
            copied = {} if origin is None else origin
            head = _add(record, entries, held, memory, copied)
            if origin is not None and record.head_id is not None and UNNAMED.fullmatch(record.head_id):
                text = to_text(replace(record, head_id=unnamed_id(held.conversation.pk, head)))
            at = to_moment(record.updated_at)
            row = Record(conversation=held.conversation, scope=record.scope, updated_at=at, text=text)
            row.save(using=using, force_insert=held.row is None, force_update=held.row is not None)


def delete(conversation_id: str, expected_revision: str, using: str) -> None:
    """Erase a conversation; raise ``ConversationConflict`` if its revision is not as expected."""
    is_nested = connections[using].in_atomic_block
    with transaction.atomic(using=using), _held(conversation_id, None, using, is_nested=is_nested) as held:
        if held.revision is None or held.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        Conversation.objects.using(using).filter(pk=held.conversation.pk).delete()


@contextmanager
def _held(conversation_id: str, owner: AbstractBaseUser | None, using: str, *, is_nested: bool) -> Iterator[_Held]:
    """Lock a conversation, which is created if needed; a rollback of the transaction removes it again."""
    key = memory_key(conversation_id)
    with DjangoChatMemoryStore(using, owner=owner).exclusive(key):
        conversations = Conversation.objects.using(using).filter(memory_id=key)
        messages, rows = Message.objects.using(using).order_by(), Record.objects.using(using).order_by()
        if is_nested:  # a locking read, which sees the latest rows
            conversations, messages = conversations.select_for_update(), messages.select_for_update()
            rows = rows.select_for_update()
        conversation = conversations.get()
        messages = messages.filter(conversation=conversation.pk)
        row = rows.filter(conversation=conversation.pk).first()
        head = next(iter(newest(messages)), None)
        present = up_to_date(conversation, row, head, messages)
        at = 0 if head is None else head.sequence
        yield _Held(conversation, messages, row, at, None if present is None else present.revision)


def _forked(
    record: ConversationRecord,
    entries: Sequence[NewEntry],
    memory: ChatMemory,
    owner: AbstractBaseUser | None,
    using: str,
) -> dict[str, int] | None:
    """
    Create the conversation of *record* with a copy of its earlier messages, if these belong to another conversation.

    Returns the position in the copy from which it continues; None if it continues from nothing.
    """
    own = {entry.id for entry in entries}
    others = [each for each in [*(entry.parent_id for entry in entries), record.head_id] if each and each not in own]
    if not others:
        return None
    end = find(Message.objects.using(using), others[0])
    origin = None if end is None else Conversation.objects.using(using).filter(pk=end.conversation_id).first()
    if end is None or origin is None:
        raise ConversationConflict(record.conversation_id)
    try:
        fork(origin, record.conversation_id, through=end.sequence, owner=owner, window=memory.window())
    except (ConversationErasedError, MemoryIdTakenError, MessageNotFoundError):
        raise ConversationConflict(record.conversation_id) from None
    return {others[0]: end.sequence}


def _add(
    record: ConversationRecord, entries: Sequence[NewEntry], held: _Held, memory: ChatMemory, copied: dict[str, int]
) -> int:
    """Store *entries* after the record's head, and return the sequence of the last message."""
    wanted = {record.head_id, *(each for entry in entries for each in (entry.id, entry.parent_id))}
    known: dict[str | None, int] = {None: 0}
    known.update(ends_of(held.messages, held.conversation.pk, [each for each in wanted if each is not None]))
    known.update(copied)
    at = held.at
    try:
        for run in _runs([entry for entry in entries if entry.id not in known]):
            after = known[run[0].parent_id]
            new = [each for entry in run for each in entry.messages]
            keys = memory.add(*new, after=None if after == at else after, repeats=True)
            known.update(
                (each.client_message_id, key) for each, key in zip(new, keys, strict=True) if each.client_message_id
            )
            at = keys[-1]
        if at != known[record.head_id]:
            at = known[record.head_id]
            memory.rewind(at)
    except (KeyError, MessageNotFoundError):  # the message that they follow does not exist, or no longer
        raise ConversationConflict(record.conversation_id) from None
    except (TypeError, ValueError) as exc:
        raise UserError(str(exc)) from exc
    return at


def _runs(entries: Sequence[NewEntry]) -> Iterator[list[NewEntry]]:
    """Yield *entries* in lists in which each entry follows the one before it."""
    run: list[NewEntry] = []
    for entry in entries:
        if run and (entry.parent_id != run[-1].id or len(run) == ENTRIES):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run
