"""The leanest implementation: only stores messages and reads the newest, on PostgreSQL.

It has no window, counts nothing and checks nothing. So it is not a limit for the package, but shows what
a turn could cost that does less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.databases import connect, settle
from benchmarks.histories import PLACE, Bound, Sql, load
from benchmarks.measure import interleaved
from benchmarks.questions import turning
from benchmarks.report import TIMES, table
from benchmarks.subjects import Ours, OursAsTurn, OursAsTurnWithBinding, OursWithBinding, Subject
from chatmemory_django.messages import AiMessage, UserMessage

if TYPE_CHECKING:
    from benchmarks.questions import Bench
    from chatmemory_django.messages import ChatMessage

NEWEST = 80
"""The number of messages to read."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS bench_lean_conversation (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, "
    "key varchar(255) NOT NULL UNIQUE, next_sequence integer NOT NULL)",
    "CREATE TABLE IF NOT EXISTS bench_lean_message (conversation_id bigint NOT NULL, sequence integer NOT NULL, "
    "created_at timestamptz NOT NULL DEFAULT now(), type varchar(21) NOT NULL, text text NOT NULL, "
    "PRIMARY KEY (conversation_id, sequence))",
)
ADD = (
    "WITH c AS (UPDATE bench_lean_conversation SET next_sequence = next_sequence + 1 WHERE key = %s "
    "RETURNING id, next_sequence - 1 AS sequence) "
    "INSERT INTO bench_lean_message (conversation_id, sequence, type, text) SELECT id, sequence, %s, %s FROM c"
)
READ = (
    "SELECT type, text FROM bench_lean_message "
    "WHERE conversation_id = (SELECT id FROM bench_lean_conversation WHERE key = %s) "
    f"ORDER BY sequence DESC LIMIT {NEWEST}"
)


class Leanest(Subject):
    """One statement adds and one reads, on the bare driver."""

    name = "leanest"
    label = "the leanest: append, and read the last 80"
    largest = 1_000_000

    def __init__(self, server: str, bound: Bound) -> None:
        super().__init__(server, bound)
        self.connection = connect(server)
        self.cursor = self.connection.cursor()
        for statement in TABLES:
            self.cursor.execute(statement)

    def load(self, key: str, count: int) -> None:
        self.cursor.execute(
            "INSERT INTO bench_lean_conversation (key, next_sequence) VALUES (%s, %s) RETURNING id", (key, count + 1)
        )
        columns = {
            "conversation_id": self.cursor.fetchone()[0],
            "sequence": Sql(f"{PLACE} + 1"),
            "type": Sql("texts.type"),
            "text": Sql("texts.body"),
        }
        load(self.server, "bench_lean_message", columns, count)

    def add(self, key: str, text: str, is_user: bool) -> None:
        self.cursor.execute(ADD, (key, "USER" if is_user else "AI", text))

    def read(self, key: str) -> list[ChatMessage]:
        rows = self.cursor.execute(READ, (key,)).fetchall()
        return [UserMessage(text) if kind == "USER" else AiMessage(text) for kind, text in reversed(rows)]

    def tell(self, statement: str) -> None:
        self.cursor.execute(statement)

    def close(self) -> None:
        self.connection.close()


def leanest(bench: Bench) -> None:
    """Compare a turn with the leanest: with commits that wait for the disk, and with commits that do not."""
    if bench.server != "postgresql":
        return
    sizes = bench.sizes or (100, 100_000)
    kinds = (Leanest, Ours, OursWithBinding, OursAsTurn, OursAsTurnWithBinding)
    subjects = [kind(bench.server, Bound()) for kind in kinds]
    rows: dict[str, list[str]] = {subject.name: [subject.label] for subject in subjects}
    head = ["synchronous_commit, messages in the history"]
    for subject in subjects[:2]:
        bench.load_others(subject)
    for commit in ("on", "off"):
        for subject in subjects:
            subject.tell(f"SET synchronous_commit = {commit}")
        for size in sizes:
            head.append(f"{commit}, {size:,}")
            keys = {subject.name: bench.keys(subject, size, f"leanest-{commit}") for subject in subjects}
            settle(bench.server)
            timings = interleaved({each.name: turning(each, keys[each.name]) for each in subjects}, bench.effort)
            least = timings["leanest"].microseconds
            for name, timing in timings.items():
                ratio = f" · **{timing.microseconds / least:.2f} {TIMES}**" if name != "leanest" else " µs"
                rows[name].append(f"{timing.microseconds:,.0f}{ratio}")
    for subject in subjects:
        subject.close()
    bench.report.section(f"leanest-{bench.server}", table(head, list(rows.values())))
