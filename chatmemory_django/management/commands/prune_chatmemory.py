"""Delete old messages and idle conversations, and what other apps need not keep any longer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django import conf
from chatmemory_django.management.base import ConversationsCommand, days
from chatmemory_django.models import Conversation, copies
from chatmemory_django.models.message_codec import files_to_delete
from chatmemory_django.operations import apply_retention, prune

_DAYS: Mapping[str, Any] = {"type": days, "metavar": "DAYS"}
_SWITCH: Mapping[str, Any] = {"action": "store_true"}


class Command(ConversationsCommand):
    """``manage.py prune_chatmemory [--history-older-than DAYS] [--idle DAYS] …``, to run at night."""

    stopped = "Stopped. What was deleted so far stays deleted; run the command again for the rest."
    help = (
        "Delete old messages from histories, and erase conversations that have been idle for long. Messages in a "
        "memory are never deleted because of their age. Without options, the periods are those of "
        "CHATMEMORY['RETENTION']. Temporary conversations whose time has passed are erased in any case."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that define what is old."""
        super().add_arguments(parser)
        parser.add_argument(
            "--history-older-than",
            **_DAYS,
            help="Delete messages that were stored more than this many days ago and are in no memory.",
        )
        parser.add_argument(
            "--idle",
            **_DAYS,
            help="Erase conversations, with memory and history, that were last written to more than this many days "
            "ago.",
        )
        for each in copies.prunings:
            if each.option:
                parser.add_argument(each.option, help=each.help, **(_DAYS if each.takes_days else _SWITCH))
        parser.add_argument("--dry-run", **_SWITCH, help="Print what would be deleted, without deleting it.")

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
        has_periods = history_older_than is not None or idle is not None
        asked = [options.get(each.option.strip("-").replace("-", "_")) for each in copies.prunings]
        is_as_set = not has_periods and not any(asked)
        if is_as_set and conf.retention() is None:
            own = (f"{each.option} DAYS" if each.takes_days else each.option for each in copies.prunings if each.option)
            names = ["--history-older-than DAYS", "--idle DAYS", *own]
            raise CommandError(
                f"Use {', '.join(names[:-1])}, or {names[-1]}, or set CHATMEMORY['RETENTION'].", returncode=2
            )
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
        using = self.conversations(database).db
        would = "Would have erased" if dry_run else "Erased"
        if pruned is not None:
            self.stdout.write(
                f"{would} {pruned.conversations:,} idle or temporary conversations and {pruned.messages:,} old "
                "messages of others."
            )
            if left := files_to_delete(using):
                self.stdout.write(f"{left:,} files are still in the storage, which has not deleted them.")
        for each, value in zip(copies.prunings, asked, strict=True):
            with self.progress(each.steps, None, verbosity if each.steps else 0) as progress:
                for text in each.prune(using, value, dry_run) or ():
                    if text is None:
                        progress.advance()
                    else:
                        self.stdout.write(text)

    def report_refused(self, conversation: Conversation, error: Exception) -> None:
        """Print a conversation that is old, but could not be erased."""
        self.stderr.write(
            f"{conversation.memory_id!r} was not erased: other objects reference it ({type(error).__name__})."
        )
