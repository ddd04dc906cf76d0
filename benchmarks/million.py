"""
How long lists and searches take on a site of a million conversations, beside one of a thousand, on PostgreSQL.

    python -m benchmarks.million [--conversations N] [--write]
    python -m benchmarks.million --operations [--conversations N] [--write]

Each site has 8 messages in a conversation, and ``chatmemory_django.contrib.search``. One person has a fiftieth of the
conversations, one a two-hundredth, one 5, and 4,997 others have the rest. Requests go through Django's test client.
With ``--operations``, there are ten million conversations of 4 messages, without search: how long turns, lists,
checking, pruning and erasing take.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.million_settings")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SMALL = 1_000
ROUNDS = 7
OPERATED = 1_000
"""How many conversations are checked; half as many have a turn, five times as many are pruned or erased."""

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
    parser.add_argument("--conversations", type=int, metavar="N", help="of the large site")
    parser.add_argument("--operations", action="store_true", help="measure operations instead of lists and searches")
    parser.add_argument("--write", action="store_true", help="write the table to this folder's README.md")
    options = parser.parse_args()

    import django

    django.setup()

    from benchmarks.databases import database
    from benchmarks.report import Report, table

    taken: dict[str, list[str]] = {}
    measure, section, digits = (operated, "operations", 2) if options.operations else (measured, "million", 0)
    large = options.conversations or (10_000_000 if options.operations else 1_000_000)
    for number in (SMALL, large):
        with database("postgresql"):
            load(number, messages=4 if options.operations else 8, is_searched=not options.operations)
            for name, milliseconds in measure():
                taken.setdefault(name, []).append(f"{milliseconds:,.{digits}f}")
                print(f"{number:9,} conversations: {name:60} {milliseconds:8.2f} ms", flush=True)
    head = ["milliseconds", f"{SMALL:,}", f"{large:,}"]
    Report(writes=options.write).section(section, table(head, [[name, *each] for name, each in taken.items()]))


def load(number: int, *, messages: int, is_searched: bool) -> None:
    """Store *number* conversations of *messages* each, and build the indexes, that of the search if *is_searched*."""
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
        cursor.execute(_INDEXES)  # to build them at the end is quicker
        indexes = cursor.fetchall()
        for drop, _ in reversed(indexes):
            cursor.execute(drop)
        cursor.execute(_CONVERSATIONS, {"number": number, "texts": len(texts), "messages": messages})
        cursor.execute(_MESSAGES, {"failed": failed, "texts": len(texts), "messages": messages})
        print(f"{number:,} conversations loaded in {time.perf_counter() - begun:,.0f} s", flush=True)
        begun = time.perf_counter()
        for _, create in indexes:
            cursor.execute(create)
        if is_searched:
            call_command("migrate", "chatmemory_search", verbosity=0)
        print(f"indexed in {time.perf_counter() - begun:,.0f} s", flush=True)
        cursor.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")
        print(f"size: {cursor.fetchone()[0]}", flush=True)
    settle("postgresql")


_INDEXES = """
    SELECT CASE WHEN c.oid IS NULL THEN 'DROP INDEX ' || indexrelid::regclass
        ELSE format('ALTER TABLE %%s DROP CONSTRAINT %%I', indrelid::regclass, conname) END,
        CASE WHEN c.oid IS NULL THEN pg_get_indexdef(indexrelid)
        ELSE format('ALTER TABLE %%s ADD CONSTRAINT %%I ', indrelid::regclass, conname) || pg_get_constraintdef(c.oid)
        END
    FROM pg_index LEFT JOIN pg_constraint c ON c.conindid = indexrelid AND c.contype IN ('p', 'u')
    WHERE indrelid = 'chatmemory_message'::regclass
        OR indrelid = 'chatmemory_conversation'::regclass AND NOT indisprimary  -- others refer to its primary key
    ORDER BY indrelid, indexrelid
