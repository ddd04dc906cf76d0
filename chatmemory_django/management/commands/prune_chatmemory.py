"""Delete what is old."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser

from chatmemory_django.management.base import ConversationsCommand, days
from chatmemory_django.models import Conversation
from chatmemory_django.operations import prune


class Command(ConversationsCommand):
    """``manage.py prune_chatmemory [--history-older-than DAYS] [--idle DAYS]``, for every night."""

    help = (
        "Delete old messages from histories, and erase conversations that nothing was added to for long. What is in a "
        "memory is never deleted by its age."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what is old."""
        super().add_arguments(parser)
        parser.add_argument(
            "--history-older-than",
            type=days,
            metavar="DAYS",
            help="Delete messages that were stored more than so many days ago, and are in no memory.",
        )
        parser.add_argument(
            "--idle",
            type=days,
            metavar="DAYS",
            help="Erase conversations that were last written to more than so many days ago, with memory and history.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Say what would go, and leave it.")

    def handle(
        self,
        *,
        history_older_than: timedelta | None,
        idle: timedelta | None,
        dry_run: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Prune, and say what went."""
        if history_older_than is None and idle is None:
            raise CommandError("Say what is too old: --history-older-than DAYS, --idle DAYS, or both.")
        with self.progress("messages", None, verbosity) as progress:
            pruned = prune(
                self.conversations(database),
                history_older_than=history_older_than,
                idle=idle,
                dry_run=dry_run,
                each=lambda conversation, count: progress.advance(count),
                refused=self.tell_refused,
            )
        if not dry_run and apps.is_installed("chatmemory_django.chat"):
            from chatmemory_django.chat.streams import delete_old  # its tables are there only then

            delete_old(database)
        would = "Would have erased" if dry_run else "Erased"
        self.stdout.write(
            f"{would} {pruned.conversations:,} idle conversations, and {pruned.messages:,} old messages of others."
        )

    def tell_refused(self, conversation: Conversation, error: Exception) -> None:
        """Say what stays although it is old."""
        self.stderr.write(f"{conversation.memory_id!r} stays, since other objects hold it ({type(error).__name__}).")
