"""The app's configuration."""

from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models import Model
from django.db.models.signals import post_delete


class EncryptionConfig(AppConfig):
    """Encryption at rest. The table of owners' keys is in the same database as the conversations."""

    name = "chatmemory_django.contrib.encryption"
    label = "chatmemory_encryption"

    def ready(self) -> None:
        """Encrypt from now on; register the checks of the keys, and what deletes the key of an owner."""
        from chatmemory_django.contrib.encryption import ciphers
        from chatmemory_django.contrib.encryption.checks import check_keys, check_plain, check_written_keys
        from chatmemory_django.contrib.encryption.encrypting import drop_key_of_owner
        from chatmemory_django.contrib.encryption.kept import models_of_owners
        from chatmemory_django.models import Conversation

        ciphers.install()
        keepers: list[type[Model]] = [Conversation, *models_of_owners()]
        for model in keepers:
            post_delete.connect(drop_key_of_owner, sender=model, dispatch_uid="chatmemory_encryption")
        register(check_keys)
        register(check_written_keys, Tags.security, deploy=True)
        register(check_plain, Tags.security, deploy=True)
