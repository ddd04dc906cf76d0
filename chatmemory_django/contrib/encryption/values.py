"""An encrypted value: ``enc1:<key id>:<Base64 of nonce and ciphertext>``."""

from __future__ import annotations

import binascii
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from chatmemory_django.db.row_codec import UnknownKeyError, UnreadableError
from chatmemory_django.private import private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

PREFIX = "enc1:"

KEY_BYTES = 32
"""The length of a key of AES-256."""

NONCE_BYTES = 12
"""The length of a nonce of GCM; NIST SP 800-38D recommends this one, and at most 2**32 random ones for a key."""

KEY_ID = re.compile(r"[A-Za-z0-9@._-]{1,40}", re.ASCII)
"""What identifies a key."""

_SHAPE = re.compile(rf"{PREFIX}(?:{KEY_ID.pattern}):[A-Za-z0-9+/]{{38,}}={{0,2}}", re.ASCII)


class EncryptionError(UnreadableError):
    """A value cannot be encrypted, or was not encrypted as it is stored now. The message never has a text or a key."""


class MissingKeyError(EncryptionError, UnknownKeyError):
    """A value is encrypted with a key, *key_id*, that the site does not have."""

    def __init__(self, key_id: str, column: str) -> None:
        super().__init__(
            f"A value of {column} is encrypted with the key {key_id!r}, which the site does not have. "
            "Add it to CHATMEMORY['ENCRYPTION']['KEYS']; the key of an owner, '@…', is gone once the owner is erased."
        )
        self.key_id = key_id


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
    if not value.startswith(PREFIX):
        return None
    key_id, colon, _ = value[len(PREFIX) :].partition(":")
    return key_id if colon else None


def is_encrypted(value: str) -> bool:
    """Return whether *value*, from any key, has the shape of an encrypted value."""
    return value.startswith(PREFIX) and _SHAPE.fullmatch(value) is not None


def encrypt(text: str, key: Key, column: str) -> str:
    """Return *text* encrypted for *column*, with a nonce of its own."""
    nonce = os.urandom(NONCE_BYTES)
    sealed = key.cipher.encrypt(nonce, text.encode(), _bound_to(key, column))
    return f"{PREFIX}{key.id}:{binascii.b2a_base64(nonce + sealed, newline=False).decode()}"


def decrypter(key: Key, column: str) -> Callable[[str], str]:
    """
    Return what decrypts values that were encrypted with *key* for *column*.

    It raises ``EncryptionError`` for others, and for values that were changed.
    """
    from cryptography.exceptions import InvalidTag

    decrypt, bound, start = key.cipher.decrypt, _bound_to(key, column), len(PREFIX) + len(key.id) + 1

    def decrypted(value: str) -> str:
        try:
            sealed = binascii.a2b_base64(value[start:], strict_mode=True)
            return decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound).decode()
        except (ValueError, InvalidTag) as exc:
            raise EncryptionError(
                f"A value of {column} is not what was encrypted there with the key {key.id!r}: "
                "it was changed, truncated or moved."
            ) from exc

    return decrypted


def decrypt(value: str, key: Key, column: str) -> str:
    """Return the text of *value*, see ``decrypter``."""
    return decrypter(key, column)(value)


def seal(content: bytes, key: Key, column: str) -> bytes:
    """Return *content* encrypted for *column*, as ``encrypt`` does with a text, but not in Base64."""
    nonce = os.urandom(NONCE_BYTES)
    return f"{PREFIX}{key.id}:".encode() + nonce + key.cipher.encrypt(nonce, content, _bound_to(key, column))


def unseal(sealed: bytes, key: Key, column: str) -> bytes:
    """Return the content that was encrypted with *key* for *column* as *sealed*; ``EncryptionError`` for others."""
    from cryptography.exceptions import InvalidTag

    start = len(PREFIX) + len(key.id) + 1
    try:
        nonce, data = sealed[start : start + NONCE_BYTES], memoryview(sealed)[start + NONCE_BYTES :]
        return key.cipher.decrypt(nonce, data, _bound_to(key, column))
    except (ValueError, InvalidTag) as exc:
        raise EncryptionError(
            f"A {column} is not what was encrypted there with the key {key.id!r}: it was changed, truncated or moved."
        ) from exc


def _bound_to(key: Key, column: str) -> bytes:
    return f"{column}:{key.id}".encode()
