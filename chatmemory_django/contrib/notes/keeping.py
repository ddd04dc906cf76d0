"""
What is done with notes: keep one, change it, drop it, and switch all of them on or off for a user.

Tools, pages and REST call these, so that the limits are the same for all.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from django.db import connections, router, transaction
from django.db.models import F
from django.utils import timezone

from chatmemory_django.contrib.notes.conf import notes
from chatmemory_django.contrib.notes.models import Note, Notebook
from chatmemory_django.core.limits import MAX_IMPORTED, is_storable
from chatmemory_django.db.moments import aware
from chatmemory_django.db.threads import in_thread
from chatmemory_django.db.transactions import as_now, sees_otherwise, tried_again
from chatmemory_django.models.columns import checked_moment
from chatmemory_django.models.copies import refuse_held_owner
from chatmemory_django.models.fields import without_texts
from chatmemory_django.private import private

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

_OVERRIDES = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
"""The characters, by their direction, that show what follows in another order than it is written in."""


class _Book(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an export has of a notebook."""

    is_on: bool
    last_number: Annotated[int, msgspec.Meta(ge=0, le=MAX_IMPORTED)] = 0


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an export has of a note."""

    text: str
    number: Annotated[int, msgspec.Meta(ge=1, le=MAX_IMPORTED)] | None = None
    created_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    updated_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class NotesFullError(ValueError):
    """The user has as many notes as are allowed."""


class NotesOffError(ValueError):
    """The user has switched notes off."""


@private
def keep(owner: AbstractBaseUser, text: str) -> Note:
    """
    Keep *text* as a new note about *owner*, and return it.

    Raises:
        ValueError: The text is blank, too long, or has control characters; ``NotesFullError`` if there are as many
            notes as the setting ``MAX_NOTES`` allows, ``NotesOffError`` if the owner has switched them off.

    """
    using = router.db_for_write(Note, owner_key=str(owner.pk))
    return tried_again(using, partial(_kept, owner.pk, checked(text), using))


@private
async def akeep(owner: AbstractBaseUser, text: str) -> Note:
    """See ``keep``."""
    return await in_thread(keep, owner, text)


@private
def change(owner: AbstractBaseUser, number: int, text: str) -> Note:
    """
    Give the note *number* of *owner* another *text*, and return it.

    Raises:
        Note.DoesNotExist: The owner has no such note.
        ValueError: See ``keep``.
        ProtectedError: A hold forbids it: the old text would be gone.

    """
    text = checked(text)
    using = router.db_for_write(Note, owner_key=str(owner.pk))
    with transaction.atomic(using=using):
        own = without_texts(Note.objects.using(using).filter(owner=owner.pk, number=number))
        note: Note = own.select_for_update().get()
        refuse_held_owner(using, owner.pk)
        note.text, note.updated_at = text, timezone.now()
        note.save(using=using, update_fields=["text", "updated_at"])
    return note


@private
async def achange(owner: AbstractBaseUser, number: int, text: str) -> Note:
    """See ``change``."""
    return await in_thread(change, owner, number, text)


def drop(owner: AbstractBaseUser, *numbers: int) -> int:
    """
    Delete the notes of *owner* with these *numbers*, all without any, and return how many there were.

    Raises ``ProtectedError`` if a hold forbids it.
    """
    using = router.db_for_write(Note, owner_key=str(owner.pk))
    own = Note.objects.using(using).filter(owner=owner.pk)
    with transaction.atomic(using=using):  # if it is refused, a transaction of the caller goes on
        return without_texts(own.filter(number__in=numbers) if numbers else own).delete()[0]


async def adrop(owner: AbstractBaseUser, *numbers: int) -> int:
    """See ``drop``."""
    return await in_thread(drop, owner, *numbers)


def is_on(owner: AbstractBaseUser) -> bool:
    """Return whether notes about *owner* are kept and sent."""
    return not Notebook.objects.filter(owner=owner.pk, is_on=False).exists()


def switch(owner: AbstractBaseUser, *, on: bool) -> None:
    """Keep and send notes about *owner* from now on, or none; those that are there stay until they are deleted."""
    using = router.db_for_write(Notebook, owner_key=str(owner.pk))
    Notebook.objects.using(using).update_or_create(owner_id=owner.pk, defaults={"is_on": on})


async def aswitch(owner: AbstractBaseUser, *, on: bool) -> None:
    """See ``switch``."""
    await in_thread(partial(switch, owner, on=on))


@private
def checked(text: str) -> str:
    """Return *text* as it is kept, on one line; ``ValueError`` if it is no note, see ``keep``."""
    line = " ".join(text.split())
    if len(line) > (most := notes().MAX_LENGTH):  # first: what follows takes longer
        raise ValueError(f"A note must have at most {most} characters, not {len(line)}.")
    if not is_storable(line) or any(map(_is_control, line)):
        raise ValueError("A note must not have control characters, or characters that change the order of others.")
    if not any(unicodedata.category(each)[0] in "LNS" for each in line):
        raise ValueError("A note must not be blank.")
    return line


def exported_book(book: Notebook) -> dict[str, Any]:
    """See ``copies.OfOwners``."""
    return {"is_on": book.is_on, "last_number": book.last_number}


def restore_book(owner: AbstractBaseUser, given: Mapping[str, Any], using: str) -> None:
    """See ``copies.OfOwners``. No file switches notes on for a user who has switched them off here."""
    book = msgspec.convert(given, _Book)
    Notebook.objects.using(using).update_or_create(owner_id=owner.pk, defaults={} if book.is_on else {"is_on": False})
    _numbered(owner.pk, book.last_number, using)


def exported(note: Note) -> dict[str, Any]:
    """See ``copies.OfOwners``."""
    created_at, updated_at = (aware(each).astimezone(UTC) for each in (note.created_at, note.updated_at))
    moments = {"created_at": created_at.isoformat(), "updated_at": updated_at.isoformat()}
    return {"number": note.number, "text": note.text, **moments}


@private
def restore(owner: AbstractBaseUser, given: Mapping[str, Any], using: str) -> None:
    """See ``copies.OfOwners``: keep what was ``exported``, unless there is a note of the same text."""
    content = msgspec.convert(given, _Content)
    line = checked(content.text)
    moments = {"created_at": content.created_at, "updated_at": content.updated_at}
    columns = {name: checked_moment(moment) for name, moment in moments.items() if moment is not None}
    if all(note.text != line for note in Note.objects.using(using).filter(owner=owner.pk)):
        keep = partial(_kept, owner.pk, line, using, even_off=True, number=content.number, **columns)
        tried_again(using, keep)


@private
def _kept(
    owner: Any, text: str, using: str, *, even_off: bool = False, number: int | None = None, **columns: datetime
) -> Note:
    with transaction.atomic(using=using):
        book = _locked(owner, using)
        if not (book.is_on or even_off):
            raise NotesOffError("The user has switched notes off, so none are kept.")
        own = Note.objects.using(using).filter(owner=owner)
        own = as_now(own) if sees_otherwise(connections[using]) else own
        if len(own.values_list("pk")) >= (most := notes().MAX_NOTES):
            raise NotesFullError(f"There are {most} notes already, the most that are kept; drop one of them first.")
        if number is None or own.filter(number=number).exists():
            number = book.last_number
        else:  # of another site: then none was used up here
            Notebook.objects.using(using).filter(pk=book.pk).update(last_number=max(number, book.last_number - 1))
        note = Note(owner_id=owner, number=number, text=text, **columns)
        note.save(using=using, force_insert=True)
    return note


def _numbered(owner: Any, last: int, using: str) -> None:
    """Let the next note of *owner* have a number above *last*."""
    Notebook.objects.using(using).filter(owner=owner, last_number__lt=last).update(last_number=last)


def _locked(owner: Any, using: str) -> Notebook:
    """Return the notebook of *owner*, locked until the transaction ends, with the number of the next note."""
    own = Notebook.objects.using(using).filter(owner=owner)
    # The write comes first: it waits for others, and what is read after it is as they have left it.
    while not own.update(last_number=F("last_number") + 1):
        Notebook.objects.using(using).get_or_create(owner_id=owner)
    return as_now(own).get()


def _is_control(character: str) -> bool:
    return unicodedata.category(character) == "Cc" or unicodedata.bidirectional(character) in _OVERRIDES
