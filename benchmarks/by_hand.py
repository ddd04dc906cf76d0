"""The limit: the same tables, read and written with SQL written by hand on the bare driver."""

from __future__ import annotations

import datetime
from typing import Any

from django.db import connections, transaction

from benchmarks.databases import connect
from benchmarks.histories import Bound, estimator, load_conversation
from benchmarks.subjects import Subject
from chatmemory_django.messages import AiMessage, ChatMessage, UserMessage
from chatmemory_django.tokens.encodings import get_encoding

LOCK = (
    "SELECT id, next_sequence, window_start, memory_messages, memory_tokens "
    "FROM chatmemory_conversation WHERE memory_id = %s FOR UPDATE"
)
FRONT = (
    "SELECT sequence, token_count FROM chatmemory_message "
    "WHERE conversation_id = %s AND sequence >= %s AND NOT superseded ORDER BY sequence LIMIT 4"
)
INSERT = (
    "INSERT INTO chatmemory_message (conversation_id, sequence, type, text, token_count, counted_by, superseded, "
    "in_history, on_path, is_complete, created_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
UPDATE = (
    "UPDATE chatmemory_conversation SET version = version + 1, next_sequence = %s, "
    "total_messages = total_messages + 1, "
    "window_start = %s, memory_messages = %s, memory_tokens = %s, counted_by = %s, updated_at = %s WHERE id = %s"
)
# It assumes that nothing is pinned, and that the memory fits the window.
READ = (
    "SELECT m.type, m.text FROM chatmemory_conversation AS c "
    "JOIN chatmemory_message AS m ON m.conversation_id = c.id AND m.sequence >= c.window_start "
    "WHERE c.memory_id = %s AND NOT m.superseded ORDER BY m.sequence"
)


class ByHand(Subject):
    """The hand-written SQL."""

    name = "limit"
    label = "hand-written SQL: the limit"
    largest = 1_000_000

    def __init__(self, server: str, bound: Bound) -> None:
        super().__init__(server, bound)
        self.connect()
        self.encode = get_encoding("o200k_base").encode_ordinary

    def connect(self) -> None:
        self.connection = connect(self.server)
        self.cursor = self.connection.cursor()
        self.begin = "BEGIN IMMEDIATE" if self.server == "sqlite" else "BEGIN"
        self.prepare("?" if self.server == "sqlite" else "%s")

    def prepare(self, placeholder: str) -> None:
        statements = [each.replace("%s", placeholder) for each in (LOCK, FRONT, INSERT, UPDATE, READ)]
        if self.server == "sqlite":
            statements[0] = statements[0].replace(" FOR UPDATE", "")
        self.lock, self.front, self.insert, self.update, self.select = statements

    def load(self, key: str, count: int) -> None:
        load_conversation(self.server, key, count, self.bound)

    def add(self, key: str, text: str, is_user: bool) -> None:
        self.cursor.execute(self.begin)
        self.write(key, text, is_user)
        self.cursor.execute("COMMIT")

    def write(self, key: str, text: str, is_user: bool) -> None:
        execute = self.cursor.execute
        counts_tokens = self.bound.unit == "tokens"
        cost = 4 + len(self.encode(text)) if counts_tokens else 1
        now = self._now()
        execute(self.lock, (key,))
        conversation, sequence, start, messages, tokens = self.cursor.fetchone()
        excess = (tokens + estimator.tokens_per_list if counts_tokens else messages) + cost - self.bound.limit
        while excess > 0:
            execute(self.front, (conversation, start))
            for front, token_count in self.cursor.fetchall():
                start, messages = front + 1, messages - 1
                tokens -= token_count or 0
                excess -= token_count or 1
                if excess <= 0:
                    break
        counter = estimator.name if counts_tokens else ""
        count = cost if counts_tokens else None
        kind = "USER" if is_user else "AI"
        execute(self.insert, (conversation, sequence, kind, text, count, counter, False, True, True, True, now))
        tokens = tokens + cost if counts_tokens else 0
        execute(self.update, (sequence + 1, start, messages + 1, tokens, counter, now, conversation))

    def read(self, key: str) -> list[ChatMessage]:
        self.cursor.execute(self.select, (key,))
        return [UserMessage(text) if kind == "USER" else AiMessage(text) for kind, text in self.cursor.fetchall()]

    def close(self) -> None:
        self.connection.close()

    def _now(self) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        return now if self.server == "postgresql" else str(now.replace(tzinfo=None))


class ByHandOnDjango(ByHand):
    """The same SQL on Django's connection: the part of our time that is Django's."""

    name = "limit_django"
    label = "the same SQL through Django's cursor"

    def connect(self) -> None:
        self.prepare("%s")

    def add(self, key: str, text: str, is_user: bool) -> None:
        using = self.using
        with transaction.atomic(using=using, savepoint=False), connections[using].cursor() as self.cursor:
            self.write(key, text, is_user)

    def read(self, key: str) -> list[ChatMessage]:
        with connections[self.using].cursor() as self.cursor:
            return super().read(key)

    def close(self) -> None:
        connections[self.using].close()
