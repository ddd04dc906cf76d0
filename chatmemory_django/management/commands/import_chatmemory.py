"""Import conversations from JSON lines, or from the data of another framework."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.contrib.importing.frameworks import FRAMEWORKS, open_source
from chatmemory_django.contrib.importing.moved import Source, UnreadableSourceError
from chatmemory_django.contrib.importing.storing import StoreResult, store
from chatmemory_django.management.base import ConversationsCommand, ProgressBar
from chatmemory_django.models import Conversation
from chatmemory_django.operations import JsonLinesError, import_lines

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class Command(ConversationsCommand):
    """``manage.py import_chatmemory [--from FRAMEWORK] SOURCE [--user NAME]``."""

    help = (
        "Import conversations that were exported by export_chatmemory, the admin or the REST API, each completely or "
        "not at all. Stops at the first invalid line; conversations before it stay imported. With --from, import those "
        "of another framework: a repeated run adds what is new; invalid conversations are skipped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select what to import, and for whom."""
        super().add_arguments(parser)
        parser.add_argument(
            "source",
            metavar="SOURCE",
            help="The file to read; - for the standard input. With --from, a JSON or SQLite file, a folder or archive "
            "of JSON files, or a database: its alias in DATABASES, or a URL.",
        )
        parser.add_argument(
            "--from", choices=FRAMEWORKS, dest="framework", help="The framework whose conversations they are."
        )
        parser.add_argument(
            "--table", metavar="NAME", help="With --from, the name of the table if it is not the framework's default."
        )
        parser.add_argument("--prefix", default="", metavar="TEXT", help="With --from, a prefix for all memory ids.")
        parser.add_argument(
            "--user", metavar="NAME", help="The owner of the imported conversations; by default, they have none."
        )
        parser.add_argument(
            "--skip-existing",
            action="store_true",
            help="Skip conversations that already exist, for example to continue after an interruption.",
        )
        parser.add_argument(
            "--untrusted",
            action="store_true",
            help="Ignore the token counts in the file: tokens are counted again when needed.",
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
        """Import the conversations, and print how many."""
        owner = None if user is None else self.user(user)
        if framework is None:
            if table or prefix:
                raise CommandError("--table and --prefix require --from.", returncode=2)
            self._import(source, owner, verbosity, trusted=not untrusted, skip_existing=skip_existing, using=database)
            return
        if skip_existing or untrusted:
            raise CommandError("--skip-existing and --untrusted cannot be used with --from.", returncode=2)
        try:
            with open_source(framework, source, table) as moving:
                self._move(moving, prefix, owner, database, verbosity)
        except UnreadableSourceError as exc:
            raise CommandError(str(exc)) from None

    def _move(
        self, source: Source, prefix: str, owner: AbstractBaseUser | None, database: str | None, verbosity: int
    ) -> None:
        """Import the conversations of another framework."""
        counts = Counter[StoreResult]()
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
                f"Imported {counts[StoreResult.STORED]:,} conversations, added to {counts[StoreResult.CONTINUED]:,}; "
                f"{counts[StoreResult.PRESENT]:,} already existed."
            )
        if refused:
            raise CommandError(f"{refused:,} conversations were not imported.")

    def _import(self, source: str, owner: AbstractBaseUser | None, verbosity: int, **options: Any) -> None:
        """Import the conversations from JSON lines."""
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
            raise CommandError(f"{exc} Imported {count:,} conversations before that line.") from None
        self.stdout.write(f"Imported {count:,} conversations.")


def _noted(lines: IO[bytes], progress: ProgressBar) -> Iterator[bytes]:
    for line in lines:
        yield line
        progress.advance(len(line))
