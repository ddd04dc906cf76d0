"""Verify that nothing is left of a user."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser

from chatmemory_django.db.tables import databases_with
from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.models import Conversation
from chatmemory_django.operations.verifying import User, left_of

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
        parser.add_argument("--user", metavar="NAME", help="The user with this name.")
        parser.add_argument(
            "--user-key",
            metavar="KEY",
            help="The user with this primary key, who may be deleted; with --user, what has only the name, too.",
        )

    def handle(self, *, database: str | None, user: str | None, user_key: str | None, **options: Any) -> None:
        """Print what is left of the user."""
        if user is None and user_key is None:
            raise CommandError("Name the user: --user NAME or --user-key KEY.", returncode=2)
        whom = self._user(user, user_key)
        databases = [database] if database is not None else databases_with(Conversation)
        left = [(using, remnant) for using in databases for remnant in left_of(whom, using)]
        for using, (where, number) in left:
            self.stdout.write(f"{using}: {where}: {'unknown' if number is None else f'{number:,}'}")
        if any(remnant.number for _using, remnant in left):
            raise CommandError(
                "Something is left: erase_chatmemory, and then prune_chatmemory, delete it. Rows that name the user "
                "for what they did in conversations of others are deleted with these."
            )
        if left:
            raise CommandError("Nothing else is left, but this cannot be seen.", returncode=UNSEEN)
        self.stdout.write(f"Nothing is left in {', '.join(databases)}.")

    def _user(self, name: str | None, key: str | None) -> User:
        if key is None:
            return User(self.user(str(name)).pk, name)
        users = get_user_model()
        pk = users._meta.pk
        try:
            value = pk.to_python(key)
            pk.run_validators(value)
        except ValidationError as exc:
            raise CommandError(f"{key!r} cannot be the primary key of a user: {' '.join(exc.messages)}") from None
        found = users._default_manager.filter(pk=value).first() if name is None else None
        return User(value, name if found is None else found.get_username())
