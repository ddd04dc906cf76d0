"""What encrypts the rows of a conversation again: for the key that encrypts now, and where the conversation is now."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Coalesce, Length

from chatmemory_django.contrib.encryption.kept import kept
from chatmemory_django.contrib.encryption.models import Origin
from chatmemory_django.contrib.encryption.values import FILE, LIKE_A_VALUE, PREFIX, TITLE
from chatmemory_django.db.batches import in_batches
from chatmemory_django.db.row_codec import Address, Coder, RowCodec, Stored, address_of, owner_of, row_of
from chatmemory_django.models import Conversation, Message, MessageQuerySet, message_codec
from chatmemory_django.models.fields import as_stored
from chatmemory_django.operations.one_by_one import PAGE_CHARACTERS

ROWS = 100
"""How many rows are encrypted while a conversation is locked, fewer if they are large."""


def encrypt_some(
    cipher: RowCodec, conversation: Conversation, *, start: int, theirs: Coder | None = None
) -> tuple[Conversation, int, int]:
    """
    Encrypt some rows of *conversation*, of its messages those from sequence *start* on; *theirs* decrypts them.

    Where plain texts are written, it decrypts those that are encrypted.

    Returns the conversation, how many rows, and where to go on: each row is looked at once.
    """
    count = 0
    coder: Any = cipher.at(address_of(conversation))
    theirs = theirs or coder
    for rows, old, columns in outdated(cipher, conversation, start):
        size: Any = sum(Coalesce(Length(as_stored(column)), 0) for column in columns)
        sizes = old.values_list("pk", size)
        batch = next(in_batches(sizes[: ROWS - count], itemgetter(1), PAGE_CHARACTERS, ROWS), [])
        keys = [pk for pk, _ in batch]
        some = rows.with_keys(keys) if isinstance(rows, MessageQuerySet) else rows.filter(pk__in=keys)
        is_message, label = rows.model is Message, rows.model._meta.label_lower
        for pk, kind, *texts in some.values_list("pk", "type" if is_message else "pk", *map(as_stored, columns)):
            row = (pk[-1], kind) if is_message else () if rows.model is Conversation else row_of(pk)
            new = {}
            for column, text in zip(columns, texts, strict=True):
                name = f"{label}.{column}"
                new[column] = text and Stored(coder.encode(theirs.decode(text, name, row), name, row))
            rows.filter(pk=pk).update(**new)
            count += 1
            if is_message:
                start = pk[-1]
    if not count and not start:  # all rows were at their own places before, so nobody reads others now
        Origin.objects.using(conversation._state.db).filter(pk=conversation.pk).delete()
    return conversation, count, start


def outdated(
    cipher: RowCodec, conversation: Conversation, start: int
) -> Iterator[tuple[QuerySet[Any], QuerySet[Any], list[str]]]:
    """Yield the rows of every table, those that are not stored as they are written now, and the columns."""
    using: Any = conversation._state.db
    coder: Any = cipher.at(address_of(conversation))
    for rows, columns in kept([conversation.pk], using):
        if coder.writes_plain and rows.model is Origin:
            continue  # it is never plain, and goes once no row needs it
        later = rows.filter(sequence__gte=start) if rows.model is Message else rows
        yield rows, _outdated(coder, later, columns), columns


def _outdated(coder: Any, rows: QuerySet[Any], columns: Sequence[str]) -> QuerySet[Any]:
    """Return those of *rows*, all of which *coder* encrypts, that are not stored as they are written now."""
    stored = {f"stored_{column}": as_stored(column) for column in columns}
    old = Q()
    for name, column in zip(stored, columns, strict=True):
        if coder.writes_plain:
            old |= Q(**{f"{name}__regex": LIKE_A_VALUE})
            continue
        current = coder.head(f"{rows.model._meta.label_lower}.{column}")
        old |= Q(**{f"{name}__isnull": False}) & ~Q(**{name: ""}) & ~Q(**{f"{name}__startswith": current})
    found: QuerySet[Any] = rows.annotate(**stored).filter(old).order_by("pk")
    return found


def outdated_of_owners(cipher: RowCodec, rows: QuerySet[Any], columns: Sequence[str]) -> Iterator[Any]:
    """Yield the keys of those of *rows*, which belong to users and to no conversation, that are not stored as now."""
    to_key: Any = rows.model._meta.get_field("owner").to_key
    for owner in rows.order_by().values_list("owner", flat=True).distinct():
        with transaction.atomic(using=rows.db):
            coder = cipher.at(Address(rows.db, owner=to_key(owner)))
            keys = list(_outdated(coder, rows.filter(owner=owner), columns).values_list("pk", flat=True))
            transaction.set_rollback(True, using=rows.db)  # an owner without a key was given one
        yield from keys


def encrypt_one(cipher: RowCodec, rows: QuerySet[Any], columns: Sequence[str], key: Any) -> int:
    """Encrypt the row *key* of *rows*, see ``outdated_of_owners``, unless it is gone; return whether it was there."""
    with transaction.atomic(using=rows.db):
        row = rows.select_for_update().only("owner").filter(pk=key).first()
        if row is None:
            return 0
        coder, place = cipher.at(Address(rows.db, owner=owner_of(row))), (owner_of(row), *row_of(key))
        stored = rows.filter(pk=key).values(**{f"stored_{column}": as_stored(column) for column in columns}).get()
        new = {}
        for column in columns:
            name, text = f"{rows.model._meta.label_lower}.{column}", stored[f"stored_{column}"]
            new[column] = text and Stored(coder.encode(coder.decode(text, name, place), name, place))
        return rows.filter(pk=key).update(**new)


def encrypt_files(cipher: RowCodec, conversation: Conversation) -> int:
    """Store the files of *conversation* as they are written now, if they are not; return how many were not."""
    if message_codec.installed is None:
        return 0
    coder: Any = cipher.at(address_of(conversation))
    current = "" if coder.writes_plain else f"{PREFIX}{coder.current(FILE).id}"
    return message_codec.installed.encode_again(conversation, coder, current)


@contextmanager
def moving(cipher: Any, conversation: Conversation, fields: Collection[str], using: str) -> Iterator[None]:
    """Encrypt what *conversation* has for where it is once the block has written *fields*, whatever else it has."""
    with transaction.atomic(using=using, savepoint=False):
        title = Conversation.objects.using(using).filter(pk=conversation.pk)
        before = title.select_for_update().defer("title").first()
        yield
        if before is None:
            return
        there, given = address_of(before, using), address_of(conversation, using)
        at = there if "memory_id" not in fields else there._replace(memory_id=given.memory_id)
        at = at if not {"owner", "owner_id"} & set(fields) else at._replace(owner=given.owner)
        theirs: Any = cipher.at(there)
        own: Any = cipher.at(at)
        written = given if "title" in fields else there
        if written != at:
            for stored in filter(None, title.values_list(as_stored("title"), flat=True)):
                title.update(title=Stored(own.encode(cipher.at(written).decode(stored, TITLE), TITLE)))
        if there.owner != at.owner and (cipher.has_owner_keys or cipher.owner_keys.has(there.owner, using)):
            after = title.defer("title").get()
            start, count = 0, len(theirs.origin) + 1  # which is read before it is encrypted for the new owner
            while count:
                _, count, start = encrypt_some(cipher, after, start=start, theirs=theirs)
            if own.writes_plain:  # all is plain now, and what only the old owner's key decrypts would stop a fork
                Origin.objects.using(using).filter(pk=conversation.pk).delete()
            encrypt_files(cipher, after)
