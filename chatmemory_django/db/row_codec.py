"""
The door for an app that stores texts and files of conversations in another form: encrypted, for example.

Its ``AppConfig.ready`` sets ``installed``. Who knows whose a row is asks that with its ``Address``; a field, which sees
a value alone, with what it knows. Without such an app, nothing is called.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django.core.exceptions import FieldError
from django.db import DEFAULT_DB_ALIAS

if TYPE_CHECKING:
    from collections.abc import Iterable

RowKey = tuple[Hashable, ...]
"""What a row is in its conversation: sequence and type of a message, the key of another row, nothing if unknown."""


class EncryptedError(FieldError):
    """A query asks for what the database cannot know, because it is encrypted."""


class UnreadableError(Exception):
    """What is stored cannot be read, or not be stored. The message never has a text or a key."""


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

    def encode_file(self, content: bytes, sha256: str) -> tuple[bytes, str]:
        """Return *content* as it is stored, and the id of the key."""

    def decode_file(self, stored: bytes, key_id: str, sha256: str) -> bytes:
        """Return the content that is *stored* with a key; ``UnreadableError`` as above."""


class RowCodec(Protocol):
    """What an app does with texts and files."""

    @property
    def has_owner_keys(self) -> bool:
        """Whether each owner has a key of their own, which is deleted with their last conversation."""

    def at(self, address: Address) -> Coder:
        """Return what encodes and decodes at *address*, for one write or one read: it looks each key up once."""

    def max_size(self, size: int) -> int:
        """Return the most bytes that a text of *size* bytes takes as it is stored."""

    def report(self, conversations: Any) -> Iterable[str]:
        """Yield what ``check_chatmemory`` prints of *conversations*."""

    def unreadable_as_stored(self) -> AbstractContextManager[None]:
        """Return a block that reads what cannot be decoded as it is stored, to erase it."""


installed: RowCodec | None = None


def at(address: Address) -> Coder | None:
    """Return ``RowCodec.at``; None if none is installed."""
    return None if installed is None else installed.at(address)


class Stored(str):
    """A text that is encoded already."""

    __slots__ = ()


class Placed(str):
    """A text that a field is to encode for an *address*, in whichever database it will be, and a *row*."""

    address: Address
    row: RowKey

    @classmethod
    def of(cls, text: str, instance: Any) -> Placed:
        """Return *text* for *instance*, a conversation or a row with the field ``conversation``."""
        placed, fields = cls(text), instance._state.fields_cache
        conversation = instance if hasattr(type(instance), "memory_id") else fields.get("conversation")
        if conversation is None:
            placed.address = Address("", getattr(instance, "conversation_id", None))
        else:
            placed.address = address_of(conversation)
        others = () if instance is conversation else (instance.pk,)
        placed.row = (instance.sequence, instance.type) if isinstance(instance.pk, tuple) else others
        return placed


def address_of(conversation: Any, using: str | None = None) -> Address:
    """Return where the rows of *conversation* are, by default in the database that it was read from."""
    using = using or conversation._state.db or DEFAULT_DB_ALIAS
    return Address(using, conversation.pk, conversation.memory_id, owner_of(conversation))


def owner_of(conversation: Any) -> str | None:
    """Return the primary key of the owner of *conversation* as text, None for none."""
    return conversation._meta.get_field("owner").to_key(conversation.owner_id)  # type: ignore[no-any-return]


def unreadable_as_stored() -> AbstractContextManager[None]:
    """Return ``RowCodec.unreadable_as_stored``, a block without an effect if none is installed."""
    return nullcontext() if installed is None else installed.unreadable_as_stored()
