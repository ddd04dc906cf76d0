"""
How long lists and searches take on a site of a million conversations, beside one of a thousand, on PostgreSQL.

    python -m benchmarks.million [--conversations N] [--write]

Each site has 8 messages in a conversation, and ``chatmemory_django.search``. One person has a fiftieth of the
conversations, one a two-hundredth, one 5, and 4,997 others have the rest. Requests go through Django's test client.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.million_settings")

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = 1_000
ROUNDS = 7
TEXTS = 5_000
"""The number of different texts."""

ADMIN, API = "/admin/chatmemory/conversation/", "/api/conversations/"

LISTS = {
    "first page": "",
    "page 10": "?p=10",
    "last page": "?p={last}",
    "by memory id": "?o=1",
    "by title": "?o=2",
    "by owner": "?o=3",
    "by messages": "?o=-4",
    "the oldest first": "?o=7",
    "of the person with most": "?owner=person-1",
    "active for 7 days": "?active=7",
    "until 300 days ago": "?until={until}",
    "with incomplete turns": "?problem=turn",
    "with failed tools": "?problem=tool",
    "with evictions": "?evictions=yes",
    "empty": "?memory=empty",
    "pinned": "?flag=pinned",
}
"""Of the admin: what, and the query."""

PEOPLE = {
    "staff": (0, "owner=*&"),
    "a person with 5": (3, ""),
    "a person with a 200th of them": (2, ""),
    "a person with a 50th of them": (1, ""),
}
"""Of REST: who, their key, and the query."""

WORDS = {
    "a memory id": "{memory_id}",
    "a common word (a fifth of the messages)": "parcel",
    "a word in 1 %": "invoice",
    "a rare word": "zyxomatic",
    "nothing found": "qxqxqx",
    "a title": "{title}",
}


def main() -> None:
    """Load and measure both sites, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("--conversations", type=int, default=1_000_000, metavar="N", help="of the large site")
    parser.add_argument("--write", action="store_true", help="write the table to this folder's README.md")
    options = parser.parse_args()

    import django

    django.setup()

    from benchmarks.databases import database
    from benchmarks.report import Report, table

    taken: dict[str, list[str]] = {}
    for number in (SMALL, options.conversations):
        with database("postgresql"):
            load(number)
            for name, milliseconds in measured():
                taken.setdefault(name, []).append(f"{milliseconds:,.0f}")
                print(f"{number:9,} conversations: {name:60} {milliseconds:8.1f} ms", flush=True)
    head = ["milliseconds", f"{SMALL:,}", f"{options.conversations:,}"]
    Report(writes=options.write).section("million", table(head, [[name, *each] for name, each in taken.items()]))


def load(number: int) -> None:
    """Store *number* conversations, and build the index."""
    from chitchat_dataset import Dataset
    from django.core.management import call_command
    from django.db import connection

    from benchmarks.databases import settle
    from chatmemory_django.codec import message_to_json
    from chatmemory_django.messages import ToolExecutionResultMessage

    begun = time.perf_counter()
    call_command("migrate", "chatmemory_search", "zero", verbosity=0)
    lines = (line["text"] for chat in Dataset().values() for turn in chat["messages"] for line in turn)
    texts = [text for text in lines if 20 < len(text) < 90 and "\0" not in text][:TEXTS]
    failed = message_to_json(ToolExecutionResultMessage("1", "find", "It is gone.", is_error=True))
    with connection.cursor() as cursor:
        cursor.execute("SET maintenance_work_mem = '1GB'")
        cursor.execute("CREATE TABLE bench_texts (place integer PRIMARY KEY, body text)")
        cursor.executemany("INSERT INTO bench_texts VALUES (%s, %s)", list(enumerate(texts)))
        cursor.execute(
            "INSERT INTO auth_user (id, password, is_superuser, username, first_name, last_name, email, is_staff, "
            "is_active, date_joined) SELECT n, '', n = 0, 'person-' || n, '', '', '', n = 0, true, now() "
            "FROM generate_series(0, 5000) AS n"
        )
        cursor.execute(_CONVERSATIONS, {"number": number, "texts": len(texts)})
        cursor.execute(_MESSAGES, {"failed": failed, "texts": len(texts)})
        print(f"{number:,} conversations loaded in {time.perf_counter() - begun:,.0f} s", flush=True)
        begun = time.perf_counter()
        call_command("migrate", "chatmemory_search", verbosity=0)
        print(f"indexed in {time.perf_counter() - begun:,.0f} s", flush=True)
    settle("postgresql")


