"""Encrypt what is stored in plain text or with an old key."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.contrib.encryption.ciphers import APP, installed
from chatmemory_django.contrib.encryption.encrypting import encrypt, encrypt_of_owners, wrap_keys
from chatmemory_django.contrib.encryption.kept import owners_of_others
from chatmemory_django.contrib.encryption.replacing import Replaced, replace_keys
from chatmemory_django.management.base import ConversationsCommand


class Command(ConversationsCommand):
    """``manage.py encrypt_chatmemory [--dry-run] [--rekey-owners]``."""

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
        if not self.decrypts:
            parser.add_argument(
                "--rekey-owners",
                action="store_true",
                help="Give the owners of the conversations new keys first, or, a day later, delete their old ones.",
            )

    def handle(self, *, dry_run: bool, verbosity: int, rekey_owners: bool = False, **selection: Any) -> None:
        """Encrypt or decrypt the texts, and print how many rows they were in."""
        cipher = installed()
        if cipher is None:
            raise CommandError(f"{APP!r} is not in INSTALLED_APPS.")
        if cipher.writes_plain is not self.decrypts:
            is_or_not = "is not" if self.decrypts else "is"
            raise CommandError(f"CHATMEMORY['ENCRYPTION']['PLAIN'] {is_or_not} 'write', so others would undo this.")
        if rekey_owners and not cipher.has_owner_keys:
            raise CommandError("CHATMEMORY['ENCRYPTION']['OWNER_KEYS'] is off, so owners have no keys to replace.")
        conversations = self.conversations(**selection)
        failed: list[str] = []

        owner = None if selection["user"] is None else self.user(selection["user"]).pk
        is_of_owners = not selection["memory_ids"]

        def refused(name: str, error: Exception) -> None:
            failed.append(f"{name!r}: {error}")
            self.stderr.write(failed[-1])

        wrapped = 0 if self.decrypts else wrap_keys(conversations.db, dry_run=dry_run, refused=refused)
        replaced = Replaced()
        if rekey_owners:
            others = owners_of_others(conversations.db, owner) if is_of_owners else set()
            replaced = replace_keys(cipher, conversations, others, dry_run=dry_run)
        with self.progress("conversations", conversations.count(), verbosity) as progress:
            rows = encrypt(conversations, dry_run=dry_run, each=lambda *done: progress.advance(), refused=self.refuse)
        if is_of_owners:
            rows += encrypt_of_owners(conversations.db, owner, dry_run=dry_run, refused=refused)
        self.stdout.write(f"{rows:,} rows to {self.verb}." if dry_run else f"{self.done} {rows:,} rows.")
        if wrapped:
            owners = f"{wrapped:,} keys of owners"
            self.stdout.write(f"{owners} to encrypt." if dry_run else f"Encrypted {owners}.")
        if replaced.new:
            self.stdout.write(f"{replaced.new:,} owners {'to get' if dry_run else 'have'} a new key.")
        if replaced.deleted:
            self.stdout.write(f"{'To delete' if dry_run else 'Deleted'} {replaced.deleted:,} old keys of owners.")
        if replaced.stay and not dry_run:
            self.stdout.write(f"{replaced.stay:,} old keys of owners stay: run the command again in a day.")
        if failed and not self.unreadable:  # which is reported of the conversations otherwise
            raise CommandError(f"{len(failed)} of the owners' keys or texts cannot be decrypted, first {failed[0]}")
