"""Import conversations from JSON lines, or from the data of another framework."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from django.core.management.base import CommandError, CommandParser

from chatmemory_django.contrib.importing.frameworks import FRAMEWORKS, open_source
from chatmemory_django.contrib.importing.moved import Source, UnreadableSourceError
from chatmemory_django.management.base import ConversationsCommand, ProgressBar
from chatmemory_django.models import Conversation
from chatmemory_django.operations import (
    ImportedConversation,
    ImportRefusedError,
    ImportResult,
    JsonLinesError,
    import_conversations,
    import_lines,
)
from chatmemory_django.operations.jsonl.names import MAX_KNOWN

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

    from chatmemory_django.operations.jsonl.names import Named


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
            "--user",
            metavar="NAME",
            help="The owner of the imported conversations; by default, the user whom it names.",
        )
        parser.add_argument(
            "--owners",
            type=Path,
            metavar="FILE",
            help="A file with a JSON object of the names in the lines and the names of those users here, or null.",
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
        owners: Path | None,
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
            is_asked = owner is None or owners is not None
            named = self._named({} if owners is None else _mapped(owners), untrusted) if is_asked else None
            options = {"trusted": not untrusted, "skip_existing": skip_existing, "using": database, "named": named}
            self._import(source, owner, verbosity, **options)
            return
        if skip_existing or untrusted or owners is not None:
            raise CommandError("--skip-existing, --untrusted and --owners cannot be used with --from.", returncode=2)
        try:
            with open_source(framework, source, table, with_owners=owner is None) as moving:
                self._move(moving, prefix, owner, database, verbosity)
        except UnreadableSourceError as exc:
            raise CommandError(str(exc)) from None

    def _move(
        self, source: Source, prefix: str, owner: AbstractBaseUser | None, database: str | None, verbosity: int
    ) -> None:
        """Import the conversations of another framework."""
        counts = Counter[ImportResult]()
        refusals = 0

        def refuse(memory_id: str, reason: object) -> None:
            nonlocal refusals
            refusals += 1
            self.stderr.write(f"{memory_id!r}: {reason}")

        def read(progress: ProgressBar) -> Iterator[ImportedConversation]:
            for memory_id, found, size in source.steps:
                if isinstance(found, ImportedConversation):
                    yield found._replace(memory_id=f"{prefix}{memory_id}", owner=owner or found.owner)
                else:
                    refuse(memory_id, found)
                progress.advance(size)

        def note(conversation: ImportedConversation, result: ImportResult) -> None:
            counts[result] += 1

        def note_refused(conversation: ImportedConversation, error: ImportRefusedError) -> None:
            refuse(error.memory_id.removeprefix(prefix), error.reason)

        try:
            with self.progress(source.noun, source.total, verbosity) as progress:
                import_conversations(read(progress), using=database, each=note, refused=note_refused)
        finally:
            self.stdout.write(
                f"Imported {counts[ImportResult.STORED]:,} conversations, added to {counts[ImportResult.CONTINUED]:,}; "
                f"{counts[ImportResult.PRESENT]:,} already existed."
            )
        if refusals:
            raise CommandError(f"{refusals:,} conversations were not imported.")

    def _named(self, owners: Mapping[str, str | None], untrusted: bool) -> Named:
        """Return the function that finds the user whom a line names, by *owners* or else by the name itself."""

        def named(name: str) -> AbstractBaseUser | None:
            if untrusted and name not in owners:
                raise ValueError(f"it names the user {name!r}; for a file that is not trusted, --user or --owners does")
            here = owners.get(name, name)
            try:
                return None if here is None else self.user(here)
            except CommandError:
                raise ValueError(
                    f"it names the user {name!r}, but there is no user {here!r} here; create that user first, or name "
                    "another one with --owners or --user"
                ) from None

        return lru_cache(MAX_KNOWN)(named)

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


def _mapped(file: Path) -> dict[str, str | None]:
    """Return the names of users in lines, and who they are here, None for nobody, from a JSON *file*."""
    try:
        return msgspec.json.decode(file.read_text("utf-8-sig"), type=dict[str, str | None])
    except (UnicodeError, msgspec.MsgspecError) as exc:
        raise CommandError(
            f'{file}: {exc}. It must be a JSON object like {{"anna": "anna@example.org", "ben": null}}.', returncode=2
        ) from None


def _noted(lines: IO[bytes], progress: ProgressBar) -> Iterator[bytes]:
    for line in lines:
        yield line
        progress.advance(len(line))
