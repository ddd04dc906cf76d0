"""
Encryption at rest, an optional app: what people wrote is stored encrypted, with AES-256-GCM.

``values`` has the format, ``keys`` the keys, ``ciphers`` the codec of rows, which chooses a key, ``encrypting`` what a
command does.
"""

from chatmemory_django.contrib.encryption.ciphers import for_owner
from chatmemory_django.contrib.encryption.keys import Keys
from chatmemory_django.contrib.encryption.values import EncryptionError, MissingKeyError
from chatmemory_django.db.row_codec import EncryptedError

__all__ = ["EncryptedError", "EncryptionError", "Keys", "MissingKeyError", "for_owner"]
