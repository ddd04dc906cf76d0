"""The app's configuration."""

from django.apps import AppConfig
from django.core.checks import register


class EncryptionConfig(AppConfig):
    """Encryption at rest. The table of owners' keys is in the same database as the conversations."""

    name = "chatmemory_django.encryption"
    label = "chatmemory_encryption"

    def ready(self) -> None:
        """Register the check of the keys."""
        from chatmemory_django.encryption.checks import check_keys

        register(check_keys)
