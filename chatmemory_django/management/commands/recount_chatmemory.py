"""Recount tokens."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.models import Conversation
from chatmemory_django.operations import recount
from chatmemory_django.operations.recounting import NoCounterError
from chatmemory_django.provider import known_window


class Command(ConversationsCommand):
    """``manage.py recount_chatmemory [--user NAME | --memory-id ID]``."""

    help = (
        "Recount the tokens in memories with the estimator in the current settings. Messages that no longer fit are "
        "only evicted when a message is added."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select what to recount."""
        super().add_arguments(parser)
        self.add_selection(parser)

    def handle(self, *, verbosity: int, **selection: Any) -> None:
        """Recount the tokens, and print of how many conversations."""
        conversations = self.conversations(**selection)
        others = 0

        def refuse(conversation: Conversation, error: Exception) -> None:
            nonlocal others
            if isinstance(error, NoCounterError):
                others += 1
            else:
                self.refuse(conversation, error)
            progress.advance()

        with self.progress("conversations", conversations.count(), verbosity) as progress:
            count = recount(conversations, known_window, each=lambda *done: progress.advance(), refused=refuse)
        self.stdout.write(f"Recounted the tokens of {count:,} conversations.")
        if others:
            self.stdout.write(f"{others:,} others have no estimator whose counts can be stored.")
