"""Verify that nothing is left of a user."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser

from chatmemory_django.db.tables import databases_with
from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.models import Conversation
from chatmemory_django.operations.verifying import left_of

UNSEEN = 3
"""The exit code if nothing is found, but not everything can be looked at."""


class Command(ConversationsCommand):
    """``manage.py verify_chatmemory --user NAME | --user-key KEY``."""

    stopped = "Stopped. Nothing was changed."
    help = (
        "Verify that nothing is left of a user after an erasure: in the tables, in what searches look up, in the "
        "storage of files and in streams of answers, of all databases with conversations. Prints what is left, and "
        "exits with 1 if there is anything, with 3 if something cannot be looked at. Reads all rows, and changes "
        "nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that name the user, who may be deleted."""
        super().add_arguments(parser)
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("--user", metavar="NAME", help="The user with this name.")
        who.add_argument("--user-key", metavar="KEY", help="The user with this primary key, who may be deleted.")

    def handle(self, *, database: str | None, user: str | None, user_key: str | None, **options: Any) -> None:
        """Print what is left of the user."""
        try:
            key = get_user_model()._meta.pk.to_python(user_key) if user is None else self.user(user).pk
        except ValidationError as exc:
            raise CommandError(f"{user_key!r} cannot be the primary key of a user: {' '.join(exc.messages)}") from None
        databases = [database] if database is not None else databases_with(Conversation)
        left = [(using, remnant) for using in databases for remnant in left_of(key, using)]
        for using, (where, number) in left:
            self.stdout.write(f"{using}: {where}: {'unknown' if number is None else f'{number:,}'}")
        if any(remnant.number for _using, remnant in left):
            raise CommandError("Something is left: erase_chatmemory, and then prune_chatmemory, delete it.")
        if left:
            raise CommandError("Nothing else is left, but this cannot be seen.", returncode=UNSEEN)
        self.stdout.write(f"Nothing is left in {', '.join(databases)}.")
