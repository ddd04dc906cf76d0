"""The codec of rows of this app: which key encrypts and decrypts what is stored, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from chatmemory_django.contrib.encryption.conf import Encryption
from chatmemory_django.contrib.encryption.keys import OWNER_PREFIX, Keys, OwnerKeys
from chatmemory_django.contrib.encryption.values import (
    PREFIX,
    EncryptionError,
    Key,
    MissingKeyError,
    decrypter,
    encrypt,
    is_encrypted,
    key_id_of,
    seal,
    unseal,
)
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address, RowKey
from chatmemory_django.private import private

if TYPE_CHECKING:
    from chatmemory_django.models import ConversationQuerySet

APP = "chatmemory_django.contrib.encryption"

ADDED_BYTES = 96
"""What encryption adds to a text, besides Base64: the format, an id of 40 characters, the nonce and the tag."""

FILE = "file"
"""What files are encrypted for."""


class Cipher:
    """Encrypts with the key of the site, or with the owners' keys, as the settings have it when it is first used."""

    @cached_property
    def has_owner_keys(self) -> bool:
        """See ``RowCodec``."""
        return bool(Encryption.current().OWNER_KEYS)

    @cached_property
    @private
    def keys(self) -> Keys:
        """The keys of the site."""
        options = Encryption.current()
        keys: Keys = import_string(options.CLASS)(options.KEYS)
        return keys

    @cached_property
    def owner_keys(self) -> OwnerKeys:
        """The keys of owners."""
        return OwnerKeys(self.keys)

    def at(self, address: Address) -> _Coder:
        """See ``RowCodec``."""
        return _Coder(self, address)

    def max_size(self, size: int) -> int:
        """See ``RowCodec``."""
        return size + size // 3 + ADDED_BYTES

    def report(self, conversations: ConversationQuerySet) -> Iterable[str]:
        """See ``RowCodec``."""
        from chatmemory_django.contrib.encryption.kept import keys_in_use  # models are not loaded yet

        for key_id, count in sorted(keys_in_use(conversations, self.owner_keys).items()):
            which = {"": "in plain text", OWNER_PREFIX: "encrypted with keys of owners"}
            yield f"Values {which.get(key_id, f'encrypted with the key {key_id!r}')}: {count:,}."

    @contextmanager
    def unreadable_as_stored(self) -> Iterator[None]:
        """See ``RowCodec``; no key is needed."""
        token = _reads_unreadable.set(True)
        try:
            yield
        finally:
            _reads_unreadable.reset(token)

    def key(self, key_id: str, using: str) -> Key | None:
        """Return the key *key_id*, of the site or of an owner in the database *using*, or None."""
        return self.owner_keys.get(key_id, using) if key_id.startswith(OWNER_PREFIX) else self.keys.get(key_id)


class _Coder:
    """What encrypts and decrypts at one address; see ``row_codec.Coder``."""

    def __init__(self, cipher: Cipher, address: Address) -> None:
        self._cipher = cipher
        self._using = address.using
        self._is_begun = address.conversation is None and address.memory_id is not None
        self._owner = _owner_of(address)
        self._decrypters: dict[tuple[str, str], Callable[[str], str]] = {}

    def encode(self, text: str, column: str, row: RowKey = ()) -> str:
        return encrypt(text, self.current(column, row), column)

    def decode(self, stored: str, column: str, row: RowKey = ()) -> str:
        if not stored.startswith(PREFIX):
            return stored
        known = self._decrypters.get((column, stored[len(PREFIX) : stored.find(":", len(PREFIX))]))
        try:
            return self._decrypted(stored, column) if known is None else known(stored)
        except EncryptionError:
            if _reads_unreadable.get():
                return stored
            raise

    def encode_file(self, content: bytes, sha256: str) -> tuple[bytes, str]:
        key = self.current(FILE)
        return seal(content, key, FILE), key.id

    def decode_file(self, stored: bytes, key_id: str, sha256: str) -> bytes:
        key = self._cipher.key(key_id, self._using)
        if key is None:
            raise MissingKeyError(key_id, FILE)
        return unseal(stored, key, FILE)

    def current(self, column: str, row: RowKey = ()) -> Key:
        """Return the key that encrypts *column* now."""
        if not self._cipher.has_owner_keys:
            return self._cipher.keys.current()
        owner = self._owner
        if owner is None:
            raise EncryptionError(
                f"With OWNER_KEYS, {column} can only be written where its owner is known: "
                "use the methods of the package, Conversation.save(), or encryption.for_owner(…)."
            )
        if owner.key is None:
            return self._cipher.keys.current()
        if self._using not in owner.keys:
            living = owner.living
            if living is None and self._is_begun and row:
                living = row[0]  # an answer, say, whose conversation is known by its memory id
            owner.keys[self._using] = self._cipher.owner_keys.of(owner.key, self._using, living)
        return owner.keys[self._using]

    def _decrypted(self, stored: str, column: str) -> str:
        key_id = key_id_of(stored)
        if key_id is None:
            return stored
        key = self._cipher.key(key_id, self._using)
        if key is None:
            if is_encrypted(stored):
                raise MissingKeyError(key_id, column)
            return stored
        owner = self._owner
        if key.owner is not None and owner is not None and key.owner != owner.key:
            raise EncryptionError(
                f"A value of {column} is encrypted with the key {key_id!r}, which is another owner's."
            )
        self._decrypters[column, key_id] = decrypter(key, column)
        return self._decrypters[column, key_id](stored)


class _Owner:
    """Whom is encrypted for, and the owner's keys by database, so that each is asked for once."""

    def __init__(self, key: str | None, living: Hashable) -> None:
        self.key = key
        self.living = living
        self.keys: dict[str, Key] = {}


_named: ContextVar[_Owner | None] = ContextVar("chatmemory_owner", default=None)


@contextmanager
def for_owner(owner: object, living: Hashable = None) -> Iterator[None]:
    """
    Encrypt for *owner*, the primary key of a user or None, what names no owner in this block, and decrypt nothing of
    others there.

    It has an effect only with ``OWNER_KEYS``. *living* is the key of a conversation of theirs that a write in this
    block changes, or anything else that is gone once the owner is erased; see ``OwnerKeys.of``.
    """
    token = _named.set(_Owner(None if owner is None else str(owner), living))
    try:
        yield
    finally:
        _named.reset(token)


def _owner_of(address: Address) -> _Owner | None:
    """Return whose *address* is: the owner of the block that this is in, if it has no other one."""
    named = _named.get()
    if isinstance(address.owner, EllipsisType) or (named is not None and named.key == address.owner):
        return named
    return _Owner(address.owner, address.conversation)


_reads_unreadable: ContextVar[bool] = ContextVar("chatmemory_reads_unreadable", default=False)


def installed() -> Cipher | None:
    """Return what encrypts and decrypts, or None if the app is not installed."""
    return row_codec.installed if isinstance(row_codec.installed, Cipher) else None


def install() -> None:
    """Let what is written and read be encrypted and decrypted with the keys that the settings have now."""
    row_codec.installed = Cipher()


def _reset(setting: str, **kwargs: Any) -> None:
    is_own = row_codec.installed is None or installed() is not None
    if setting in {"CHATMEMORY", "INSTALLED_APPS"} and is_own:
        row_codec.installed = Cipher() if apps.is_installed(APP) else None


setting_changed.connect(_reset)
