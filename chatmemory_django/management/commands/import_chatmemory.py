"""Store conversations from JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from django.core.management.base import CommandError, CommandParser

from chatmemory_django.management.base import ConversationsCommand, Progress
from chatmemory_django.models import Conversation
from chatmemory_django.operations import JsonLinesError, import_lines


class Command(ConversationsCommand):
    """``manage.py import_chatmemory FILE [--user NAME]``."""

    help = (
        "Store the conversations that export_chatmemory, the admin or the REST API has written, each whole or not at "
        "all. Stops at the first line that is wrong; what was stored before it stays."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare what to read, and whose it will be."""
        super().add_arguments(parser)
        parser.add_argument("file", type=Path, metavar="FILE", help="The file to read; - for the standard input.")
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
        file: Path,
        user: str | None,
        skip_existing: bool,
        untrusted: bool,
        database: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        """Store them, and say how many."""
        owner = None if user is None else self.user(user)
        count = 0

        def note(conversation: Conversation, memory_id: str) -> None:
            nonlocal count
            count += 1

        try:
            with ExitStack() as stack:
                if str(file) == "-":
                    lines: IO[bytes] = sys.stdin.buffer
                    size = None
                else:
                    lines = stack.enter_context(file.open("rb"))
                    size = file.stat().st_size
                progress = stack.enter_context(self.progress("bytes", size, verbosity))
                import_lines(
                    _noted(lines, progress),
                    owner,
                    trusted=not untrusted,
                    skip_existing=skip_existing,
                    using=database,
                    each=note,
                )
        except JsonLinesError as exc:
            raise CommandError(f"{exc} Imported {count:,} conversations before that.") from None
        self.stdout.write(f"Imported {count:,} conversations.")


def _noted(lines: IO[bytes], progress: Progress) -> Iterator[bytes]:
    for line in lines:
        yield line
        progress.advance(len(line))
