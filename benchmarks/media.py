"""``python -m benchmarks.media``: files in a storage compared with files in rows; see README.md."""

from __future__ import annotations

import argparse
import base64
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import TIMES, Report, table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chatmemory_django.memory import ChatMemory
    from chatmemory_django.messages import UserMessage

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.media_settings")

PICTURES = 40
CONVERSATIONS = 20
"""How many conversations of as many pictures the storage takes: MariaDB's tables grow by 1 MB at a time."""

BYTES = 2_000_000
"""The size of a picture, as of a camera in a phone after the page made it smaller."""

WINDOW = 5
"""How many pictures are in the memory that is read."""

ROUNDS = 15


def main(servers: list[str], report: Report) -> None:
    """Report, for each of *servers*, what grows, and what a list and a window take."""
    from django.test import override_settings

    from benchmarks.databases import database

    for server in servers:
        with database(server), tempfile.TemporaryDirectory() as folder:
            backend = "django.core.files.storage.FileSystemStorage"
            storages = {"files": {"BACKEND": backend, "OPTIONS": {"location": folder}}}
            sites = {"rows": None, "storage": "files"}
            several = {
                "rows": ["rows"],
                "storage": ["storage", *(f"more-{number}" for number in range(1, CONVERSATIONS))],
            }
            grown, taken = {}, {}
            with override_settings(STORAGES=storages):
                for name, alias in sites.items():
                    with override_settings(CHATMEMORY={"MEDIA_STORAGE": alias}):
                        before = _size(server)
                        for number, each in enumerate(several[name]):
                            _fill(server, each, (_picture(PICTURES * number + index) for index in range(PICTURES)))
                        grown[name] = (_size(server) - before) / len(several[name])
                _fill(server, "texts", [_text(index) for index in range(PICTURES)])
                for _ in range(ROUNDS):
                    for name in random.sample(["texts", *sites], 3):
                        with override_settings(CHATMEMORY={"MEDIA_STORAGE": sites.get(name)}):
                            for what, do in (("list", _list), ("window", _window)):
                                begun = time.perf_counter()
                                do(server, name)
                                taken.setdefault((what, name), []).append(time.perf_counter() - begun)
            medians = {key: statistics.median(each) * 1e3 for key, each in taken.items()}
            total = PICTURES * BYTES
            rows = [
                [
                    f"the database grows by, of each {total / 1e6:,.0f} MB",
                    f"{grown['rows'] / 1e6:,.1f} MB · {grown['rows'] / total:.1%}",
                    f"{grown['storage'] / 1e6:,.3f} MB · **{grown['storage'] / total:.2%}**",
                ],
                *(
                    [
                        shown,
                        f"{medians[what, 'rows']:,.2f} ms",
                        f"{medians[what, 'storage']:,.2f} ms · **{medians[what, 'storage'] / medians[what, base]:.2f} "
                        f"{TIMES}** {words}",
                    ]
                    for what, shown, base, words in (
                        ("list", f"a list of the {PICTURES} messages", "texts", "one of texts"),
                        ("window", f"a memory with {WINDOW} pictures is read", "rows", ""),
                    )
                ),
            ]
            report.section(f"media-{server}", table(["", "in rows", "in a storage"], rows))


def _fill(server: str, name: str, messages: Iterable[UserMessage]) -> None:
    for message in messages:
        _memory(server, name).add(message)


def _memory(server: str, name: str) -> ChatMemory:
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    return MessageWindowChatMemory(max_messages=WINDOW, id=name, store=DjangoChatMemoryStore(server))


def _list(server: str, name: str) -> None:
    from chatmemory_django.models import Conversation

    assert (
        len([row.chat_message for row in Conversation.objects.using(server).get(memory_id=name).history()]) == PICTURES
    )


def _window(server: str, name: str) -> None:
    assert len(_memory(server, name).messages()) == WINDOW


def _picture(index: int) -> UserMessage:
    from chatmemory_django.messages import Image, ImageContent, TextContent, UserMessage

    data = base64.b64encode(random.Random(index).randbytes(BYTES)).decode()
    return UserMessage([TextContent("What is this?"), ImageContent(Image(base64_data=data, mime_type="image/jpeg"))])


def _text(index: int) -> UserMessage:
    from chatmemory_django.messages import TextContent, UserMessage

    return UserMessage([TextContent(f"What is this? {index}"), TextContent("It is blue.")])


def _size(server: str) -> int:
    from django.db import connections

    with connections[server].cursor() as cursor:
        if server == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return Path(str(connections[server].settings_dict["NAME"])).stat().st_size
        if server == "postgresql":
            cursor.execute("SELECT pg_database_size(current_database())")
        else:
            files = "chatmemory_files_mediafile, chatmemory_files_mediareference"
            cursor.execute(f"ANALYZE TABLE chatmemory_message, {files}")
            cursor.execute(
                "SELECT sum(data_length + index_length) FROM information_schema.tables WHERE table_schema = database()"
            )
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", nargs="+", choices=("postgresql", "sqlite", "mariadb"), metavar="SERVER")
    parser.add_argument("--write", action="store_true", help="write the tables to README.md")
    options = parser.parse_args()
    import django

    django.setup()
    from benchmarks.databases import SERVERS

    written = Report(writes=options.write)
    main(options.on or list(SERVERS), written)