# In order of creation over two years; the last activity is up to 20 days later, soon after for most.
_CONVERSATIONS = """
    INSERT INTO chatmemory_conversation (
        memory_id, owner_id, title, metadata, is_pinned, is_archived, version, next_sequence, window_start,
        forgotten_through, has_lost_system, total_messages, memory_messages, memory_tokens, counted_by, created_at,
        updated_at
    )
    SELECT md5(n::text)::uuid::text, CASE WHEN n <= 5 THEN 3 WHEN n %% 50 = 0 THEN 1 WHEN n %% 200 = 1 THEN 2
        ELSE 4 + (n::bigint * 7919) %% 4997 END, left(body, 60), '{}', n %% 997 = 0, n %% 11 = 0, 8, 9,
        CASE WHEN n %% 21 = 0 THEN 3 ELSE 1 END, 0, false, 8,
        CASE WHEN n %% 21 = 0 THEN 6 WHEN n %% 1000 = 3 THEN 0 ELSE 8 END, 400 + n %% 300, 'bench', created,
        least(now(), created + random() ^ 4 * interval '20 days')
    FROM generate_series(1, %(number)s) AS n
    CROSS JOIN LATERAL (SELECT now() - (%(number)s - n) * interval '730 days' / %(number)s AS created) AS moment
    JOIN bench_texts ON place = (n * 31::bigint) %% %(texts)s
    ORDER BY n
"""

_MESSAGES = """
    INSERT INTO chatmemory_message (
        conversation_id, sequence, type, text, payload, token_count, counted_by, superseded, in_history, on_path,
        is_complete, created_at
    )
    SELECT id, sequence,
        CASE WHEN dice %% 1009 = 0 THEN 'TOOL_EXECUTION_RESULT' WHEN sequence %% 2 = 1 THEN 'USER' ELSE 'AI' END,
        body || CASE WHEN dice %% 5 = 0 THEN ' parcel' ELSE '' END
            || CASE WHEN dice %% 100 = 7 THEN ' invoice' ELSE '' END
            || CASE WHEN dice %% 400000 = 11 THEN ' zyxomatic' ELSE '' END,
        CASE WHEN dice %% 1009 = 0 THEN %(failed)s END, 50, 'bench', false, true, true, dice %% 100003 <> 0,
        created_at + sequence * interval '1 minute'
    FROM chatmemory_conversation
    CROSS JOIN generate_series(1, 8) AS sequence
    CROSS JOIN LATERAL (SELECT abs(hashint8(id * 8 + sequence)::bigint) AS dice) AS thrown
    JOIN bench_texts ON place = dice %% %(texts)s
    ORDER BY id, sequence
"""


def measured() -> Iterator[tuple[str, float]]:
    """Yield what is requested, and the median of its milliseconds."""
    from datetime import timedelta

    from django.contrib.auth.models import User
    from django.test import Client
    from django.utils import timezone
    from django.utils.http import urlencode

    from chatmemory_django.admin.changelist import MAX_LISTED
    from chatmemory_django.models import Conversation

    every = Conversation.objects.order_by("pk")
    number = every.count()
    values = {
        "last": min(MAX_LISTED, number) // 50,
        "until": (timezone.now() - timedelta(days=300)).date(),
    } | _names(every[number // 2])
    clients: dict[str, Client] = {}
    for name, (key, _) in PEOPLE.items():
        clients[name] = Client()
        clients[name].force_login(User.objects.get(pk=key))
    for name, query in LISTS.items():
        yield f"the admin's list: {name}", _median(clients["staff"], ADMIN + query.format_map(values))
    for name, word in {**WORDS, "an owner": "person-777"}.items():
        query = urlencode({"q": word.format_map(values)})
        yield f"the admin's search: {name}", _median(clients["staff"], f"{ADMIN}?{query}")
    for who, (_, of) in PEOPLE.items():
        yield f"REST's list of {who}", _median(clients[who], f"{API}?{of}")
    for who, (key, of) in PEOPLE.items():
        own = _names(every.filter(owner=key).last()) if key else values
        for name, word in WORDS.items():
            query = urlencode({"search": word.format_map(own)})
            yield f"REST's search of {who}: {name}", _median(clients[who], f"{API}?{of}{query}")


def _names(conversation: Any) -> dict[str, Any]:
    return {"memory_id": conversation.memory_id, "title": conversation.title}


def _median(client: Any, url: str) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        response = client.get(url)
        times.append(time.perf_counter() - begun)
        if response.status_code != 200:
            raise SystemExit(f"{url}: {response.status_code} {response.content.decode()[:500]}")
    return statistics.median(times[1:]) * 1000  # without the first, which may read from disk


if __name__ == "__main__":
    main()
