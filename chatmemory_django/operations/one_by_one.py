"""
Reading and writing whole conversations, one by one: at one moment or locked, with few of their rows in Python at a
time.

No cursor stays open on the server between two statements, so all of this works behind a pooler that shares connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

from django.db import IntegrityError, connections, router, transaction
from django.db.models import F, ProtectedError, QuerySet, RestrictedError
from django.db.models.expressions import Combinable

from chatmemory_django.core.windows import Window
from chatmemory_django.db.batches import in_batches
from chatmemory_django.db.row_codec import Stored, UnreadableError, unescaped
from chatmemory_django.db.transactions import MAX_ATTEMPTS, as_now, has_locked, is_duplicate, note_lock, tried_again
from chatmemory_django.messages import ChatMessage, NewMessage
from chatmemory_django.models import Conversation, ConversationQuerySet, Message, MessageQuerySet
from chatmemory_django.models.message_codec import MissingFileError, take_out
from chatmemory_django.models.messages import MESSAGE_SIZE
from chatmemory_django.stores.django.changes import new_row

PAGE = 1_000
"""How many keys or rows one query reads at most."""

PAGE_CHARACTERS = 1024 * 1024
"""How many characters the rows that one query reads may have in total; a larger row is read alone."""

TRIES = 2
"""How often a conversation is read without a lock before it is locked."""

_T = TypeVar("_T")

Each: TypeAlias = Callable[[Conversation, int], object]
Refused: TypeAlias = Callable[[Conversation, Exception], object]
WindowOf: TypeAlias = Callable[[str], Window | None]


def for_writing(conversations: QuerySet[Conversation]) -> ConversationQuerySet:
    """Return *conversations* from the database for writes, unless they are bound to a certain database."""
    return conversations.using(conversations.select_for_update().db)  # type: ignore[return-value]  # the manager creates one


def own_row(conversation: Conversation) -> ConversationQuerySet:
    """Return a queryset of only *conversation*, in the database for writes: it may have been read from a replica."""
    using = router.db_for_write(Conversation, instance=conversation)
    return Conversation.objects.using(using).filter(pk=conversation.pk)


def keys(conversations: QuerySet[Conversation]) -> Iterator[int]:
    """Yield the primary keys of *conversations*, in order, without those that are created after the start."""
    return (key for key, _ in keys_and_lengths(conversations))


def keys_and_lengths(conversations: QuerySet[Conversation]) -> Iterator[tuple[int, int]]:
    """Yield the same keys, each with the sequence that comes next in the conversation."""
    ordered = conversations.order_by("pk").values_list("pk", "next_sequence")
    page = list(ordered[:PAGE])
    # The newest of all conversations, not the last of these: to find that, PostgreSQL may read the whole table.
    newest = Conversation.objects.using(ordered.db).order_by("-pk").values_list("pk", flat=True)
    end = (newest.first() or 0) if len(page) == PAGE else 0
    while page:
        yield from dict(page).items()  # a join may repeat a key
        last = page[-1][0]
        page = list(ordered.filter(pk__gt=last, pk__lte=end)[:PAGE]) if last < end else []


def in_lock(conversations: QuerySet[Conversation], key: int, do: Callable[[Conversation], _T]) -> _T | None:
    """
    Return the result of *do* on the conversation *key*, in a transaction in which no one else writes to it.

    None if it is not, or no longer, one of *conversations*, which is checked after it was locked. If the database
    aborts the transaction because of another one, it is retried, unless it is inside a transaction of the caller.
    """
    conversations = for_writing(conversations)
    return tried_again(conversations.db, partial(_in_lock, conversations, key, do))


def for_each(
    conversations: QuerySet[Conversation],
    do: Callable[[Conversation], int],
    each: Each | None,
    refused: Refused | None,
) -> int:
    """Call *do* with each of *conversations*, and return for how many it succeeded."""
    results = (in_its_lock(conversations, key, do, each, refused) for key in keys(for_writing(conversations)))
    return sum(result is not None for result in results)


def in_its_lock(
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


@contextmanager
def going_on(
    conversations: QuerySet[Conversation], key: int, refused: Refused | None, *others: type[Exception]
) -> Iterator[None]:
    """
    Give *refused* the conversation *key*, without its title, if this block cannot decrypt it, or raises one of
    *others*; None raises that.
    """
    errors: tuple[type[Exception], ...] = (UnreadableError, *others)
    try:
        yield
    except errors as exc:
        if refused is None:
            raise
        for conversation in conversations.filter(pk=key).defer("title"):
            refused(conversation, exc)


def at_one_moment(conversations: QuerySet[Conversation], key: int, read: Callable[[Conversation], _T]) -> _T | None:
    """
    Return the result of *read* on the conversation *key*, as of one moment; None if it does not exist.

    It is read without a lock, and again if another writer changed it in the meantime; after repeated changes, with a
    lock, and so where the transaction may have written to it, see ``has_locked``.
    """
    for _ in range(TRIES):
        conversation = _one(conversations, key).first()
        if conversation is None:
            return None
        if has_locked(connections[conversations.db], conversation.memory_id):
            break
        try:
            found = read(conversation)
        except MissingFileError:  # another writer may have removed its message
            if conversation.version in _row(conversation).values_list("version", flat=True):
                raise
            continue
        if conversation.version in _row(conversation).values_list("version", flat=True):
            return found
    return in_lock(conversations, key, read)


def messages_of(conversation: Conversation) -> MessageQuerySet:
    """Return the rows of *conversation*, in order, from the database it was read from; if it is locked, as of now."""
    messages = Message.objects.using(conversation._state.db)
    rows = messages.filter(conversation=conversation.pk).order_by("sequence")
    return as_now(rows) if has_locked(connections[rows.db], conversation.memory_id) else rows


def ranges(rows: MessageQuerySet) -> Iterator[tuple[int, int]]:
    """
    Yield the first and last sequences of ranges that together cover *rows*, each of at most ``PAGE`` sequences.

    The rows are of one conversation. A range is read by its index, whatever the planner knows; to find the next
    ``PAGE`` rows with a LIMIT, PostgreSQL sorts all that follow, as long as it has no statistics.
    """
    start = 0
    sequences = rows.order_by("sequence").values_list("sequence", flat=True)
    while (first := sequences.filter(sequence__gte=start).first()) is not None:
        start = first + PAGE
        yield first, start - 1


def pages(rows: MessageQuerySet, *columns: str | Combinable) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the *columns* of *rows* of one conversation, in order, in small lists, however large the rows are."""
    for around in ranges(rows):
        sizes = list(rows.filter(sequence__range=around).values_list("sequence", MESSAGE_SIZE))
        for batch in in_batches(sizes, itemgetter(1), PAGE_CHARACTERS, PAGE):
            run = batch[0][0], batch[-1][0]
            yield list(rows.filter(sequence__range=run).values_list(*columns))


