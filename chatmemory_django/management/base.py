"""The base of the commands about conversations."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from django.contrib.auth import get_user_model
from django.contrib.auth.base_user import AbstractBaseUser
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DatabaseError, connections, reset_queries, router
from django.db.models import Model

from chatmemory_django.checks import unlike
from chatmemory_django.conf import MAX_DAYS
from chatmemory_django.db.row_codec import UnreadableError
from chatmemory_django.db.tables import databases_with
from chatmemory_django.models import Conversation, ConversationQuerySet
from chatmemory_django.models.message_codec import StorageError

INTERRUPTED = 130
"""The exit code of a program that was ended by Ctrl-C: 128 plus the number of SIGINT."""

WIDTH = 40
"""The width of a progress bar, in characters."""

REDRAW_SECONDS = 0.1
LINE_SECONDS = 10.0


class ConversationsCommand(BaseCommand):
    """A command about conversations. It can be stopped at any time, and reports what it leaves then: *stopped*."""

    stopped = "Stopped. No conversation was left half-done."
    unreadable = 0
    """How many conversations could not be read: to decrypt them, for example, needs a key that is not there."""
    first_unreadable = ""

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the option that selects the database."""
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            help="The database with the conversations. Defaults to the one that the router selects.",
        )

    def add_selection(self, parser: CommandParser, *, required: bool = False) -> None:
        """Add the options that select conversations."""
        which = parser.add_mutually_exclusive_group(required=required)
        which.add_argument("--user", metavar="NAME", help="Only conversations of the user with this name.")
        which.add_argument(
            "--memory-id",
            action="append",
            dest="memory_ids",
            metavar="ID",
            help="Only this conversation. Can be used several times.",
        )

    def execute(self, *args: Any, **options: Any) -> str | None:
        self.unreadable = 0
        try:
            result = super().execute(*args, **parsed(self, options))
        except KeyboardInterrupt:
            raise CommandError(self.stopped, returncode=INTERRUPTED) from None
        except (OSError, UnreadableError, StorageError) as exc:  # a file, or the reader of a pipe, is gone; or a key
            raise CommandError(str(exc)) from exc
        except DatabaseError:
            with suppress(DatabaseError):  # of the question, while the database is away
                refuse_other_tables(databases_with(Conversation) or [router.db_for_write(Conversation)])
            raise
        if self.unreadable:
            raise CommandError(f"{self.unreadable:,} of them cannot be read, first {self.first_unreadable}")
        return result

    def refuse(self, left_out: Model, error: Exception) -> None:
        """Print why a conversation, or another row, is *left_out*; the command goes on, and exits with an error."""
        line = f"{str(left_out)!r}: {error}"
        self.stderr.write(line)
        self.first_unreadable = self.first_unreadable if self.unreadable else line
        self.unreadable += 1

    def conversations(
        self, database: str | None, user: str | None = None, memory_ids: list[str] | None = None, **others: object
    ) -> ConversationQuerySet:
        """Return the conversations that the options of a command select; *others* are those that select none."""
        owner = None if user is None else self.user(user)
        hints = {} if owner is None else {"owner_key": str(owner.pk)}
        conversations = Conversation.objects.using(database or router.db_for_write(Conversation, **hints))
        if owner is not None:
            return conversations.owned_by(owner)
        if memory_ids is None:
            return conversations.all()
        found = conversations.filter(memory_id__in=memory_ids)
        there = set(found.values_list("memory_id", flat=True))
        if missing := [memory_id for memory_id in memory_ids if memory_id not in there]:
            raise CommandError(f"There is no conversation {missing[0]!r}.")
        return found

    def user(self, name: str) -> AbstractBaseUser:
        """Return the user with this name."""
        users = get_user_model()
        try:
            return users._default_manager.get_by_natural_key(name)
        except users.DoesNotExist:
            raise CommandError(f"There is no user {name!r}.") from None

    def progress(self, noun: str, total: int | None, verbosity: int) -> ProgressBar:
        """Return the progress of the command, out of *total* or of an unknown number."""
        return ProgressBar(self.stderr, noun, total, is_shown=verbosity > 0)


def refuse_other_tables(databases: Iterable[str]) -> None:
    """Raise a ``CommandError`` if the tables in one of *databases* and the code do not belong together."""
    for found in (each for alias in databases for each in unlike(alias)):
        raise CommandError(f"{found.msg} {found.hint}")


def parsed(command: BaseCommand, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return *options* of *command* as its parser does: ``call_command`` passes keyword arguments as they are."""
    types = {each.dest: each.type for each in command.create_parser("", "")._actions if callable(each.type)}
    result = dict(options)
    for name, to_type in types.items():
        if isinstance(value := options.get(name), (str, int)):
            try:
                result[name] = to_type(str(value))
            except (ArgumentTypeError, ValueError) as exc:
                raise CommandError(f"{name} is {value!r}: {exc}") from None
    return result


class ProgressBar:
    """The progress of a command: a bar on a terminal, otherwise an occasional line."""

    def __init__(self, stream: OutputWrapper, noun: str, total: int | None, *, is_shown: bool = True) -> None:
        self.stream = stream
        self.noun = noun
        self.total = total
        self.done = 0
        self.is_shown = is_shown
        self.is_bar = stream.isatty()
        self._due = time.monotonic() + (0.0 if self.is_bar else LINE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_shown and self.is_bar:
            self._write(f"\r{self}\n")

    def __str__(self) -> str:
        if not self.total:
            return f"{self.done:,} {self.noun}"
        share = min(1.0, self.done / self.total)
        counts = f"{self.done:,} of {self.total:,} {self.noun}"
        if not self.is_bar:
            return counts
        return f"[{'#' * round(WIDTH * share):.<{WIDTH}}] {share:4.0%}  {counts}"

    def advance(self, count: int = 1) -> None:
        """Report that *count* more are done."""
        self.done += count
        reset_queries()  # with DEBUG on, Django keeps the text of every query
        now = time.monotonic()
        if self.is_shown and now >= self._due:
            self._due = now + (REDRAW_SECONDS if self.is_bar else LINE_SECONDS)
            self._write(f"\r{self}" if self.is_bar else f"{self}\n")

    def _write(self, text: str) -> None:
        self.stream.write(text, style_func=str, ending="")
        self.stream.flush()


def at_least_one(text: str) -> int:
    """Return *text* as a number of things, at least one, for an option of a command."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ArgumentTypeError(f"it must be a whole number of at least 1, not {text!r}")
    return int(text)


def days(text: str) -> timedelta:
    """Return the number of days in *text*, the value of an option."""
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= MAX_DAYS:
        raise ArgumentTypeError(f"must be a whole number of days from 1 to {MAX_DAYS:,}, not {text!r}.")
    return timedelta(days=number)
