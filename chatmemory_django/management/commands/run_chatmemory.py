"""Generate the answers that were asked for, and go on with those whose process is dead."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from django.utils.module_loading import import_string

from chatmemory_django.management.base import at_least_one, parsed, refuse_other_tables

PAUSE = 1.0
"""Seconds between two attempts to begin while the database is away."""


class Command(BaseCommand):
    """``manage.py run_chatmemory [--database ALIAS …] [--contexts FUNCTION] [--concurrency N] [--once]``: a worker."""

    help = (
        "Generate the answers that were asked for with CHATMEMORY['CHAT']['RUNS'] = 'worker', go on with answers whose "
        "process is dead, and with those for which somebody has decided on a call. Run as many as you like. It ends at "
        "SIGTERM or Ctrl+C: what it was generating is handed over to others."
    )

    requires_system_checks = ()  # ``handle`` runs them: some ask the database, which may be locked or away

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options: where to look, and how much to do at once."""
        parser.add_argument(
            "--database",
            action="append",
            choices=tuple(connections),
            help=f"A database with conversations; repeat it for several. The default is {DEFAULT_DB_ALIAS!r}.",
        )
        parser.add_argument(
            "--contexts",
            metavar="FUNCTION",
            help="The path of a function that returns the contexts in which to look, as capture() of the setting "
            "THREAD_CONTEXT returns them: the schemas of all tenants, for example.",
        )
        parser.add_argument(
            "--concurrency", type=at_least_one, default=20, metavar="N", help="How many answers to generate at once."
        )
        parser.add_argument("--once", action="store_true", help="End when nothing waits any more.")
        parser.add_argument("--skip-checks", action="store_true", help="Skip system checks.")  # as Django's commands

    def execute(self, *args: Any, **options: Any) -> str | None:
        return super().execute(*args, **parsed(self, options))

    def handle(
        self,
        *,
        database: list[str] | None,
        contexts: str | None,
        concurrency: int,
        once: bool,
        skip_checks: bool,
        **options: Any,
    ) -> None:
        """Work until the process is asked to end."""
        databases = tuple(database or [DEFAULT_DB_ALIAS])
        if not skip_checks:
            # With contexts, the tables are in these: in the schemas of tenants, for example.
            self._check(() if contexts else databases, waits=not once)
        if not apps.is_installed("chatmemory_django.chat"):
            raise CommandError("There are no answers to generate: chatmemory_django.chat is not in INSTALLED_APPS.")
        from chatmemory_django.chat.worker import UnknownWorkError, Worker  # its tables exist only then

        try:
            found = import_string(contexts) if contexts else None
        except ImportError as exc:
            raise CommandError(f"--contexts: {exc}") from None
        worker = Worker(databases, found, concurrency)

        async def work() -> None:
            for each in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(each, worker.end)
            await (worker.work_off() if once else worker.work())

        try:
            asyncio.run(work())
        except UnknownWorkError as exc:
            raise CommandError(str(exc)) from exc

    def _check(self, databases: Sequence[str], *, waits: bool) -> None:
        """Run the system checks, and look at the tables; if this *waits*, until the database that is asked is there."""
        while True:
            try:
                self.check()
                return refuse_other_tables(databases)
            except (OperationalError, InterfaceError) as exc:
                if not waits:
                    raise CommandError(f"Whether answers wait is not known: {exc}") from exc
                self.stderr.write(f"The worker waits for a database: {exc}")
                time.sleep(PAUSE)
