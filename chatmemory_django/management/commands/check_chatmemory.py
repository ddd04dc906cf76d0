"""Check that the stored conversations are consistent."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.db import row_codec
from chatmemory_django.management.base import ConversationsCommand, refuse_other_tables
from chatmemory_django.models import ErasedConversation, message_codec
from chatmemory_django.models.remains import delete_left
from chatmemory_django.operations import Finding, check
from chatmemory_django.provider import known_window


class Command(ConversationsCommand):
    """``manage.py check_chatmemory [--repair]``."""

    help = (
        "Check every conversation and all of its rows for inconsistencies: counters that do not match the rows, rows "
        "that are missing or do not hold a message, memories that exceed their window; files in the storage that no "
        "message has, or that are lost; and what is left of erased conversations. Prints a line for each finding, and "
        "exits with an error if there are any."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select what to check."""
        super().add_arguments(parser)
        self.add_selection(parser)
        parser.add_argument(
            "--repair",
            action="store_true",
            help="Correct the counters to match the rows, and delete files that no message has and what erasures left.",
        )

        parser.add_argument(
            "--files",
            action="store_true",
            help="Read all files in the storage, too, and compare them with what was stored. This may take long.",
        )

    def handle(self, *, repair: bool, files: bool, verbosity: int, **selection: Any) -> None:
        """Check the conversations, and print the findings."""
        conversations = self.conversations(**selection)
        refuse_other_tables([conversations.db])  # which an empty table might not show
        with self.progress("conversations", conversations.count(), verbosity) as progress:
            count = check(
                conversations,
                known_window,
                self.report,
                repair=repair,
                each=lambda *done: progress.advance(),
            )
        if selection["user"] is None and selection["memory_ids"] is None:
            if message_codec.installed is not None:
                write = self.stdout.write
                count += message_codec.installed.check(conversations.db, write, repair=repair, read=files)
            count += self.check_erased(conversations.db, repair=repair)
        if row_codec.installed is not None:
            count += row_codec.installed.report(conversations, self.stdout.write)
        if count:
            raise CommandError(f"{count:,} findings.")
        self.stdout.write("No problems found.")

    def check_erased(self, using: str, *, repair: bool) -> int:
        """Print how many erased conversations have messages left, delete these to *repair*, and return it."""
        count = ErasedConversation.objects.using(using).count()
        if count and repair:
            delete_left(using)
        if count:
            done = "Repaired." if repair else "prune_chatmemory deletes them."
            self.stdout.write(f"{count:,} erased conversations have messages left. {done}")
        return count

    def report(self, finding: Finding) -> None:
        """Print a finding."""
        repaired = " Repaired." if finding.is_repaired else ""
        self.stdout.write(f"{finding.memory_id!r} {finding.rule}: {finding.detail}{repaired}")
