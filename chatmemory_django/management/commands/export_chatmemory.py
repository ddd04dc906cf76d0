"""Export conversations as JSON lines, plain text or HTML."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from django.core.management.base import CommandParser
from django.db.models import Sum

from chatmemory_django.management.base import ConversationsCommand
from chatmemory_django.models.copies import EVERYBODY
from chatmemory_django.operations import FORMS, export


class Command(ConversationsCommand):
    """``manage.py export_chatmemory [--output FILE] [--format FORM] [--user NAME | --memory-id ID]``."""

    help = (
        "Export conversations as JSON lines, with memory and history, for import_chatmemory, or as a document for "
        "people: plain text or HTML. Each is exported as it is at one moment; others can go on writing to it."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options that select what to export, and where to."""
        super().add_arguments(parser)
        self.add_selection(parser)
        parser.add_argument(
            "--output",
            type=Path,
            metavar="FILE",
            help="The file to write. Defaults to the standard output. It is created at the end.",
        )

        parser.add_argument(
            "--format",
            choices=("jsonl", *FORMS, "ratings"),
            default="jsonl",
            dest="form",
            help="The form of the file. Defaults to jsonl, the only one that import_chatmemory reads; ratings are "
            "rated answers, with question and context, as JSON lines for evaluations.",
        )

    def handle(
        self,
        *,
        output: Path | None,
        form: Literal["jsonl", "text", "html", "ratings"],
        verbosity: int,
        **selection: Any,
    ) -> None:
        """Write the lines."""
        conversations = self.conversations(**selection)
        owner = None if selection["user"] is None else self.user(selection["user"]).pk
        if form == "jsonl" and owner is None and selection["memory_ids"] is None:
            owner = EVERYBODY
        total = conversations.aggregate(total=Sum("total_messages", default=0))["total"]
        with self.progress("messages", total, verbosity) as progress, contextlib.ExitStack() as stack:
            write: Callable[[str], object] = partial(self.stdout.write, ending="")
            if output is not None:
                part = output.with_name(f"{output.name}.part")
                part.unlink(missing_ok=True)  # of a run that was killed; it may have other bits
                stack.callback(part.unlink, missing_ok=True)
                # Chats are personal: other accounts of this machine must not read them, whatever the umask allows.
                opener = partial(os.open, mode=0o600)
                opened = open(part, "x", encoding="utf-8", newline="\n", opener=opener)  # noqa: SIM115
                file = stack.enter_context(opened)
                write = file.write
            for chunk in export(conversations, form=form, refused=self.refuse, owner=owner, names=True):
                write(chunk)
                progress.advance(f"\n{chunk}".count('\n{"record":"message"'))
            if output is not None:
                file.flush()
                os.fsync(file.fileno())
                part.replace(output)
