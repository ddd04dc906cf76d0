"""What the fields that hold people's texts call: encrypt this value, decrypt that one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldError
from django.core.signals import setting_changed
from django.db import transaction
from django.utils.module_loading import import_string
from django.views.decorators.debug import sensitive_variables

from chatmemory_django import conf
from chatmemory_django.encryption.keys import OWNER_PREFIX, Keys, OwnerKeys
from chatmemory_django.encryption.values import (
    PREFIX,
    EncryptionError,
    Key,
    MissingKeyError,
    decrypt,
    decrypter,
    encrypt,
    is_encrypted,
    key_id_of,
    seal,
    unseal,
)

APP = "chatmemory_django.encryption"


class EncryptedError(FieldError):
    """A query asks for what the database cannot know, because it is encrypted."""


class Cipher:
    """Encrypts with the key of the site, or with the owners' keys if the site has *owner_keys*."""

    def __init__(self, keys: Keys, *, owner_keys: bool) -> None:
        self.keys = keys
        self.owner_keys = OwnerKeys(keys)
        self.has_owner_keys = owner_keys
        """Whether each owner has a key of their own."""

    def encrypt(self, text: str, column: str, using: str) -> str:
        """Return *text* encrypted for *column* in the database *using*."""
        return encrypt(text, self._current(column, using), column)

    def decrypt(self, value: str, column: str, using: str) -> str:
        """
        Return the text of *value*, read from *column* in the database *using*; what is plain text stays as it is.

        Raises:
            EncryptionError: It was changed, or its key is missing or that of another owner than ``for_owner`` names.

        """
        try:
            return self._decrypt(value, column, using)
        except EncryptionError:
            if _reads_unreadable.get():
                return value
            raise

    def seal(self, content: bytes, column: str, using: str) -> tuple[bytes, str]:
        """Return *content* encrypted for *column* in the database *using*, and the id of the key."""
        key = self._current(column, using)
        return seal(content, key, column), key.id

    def unseal(self, sealed: bytes, key_id: str, column: str, using: str) -> bytes:
        """Return the content of *sealed*, encrypted with the key *key_id*; ``EncryptionError`` as in ``decrypt``."""
        key = self._key(key_id, using)
        if key is None:
            raise MissingKeyError(key_id, column)
        return unseal(sealed, key, column)

    def decrypter(self, column: str, using: str) -> Callable[[str], str]:
        """Return what decrypts many values of *column*: like ``decrypt``, but it looks each key up once."""
        found: dict[str, Callable[[str], str]] = {}

        def decrypted(value: str) -> str:
            if not value.startswith(PREFIX):
                return value
            key_id = value[len(PREFIX) : value.find(":", len(PREFIX))]
            if key_id in found:
                return found[key_id](value)
            text = self.decrypt(value, column, using)
            if not _reads_unreadable.get() and (key := self._key(key_id, using)) is not None:
                found[key_id] = decrypter(key, column)
            return text

        return decrypted

    def _decrypt(self, value: str, column: str, using: str) -> str:
        key_id = key_id_of(value)
        if key_id is None:
            return value
        key = self._key(key_id, using)
        if key is None:
            if is_encrypted(value):
                raise MissingKeyError(key_id, column)
            return value
        owner = _owner.get()
        if key.owner is not None and owner is not None and key.owner != owner.key:
            raise EncryptionError(
                f"A value of {column} is encrypted with the key {key_id!r}, which is another owner's."
            )
        return decrypt(value, key, column)

    def current_id(self, using: str) -> str:
        """Return the id of the key that encrypts now in the database *using*; see ``for_owner``."""
        return self._current("a text", using).id

    def _current(self, column: str, using: str) -> Key:
        if not self.has_owner_keys:
            return self.keys.current()
        owner = _owner.get()
        if owner is None:
            raise EncryptionError(
                f"With OWNER_KEYS, {column} can only be written where its owner is known: "
                "use the methods of the package, Conversation.save(), or encryption.for_owner(…)."
            )
        if owner.key is None:
            return self.keys.current()
        if using not in owner.keys:
            owner.keys[using] = self.owner_keys.of(owner.key, using, owner.living)
        return owner.keys[using]

    def _key(self, key_id: str, using: str) -> Key | None:
        return self.owner_keys.get(key_id, using) if key_id.startswith(OWNER_PREFIX) else self.keys.get(key_id)


class _Owner:
    """Whom is encrypted for, and the owner's keys by database, so that each is asked for once."""

    def __init__(self, key: str | None, living: Hashable) -> None:
        self.key = key
        self.living = living
        self.keys: dict[str, Key] = {}


_owner: ContextVar[_Owner | None] = ContextVar("chatmemory_owner", default=None)


@contextmanager
def for_owner(owner: object, living: Hashable = None) -> Iterator[None]:
    """
    Encrypt for *owner*, the primary key of a user or None, in this block, and decrypt nothing of other owners.

    It has an effect only with ``OWNER_KEYS``. *living* is the key of a conversation of theirs that a write in this
    block changes, or anything else that is gone once the owner is erased; see ``OwnerKeys.of``.
    """
    token = _owner.set(_Owner(None if owner is None else str(owner), living))
    try:
        yield
    finally:
        _owner.reset(token)


_reads_unreadable: ContextVar[bool] = ContextVar("chatmemory_reads_unreadable", default=False)


@contextmanager
def unreadable_as_stored() -> Iterator[None]:
    """Read what cannot be decrypted as it is stored, in this block, which erases it: no key is needed for that."""
    token = _reads_unreadable.set(True)
    try:
        yield
    finally:
        _reads_unreadable.reset(token)


@contextmanager
def for_new_conversation(owner: object, using: str) -> Iterator[None]:
    """Encrypt for *owner*, like ``for_owner``, a conversation that is created in this block in the database *using*."""
    found = cipher()
    with for_owner(owner):
        if found is None or not found.has_owner_keys:
            yield
            return
        with transaction.atomic(using=using, savepoint=False):  # in which the owner's key is locked
            yield


def drop_key(owner: object, using: str, is_needed: Callable[[], bool]) -> None:
    """Delete the key of *owner* in the database *using* unless it *is_needed*, which is asked while it is locked."""
    found = cipher()
    if found is not None and owner is not None:
        found.owner_keys.drop(str(owner), using, is_needed)


def cipher() -> Cipher | None:
    """Return what encrypts and decrypts, or None if the app is not installed."""
    return _cipher()


@cache
@sensitive_variables()
def _cipher() -> Cipher | None:
    if not apps.is_installed(APP):
        return None
    options = conf.encryption()
    keys = import_string(options["CLASS"])(options["KEYS"])
    return Cipher(keys, owner_keys=options["OWNER_KEYS"])


def _reset(setting: str, **kwargs: Any) -> None:
    if setting in {"CHATMEMORY", "INSTALLED_APPS"}:
        _cipher.cache_clear()


setting_changed.connect(_reset)
