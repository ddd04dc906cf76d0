"""``python -m benchmarks.imports``: conversations from a site's own models; see README.md."""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.report import Report
    from chatmemory_django.operations import ImportedConversation

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

CONVERSATIONS, MESSAGES = 200, 80
BEGUN = datetime(2024, 1, 1, tzinfo=UTC)


def main(servers: list[str], report: Report) -> None:
    """Report what an import takes on each of *servers*, and what a second one that finds all of it does."""
    from benchmarks.databases import database
    from benchmarks.report import table
    from chatmemory_django.operations import import_conversations

    rows = []
    for server in servers:
        with database(server):
            for what, expected in (("the first time", CONVERSATIONS), ("again", 0)):
                begun, used = time.perf_counter(), time.process_time()
                assert import_conversations(_conversations(), using=server) == expected
                took, cpu = time.perf_counter() - begun, time.process_time() - used
                per = cpu / CONVERSATIONS / MESSAGES * 1e3
                rows.append([f"{server}, {what}", f"{took:,.1f} s", f"{cpu:,.1f} s", f"{per:,.2f} ms"])
    total = f"{CONVERSATIONS * MESSAGES:,} messages in {CONVERSATIONS} conversations"
    report.section("imports", table([total, "took", "of the processor", "of it, a message"], rows))


def _conversations() -> Iterator[ImportedConversation]:
    from chatmemory_django.messages import AiMessage, NewMessage, UserMessage
    from chatmemory_django.operations import ImportedConversation, ImportedMessage

    for number in range(CONVERSATIONS):
        messages = []
        for each in range(MESSAGES):
            message = (UserMessage, AiMessage)[each % 2](f"{number} {each} {'of words ' * 25}")
            new = NewMessage(message, client_message_id=f"{number}-{each}")
            messages.append(ImportedMessage(new, BEGUN + timedelta(minutes=each)))
        yield ImportedConversation(f"chat-{number}", messages, title=f"Chat {number}", created_at=BEGUN)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="+", choices=("postgresql", "sqlite", "mariadb"), metavar="SERVER")
    parser.add_argument("--write", action="store_true", help="write the table to README.md")
    options = parser.parse_args()
    import django

    django.setup()
    from benchmarks.databases import SERVERS
    from benchmarks.report import Report

    main(options.on or list(SERVERS), Report(writes=options.write))
