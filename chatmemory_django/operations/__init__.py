"""
The operations on conversations that the admin, the REST API and the commands share.

Conversations are processed one by one, in the order in which they were created, each completely or not at all: if an
operation is interrupted, the conversations processed so far are done and the rest are unchanged. Pruning alone handles
a long conversation in several steps, so that no writer waits for all of them; after each it is whole. Of a long one
that is erased, the messages are deleted after it, see ``models.remains``. *each* is called with every conversation, as
it was before, and with its result, inside the transaction: what *each* writes is committed together with the operation.
*refused* is called with every conversation on which the operation is not possible, and with the error; without it, the
error is raised.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import F, ProtectedError, Q, QuerySet, RestrictedError

from chatmemory_django import conf, telemetry
from chatmemory_django.core.windows import Window
from chatmemory_django.db.isolation import as_now
from chatmemory_django.db.moments import to_moment
from chatmemory_django.db.turns import taking_turns
from chatmemory_django.encryption.ciphers import for_owner, unreadable_as_stored
from chatmemory_django.messages import MessageType, NewMessage
from chatmemory_django.models import Conversation, ConversationQuerySet, Message, MessageQuerySet
from chatmemory_django.models.columns import to_metadata
from chatmemory_django.models.copies import forget_rows
from chatmemory_django.models.files import release_files
from chatmemory_django.models.remains import NOTHING_COUNTED, SHORT, Counted, delete_left, note_own, runs
from chatmemory_django.models.windows import in_memory
from chatmemory_django.operations.encrypting import encrypt, keys_in_use, wrap_keys
from chatmemory_django.operations.examining import Examination, Rule
from chatmemory_django.operations.file_findings import FileFinding, check_files
from chatmemory_django.operations.forking import afork, fork
from chatmemory_django.operations.jsonl import (
    ConversationExistsError,
    ImportLimits,
    JsonLinesError,
    check_lines,
    export_lines,
    import_lines,
)
from chatmemory_django.operations.media import MovedFiles, move_files
from chatmemory_django.operations.pruning import leave_branches
from chatmemory_django.operations.readable import Html, Text, export_pieces
from chatmemory_django.operations.whole import (
    at_one_moment,
    for_writing,
    in_lock,
    keys,
    keys_and_lengths,
    messages_of,
    write,
)
from chatmemory_django.stores.base import MemoryIdTakenError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.django.rows import new_row

__all__ = [
    "ConversationExistsError",
    "FileFinding",
    "Finding",
    "ImportLimits",
    "JsonLinesError",
    "MemoryIdTakenError",
    "MovedFiles",
    "NoCounterError",
    "Pruned",
    "Receipt",
    "Rule",
    "afork",
    "annotate",
    "apply_retention",
    "asynchronous",
    "check",
    "check_files",
    "check_lines",
    "clear",
    "encrypt",
    "erase",
    "export",
    "export_lines",
    "fork",
    "import_lines",
    "keys_in_use",
    "move_files",
    "prune",
    "recount",
    "wrap_keys",
]

CHUNK_CHARACTERS = 64 * 1024
"""How many characters of an export are yielded at a time; a longer line is yielded alone."""

FORMS: Mapping[str, Callable[[], Text | Html]] = {"text": Text, "html": Html}
"""The forms of an export for people, by name."""

_HAS_OTHER_ROWS = Q(next_sequence__gt=F("memory_messages") + 1)
"""Whether a conversation may have rows that are not in its memory, removed ones included. Reads no messages."""

Each: TypeAlias = Callable[[Conversation, int], object]
Refused: TypeAlias = Callable[[Conversation, Exception], object]
WindowOf: TypeAlias = Callable[[str], Window | None]


class NoCounterError(ValueError):
    """The error for a memory without an estimator whose counts can be stored."""


class Receipt(NamedTuple):
    """What was erased, as evidence of the erasure."""

    erased_at: datetime.datetime
    messages: dict[str, int]
    """The number of messages of each conversation, by memory id."""


class Pruned(NamedTuple):
    """The result of pruning."""

    conversations: int
    """How many conversations were erased: idle ones, and temporary ones."""
    messages: int
    """How many messages were deleted from the histories of other conversations."""


class Finding(NamedTuple):
    """A broken rule and how it is broken; *detail* never repeats message text."""

    memory_id: str
    rule: Rule
    detail: str
    is_repaired: bool = False


def clear(conversations: QuerySet[Conversation], *, each: Each | None = None) -> int:
    """Clear the memories and return their number; *each* receives how many messages left the memory."""
    return _for_each(conversations, _clear, each, None)


def recount(
    conversations: QuerySet[Conversation],
    window_of: WindowOf,
    *,
    each: Each | None = None,
    refused: Refused | None = None,
) -> int:
    """
    Recount the tokens in the memories, with the windows that *window_of* returns, and return the number of memories.

    *each* receives the number of tokens, here after the transaction: messages are counted before it, so that no other
    writer has to wait. Refused with ``NoCounterError``.
    """
    conversations = for_writing(conversations)
    count = 0
    for key in keys(conversations):
        conversation = conversations.filter(pk=key).first()
        if conversation is None:
            continue
        window = window_of(conversation.memory_id)
        if window is not None and window.counter:
            tokens = DjangoChatMemoryStore(conversations.db).recount(conversation.memory_id, window)
            count += 1
            if each is not None:
                each(conversation, tokens)
            continue
        error = NoCounterError(f"The memory {conversation.memory_id!r} has no estimator whose counts can be stored.")
        if refused is None:
            raise error
        refused(conversation, error)
    return count


def erase(
    conversations: QuerySet[Conversation],
    *,
    dry_run: bool = False,
    each: Each | None = None,
    refused: Refused | None = None,
) -> Receipt:
    """
    Erase *conversations* with their history; nothing in a *dry_run*. *each* receives how many messages they had.

    A conversation that is written to in the meantime is erased only if it still is one of *conversations*. The messages
    of a long one are deleted after its transaction, in others, unless all are inside one of the caller. Refused with
    ``ProtectedError`` or ``RestrictedError`` if other objects of the site reference it.
    """
    messages: dict[str, int] = {}

    def note(conversation: Conversation, count: int) -> None:
        if each is not None:
            each(conversation, count)
        messages[conversation.memory_id] = count

    with telemetry.delete_memory(dry_run=dry_run) as operation, unreadable_as_stored():
        _erase_each(conversations, note, refused, dry_run=dry_run)
        operation.count(sum(messages.values()))
    return Receipt(datetime.datetime.now(datetime.UTC), messages)


def prune(
    conversations: ConversationQuerySet,
    *,
    history_older_than: datetime.timedelta | None = None,
    idle: datetime.timedelta | None = None,
    dry_run: bool = False,
    each: Each | None = None,
    refused: Refused | None = None,
) -> Pruned:
    """
    Erase those of *conversations* that have been *idle* that long, or are temporary and whose time has passed, and
    delete old messages of the others.

    Old are messages *history_older_than* that long, on any branch, that are in no memory, and what is left of removed
    ones; nothing is deleted in a *dry_run*. If other messages follow a deleted one, they then follow the nearest
    remaining message before it. *each* receives how many messages are deleted, several times for a long conversation.
    Refused as in ``erase``. Each is looked at again once it is locked: one that was written to in the meantime is not
    idle. A client message id is deleted with its message: if it is sent again, it is stored again. What is left of
    erased conversations, since a process ended before it was deleted, is deleted, too.
    """
    now = datetime.datetime.now(datetime.UTC)
    deleted = 0
    using = for_writing(conversations).db
    with telemetry.delete_memory(dry_run=dry_run) as operation:
        with unreadable_as_stored():
            erased = _erase_each(conversations.expired_at(now), each, refused, dry_run=dry_run)
        if dry_run:
            conversations = conversations.unexpired_at(now)
        if idle is not None:
            with unreadable_as_stored():
                erased += _erase_each(conversations.idle_since(now - idle), each, refused, dry_run=dry_run)
            if dry_run:
                conversations = conversations.active_since(now - idle)
        if history_older_than is not None:
            before = now - history_older_than
            for key in keys(for_writing(conversations.filter(_HAS_OTHER_ROWS))):
                for around in _outlived_ranges(conversations, key, before):
                    thin = partial(_count_outlived if dry_run else _delete_outlived, before, around)
                    with taking_turns(using):
                        deleted += _do(conversations, key, thin, each, refused) or 0
        if not dry_run:
            delete_left(using)
        operation.count(deleted)
    return Pruned(erased, deleted)


def apply_retention(
    conversations: ConversationQuerySet,
    *,
    dry_run: bool = False,
    each: Each | None = None,
    refused: Refused | None = None,
) -> Pruned:
    """
    Delete of *conversations* what ``CHATMEMORY["RETENTION"]`` does not keep: ``prune`` with its periods.

    Raises ``ImproperlyConfigured`` if it is not set. It may run twice, or at the same time as another one.
    """
    periods = conf.retention()
    if periods is None:
        raise ImproperlyConfigured("CHATMEMORY['RETENTION'] is not set, for example to {'IDLE': 365}.")
    older, idle = periods["HISTORY_OLDER_THAN"], periods["IDLE"]
    return prune(conversations, history_older_than=older, idle=idle, dry_run=dry_run, each=each, refused=refused)


def export(
    conversations: QuerySet[Conversation],
    *,
    types: Collection[MessageType] | None = None,
    form: Literal["jsonl", "text", "html"] = "jsonl",
) -> Iterator[str]:
    """
    Yield *conversations*, with all of their messages or those of *types*, in chunks worth sending.

    The *form* is the lines of ``export_lines``, which can be imported again, or a document for people: plain text, or a
    page of HTML, in the active language and time zone.
    """
    if form == "jsonl":
        return _in_chunks(export_lines(conversations, types=types))
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; it must be one of jsonl, {', '.join(FORMS)}.")
    return _in_chunks(export_pieces(conversations, FORMS[form](), types=types))


def _in_chunks(pieces: Iterator[str]) -> Iterator[str]:
    joined: list[str] = []
    size = 0
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= CHUNK_CHARACTERS:
            yield "".join(joined)
            joined, size = [], 0
    if size:
        yield "".join(joined)


async def asynchronous(chunks: Iterator[str]) -> AsyncIterator[str]:
    """Yield *chunks* without blocking the event loop; Django would collect them all before it sends the first."""
    following = sync_to_async(partial(next, chunks, ""))
    while chunk := await following():
        yield chunk


def entitle(conversations: QuerySet[Conversation], memory_id: str, title: str) -> bool:
    """
    Give a conversation the *title*, and return whether it has it now.

    It has not if it had another one, or if no question is left in its history of which a title could be made. The
    conversation gets a new ``version``; its ``updated_at`` stays.
    """
    conversations = for_writing(conversations)
    found = conversations.filter(memory_id=memory_id, title="").order_by().values_list("pk", flat=True).first()
    return found is not None and in_lock(conversations, found, partial(_entitle, title)) is True


def annotate(
    conversations: QuerySet[Conversation],
    memory_id: str,
    sequence: int,
    changes: Mapping[str, Any],
    *,
    types: Collection[MessageType] | None = None,
    max_bytes: int | None = None,
) -> Message | None:
    """
    Merge *changes* into the metadata of a message of the history, and return the message; None removes a key.

    The message may be on any branch. Returns None if *conversations* have no such message, or if it is of none of
    *types*. The conversation gets a new ``version``, unless nothing changes; its ``updated_at`` stays, since feedback
    is not activity. *max_bytes* limits the resulting metadata. Inside a transaction of the caller, the conversation
    stays locked until that transaction ends.

    Raises:
        TypeError: *changes* is not a mapping with keys of type str, or holds what JSON cannot represent.
        ValueError: The result is too large, or a database could not store it.

    """
    to_metadata(changes)
    conversations = for_writing(conversations)
    found = conversations.filter(memory_id=memory_id).order_by("pk").values_list("pk", flat=True).first()
    return (
        None
        if found is None
        else in_lock(conversations, found, partial(_annotate, sequence, changes, types, max_bytes))
    )


def check(
    conversations: QuerySet[Conversation],
    window_of: WindowOf,
    found: Callable[[Finding], object],
    *,
    repair: bool = False,
    each: Each | None = None,
) -> int:
    """
    Look for broken rules in *conversations*, call *found* with every finding, and return the number of findings.

    Each conversation is examined as it is at one moment; *each* receives how many findings it has. With *repair*, its
    counters are corrected to match its rows. Nothing else is ever changed.
    """
    conversations = for_writing(conversations)
    examine = partial(Examination, window_of=window_of)
    count = 0
    for key in keys(conversations):
        examination = at_one_moment(conversations, key, examine)
        if repair and examination is not None and examination.counters:
            examination = in_lock(conversations, key, partial(_repair, examine))
        if examination is None:
            continue
        for rule, detail in examination.broken:
            is_repaired = repair and rule.value in examination.counters
            found(Finding(examination.conversation.memory_id, rule, detail, is_repaired))
        count += len(examination.broken)
        if each is not None:
            each(examination.conversation, len(examination.broken))
    return count


def _for_each(
    conversations: QuerySet[Conversation],
    do: Callable[[Conversation], int],
    each: Each | None,
    refused: Refused | None,
) -> int:
    """Call *do* with each of *conversations*, and return for how many it succeeded."""
    results = (_do(conversations, key, do, each, refused) for key in keys(for_writing(conversations)))
    return sum(result is not None for result in results)


def _erase_each(
    conversations: QuerySet[Conversation], each: Each | None, refused: Refused | None, *, dry_run: bool
) -> int:
    """Erase each of *conversations*, or count its messages in a *dry_run*; return for how many that succeeded."""
    conversations = for_writing(conversations)
    is_own = not connections[conversations.db].in_atomic_block
    erased = 0
    for key, next_sequence in keys_and_lengths(conversations):
        is_counted = next_sequence > SHORT and not dry_run
        counted = Counted.of(key, next_sequence, conversations.db) if is_counted else NOTHING_COUNTED
        do = _count if dry_run else partial(_erase, counted, is_own)
        erased += _do(conversations, key, do, each, refused) is not None
    return erased


def _do(
    conversations: QuerySet[Conversation],
    key: int,
    do: Callable[[Conversation], int],
    each: Each | None,
    refused: Refused | None,
) -> int | None:
    """Call *do* with the conversation *key*, locked, and return its result; None if it is gone or refused."""
    conversation: Conversation | None = None

    def do_and_report(found: Conversation) -> int:
        nonlocal conversation
        conversation = found
        result = do(found)
        if each is not None:
            each(found, result)
        return result

    try:
        return in_lock(conversations, key, do_and_report)
    except (ProtectedError, RestrictedError) as exc:
        if refused is None or conversation is None:
            raise
        refused(conversation, exc)
        return None


def _clear(conversation: Conversation) -> int:
    DjangoChatMemoryStore(conversation._state.db).delete_messages(conversation.memory_id)
    return conversation.memory_messages


def _annotate(
    sequence: int,
    changes: Mapping[str, Any],
    types: Collection[MessageType] | None,
    max_bytes: int | None,
    conversation: Conversation,
) -> Message | None:
    rows = as_now(messages_of(conversation).history(all_branches=True).filter(sequence=sequence))
    message = (rows if types is None else rows.filter(type__in=types)).first()
    if message is None:
        return None
    before = message.metadata or {}
    after = {key: value for key, value in {**before, **changes}.items() if value is not None}
    if json.dumps(after) != json.dumps(before):  # as text, since in Python 1 == True
        new = NewMessage(message.chat_message, to_metadata(after, max_bytes))
        message.metadata = new_row(new, is_stored=True).metadata
        rows.update(metadata=message.metadata)
        write(conversation)
        conversation.version += 1
    message.conversation = conversation
    return message


def _entitle(title: str, conversation: Conversation) -> bool:
    history = messages_of(conversation).history(all_branches=True)
    if conversation.title or not as_now(history.filter(type=MessageType.USER)).exists():
        return False
    with for_owner(conversation.owner_id, conversation.pk):
        write(conversation, title=title)
    return True


def _count(conversation: Conversation) -> int:
    return messages_of(conversation).count()


def _erase(counted: Counted, is_own: bool, conversation: Conversation) -> int:  # bound by position
    rows = messages_of(conversation)
    if is_own:
        note_own(rows.db)
    count = counted.up_to_now(rows)
    copy(conversation).delete(using=conversation._state.db)  # a copy, since deleting an object resets its key
    return count


def _repair(examine: Callable[[Conversation], Examination], conversation: Conversation) -> Examination:
    examination = examine(conversation)
    if examination.counters:
        write(conversation, **examination.counters)
    return examination


def _outlived_ranges(
    conversations: ConversationQuerySet, key: int, before: datetime.datetime
) -> Iterator[tuple[int, int]]:
    """Return the runs of the conversation *key* in which messages can be pruned, each in one transaction."""
    conversation = for_writing(conversations).filter(pk=key).first()
    return iter(()) if conversation is None else runs(_outlived(before, conversation))


def _outlived(before: datetime.datetime, conversation: Conversation) -> MessageQuerySet:
    """Return the rows of *conversation* that are in no memory and older than *before*."""
    rows = messages_of(conversation).filter(created_at__lt=to_moment(before))
    bounds = conversation.window_start, conversation.pinned_sequence, conversation.summary_sequence
    return rows.exclude(in_memory(*bounds))


def _count_outlived(before: datetime.datetime, around: tuple[int, int], conversation: Conversation) -> int:
    return _outlived(before, conversation).filter(sequence__range=around).count()


def _delete_outlived(before: datetime.datetime, around: tuple[int, int], conversation: Conversation) -> int:
    # Evaluated again on the locked conversation, whose window no other writer can move now.
    outlived = _outlived(before, conversation).filter(sequence__range=around)
    columns = leave_branches(conversation, outlived, around)
    count = _delete(outlived)
    if count:
        write(conversation, **columns)
        release_files([conversation.pk], outlived.db)
        forget_rows(outlived.db, {conversation.pk: conversation.memory_id})
    return count


def _delete(rows: MessageQuerySet) -> int:
    _, deleted = rows.delete()
    return deleted.get(Message._meta.label, 0)
