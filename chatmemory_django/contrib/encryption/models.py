"""The tables of owners' keys, and of the origins of forks."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from chatmemory_django.models.fields import EncryptedTextField


class OwnerKey(models.Model):
    """
    A key that encrypts what an owner's conversations hold: the one with the highest number does, the others decrypt.

    Once it is deleted, nobody can read that any more, wherever a copy of the rows may be. The owner is no foreign key,
    since users may be in another database.
    """

    id = models.CharField(primary_key=True, max_length=40)
    owner = models.CharField(max_length=255)
    number = models.PositiveIntegerField(default=1)
    # The key, encrypted by the site's, or what another service returned for it.
    wrapped = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    # Explicit, for type checkers that do not have the app installed.
    objects: ClassVar[models.Manager[OwnerKey]] = models.Manager()

    class Meta:
        app_label = "chatmemory_encryption"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["owner", "number"], name="chatmemory_encryption_ownerkey_number")
        ]

    def __str__(self) -> str:
        return self.id


class Origin(models.Model):
    """Where the rows of a fork were copied from, see ``origins``: a JSON object of sequences by the keys of sources."""

    conversation = models.OneToOneField(
        "chatmemory.Conversation", on_delete=models.CASCADE, primary_key=True, related_name="+"
    )
    text = EncryptedTextField()

    # As above.
    objects: ClassVar[models.Manager[Origin]] = models.Manager()

    class Meta:
        app_label = "chatmemory_encryption"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.pk}"
