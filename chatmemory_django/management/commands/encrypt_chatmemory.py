"""Encrypt what is stored in plain text or with an old key."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.contrib.encryption.ciphers import APP, installed
from chatmemory_django.contrib.encryption.encrypting import encrypt, wrap_keys
from chatmemory_django.management.base import ConversationsCommand


class Command(ConversationsCommand):
    """``manage.py encrypt_chatmemory [--dry-run]``."""

    decrypts = False
    verb, done = "encrypt", "Encrypted"
    help = (
        "Encrypt the texts that are stored in plain text or with an old key, with the first of "
        "CHATMEMORY['ENCRYPTION']['KEYS'] or the keys of their owners. It can be stopped, and goes on where it was."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select conversations."""
        super().add_arguments(parser)
        self.add_selection(parser)
        parser.add_argument("--dry-run", action="store_true", help="Print how many rows there are, and change none.")

    def handle(self, *, dry_run: bool, verbosity: int, **selection: Any) -> None:
        """Encrypt or decrypt the texts, and print how many rows they were in."""
        cipher = installed()
        if cipher is None:
            raise CommandError(f"{APP!r} is not in INSTALLED_APPS.")
        if cipher.writes_plain is not self.decrypts:
            is_or_not = "is not" if self.decrypts else "is"
            raise CommandError(f"CHATMEMORY['ENCRYPTION']['PLAIN'] {is_or_not} 'write', so others would undo this.")
        conversations = self.conversations(**selection)
        failed: list[str] = []

        def refused(key_id: str, error: Exception) -> None:
            failed.append(f"{key_id!r}: {error}")
            self.stderr.write(failed[-1])

        wrapped = 0 if self.decrypts else wrap_keys(conversations.db, dry_run=dry_run, refused=refused)
        with self.progress("conversations", conversations.count(), verbosity) as progress:
            rows = encrypt(conversations, dry_run=dry_run, each=lambda *done: progress.advance(), refused=self.refuse)
        self.stdout.write(f"{rows:,} rows to {self.verb}." if dry_run else f"{self.done} {rows:,} rows.")
        if wrapped:
            owners = f"{wrapped:,} keys of owners"
            self.stdout.write(f"{owners} to encrypt." if dry_run else f"Encrypted {owners}.")
        if failed and not self.unreadable:  # which is reported of the conversations otherwise
            raise CommandError(f"{len(failed)} of the owners' keys cannot be decrypted, first {failed[0]}")
