"""The table of owners' keys."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OwnerKey(models.Model):
    """
    The key that encrypts what an owner's conversations hold.

    Once it is deleted, nobody can read that any more, wherever a copy of the rows may be. The owner is no foreign key,
    since users may be in another database.
    """

    id = models.CharField(primary_key=True, max_length=40)
    owner = models.CharField(max_length=255, unique=True)
    # The key, encrypted by the site's, or what another service returned for it.
    wrapped = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    # Explicit, for type checkers that do not have the app installed.
    objects: ClassVar[models.Manager[OwnerKey]] = models.Manager()

    class Meta:
        app_label = "chatmemory_encryption"

    def __str__(self) -> str:
        return self.id
