"""Print a new key for encryption."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from chatmemory_django.contrib.encryption.keys import new_key


class Command(BaseCommand):
    """``manage.py chatmemory_key``."""

    help = "Print a new key for CHATMEMORY['ENCRYPTION']['KEYS']. It is not stored anywhere."
    requires_system_checks = ()  # before there is a key, the check of the keys fails

    def handle(self, **options: Any) -> None:
        """Print the key."""
        self.stdout.write(new_key())
