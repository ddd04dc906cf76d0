"""
Encryption at rest, an optional app: what people wrote is stored encrypted, with AES-256-GCM.

``values`` has the format, ``keys`` whose key is used, ``ciphers`` what the fields of ``models.fields`` call.
"""

from chatmemory_django.encryption.ciphers import EncryptedError, for_owner
from chatmemory_django.encryption.keys import Keys
from chatmemory_django.encryption.values import EncryptionError, MissingKeyError

__all__ = ["EncryptedError", "EncryptionError", "Keys", "MissingKeyError", "for_owner"]
