"""Look for broken rules in the tables."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.operations import Finding, check
from chatmemory_django.provider import known_window


class Command(ConversationsCommand):
    """``manage.py check_chatmemory [--repair]``."""

    help = (
        "Look at every conversation and all of its rows for what must never be: counters that differ from the rows, "
        "rows that are missing or hold no message, a memory over its window. Prints a line for each finding, and ends "
        "with an error if there is one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what to look at."""
        super().add_arguments(parser)
        self.add_selection(parser)
        parser.add_argument(
            "--repair", action="store_true", help="Make the counters say what the rows do. Nothing else is changed."
        )

    def handle(
        self,
        *,
        user: str | None,
        memory_ids: list[str] | None,
        repair: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Look, and tell."""
        conversations = self.conversations(database, user, memory_ids)
        with self.progress("conversations", conversations.count(), verbosity) as progress:
            count = check(
                conversations,
                known_window,
                self.tell,
                repair=repair,
                each=lambda *done: progress.advance(),
            )
        if count:
            raise CommandError(f"{count:,} findings.")
        self.stdout.write("Nothing is broken.")

    def tell(self, finding: Finding) -> None:
        """Print a finding."""
        repaired = " Repaired." if finding.is_repaired else ""
        self.stdout.write(f"{finding.memory_id!r} {finding.rule}: {finding.detail}{repaired}")
