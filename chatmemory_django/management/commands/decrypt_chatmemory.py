"""Decrypt what is stored."""

from __future__ import annotations

from chatmemory_django.management.commands import encrypt_chatmemory


class Command(encrypt_chatmemory.Command):
    """``manage.py decrypt_chatmemory [--dry-run]``."""

    help = (
        "Decrypt the texts and files that are stored encrypted, once CHATMEMORY['ENCRYPTION']['PLAIN'] is 'write' in "
        "all processes. It can be stopped, and goes on where it was."
    )
    decrypts = True
    verb, done = "decrypt", "Decrypted"
