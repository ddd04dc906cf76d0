"""
The door for an app that stores texts and files of conversations in another form: encrypted, for example.

Its ``AppConfig.ready`` sets ``installed``. Who knows whose a row is asks that with its ``Address``; a field, which sees
a value alone, with what it knows. Without such an app, nothing is called.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from django.core.exceptions import FieldError
from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

RowKey = tuple[Hashable, ...]
"""
What a row is: sequence and type of a message, the key of another row, after that of its owner if it belongs to no
conversation, nothing for the conversation itself.
"""

KEY_ID = re.compile(r"[A-Za-z0-9@._-]{1,40}", re.ASCII)
"""What identifies a key."""

ESCAPE = "enc0:"
"""What stands before a text that is stored as it is, and begins like an encoded one."""

_LIKE_ENCODED = re.compile(r"enc[012]:")

_ENCODED = re.compile(rf"enc[12]:{KEY_ID.pattern}:(?:.*:)?[A-Za-z0-9+/]{{38,}}={{0,2}}", re.ASCII | re.DOTALL)


class EncryptedError(FieldError):
    """A query asks for what the database cannot know, because it is encrypted."""


class UnreadableError(Exception):
    """What is stored cannot be read, or not be stored. The message never has a text or a key."""

    key_id = ""
    """The id of the key, if that is known."""


class UnknownKeyError(UnreadableError):
    """What is stored is encoded with a key that the site does not have, and may be as it was stored."""


class Address(NamedTuple):
    """Where rows of a conversation are, as far as that is known."""

    using: str
    conversation: Hashable = None
    """Its primary key; None before it is stored."""
    memory_id: str | None = None
    owner: str | EllipsisType | None = ...
    """The primary key of the owner as text, None for none, ... if it is not known."""


class Coder(Protocol):
    """Encodes and decodes what is in rows of one address: *column* is ``label.model.field``, *row* which one it is."""

    def encode(self, text: str, column: str, row: RowKey = ()) -> str:
        """Return *text* as it is stored."""

    def decode(self, stored: str, column: str, row: RowKey = ()) -> str:
        """Return the text that is *stored*; ``UnreadableError`` if it is not what was stored there."""

    def decode_all(
        self, stored: Sequence[str], column: str, sequences: Sequence[int], types: Sequence[str]
    ) -> list[str]:
        """Return what ``decode`` does for each of *stored*, of messages with *sequences* and *types*."""

    def encode_file(self, content: bytes, owner: str, sha256: str) -> tuple[bytes, str]:
        """Return *content* as it is stored for *owner*, empty for none, and the name of the key."""

    def decode_file(self, stored: bytes, key_id: str, owner: str, sha256: str) -> bytes:
        """Return the content that is *stored* with a key, empty for none; ``UnreadableError`` as above."""


class RowCodec(Protocol):
    """What an app does with texts and files."""

    @property
    def has_owner_keys(self) -> bool:
        """Whether each owner has a key of their own, which is deleted with their last conversation."""

    def at(self, address: Address) -> Coder:
        """Return what encodes and decodes at *address*, for one write or one read: it looks each key up once."""

    def selected(self, field: Any, table: str, connection: BaseDatabaseWrapper) -> str:
        """Return the SQL that selects *field*, of which *table* stands before the column, for ``decoder``."""

    def decoder(self, field: Any, using: str) -> Callable[..., Any]:
        """Return what decodes the values of *field* that one query in the database *using* has ``selected``."""

    def max_size(self, size: int) -> int:
        """Return the most bytes that a text of *size* bytes takes as it is stored."""

    def report(self, conversations: Any, write: Callable[[str], object]) -> int:
        """Write what ``check_chatmemory`` prints of *conversations*, and return how many values are not as required."""

    def copied(self, source: Any, forked: Any, last: int) -> None:
        """
        Let the texts of messages through sequence *last* be read in *forked*.

        They were copied as they are stored from the conversation *source*, in the same transaction.
        """

    def saving(self, conversation: Any, fields: Collection[str], using: str) -> AbstractContextManager[None]:
        """Return a block that writes *fields* of *conversation*, which is there: texts follow it to its new address."""

    def update(self, rows: Any, columns: Mapping[str, Any]) -> int:
        """Do what ``update`` of *rows*, a QuerySet, does; ``EncryptedError`` if that is not possible."""

    def place(self, rows: Any, instances: Iterable[Any], columns: Iterable[str]) -> None:
        """
        Make the texts in *columns* of *instances*, of which *rows*, a QuerySet, are about to be updated, ``Placed``.

        Call it in the transaction that updates them.
        """


installed: RowCodec | None = None


def at(address: Address) -> Coder | None:
    """Return ``RowCodec.at``; None if none is installed."""
    return None if installed is None else installed.at(address)


def looks_encoded(text: str) -> bool:
    """Return whether *text*, from any key, has the shape of what is encoded: of no text that a person writes."""
    return text.startswith("enc") and _ENCODED.fullmatch(text) is not None


def is_like_encoded(text: str) -> bool:
    """Return whether *text* begins like what is encoded, or escaped."""
    return text.startswith("enc") and _LIKE_ENCODED.match(text) is not None


def escaped(text: str) -> str:
    """Return *text* as it is stored without being encoded: it never looks encoded."""
    return f"{ESCAPE}{text}" if is_like_encoded(text) else text


def unescaped(stored: str) -> str:
    """Return the text that is *stored* without being encoded."""
    text = stored.removeprefix(ESCAPE)
    return text if is_like_encoded(text) else stored


def plain(stored: str) -> str:
    """Return the text that is *stored*, where no app is installed; ``UnreadableError`` if it is encoded."""
    if not looks_encoded(stored):
        return unescaped(stored)
    error = UnreadableError("A text is encrypted, and this process does not have the app for it.")
    error.key_id = stored.split(":", 2)[1]
    return instead_of(stored, error)


class Stored(str):
    """A text that is encoded already."""

    __slots__ = ()


class Placed(str):
    """A text that a field is to encode for an *address*, in whichever database it will be, and a *row*."""

    address: Address
    row: RowKey

    @classmethod
    def of(cls, text: str, instance: Any) -> Placed:
        """Return *text* for *instance*: a conversation, or a row with the field ``conversation`` or ``owner``."""
        placed, fields = cls(text), instance._state.fields_cache
        conversation = instance if hasattr(type(instance), "memory_id") else fields.get("conversation")
        if is_of_owner(type(instance)):
            owner = owner_of(instance)
            placed.address, placed.row = Address("", owner=owner), (owner, *row_of(instance.pk))
            return placed
        if conversation is None:
            placed.address = Address("", getattr(instance, "conversation_id", None))
        else:
            placed.address = address_of(conversation)
        if isinstance(instance.pk, tuple):
            placed.row = (instance.sequence, instance.type)
        else:
            placed.row = () if instance is conversation else row_of(instance.pk)
        return placed


def row_of(key: Any) -> RowKey:
    """Return what the row with the primary *key* is, which is not of a message; ``EncryptedError`` if it has none."""
    if key is None:
        raise EncryptedError("A text is encoded for its row, which has no key yet: save it first without the text.")
    return (key.hex if isinstance(key, UUID) else key,)


def address_of(conversation: Any, using: str | None = None) -> Address:
    """Return where the rows of *conversation* are, by default in the database that it was read from."""
    using = using or conversation._state.db or DEFAULT_DB_ALIAS
    return Address(using, conversation.pk, conversation.memory_id, owner_of(conversation))


def is_of_owner(model: Any) -> bool:
    """Return whether rows of *model* have an owner, and belong to no conversation."""
    return hasattr(model, "owner_id") and not hasattr(model, "memory_id") and not hasattr(model, "conversation_id")


def owner_of(conversation: Any) -> str | None:
    """Return the primary key of the owner of *conversation*, or of another row, as text; None for none."""
    return conversation._meta.get_field("owner").to_key(conversation.owner_id)  # type: ignore[no-any-return]


_note: ContextVar[str | EllipsisType | None] = ContextVar("chatmemory_unreadable", default=...)


@contextmanager
def unreadable_as(note: str | EllipsisType | None) -> Iterator[None]:
    """
    Read what cannot be decoded in this block as *note*, formatted with the id of its key, for a list.

    With None, it is read as it is stored, to erase it; with ..., it is an error, as by default.
    """
    token = _note.set(note)
    try:
        yield
    finally:
        _note.reset(token)


def instead_of(stored: str, error: UnreadableError) -> str:
    """Return what is read instead of what is *stored*, see ``unreadable_as``, or raise *error*."""
    note = _note.get()
    if isinstance(note, EllipsisType):
        raise error
    return stored if note is None else note.format(error.key_id)


UNREADABLE = _("cannot be decrypted (key {})")
"""What a list shows of a row."""
