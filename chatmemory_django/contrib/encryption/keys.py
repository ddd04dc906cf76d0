"""The keys: those of the site, in the settings, and one for each owner, in a table."""

from __future__ import annotations

import binascii
import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING

from django.db import connections, transaction

from chatmemory_django.contrib.encryption.values import (
    KEY_BYTES,
    PREFIX,
    EncryptionError,
    Key,
    MissingKeyError,
    decrypt,
    encrypt,
    key_id_of,
    to_key,
)
from chatmemory_django.db.row_codec import KEY_ID
from chatmemory_django.private import private
from chatmemory_django.stores.base import ConversationErasedError

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from chatmemory_django.contrib.encryption.models import OwnerKey

MAX_CACHED = 10_000
"""How many keys of owners a process has at most, in about 5 MB."""

REPLACED_FOR = timedelta(days=1)
"""
How long the key of an owner that was replaced stays at least: longer than any process encrypts with what it has in its
memory, in a transaction or an answer that goes on, and than streams are kept.
"""

OWNER_PREFIX = "@"
"""What the ids of owners' keys begin with, and those of the site's do not."""

_ID_BYTES = 8

OWNER_ID_LENGTH = len(OWNER_PREFIX) + 2 * _ID_BYTES

_WRAPPED = "chatmemory_encryption.ownerkey.wrapped"


@private
def new_key() -> str:
    """Return a new key for ``KEYS``: ``<id>:<Base64>``."""
    return f"{secrets.token_hex(4)}:{binascii.b2a_base64(secrets.token_bytes(KEY_BYTES), newline=False).decode()}"


@private
def parse(key: object) -> tuple[str, bytes]:
    """Return the id and the bytes of *key*, as ``new_key`` writes it; ``ValueError`` states what is wrong with it."""
    if not isinstance(key, str):
        raise ValueError(f"must be a str, '<id>:<Base64>', not {type(key).__name__}")  # noqa: TRY004  # one error for all
    key_id, colon, encoded = key.partition(":")
    if not colon or not KEY_ID.fullmatch(key_id) or key_id.startswith(OWNER_PREFIX):
        raise ValueError("must begin with an id of at most 40 letters, digits, '.', '_' and '-', and a colon")
    try:
        data = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        raise ValueError("must be Base64 after the colon") from None
    if len(data) != KEY_BYTES:
        raise ValueError(f"must have {KEY_BYTES} bytes, not {len(data)}")
    return key_id, data


class Keys:
    """
    The keys of the site, in ``CHATMEMORY["ENCRYPTION"]["KEYS"]``: the first one encrypts, each of them decrypts.

    A subclass, in ``CLASS``, may wrap the keys of owners with a key that never leaves another service: override
    ``wrap`` and ``unwrap``.
    """

    @private
    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = {key_id: to_key(key_id, data) for key_id, data in map(parse, keys)}

    def current(self) -> Key:
        """Return the key that encrypts. ``EncryptionError`` if there is none."""
        for key in self._keys.values():
            return key
        raise EncryptionError("CHATMEMORY['ENCRYPTION']['KEYS'] is empty; manage.py chatmemory_key prints a key.")

    def get(self, key_id: str) -> Key | None:
        """Return the key *key_id*, or None."""
        return self._keys.get(key_id)

    def wrapped_now(self) -> str:
        """Return what begins each key that ``wrap`` returns now, and none that has to be wrapped again."""
        return f"{PREFIX}{self.current().id}:"

    @private
    def wrap(self, key: bytes, *, owner: str) -> str:
        """
        Return *key*, of *owner*, encrypted, as it is stored.

        *owner* is the primary key of the user as text, which never changes, for the context that a service
        authenticates and logs. Here it is not needed: the key names its owner itself.
        """
        return encrypt(key.hex(), self.current(), _WRAPPED)

    @private
    def unwrap(self, wrapped: str, *, owner: str) -> bytes:
        """Return the key that ``wrap`` has encrypted as *wrapped* for *owner*."""
        key_id = key_id_of(wrapped) or ""
        key = self.get(key_id)
        if key is None:
            raise MissingKeyError(key_id, _WRAPPED)
        return bytes.fromhex(decrypt(wrapped, key, _WRAPPED))


