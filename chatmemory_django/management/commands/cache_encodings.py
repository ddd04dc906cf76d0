"""Prepare tiktoken's encodings for a machine without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from chatmemory_django.tokens.encodings import CHAT_ENCODINGS, EncodingUnavailableError, write_cache


class Command(BaseCommand):
    """``manage.py cache_encodings FOLDER [--encoding NAME …]``."""

    help = "Write the files of tiktoken's encodings to a folder, for a machine without a network."
    requires_system_checks = ()  # one of them may report that encodings are missing

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options for the folder and the encodings."""
        parser.add_argument("folder", type=Path, help="The folder to fill; created if it does not exist.")
        parser.add_argument(
            "--encoding",
            action="append",
            dest="encodings",
            metavar="NAME",
            help=f"The encoding to write. Can be used several times. Defaults to {' and '.join(CHAT_ENCODINGS)}.",
        )

    def handle(self, *, folder: Path, encodings: list[str] | None, **options: Any) -> None:
        """Fill the folder, and print how to use it."""
        try:
            paths = write_cache(folder, encodings or CHAT_ENCODINGS)
        except (EncodingUnavailableError, ValueError, OSError) as exc:
            raise CommandError(str(exc)) from exc
        for path in paths:
            self.stdout.write(str(path))
        self.stdout.write(
            f"Copy the folder to the machine that needs it, and set there: TIKTOKEN_CACHE_DIR={folder.resolve()}"
        )