def is_there(memory_id: str, using: str) -> bool:
    """Return whether there is a conversation *memory_id* in the database *using*, of any owner."""
    with transaction.atomic(using=using):
        # The lock makes MariaDB return the current state instead of the one at the start of the caller's transaction.
        rows = Conversation.objects.using(using).filter(memory_id=memory_id).select_for_update()
        return bool(rows.values_list("pk"))


def created(create: Callable[[], _T], memory_id: str, using: str) -> _T | None:
    """
    Return what *create*, which stores a conversation *memory_id*, returns; None if there is one already.

    If another process erases that one before it is looked for, *create* is called again.
    """
    for _ in range(1, MAX_ATTEMPTS):
        try:
            return create()
        except IntegrityError as exc:
            if is_there(memory_id, using):
                return None
            if not is_duplicate(exc):
                raise
    return create()


def write(conversation: Conversation, **columns: Any) -> None:
    """Write *columns* of *conversation*, which is locked; without any, only its version is incremented."""
    _row(conversation).update(version=F("version") + 1, **columns)


def _in_lock(conversations: ConversationQuerySet, key: int, do: Callable[[Conversation], _T]) -> _T | None:
    with transaction.atomic(using=conversations.db):
        conversation = _one(conversations.lock([key]), key).first()
        if conversation is None:
            return None
        note_lock(connections[conversations.db], conversation.memory_id)
        return do(conversation)


def _one(conversations: QuerySet[Conversation], key: int) -> QuerySet[Conversation]:
    """Return the conversation *key*, if it is one of *conversations*, with all columns, even those they defer."""
    return conversations.filter(pk=key).select_related(None).defer(None).order_by("pk")


def _row(conversation: Conversation) -> QuerySet[Conversation]:
    return Conversation.objects.using(conversation._state.db).filter(pk=conversation.pk)


def as_kept(message: ChatMessage) -> ChatMessage:
    """Return *message* as its row keeps it: with references to files that go to the storage."""
    return take_out(message, None)[0]


def stored_columns(new: NewMessage) -> tuple[str, str, str | None, str | None]:
    """Return type, text, payload and original of *new*; ``TypeError`` or ``ValueError`` if it cannot be stored."""
    row = new_row(new)
    return row.type, unescaped(row.text) if isinstance(row.text, Stored) else row.text, row.payload, row.verbatim