class OwnerKeys:
    """
    The keys of owners, primary keys of users as text, wrapped by *keys*.

    A process has them in its memory for *seconds*.
    """

    def __init__(self, keys: Keys, *, refuses_unbound: bool, seconds: int) -> None:
        self._keys = keys
        self._seconds = seconds
        self._refuses_unbound = refuses_unbound
        self._cached: dict[tuple[Hashable, ...], tuple[float, Key]] = {}

    def get(self, key_id: str, using: str) -> Key | None:
        """Return the key *key_id* from the database *using*, or None."""
        found = self._from_cache(*_place(using), key_id)
        if found is None:
            row = _rows(using).filter(pk=key_id).first()
            found = None if row is None else self._unwrapped(row)
            if found is not None:
                self._put(found, *_place(using), key_id)
        return found

    @private
    def of(
        self,
        owner: str,
        using: str,
        living: Hashable = None,
        is_there: Callable[[], bool] | None = None,
    ) -> Key:
        """
        Return the key that encrypts for *owner* in the database *using*; create it if there is none.

        None is created unless what is encrypted *is_there*, which locks it: an owner who was erased must not get one
        again by what is still being written. That is a ``ConversationErasedError``.

        The database is not asked again as long as *living*, a conversation of the owner, is there. Another process may
        have erased the owner since, and the owner may have begun again, with another key: what a conversation is
        encrypted with cannot be gone before the conversation, but could be before a newer one.
        """
        found = self._from_cache(*_place(using), owner, living)
        if found is not None:
            return found
        with transaction.atomic(using=using, savepoint=False):
            # Locked, to wait for who erases the owner now, and in a transaction to let them wait for what it stores.
            row = _newest(owner, using) if _lock(owner, using) else None
            if row is None:
                if is_there is not None and not is_there():
                    raise ConversationErasedError("The conversation was erased in the meantime; nothing is encrypted.")
                row = self._added(owner, using, 1)
        key = self._from_cache(*_place(using), row.id)
        if key is None:
            key = self._unwrapped(row)
            self._put(key, *_place(using), key.id)
        # A row that is rolled back must not be used again: what is encrypted with it would be lost.
        if living is not None:
            transaction.on_commit(partial(self._put, key, *_place(using), owner, living), using=using)
        return key

    @private
    def _added(self, owner: str, using: str, number: int) -> OwnerKey:
        """Add the key *number* of *owner*, unless another process has done so; return it."""
        key_id = f"{OWNER_PREFIX}{secrets.token_hex(_ID_BYTES)}"

        @private
        def wrapped() -> str:  # called if there is none: another service may wrap keys
            return self._keys.wrap(secrets.token_bytes(KEY_BYTES) + _whose(key_id, owner), owner=owner)

        new = {"id": key_id, "wrapped": wrapped}
        row, _ = _rows(using).select_for_update().get_or_create(owner=owner, number=number, defaults=new)
        return row

    def has(self, owner: str | None, using: str) -> bool:
        """Return whether *owner* has a key in the database *using*, also one from before the setting was off."""
        return owner is not None and _rows(using).filter(owner=owner).exists()

    def drop(self, owner: str, using: str, is_needed: Callable[[], bool]) -> None:
        """Delete the key of *owner* in the database *using* unless it *is_needed*; that is asked while it is locked."""
        with transaction.atomic(using=using, savepoint=False):
            if _lock(owner, using) and not is_needed():
                _rows(using).filter(owner=owner).delete()
        self.leave(owner)

    @private
    def replace(self, owner: str, using: str) -> bool:
        """
        Give *owner* another key in the database *using*, which encrypts from now on; return whether they got one.

        They get none as long as the one before has not been deleted, or if they have none at all. The old key decrypts,
        and other processes encrypt with it for as long as they have it in their memory.
        """
        with transaction.atomic(using=using, savepoint=False):
            newest = _newest(owner, using) if _lock(owner, using) else None
            if newest is None or _rows(using).filter(owner=owner).exclude(pk=newest.pk).exists():
                return False
            self._added(owner, using, newest.number + 1)
        self.leave(owner)
        return True

    @private
    def wrap_all(
        self, using: str, *, dry_run: bool, refused: Callable[[str, EncryptionError], object] | None = None
    ) -> int:
        """
        Wrap the keys of the database *using* that are not wrapped by the key that wraps now; return how many.

        *refused* receives the ids of those that cannot be unwrapped, which is raised without it.
        """
        outdated = _rows(using).exclude(wrapped__startswith=self._keys.wrapped_now())
        if dry_run:
            return outdated.count()
        count = 0
        for key_id in outdated.values_list("pk", flat=True):
            try:
                count += self._wrap_again(key_id, using)
            except EncryptionError as exc:
                if refused is None:
                    raise
                refused(key_id, exc)
        return count

    @private
    def _wrap_again(self, key_id: str, using: str) -> int:
        with transaction.atomic(using=using):
            row = _rows(using).select_for_update().filter(pk=key_id).first()
            if row is None:
                return 0
            wrapped = self._keys.wrap(self._key_of(row) + _whose(row.id, row.owner), owner=row.owner)
            return _rows(using).filter(pk=key_id).update(wrapped=wrapped)

    def wrapped_by(self, using: str) -> Counter[str]:
        """Return how many keys of the database *using* each key of the site has wrapped, by its id."""
        found = map(key_id_of, _rows(using).values_list("wrapped", flat=True).iterator())
        return Counter(key_id for key_id in found if key_id is not None)

    @private
    def _unwrapped(self, row: OwnerKey) -> Key:
        return to_key(row.id, self._key_of(row), row.owner)

    @private
    def _key_of(self, row: OwnerKey) -> bytes:
        unwrapped = self._keys.unwrap(row.wrapped, owner=row.owner)
        key, whose = unwrapped[:KEY_BYTES], unwrapped[KEY_BYTES:]
        is_unbound = not whose and not self._refuses_unbound  # by an earlier version
        if not is_unbound and not compare_digest(whose, _whose(row.id, row.owner)):
            raise EncryptionError(f"The key {row.id!r} is not the one that was stored for its owner.")
        return key

    def _from_cache(self, *name: Hashable) -> Key | None:
        deadline, key = self._cached.get(name, (0.0, None))
        return key if monotonic() < deadline else None

    def _put(self, key: Key, *name: Hashable) -> None:
        if len(self._cached) >= MAX_CACHED:
            self._cached.clear()
        self._cached[name] = (monotonic() + self._seconds, key)

    def leave(self, owner: str) -> None:
        """Have the keys of *owner* in this process no longer."""
        self._cached = {name: held for name, held in self._cached.items() if held[1].owner != owner}


def _whose(key_id: str, owner: str) -> bytes:
    """Return what is wrapped with the key *key_id*, so that it cannot be given to another *owner*."""
    return sha256(f"{key_id}:{owner}".encode()).digest()


def _lock(owner: str, using: str) -> bool:
    """
    Lock the key of *owner*, and return whether there is one.

    It is written for that: under REPEATABLE READ, PostgreSQL refuses what others have written since the transaction's
    first read, but not what they have only locked. The transaction would then decide on conversations as they were.
    """
    return _rows(using).filter(owner=owner).update(owner=owner) > 0


def _newest(owner: str, using: str) -> OwnerKey | None:
    """Return the key that encrypts for *owner*, locked, as it is now."""
    return _rows(using).select_for_update().filter(owner=owner).order_by("-number").first()


def _place(using: str) -> tuple[str, object]:
    """Return what keeps rows with the same keys apart: the database, and its schema if each tenant has one."""
    return using, getattr(connections[using], "schema_name", None)


def _rows(using: str) -> QuerySet[OwnerKey]:
    from chatmemory_django.contrib.encryption.models import OwnerKey  # models are not loaded when fields are defined

    return OwnerKey.objects.using(using)