""".replace("%%", "%")
"""How to drop each index, and how to create it again."""


# In order of creation over two years; the last activity is up to 20 days later, soon after for most.
_CONVERSATIONS = """
    INSERT INTO chatmemory_conversation (
        memory_id, owner_id, title, metadata, is_pinned, is_archived, version, next_sequence, window_start,
        forgotten_through, has_lost_system, total_messages, memory_messages, memory_tokens, counted_by, created_at,
        updated_at
    )
    SELECT md5(n::text)::uuid::text, CASE WHEN n <= 5 THEN 3 WHEN n %% 50 = 0 THEN 1 WHEN n %% 200 = 1 THEN 2
        ELSE 4 + (n::bigint * 7919) %% 4997 END, left(body, 60), '{}', n %% 997 = 0, n %% 11 = 0,
        %(messages)s, %(messages)s + 1, CASE WHEN n %% 21 = 0 THEN 3 ELSE 1 END, 0, false, %(messages)s,
        CASE WHEN n %% 21 = 0 THEN %(messages)s - 2 WHEN n %% 1000 = 3 THEN 0 ELSE %(messages)s END, 400 + n %% 300,
        'bench', created,
        least(now(), created + random() ^ 4 * interval '20 days')
    FROM generate_series(1, %(number)s) AS n
    CROSS JOIN LATERAL (SELECT now() - interval '730 days' * (1 - n / %(number)s::float) AS created) AS moment
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
    CROSS JOIN generate_series(1, %(messages)s) AS sequence
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


def operated() -> Iterator[tuple[str, float]]:
    """Yield what is done, and its milliseconds: the median, or the mean for each conversation."""
    from datetime import timedelta

    from django.contrib.auth.models import User
    from django.test import Client
    from django.utils import timezone

    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.messages import AiMessage, UserMessage
    from chatmemory_django.models import Conversation
    from chatmemory_django.operations import check, erase, prune
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    def each(do: Callable[[], int]) -> float:
        begun = time.perf_counter()
        return 1000 * (time.perf_counter() - begun) / count if (count := do()) else 0.0

    every = Conversation.objects.order_by("pk")
    first, last = (every.values_list("pk", flat=True)[0], every.last().pk)
    spread = range(first, last + 1, max(1, (last - first) // OPERATED))
    times = []
    for name in every.filter(pk__in=spread).values_list("memory_id", flat=True)[: OPERATED // 2]:
        begun = time.perf_counter()
        with MessageWindowChatMemory(max_messages=20, id=name, store=DjangoChatMemoryStore()).turn() as turn:
            turn.add(UserMessage("Where is my parcel?"))
            turn.add(AiMessage(f"With the neighbours, {len(turn.messages)} doors on."))
        times.append(time.perf_counter() - begun)
    yield "a turn", 1000 * statistics.median(times)
    for who, (key, of) in PEOPLE.items():
        client = Client()
        client.force_login(User.objects.get(pk=key))
        yield f"REST's list of {who}", _median(client, f"{API}?{of}")
        if who == "staff":
            yield "the admin's list: first page", _median(client, ADMIN)
    sample = every.filter(pk__lt=first + OPERATED)  # a list of keys would be sent again for each of them
    yield (
        "check_chatmemory, a conversation",
        each(lambda: check(sample, lambda memory_id: None, lambda finding: None) or sample.count()),
    )
    old = every.filter(pk__lte=first + min(OPERATED * 5, (last - first) // 10))
    old.update(updated_at=timezone.now() - timedelta(days=5000))
    yield "prune, an idle conversation", each(lambda: prune(every, idle=timedelta(days=4000)).conversations)
    of_person = every.filter(owner=2, pk__lte=first + 1000 * OPERATED)
    yield "operations.erase, a conversation of one person", each(lambda: len(erase(of_person).messages))
    many = every.filter(pk__lte=first + 100 * OPERATED)
    yield "QuerySet.delete of many, a conversation", each(lambda: many.delete()[1]["chatmemory.Conversation"])


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
