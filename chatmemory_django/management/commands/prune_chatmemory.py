"""Delete old messages, idle conversations and old calls, and what indexes and streams still hold of deleted ones."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.db import router

from chatmemory_django import conf
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.management.base import ConversationsCommand, days
from chatmemory_django.models import Conversation, finding
from chatmemory_django.operations import apply_retention, prune


class Command(ConversationsCommand):
    """``manage.py prune_chatmemory [--history-older-than DAYS] [--idle DAYS] [--sum-calls] …``, to run at night."""

    stopped = "Stopped. What was deleted so far stays deleted; run the command again for the rest."
    help = (
        "Delete old messages from histories, and erase conversations that have been idle for long. Messages in a "
        "memory are never deleted because of their age. What calls of models used is deleted only by its own option. "
        "Without options, the periods are those of CHATMEMORY['RETENTION']. Temporary conversations whose time has "
        "passed are erased in any case."
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
        parser.add_argument(
            "--calls-older-than",
            type=days,
            metavar="DAYS",
            help="Delete the records of what models used in calls more than this many days ago.",
        )
        parser.add_argument(
            "--sum-calls",
            action="store_true",
            help="Sum up the calls of past days, so that what months used is read quickly. This is always done; with "
            "this option alone, nothing else is.",
        )
        parser.add_argument(
            "--search-index",
            action="store_true",
            help="Remove what the search index still holds of deleted messages. On SQLite, this is always done. On "
            "MariaDB, the table of messages is rebuilt, and no one can write to it in the meantime.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Print what would be deleted, without deleting it.")

    def handle(
        self,
        *,
        history_older_than: timedelta | None,
        idle: timedelta | None,
        calls_older_than: timedelta | None,
        sum_calls: bool,
        search_index: bool,
        dry_run: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Prune the conversations, and print what was deleted."""
        has_periods = history_older_than is not None or idle is not None
        is_as_set = not has_periods and not search_index and not sum_calls and calls_older_than is None
        if is_as_set and conf.retention() is None:
            raise CommandError(
                "Use --history-older-than DAYS, --idle DAYS, --calls-older-than DAYS, --sum-calls, or --search-index, "
                "or set CHATMEMORY['RETENTION'].",
                returncode=2,
            )
        if search_index and finding.index is None:
            raise CommandError("There is no search index: the app that keeps one is not in INSTALLED_APPS.")
        if (sum_calls or calls_older_than is not None) and not apps.is_installed("chatmemory_django.chat"):
            raise CommandError("There are no calls of models: chatmemory_django.chat is not in INSTALLED_APPS; add it.")
        do = apply_retention if is_as_set else partial(prune, history_older_than=history_older_than, idle=idle)
        pruned = None
        if has_periods or is_as_set:
            with self.progress("messages", None, verbosity) as progress:
                pruned = do(
                    self.conversations(database),
                    dry_run=dry_run,
                    each=lambda conversation, count: progress.advance(count),
                    refused=self.report_refused,
                )
        if not dry_run:
            self.delete_rest(self.conversations(database).db, verbosity, may_block=search_index)
        would = "Would have erased" if dry_run else "Erased"
        if pruned is not None:
            self.stdout.write(
                f"{would} {pruned.conversations:,} idle or temporary conversations and {pruned.messages:,} old "
                "messages of others."
            )
        if not apps.is_installed("chatmemory_django.chat"):
            return
        from chatmemory_django.chat.costs import calls, summing  # their tables exist only then

        if not dry_run:
            count = summing.sum_calls(using=database)
            if sum_calls:
                self.stdout.write(f"Summed up {count:,} calls.")
        if calls_older_than is not None:
            count = calls.prune_calls(calls_older_than, using=database, dry_run=dry_run)
            self.stdout.write(f"{'Would have deleted' if dry_run else 'Deleted'} the records of {count:,} calls.")

    def delete_rest(self, using: str, verbosity: int, *, may_block: bool) -> None:
        """Delete what approvals, streams and the search index still hold of deleted messages, and runs of long ago."""
        if apps.is_installed("chatmemory_django.chat"):
            from chatmemory_django.chat.approvals.tables import forget_left_approvals  # its tables exist only then
            from chatmemory_django.chat.models import AnswerChunk
            from chatmemory_django.chat.runs import leases
            from chatmemory_django.chat.runs.deleting import delete_old

            forget_left_approvals(using)
            leases.prune(using, chat_settings().RUN_SECONDS)
            delete_old(router.db_for_write(AnswerChunk, beside=using))  # may be another than that of conversations
        if finding.index is not None:
            with self.progress("steps of the search index", None, verbosity) as progress:
                for _ in finding.index.forget_deleted(using, may_block=may_block):
                    progress.advance()

    def report_refused(self, conversation: Conversation, error: Exception) -> None:
        """Print a conversation that is old, but could not be erased."""
        self.stderr.write(
            f"{conversation.memory_id!r} was not erased: other objects reference it ({type(error).__name__})."
        )
