"""
An encrypted value: ``enc2:<key id>:<place>:<Base64 of nonce and ciphertext>``.

The place is what the value is of: its column, and which row. All that stands before the Base64 is authenticated. Values
of earlier versions, ``enc1:<key id>:<Base64>``, are bound to their column alone.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from msgspec import convert

from chatmemory_django.db.row_codec import UnknownKeyError, UnreadableError
from chatmemory_django.private import private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = "enc2:"

UNPLACED = "enc1:"
"""What values of earlier versions begin with."""

FILE = "file"
"""What the places of files begin with."""

TITLE = "chatmemory.conversation.title"

KEY_BYTES = 32
"""The length of a key of AES-256."""

NONCE_BYTES = 12
"""The length of a nonce of GCM; NIST SP 800-38D recommends this one, and at most 2**32 random ones for a key."""

TAG_BYTES = 16
"""The length of the tag of GCM."""

LIKE_A_VALUE = "^enc[12]:"
"""The regular expression of what begins like a value, in databases, too."""

_nonce = itemgetter(slice(NONCE_BYTES))
_sealed = itemgetter(slice(NONCE_BYTES, None))
"""Return a part of what is in the Base64 of a value."""


class EncryptionError(UnreadableError):
    """
    A value cannot be encrypted, or was not encrypted as it is stored now with the key *key_id*, if that is known.

    The message never has a text or a key.
    """

    is_reported = False
    """Whether it was reported, see ``chatmemory_django.security``."""

    def __init__(self, message: str, key_id: str = "") -> None:
        super().__init__(message)
        self.key_id = key_id


class MissingKeyError(EncryptionError, UnknownKeyError):
    """A value is encrypted with a key, *key_id*, that the site does not have."""

    def __init__(self, key_id: str, column: str) -> None:
        super().__init__(
            f"A value of {column} is encrypted with the key {key_id!r}, which the site does not have. "
            "Add it to CHATMEMORY['ENCRYPTION']['KEYS']; the key of an owner, '@…', is gone once the owner is erased.",
            key_id,
        )


class Key(NamedTuple):
    """A key of the site or of an *owner*, the primary key of a user as text."""

    id: str
    cipher: AESGCM
    owner: str | None = None


@private
def to_key(key_id: str, data: bytes, owner: str | None = None) -> Key:
    """Return the key that consists of *data*, ``KEY_BYTES`` bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only needed where the app is installed

    return Key(key_id, AESGCM(data), owner)


def key_id_of(value: str) -> str | None:
    """Return the id of the key that *value* names; None if it is plain text."""
    if not value.startswith((PREFIX, UNPLACED)):
        return None
    key_id, colon, _ = value[len(PREFIX) :].partition(":")
    return key_id if colon else None


def head_of(key: Key, place: str) -> str:
    """Return what a value of *key* begins with at *place*, for example ``chatmemory.message.text:7:1:USER``."""
    return f"{PREFIX}{key.id}:{place}:"


def encrypt(text: str, key: Key, place: str) -> str:
    """Return *text* encrypted for *place*, with a nonce of its own."""
    nonce, head = os.urandom(NONCE_BYTES), head_of(key, place)
    sealed = key.cipher.encrypt(nonce, text.encode(), head.encode())
    return head + binascii.b2a_base64(nonce + sealed, newline=False).decode()


def decrypter(key: Key, start: str, bound: str = "") -> Callable[[str, str], str | None]:
    """
    Return what decrypts values that *key* has encrypted, whose head is *start* and the rest of their place.

    It is called with the value and that rest, returns None if the value has another head, and raises
    ``EncryptionError`` if it was changed. *bound* is what was authenticated instead of the head.
    """
    from cryptography.exceptions import InvalidTag

    decrypt = key.cipher.decrypt

    def decrypted(value: str, rest: str) -> str | None:
        head = start + rest
        if not value.startswith(head):
            return None
        try:
            data = binascii.a2b_base64(value[len(head) :], strict_mode=True)
            return decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], (bound or head).encode()).decode()
        except (ValueError, InvalidTag) as exc:
            raise changed((bound or start[len(PREFIX) + len(key.id) + 1 :]).partition(":")[0], key) from exc

    return decrypted


def decrypt_all(values: Sequence[str], key: Key, heads: Sequence[str]) -> list[str]:
    """
    Return the texts of *values*, which begin with *heads*, and which *key* has encrypted.

    ``EncryptionError`` if one begins otherwise, or was changed. Reads spend their time here: the Base64 of all is
    decoded at once, and nothing in Python is called for each.
    """
    from cryptography.exceptions import InvalidTag

    column = heads[0].split(":")[2]
    if not all(map(str.startswith, values, heads)):
        raise changed(column, key)
    try:
        decoded = convert(list(map(str.removeprefix, values, heads)), list[bytes])
        opened = map(key.cipher.decrypt, map(_nonce, decoded), map(_sealed, decoded), map(str.encode, heads))
        return [text.decode() for text in opened]
    except (ValueError, InvalidTag) as exc:
        raise changed(column, key) from exc


def decrypt(value: str, key: Key, place: str) -> str:
    """
    Return the text of *value*, which was encrypted with *key* for *place*, or for its column if it is ``UNPLACED``.

    ``EncryptionError`` for others, and for values that were changed.
    """
    column, _, _ = place.partition(":")
    if value.startswith(UNPLACED):
        text = decrypter(key, f"{UNPLACED}{key.id}:", f"{column}:{key.id}")(value, "")
    else:
        text = decrypter(key, head_of(key, place))(value, "")
    if text is None:
        raise changed(column, key)
    return text


def changed(column: str, key: Key) -> EncryptionError:
    """Return the error of a value of *column* that is not of its place, or not as it was encrypted with *key*."""
    return EncryptionError(
        f"A value of {column} is not what was encrypted there with the key {key.id!r}: "
        "it was changed, truncated or moved.",
        key.id,
    )


def seal(content: bytes, key: Key, place: str) -> bytes:
    """Return *content* encrypted for *place*, which is not in it, as ``encrypt`` does with a text, without Base64."""
    nonce = os.urandom(NONCE_BYTES)
    head = f"{PREFIX}{key.id}:".encode()
    return head + nonce + key.cipher.encrypt(nonce, content, head_of(key, place).encode())


def unsealed_size(sealed: bytes, key: Key) -> int:
    """Return how many bytes the content has that was encrypted with *key* as *sealed*."""
    return len(sealed) - len(PREFIX) - len(key.id) - 1 - NONCE_BYTES - TAG_BYTES


def unseal(sealed: bytes, key: Key, place: str) -> bytes:
    """Return the content that was encrypted with *key* for *place* as *sealed*, see ``decrypt``."""
    from cryptography.exceptions import InvalidTag

    column, _, _ = place.partition(":")
    start = len(PREFIX) + len(key.id) + 1
    bound = f"{column}:{key.id}" if sealed.startswith(UNPLACED.encode()) else head_of(key, place)
    try:
        nonce, data = sealed[start : start + NONCE_BYTES], memoryview(sealed)[start + NONCE_BYTES :]
        return key.cipher.decrypt(nonce, data, bound.encode())
    except (ValueError, InvalidTag) as exc:
        raise changed(column, key) from exc
