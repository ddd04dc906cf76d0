"""Real text and long histories made of it, written by the database itself: a million messages take seconds."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.db import connections, transaction
from django.utils import timezone

from chatmemory_django.models import Conversation
from chatmemory_django.tokens import OpenAiTokenCountEstimator

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 60
"""The length of a message in tokens."""

COST = 4 + TOKENS
"""Its count by the estimator."""

TEXTS = 1000
"""The number of different messages; longer histories repeat them."""

PLACE = f"(block.n * {TEXTS} + texts.n)"
"""The index of a message in its history, in SQL."""

estimator = OpenAiTokenCountEstimator("gpt-4o-mini")


class Bound(NamedTuple):
    """The limit of a memory."""

    limit: int = 4000
    unit: Literal["tokens", "messages"] = "tokens"


@cache
def texts() -> list[str]:
    """Return texts of the chitchat dataset's chats, in pieces of ``TOKENS`` tokens."""
    from chitchat_dataset import Dataset

    from chatmemory_django.tokens.encodings import get_encoding

    encoding = get_encoding("o200k_base")
    lines = [line["text"] for chat in Dataset().values() for turn in chat["messages"] for line in turn]
    random.Random(3).shuffle(lines)
    line = iter(lines)
    made: list[str] = []
    while len(made) < TEXTS:
        text = next(line)
        while len(tokens := encoding.encode_ordinary(text)) < TOKENS:
            text = f"{text} {next(line)}"
        text = encoding.decode(tokens[:TOKENS]).replace("\0", "")
        if estimator.estimate_token_count_in_text(text) == TOKENS:  # cut within a character, it would differ
            made.append(text)
    return made


def prepare(server: str) -> None:
    """Create the table that ``load`` copies its messages from."""
    with connections[server].cursor() as cursor:
        cursor.execute(
            "CREATE TABLE bench_texts "
            "(format varchar(30), n integer, type varchar(4), body text, PRIMARY KEY (format, n))"
        )
    add_format(server, "text", lambda text, is_user: text)


def add_format(server: str, name: str, encode: Callable[[str, bool], str]) -> None:
    """Store the messages also in the format of *encode*."""
    rows = [
        (name, n, "USER" if n % 2 == 0 else "AI", encode(text, n % 2 == 0))  # a user begins
        for n, text in enumerate(texts())
    ]
    with transaction.atomic(using=server), connections[server].cursor() as cursor:
        cursor.executemany("INSERT INTO bench_texts (format, n, type, body) VALUES (%s, %s, %s, %s)", rows)


def load(server: str, table: str, columns: dict[str, Any], count: int, format_name: str = "text") -> None:
    """Write *count* messages to *table*. *columns* are names with values or, as ``Sql``, expressions."""
    expressions = [value if isinstance(value, Sql) else "%s" for value in columns.values()]
    values = [value for value in columns.values() if not isinstance(value, Sql)]
    names = ", ".join(columns)
    blocks = -(-count // TEXTS)
    with connections[server].cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({names}) SELECT {', '.join(expressions)} "
            "FROM bench_texts AS block CROSS JOIN bench_texts AS texts "
            "WHERE block.format = %s AND texts.format = %s AND block.n < %s "
            f"AND {PLACE} < %s ORDER BY block.n, texts.n",
            [*values, format_name, format_name, blocks, count],
        )


class Sql(str):
    """An expression, not a value."""

    __slots__ = ()


def load_conversation(server: str, key: str, count: int, bound: Bound) -> None:
    """Create a conversation of *count* messages as our own store would write it, unless it exists."""
    if Conversation.objects.using(server).filter(memory_id=key).exists():
        return
    counts_tokens = bound.unit == "tokens"
    room = (bound.limit - estimator.tokens_per_list) // COST if counts_tokens else bound.limit
    in_memory = min(count, room)
    counter = estimator.name if counts_tokens else ""
    conversation = Conversation.objects.using(server).create(
        memory_id=key,
        next_sequence=count + 1,
        total_messages=count,
        window_start=count - in_memory + 1,
        memory_messages=in_memory,
        memory_tokens=in_memory * COST if counts_tokens else 0,
        counted_by=counter,
    )
    columns = {
        "conversation_id": conversation.pk,
        "sequence": Sql(f"{PLACE} + 1"),
        "type": Sql("texts.type"),
        "text": Sql("texts.body"),
        "token_count": COST if counts_tokens else None,
        "counted_by": counter,
        "superseded": False,
        "in_history": True,
        "on_path": True,
        "is_complete": True,
        "created_at": connections[server].ops.adapt_datetimefield_value(timezone.now()),
    }
    load(server, "chatmemory_message", columns, count)
