"""Costs other than time: bytes on disk, and what importing the package adds to a process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from django.db import connections
from django.utils import timezone

from benchmarks.databases import settle
from benchmarks.histories import COST, PLACE, Bound, Sql, load, load_conversation, texts
from benchmarks.report import HERE, TIMES, Report, table

if TYPE_CHECKING:
    from benchmarks.questions import Bench

MOMENT = {"postgresql": "timestamptz", "sqlite": "datetime", "mariadb": "datetime(6)"}
LEANEST = (
    "CREATE TABLE bench_leanest (conversation_id bigint NOT NULL, created_at {moment} NOT NULL, "
    "sequence integer NOT NULL, token_count integer NULL, type varchar(21) NOT NULL, text {text} NOT NULL, "
    "PRIMARY KEY (conversation_id, sequence)){ending}"
)

STARTUP = """
import json, pathlib, re, sys, time
start = time.perf_counter()
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", *{apps}],
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
)
django.setup()
{imports}
took = (time.perf_counter() - start) * 1000
status = pathlib.Path("/proc/self/status")
size = re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1] if status.exists() else 0
print(json.dumps([took, int(size) / 1024, "tiktoken" in sys.modules]))
"""
IMPORTS = """
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
"""


def disk(bench: Bench) -> None:
    """Measure the bytes per message, including indexes, and compare with the leanest table of the same information."""
    count = 20_000 if bench.quick else 100_000
    server = bench.server
    ours_before = _bytes(server, "chatmemory_message")  # still empty, as this question comes first
    load_conversation(server, "disk", count, Bound())
    ours = (_bytes(server, "chatmemory_message") - ours_before) / count
    with connections[server].cursor() as cursor:
        text = "longtext" if server == "mariadb" else "text"
        ending = " WITHOUT ROWID" if server == "sqlite" else ""
        cursor.execute(LEANEST.format(moment=MOMENT[server], text=text, ending=ending))
    before = _bytes(server, "bench_leanest")
    columns = {
        "conversation_id": 1,
        "created_at": connections[server].ops.adapt_datetimefield_value(timezone.now()),
        "sequence": Sql(f"{PLACE} + 1"),
        "token_count": COST,
        "type": Sql("texts.type"),
        "text": Sql("texts.body"),
    }
    load(server, "bench_leanest", columns, count)
    leanest = (_bytes(server, "bench_leanest") - before) / count
    plain = statistics.mean(len(text.encode()) for text in texts())
    rows = [
        ["the text alone", f"{plain:,.0f}", ""],
        ["the leanest table", f"{leanest:,.0f}", ""],
        ["**chatmemory_django**", f"{ours:,.0f}", f"**{ours / leanest:.2f} {TIMES}**"],
    ]
    bench.report.section(f"disk-{server}", table([f"of {count:,} messages", "bytes each", ""], rows))


def startup(report: Report, *, quick: bool) -> None:
    """Measure what the package adds to the startup of a process."""
    kinds = {
        "Django": STARTUP.format(apps=[], imports=""),
        "Django and **chatmemory_django**": STARTUP.format(apps=["chatmemory_django"], imports=IMPORTS),
    }
    taken: dict[str, list[list[float]]] = {name: [] for name in kinds}
    for number in range(6 if quick else 21):
        for name, code in kinds.items():
            environment = {"PATH": os.environ["PATH"]}
            command = [sys.executable, "-c", code]
            ran = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, check=True)
            if number:  # the first run warms the disk's cache
                taken[name].append(json.loads(ran.stdout))
    rows = []
    for name, runs in taken.items():
        took, size, _ = (statistics.median(each) for each in zip(*runs, strict=True))
        has_tiktoken = any(run[2] for run in runs)
        rows.append([name, f"{took:.0f} ms", f"{size:.0f} MiB", "yes" if has_tiktoken else "no"])
    difference = statistics.median(b[0] - a[0] for a, b in zip(*taken.values(), strict=True))
    rows.append(["difference", f"**{difference:.0f} ms**", "", ""])
    report.section("startup", table(["import and `django.setup()`", "took", "resident", "tiktoken loaded"], rows))


def _bytes(server: str, name: str) -> int:
    settle(server)
    with connections[server].cursor() as cursor:
        if server == "postgresql":
            cursor.execute("SELECT pg_total_relation_size(%s)", [name])
        elif server == "sqlite":  # nothing else writes
            cursor.execute(
                "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, "
                "pragma_freelist_count, pragma_page_size"
            )
        else:
            cursor.execute(f"ANALYZE TABLE {name}")
            cursor.fetchall()
            cursor.execute(
                "SELECT data_length + index_length FROM information_schema.tables "
                "WHERE table_schema = DATABASE() AND table_name = %s",
                [name],
            )
        return cursor.fetchone()[0]
