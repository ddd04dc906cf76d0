"""Erase conversations, and print a receipt."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import ProtectedError

from chatmemory_django.management.base import INTERRUPTED, ConversationsCommand
from chatmemory_django.models import Conversation
from chatmemory_django.models.erasing import erase_of_owner
from chatmemory_django.models.message_codec import files_to_delete
from chatmemory_django.models.remains import delete_left
from chatmemory_django.operations import erase

FILES_LEFT = 3
"""The exit code while files of what was erased are still in the storage."""


class Command(ConversationsCommand):
    """``manage.py erase_chatmemory --user NAME | --memory-id ID``."""

    help = (
        "Erase what is stored of a user, or single conversations, with memory and history. Prints what was erased, and "
        "when, as JSON. The user is not deleted. Exits with 3 while the storage has not deleted all files: run it "
        "again, or prune_chatmemory."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select what to erase."""
        super().add_arguments(parser)
        self.add_selection(parser, required=True)
        parser.add_argument("--dry-run", action="store_true", help="Print what would be erased, without erasing it.")

    def handle(self, *, dry_run: bool, verbosity: int, **selection: Any) -> None:
        """Erase the conversations, and print a receipt, even if the command is stopped before all are erased."""
        conversations = self.conversations(**selection)
        if not dry_run:
            delete_left(conversations.db)  # what a run that was stopped has left
        keys = list(conversations.order_by("pk").values_list("pk", flat=True))
        owner = None if selection["user"] is None else str(self.user(selection["user"]).pk)
        erased: dict[str, int] = {}
        refused: list[str] = []
        is_held = False

        def refuse(conversation: Conversation, error: Exception) -> None:
            refused.append(conversation.memory_id)

        is_stopped = False
        with self.progress("conversations", len(keys), verbosity) as progress:
            try:
                for key in keys:
                    erased |= erase(conversations.filter(pk=key), dry_run=dry_run, refused=refuse).messages
                    progress.advance()
            except KeyboardInterrupt:
                is_stopped = True
        others: dict[str, int] = {}
        if owner is not None and not is_stopped:
            try:
                others = erase_of_owner(owner, conversations.db, dry_run=dry_run)
            except ProtectedError:
                is_held = True
        files_left = files_to_delete(conversations.db, () if dry_run else keys, owner)
        receipt = {
            "at": datetime.now(UTC).isoformat(),
            "database": conversations.db,
            "dry_run": dry_run,
            "erased": [{"memory_id": memory_id, "messages": count} for memory_id, count in erased.items()],
            "refused": refused,
            "messages": sum(erased.values()),
            "others": others,
            "files_to_delete": files_left,
        }
        self.stdout.write(json.dumps(receipt, indent=2))
        if is_stopped:
            raise CommandError(
                f"Stopped: {len(keys) - len(erased)} conversations were not erased.", returncode=INTERRUPTED
            )
        if refused:
            raise CommandError(f"{len(refused)} conversations were not erased: other objects reference them.")
        if is_held:
            raise CommandError("What belongs to the user and to no conversation was not erased: a hold forbids it.")
        if files_left:
            raise CommandError(
                f"{files_left:,} files are still in the storage, which has not deleted them; run this command, or "
                "prune_chatmemory, again.",
                returncode=FILES_LEFT,
            )
