"""Move the files in messages to the storage, or back."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.contrib.files.moving import move_files
from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.models import message_codec


class Command(ConversationsCommand):
    """``manage.py move_media_chatmemory [--to-rows] [--dry-run]``."""

    help = (
        "Move the files in messages from their rows to the storage that CHATMEMORY['MEDIA_STORAGE'] names. It runs "
        "beside writers, can be stopped, and goes on where it was."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select what to move, and where to."""
        super().add_arguments(parser)
        self.add_selection(parser)
        parser.add_argument("--to-rows", action="store_true", help="Move the files back into the rows.")
        parser.add_argument("--dry-run", action="store_true", help="Print how much there is to move, and move nothing.")

    def handle(
        self,
        *,
        user: str | None,
        memory_ids: list[str] | None,
        to_rows: bool,
        dry_run: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Move the files, and print how much was moved."""
        if message_codec.installed is None:
            raise CommandError("'chatmemory_django.contrib.files' is not in INSTALLED_APPS.")
        conversations = self.conversations(database, user, memory_ids)
        with self.progress("conversations", conversations.count(), verbosity) as progress:
            moved = move_files(
                conversations,
                to_rows=to_rows,
                dry_run=dry_run,
                each=lambda *done: progress.advance(),
                refused=self.refuse,
            )
        amount = f"files with {moved.size:,} bytes of {moved.messages:,} messages"
        self.stdout.write(f"{amount} to move." if dry_run else f"Moved {amount}.")
