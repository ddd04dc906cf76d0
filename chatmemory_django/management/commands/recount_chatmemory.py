"""Count tokens anew."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.models import Conversation
from chatmemory_django.operations import recount
from chatmemory_django.provider import known_window


class Command(ConversationsCommand):
    """``manage.py recount_chatmemory [--user NAME | --memory-id ID]``."""

    help = (
        "Count the tokens in memories anew, with the estimator that the settings give them now. Nothing leaves a "
        "memory by that, before something is added to it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what to count."""
        super().add_arguments(parser)
        self.add_selection(parser)

    def handle(
        self,
        *,
        user: str | None,
        memory_ids: list[str] | None,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Count, and say of how many."""
        conversations = self.conversations(database, user, memory_ids)
        others = 0

        def refuse(conversation: Conversation, error: Exception) -> None:
            nonlocal others
            others += 1
            progress.advance()

        with self.progress("conversations", conversations.count(), verbosity) as progress:
            count = recount(conversations, known_window, each=lambda *done: progress.advance(), refused=refuse)
        self.stdout.write(f"Recounted the tokens of {count:,} conversations.")
        if others:
            self.stdout.write(f"{others:,} others have no estimator whose counts can be kept.")
