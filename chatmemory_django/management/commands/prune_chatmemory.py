"""Delete old messages and idle conversations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.db import router

from chatmemory_django.management.base import ConversationsCommand, days
from chatmemory_django.models import Conversation
from chatmemory_django.operations import prune


class Command(ConversationsCommand):
    """``manage.py prune_chatmemory [--history-older-than DAYS] [--idle DAYS]``, to run every night."""

    help = (
        "Delete old messages from histories, and erase conversations that have been idle for long. Messages in a "
        "memory are never deleted because of their age."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that define what is old."""
        super().add_arguments(parser)
        parser.add_argument(
            "--history-older-than",
            type=days,
            metavar="DAYS",
            help="Delete messages that were stored more than this many days ago and are in no memory.",
        )
        parser.add_argument(
            "--idle",
            type=days,
            metavar="DAYS",
            help="Erase conversations, with memory and history, that were last written to more than this many days "
            "ago.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Print what would be deleted, without deleting it.")

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
        """Prune the conversations, and print what was deleted."""
        if history_older_than is None and idle is None:
            raise CommandError("Use --history-older-than DAYS, --idle DAYS, or both.")
        with self.progress("messages", None, verbosity) as progress:
            pruned = prune(
                self.conversations(database),
                history_older_than=history_older_than,
                idle=idle,
                dry_run=dry_run,
                each=lambda conversation, count: progress.advance(count),
                refused=self.report_refused,
            )
        if not dry_run and apps.is_installed("chatmemory_django.chat"):
            from chatmemory_django.chat.models import AnswerStream  # its tables exist only then
            from chatmemory_django.chat.streams import delete_old

            delete_old(router.db_for_write(AnswerStream))  # which may be another database than that of conversations
        would = "Would have erased" if dry_run else "Erased"
        self.stdout.write(
            f"{would} {pruned.conversations:,} idle conversations and {pruned.messages:,} old messages of others."
        )

    def report_refused(self, conversation: Conversation, error: Exception) -> None:
        """Print a conversation that is old, but could not be erased."""
        self.stderr.write(
            f"{conversation.memory_id!r} was not erased: other objects reference it ({type(error).__name__})."
        )
