"""Store conversations from JSON lines, or from what another framework keeps."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.management.base import ConversationsCommand, Progress
from chatmemory_django.models import Conversation
from chatmemory_django.moving.frameworks import FRAMEWORKS, open_source
from chatmemory_django.moving.moved import Source, UnreadableError
from chatmemory_django.moving.storing import Outcome, store
from chatmemory_django.operations import JsonLinesError, import_lines

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class Command(ConversationsCommand):
    """``manage.py import_chatmemory [--from FRAMEWORK] SOURCE [--user NAME]``."""

    help = (
        "Store the conversations that export_chatmemory, the admin or the REST API has written, each whole or not at "
        "all. Stops at the first line that is wrong; what was stored before it stays. With --from, store those of "
        "another framework: run again, it adds what is new. One that is wrong is left out, and the others are stored."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what to read, and whose it will be."""
        super().add_arguments(parser)
        parser.add_argument(
            "source",
            metavar="SOURCE",
            help="The file to read; - for the standard input. With --from, a file of JSON or of SQLite's, a folder or "
            "an archive of such JSON, or a database: its alias in DATABASES, or a URL.",
        )
        parser.add_argument("--from", choices=FRAMEWORKS, dest="framework", help="Whose conversations they are.")
        parser.add_argument("--table", metavar="NAME", help="With --from, the table if it has a name of its own.")
        parser.add_argument(
            "--prefix", default="", metavar="TEXT", help="With --from, what every memory id is to begin with."
        )
        parser.add_argument("--user", metavar="NAME", help="Whose the conversations will be; by default nobody's.")
        parser.add_argument(
            "--skip-existing",
            action="store_true",
            help="Pass over conversations that are there already, to go on after an interruption for example.",
        )
        parser.add_argument(
            "--untrusted",
            action="store_true",
            help="Leave out the token counts in the file: they are made anew where they are needed.",
        )

    def handle(
        self,
        *,
        source: str,
        user: str | None,
        framework: str | None,
        table: str | None,
        prefix: str,
        skip_existing: bool,
        untrusted: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Store them, and say how many."""
        owner = None if user is None else self.user(user)
        if framework is None:
            if table or prefix:
                raise CommandError("--table and --prefix are for the conversations of other frameworks; add --from.")
            self._import(source, owner, verbosity, trusted=not untrusted, skip_existing=skip_existing, using=database)
            return
        if skip_existing or untrusted:
            raise CommandError("--skip-existing and --untrusted are for JSON lines; leave them out with --from.")
        try:
            with open_source(framework, source, table) as moving:
                self._move(moving, prefix, owner, database, verbosity)
        except UnreadableError as exc:
            raise CommandError(str(exc)) from None

    def _move(
        self, source: Source, prefix: str, owner: AbstractBaseUser | None, database: str | None, verbosity: int
    ) -> None:
        """Store the conversations of another framework."""
        counts = Counter[Outcome]()
        refused = 0
        try:
            with self.progress(source.noun, source.total, verbosity) as progress:
                for memory_id, moved, size in source.steps:
                    try:
                        if isinstance(moved, ValueError):
                            raise moved
                        counts[store(f"{prefix}{memory_id}", moved, owner, using=database)] += 1
                    except (TypeError, ValueError) as exc:
                        refused += 1
                        self.stderr.write(f"{memory_id!r}: {exc}")
                    progress.advance(size)
        finally:
            self.stdout.write(
                f"Imported {counts[Outcome.STORED]:,} conversations, added to {counts[Outcome.CONTINUED]:,}; "
                f"{counts[Outcome.PRESENT]:,} were there already."
            )
        if refused:
            raise CommandError(f"{refused:,} conversations were not imported.")

    def _import(self, source: str, owner: AbstractBaseUser | None, verbosity: int, **options: Any) -> None:
        """Store the conversations of JSON lines."""
        count = 0

        def note(conversation: Conversation, memory_id: str) -> None:
            nonlocal count
            count += 1

        try:
            with ExitStack() as stack:
                if source == "-":
                    lines: IO[bytes] = sys.stdin.buffer
                    size = None
                else:
                    file = Path(source)
                    lines = stack.enter_context(file.open("rb"))
                    size = file.stat().st_size
                progress = stack.enter_context(self.progress("bytes", size, verbosity))
                import_lines(_noted(lines, progress), owner, each=note, **options)
        except JsonLinesError as exc:
            raise CommandError(f"{exc} Imported {count:,} conversations before that.") from None
        self.stdout.write(f"Imported {count:,} conversations.")


def _noted(lines: IO[bytes], progress: Progress) -> Iterator[bytes]:
    for line in lines:
        yield line
        progress.advance(len(line))
